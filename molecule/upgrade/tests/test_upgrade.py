# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""An upgrade changes the program and nothing that holds data."""

from __future__ import annotations

import json
import pathlib
import time

import pytest

testinfra_hosts = ["ansible://testbed"]
LOOK = pathlib.Path(__file__).resolve().parents[1] / "files/look.py"


@pytest.fixture(scope="module")
def before(host) -> dict:
    return json.loads(host.file("/root/before.json").content_string)


@pytest.fixture(scope="module")
def after(host) -> dict:
    done = host.run("python3 - /root/after.json <<'END'\n" + LOOK.read_text() + "\nEND")
    assert done.rc == 0, done.stderr
    return json.loads(host.file("/root/after.json").content_string)


@pytest.mark.parametrize("what", ["opened", "key", "uuid"])
def test_the_volume_stayed_open_under_its_key(before, after, what):
    assert after[what] == before[what]


def test_blocks_of_before_are_there_as_they_were(host, before):
    there = [path for path in before["blocks"] if host.file(path).exists]
    assert len(there) >= len(before["blocks"]) // 2, "more than half of the newest blocks are gone"
    for path in there:
        assert host.file(path).content[:32].hex() == before["blocks"][path]


def test_no_tier_was_forgotten(before, after):
    assert after["tiers"] == before["tiers"] == ["chat", "plain"]


def test_the_program_is_the_new_one_and_reads_the_map(host, before, after):
    assert after["kvtier"] != before["kvtier"]
    done = host.run("/usr/local/sbin/kvtier status")
    assert done.rc in (0, 1), done.stderr
    assert "chat" in done.stdout and "plain" in done.stdout


def test_lines_of_older_audits_stay(before, after):
    assert after["history"][: len(before["history"])] == before["history"]


def test_expiry_goes_on_with_the_new_program(host):
    for _attempt in range(60):
        done = host.run("/usr/local/sbin/kvtier expire chat --json")
        if done.rc != 4:  # cron's own run is at it
            break
        time.sleep(1)
    assert done.rc == 0, done.stdout + done.stderr
    assert [run["tier"] for run in json.loads(done.stdout)] == ["chat"]
