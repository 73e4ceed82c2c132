# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""After a purge: no byte of before can be found or decrypted, the tier is in service again, and a receipt says so."""

from __future__ import annotations

import json
import shlex
import time
from pathlib import Path

import pytest
from on_host import output

testinfra_hosts = ["ansible://testbed"]

ROOT = "/var/lib/vllm-kv"
IMAGE = "/var/lib/llmhost/chat.img"
MAPPING = "/dev/mapper/llmhost_chat"
SEARCH = (Path(__file__).parents[2] / "default" / "files" / "search.py").read_text(encoding="utf-8")


def count(host, path: str, contents: list[str]) -> int:
    """How many of these contents are somewhere in the raw bytes of path."""
    return int(output(host, f"python3 -c {shlex.quote(SEARCH)} {path} {' '.join(contents)}"))


@pytest.fixture(scope="module")
def before(host) -> dict:
    return json.loads(output(host, "cat /root/before-purge"))


@pytest.fixture(scope="module")
def receipt(host) -> dict:
    return json.loads(output(host, "cat /root/receipt.json"))


@pytest.fixture(scope="module")
def killed(host) -> dict:
    return json.loads(output(host, "cat /root/killed.json"))


@pytest.fixture(scope="module")
def rekeyed(host) -> dict:
    return json.loads(output(host, "cat /root/rekeyed.json"))


def test_the_volume_has_a_new_key(host, before):
    key = output(host, "dmsetup table --showkeys llmhost_chat").split()[4]
    assert len(key) == 128 and key != before["key"]


def test_no_block_of_before_is_found_raw_or_decrypted(host, before):
    old = list(before["blocks"].values())
    block = f"$(find {ROOT} -ignore_readdir_race -name '*.bin' | tail -n 1)"
    for _try in range(60):
        today = output(
            host, f"{{ head -c 32 {block} </dev/null 2>/dev/null || true; }} | od -A n -v -t x1 | tr -d ' \\n'"
        )
        if len(today) == 64:
            break
        time.sleep(2)
    output(host, "sync && echo 3 >/proc/sys/vm/drop_caches")
    # A block of today shows that the search would find them.
    assert count(host, MAPPING, [today]) == 1
    assert count(host, MAPPING, old) == 0
    assert count(host, IMAGE, [today, *old]) == 0


def test_only_the_key_that_a_thief_took_before_would_still_read_the_old_bytes(host):
    """The old bytes are still on the image, and the search would see them: the end of the key is what ended them."""
    stolen = json.loads(output(host, "cat /root/before-rekey"))
    loop = output(host, f"losetup --find --show --read-only {IMAGE}")
    try:
        fields = stolen["table"].split()
        fields[6] = loop
        table = " ".join(fields)
        output(host, f"echo {shlex.quote(table)} | dmsetup create --readonly thief")
        try:
            assert count(host, "/dev/mapper/thief", list(stolen["blocks"].values())) > 0
        finally:
            output(host, "dmsetup remove --retry thief")
    finally:
        output(host, f"losetup --detach {loop}")
    # Nobody took the keys of the last purge: the kernel has none but today's, and no file has one.
    assert count(host, MAPPING, list(stolen["blocks"].values())) == 0


def test_the_writers_are_in_service_on_the_new_volume(host):
    for unit in ("vllm.service", "vllm-python.service", "kept-writer.service", "plain-writer.service"):
        assert host.service(unit).is_running
    assert output(host, f"stat -c '%U %a' {ROOT}") == "vllm 700"
    assert output(host, f"findmnt -n -o SOURCE --mountpoint {ROOT}") == MAPPING
    assert output(host, f"lsblk --inverse --noheadings --list --output TYPE {MAPPING}").split() == ["crypt", "loop"]


def test_the_receipt_says_who_when_what_and_what_proves_it(host, receipt):
    assert output(host, "stat -c '%U %a' /var/lib/llmhost/receipts") == "root 700"
    assert output(host, "stat -c '%U %a' /var/lib/llmhost/receipts/* | sort -u") == "root 600"
    assert (receipt["tier"], receipt["result"], receipt["messages"]) == ("chat", "destroyed", [])
    assert receipt["by"]["account"] == "root" and "playbook purge" in receipt["by"]["says"]
    assert receipt["begun"] <= receipt["finished"]
    assert [key["mapping"] for key in receipt["keys_destroyed"]] == ["llmhost_chat"]
    assert receipt["proof"]["table_after"].split()[2] == "error"
    assert receipt["proof"]["filesystem_shut_down"] is True
    assert receipt["proof"]["filesystem_before"] not in (None, receipt["proof"]["filesystem_after"])
    assert sorted(receipt["writers"]) == ["vllm-python.service", "vllm.service"]


