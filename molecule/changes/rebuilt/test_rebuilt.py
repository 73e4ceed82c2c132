# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A host with a fresh root and its old data disk."""

from __future__ import annotations

from on_host import output

testinfra_hosts = ["ansible://testbed"]


def test_the_old_disk_is_known_and_empty_under_a_new_key(host):
    assert output(host, "findmnt -n -o SOURCE --mountpoint /srv/disk") == "/dev/mapper/llmhost_disk"
    assert output(host, "find /srv/disk -name '*.bin' | wc -l") == "0"
    assert output(host, "dd if=/dev/mapper/llmhost_disk bs=1M status=none | grep -c KV-OF-A-PROMPT || true") == "0"


def test_every_tier_is_there_again(host):
    for name in ("chat", "code", "slots", "gone", "disk"):
        assert host.service(f"llmhost-tier@{name}").is_running
    assert output(host, "stat -c '%U %a' /var/lib/vllm-kv") == "vllm 700"


def test_nothing_of_others_is_lost(host):
    assert output(host, "sha256sum --check --quiet /root/others") == ""
