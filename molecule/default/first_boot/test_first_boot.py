# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What shows only while the host that was hardened goes on."""

from __future__ import annotations

import json
import re
import time
from posixpath import dirname

from on_host import output

testinfra_hosts = ["ansible://testbed"]

ROOT = "/var/lib/vllm-kv"


def blocks(host, condition: str) -> set[str]:
    return set(output(host, f"find {ROOT} -ignore_readdir_race -type f -name '*.bin' {condition}").splitlines())


def test_a_second_run_leaves_the_volume_open(host):
    """Restarting its systemd-cryptsetup unit would destroy the key and the cache."""
    opened = output(host, "cat /root/opened")
    assert opened
    assert output(host, "systemctl show -P InvocationID systemd-cryptsetup@llmhost_chat.service") == opened


def test_cron_removes_blocks_past_the_retention_and_no_younger_ones(host):
    began = output(host, "date +%s")
    old = sorted(blocks(host, "-mmin +0"))[:20]
    assert len(old) == 20
    # touch changes no directory of theirs, and a steady pass reads only those that changed: so they are touched too.
    output(host, f"touch -d '-15 minutes' {' '.join(old)} && touch {' '.join({dirname(block) for block in old})}")
    young = blocks(host, "-mmin -5") - set(old)
    assert young
    end = time.monotonic() + 180
    while left := blocks(host, "-mmin +12"):
        assert time.monotonic() < end, f"still there: {sorted(left)}"
        time.sleep(5)
    # The writer may have wanted one of them meanwhile: then it was computed again and is young.
    assert not set(old) & blocks(host, "-mmin +5")
    assert young <= blocks(host, "")
    log = output(host, f"journalctl --no-pager -t kvtier --since @{began}")
    assert sum(int(number) for number in re.findall(r"expire chat: exit 0, expired (\d+) blocks", log)) >= 20
    commands = output(host, f"journalctl --no-pager -t CRON --since @{began}")
    assert "(vllm) CMD (/usr/local/sbin/kvtier expire chat" in commands


def declared(host) -> dict[str, str]:
    """KV-01 of each tier, of the host (-) and of each place that is in no tier."""
    audit = json.loads(host.run("/usr/local/sbin/kvtier audit --json").stdout)
    return {one["tier"]: one["status"] for one in audit["results"] if one["control"] == "KV-01"}


def test_a_store_that_no_tier_declares_is_found(host):
    assert declared(host) == {"chat": "pass", "-": "pass"}
    output(host, f"mkdir /tmp/hicache && touch /tmp/hicache/{'a' * 64}_Qwen_0_1.bin")
    found = declared(host)
    output(host, "rm -r /tmp/hicache")
    assert found == {"chat": "pass", "-": "pass", "undeclared:/tmp/hicache": "fail"}