def test_who_held_the_volume_was_named_by_pid_unit_and_container_and_stopped(host, receipt):
    # The writers open a block for a moment only; they are named as such.
    assert {"reader.service", "pinned.service"} <= {holder["unit"] for holder in receipt["held_by"]}
    assert {"reader.service", "pinned.service"} <= {holder["unit"] for holder in receipt["stopped"]}
    assert all(holder["pid"] > 1 and holder["how"] for holder in receipt["held_by"])
    assert not host.service("pinned").is_running
    for holders in (receipt["held_by"], receipt["stopped"]):
        assert "c0ffee000000" in {holder["container"] for holder in holders}
    assert output(host, "grep -l c0ffee /proc/[0-9]*/cgroup || true") == ""


def test_a_reader_got_errors_before_it_was_stopped(host, receipt):
    said = [line.split(" ", 1)[1] for line in output(host, "cat /root/reader.log").splitlines()]
    assert said[0] == "ok" and "ok" not in said[said.index("Input/output error") :]


def test_a_service_whose_namespace_follows_the_host_s_is_left_alone(host, receipt):
    assert "chrony.service" not in {holder["unit"] for holder in receipt["held_by"] + receipt["stopped"]}
    assert host.service("chrony").is_running


def test_the_key_went_before_anybody_was_stopped(receipt):
    stages = [one["stage"] for one in receipt["stages"]]
    assert stages[0] == "key destroyed" and stages.index("caches dropped") < stages.index("writers stopped")


def test_no_key_is_in_any_receipt_or_log(host, before):
    text = output(host, "cat /var/lib/llmhost/receipts/*; journalctl --no-pager")
    for key in (output(host, "dmsetup table --showkeys llmhost_chat").split()[4], before["key"]):
        assert key not in text
    receipts = output(host, "cat /var/lib/llmhost/receipts/*")
    assert not any(
        len(word) >= 64 and set(word) - {"0"} and set(word) <= set("0123456789abcdef") for word in receipts.split('"')
    )


def test_a_tier_without_a_key_loses_its_blocks_and_only_these(host):
    first, second = (json.loads(output(host, f"cat /root/{name}.json")) for name in ("plain", "plain-again"))
    assert first["method"] == second["method"] == "blocks" and first["proof"] == {"encrypted": False}
    assert first["result"] == "remains" and "1 entries" in first["messages"][0] and first["files_deleted"] > 10
    assert "plain-reader.service" in {holder["unit"] for holder in first["stopped"]}
    assert second["result"] == "destroyed"
    assert output(host, "cat /root/plain-left") == "0"


def test_a_purge_that_was_killed_anywhere_is_finished_by_the_next_one(killed):
    assert [name for name, run in killed.items() if run["rc"] != 0] == [], killed
    assert [name for name, run in killed.items() if run.get("killed") is False] == []
    for name, run in killed.items():
        if "killed" in run:
            assert run["reached"][-1] in name


def test_from_the_first_stage_on_the_table_is_the_error_table_and_nothing_is_suspended(killed):
    for name in ("chat key destroyed", "chat caches dropped", "kept key destroyed"):
        assert killed[name]["table"].split()[2:] == ["error"], name
    for name in ("chat key destroyed", "chat caches dropped"):
        assert killed[name]["state"] == "Active" and killed[name]["raw"] != 0


def test_once_caches_are_dropped_a_process_with_a_block_open_reads_nothing(killed):
    assert killed["chat caches dropped"]["read"] == ["Input/output error"]


def test_cron_renews_the_key_at_its_minute_and_the_engine_is_back(host, rekeyed):
    before = json.loads(output(host, "cat /root/before-rekey"))
    assert rekeyed["receipt"]["result"] == "destroyed" and rekeyed["receipt"]["by"]["account"] == "root"
    assert output(host, "dmsetup table --showkeys llmhost_chat").split()[4] != before["key"]
    assert count(host, MAPPING, list(before["blocks"].values())) == 0
    assert 0 < rekeyed["engine_started"] <= rekeyed["first_block"] < 300
