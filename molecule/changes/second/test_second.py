# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""After the first change: grown, absent twice, renamed, left out."""

from __future__ import annotations

import json

import pytest
from on_host import output

testinfra_hosts = ["ansible://testbed"]


@pytest.fixture(scope="module")
def audit(host) -> dict:
    """(control, tier) to result, as the operator's own command has it."""
    output(host, "kvtier expire || true")
    found = json.loads(host.run("kvtier audit --json --metrics /var/lib/metrics/llmhost.prom").stdout)
    return {(one["control"], one["tier"]): one for one in found["results"]}


def blocks(host, path: str) -> int:
    return int(output(host, f"find {path} -type f ! -name CACHEDIR.TAG ! -name letter.txt | wc -l"))


def test_nothing_of_others_is_lost(host):
    assert output(host, "sha256sum --check --quiet /root/others") == ""
    assert "# a line of somebody else" in output(host, "cat /etc/fstab")
    assert output(host, "cat /etc/crypttab").startswith("# a line of somebody else\n")


def test_the_volume_grew_with_its_blocks_and_its_key(host):
    assert output(host, "stat -c %s /var/lib/llmhost/chat.img") == str(192 << 20)
    assert int(output(host, "blockdev --getsize64 /dev/mapper/llmhost_chat")) == 192 << 20
    assert int(output(host, "df --output=size -B1M /var/lib/vllm-kv | tail -1")) > 150
    assert blocks(host, "/var/lib/vllm-kv") == 64
    opened = output(host, "readlink /run/systemd/units/invocation:systemd-cryptsetup@llmhost_chat.service")
    assert opened == output(host, "cat /root/opened")
    assert output(host, "dmsetup table --showkeys llmhost_chat | cut -d' ' -f5 | sha256sum") == output(
        host, "cat /root/key"
    )
    assert "sector_size:4096" in output(host, "dmsetup table llmhost_chat").split()


@pytest.mark.parametrize("name", ["code", "plain"])
def test_an_absent_tier_leaves_no_trace(host, audit, name):
    assert audit["KV-01", name]["status"] == "not_applicable", audit["KV-01", name]
    for command in (
        f"dmsetup info llmhost_{name}",
        f"findmnt /srv/{name}",
        f"grep llmhost_{name} /etc/crypttab /etc/fstab /proc/mounts",
        f"grep -w {name} /etc/cron.d/llmhost",
        f"systemctl cat llmhost-tier@{name}.service",
        f"systemctl is-active llmhost-tier@{name}.service",
        f"ls /etc/systemd/system/{name}.service.d",
        f"ls /var/lib/llmhost/{name}.img",
        f"ls /var/lib/llmhost/state/{name}",
        f'grep tier=\\"{name}\\" /var/lib/metrics/llmhost.prom',
        f"losetup --list | grep {name}.img",
    ):
        done = host.run(command)
        assert done.rc != 0, f"{command}: {done.stdout}"


def test_the_volume_took_its_directory_with_it_and_left_a_receipt(host):
    assert host.run("ls -d /srv/code").rc != 0
    receipt = json.loads(output(host, "cat /var/lib/llmhost/receipts/code-*.json"))
    assert receipt["result"] == "destroyed" and receipt["keys_destroyed"][0]["mapping"] == "llmhost_code"
    assert receipt["by"]["says"] == "harden: state absent"


def test_without_a_volume_the_blocks_go_by_name_and_a_letter_stays(host):
    assert output(host, "ls -A /srv/plain") == "letter.txt"
    assert output(host, "getfacl --default --omit-header --absolute-names /srv/plain") == ""


def test_engines_of_absent_tiers_start_without_them(host):
    assert host.run("systemctl start plain && systemctl stop plain").rc == 0


def test_a_renamed_tier_keeps_its_blocks_and_nothing_of_its_old_name(host, audit):
    assert blocks(host, "/srv/notes") == 64
    assert host.service("llmhost-tier@slots").is_running and not host.service("llmhost-tier@notes").is_running
    assert audit["KV-03", "slots"]["status"] == "pass", audit["KV-03", "slots"]
    for command in ("grep -w notes /etc/cron.d/llmhost | grep -v slots", "ls /var/lib/llmhost/state/notes"):
        assert host.run(command).rc != 0
    assert "llmhost-tier@slots.service" in output(host, "systemctl show -P Requires notes.service").split()


def test_a_tier_left_out_goes_on_expiring_and_is_a_finding(host, audit):
    assert audit["KV-01", "gone"]["status"] == "fail"
    assert "put it back into llmhost_tiers" in audit["KV-01", "gone"]["remedy"]
    output(host, "find /srv/gone -type f -name '*.bin' -exec touch -d '-2 hours' {} +")
    done = host.run("kvtier expire gone --full")
    assert done.rc == 0 and "expired 64 blocks" in done.stdout
    assert "kvtier expire gone " in output(host, "cat /etc/cron.d/llmhost")
    assert "LEFT THE MAP" in host.run("kvtier status").stdout


def test_a_shorter_retention_is_obeyed(host):
    # An engine whose version nobody knows keeps its blocks.
    output(host, "systemctl stop chat")
    old = "find /var/lib/vllm-kv -type f -name '*.bin' | head -5 | xargs touch -d '-45 minutes'"
    assert "expired 5 blocks" in output(host, f"{old}; kvtier expire chat --full")
    output(host, "systemctl start chat")


def test_the_engines_that_stayed_are_on_their_volumes(host, audit):
    for name in ("chat", "disk"):
        for control in ("KV-02", "KV-03", "KV-05"):
            assert audit[control, name]["status"] == "pass", audit[control, name]
