# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a reboot must change: the key, and with it every block of the time before."""

from __future__ import annotations

import hashlib
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
SEARCH = (Path(__file__).parents[1] / "files" / "search.py").read_text(encoding="utf-8")


def count(host, path: str, contents: list[str]) -> int:
    """How many of these contents are somewhere in the raw bytes of path."""
    return int(output(host, f"python3 -c {shlex.quote(SEARCH)} {path} {' '.join(contents)}"))


def beginning_of_a_block(host) -> str:
    """Its first 32 bytes in hex. The writer may not have got to one yet, and a block may expire before it is read."""
    look = f"block=$(find {ROOT} -ignore_readdir_race -type f -name '*.bin' | tail -n 1); head -c 32 $block </dev/null"
    for _try in range(60):
        beginning = output(host, f"{{ {look} 2>/dev/null || true; }} | od -A n -v -t x1 | tr -d ' \\n'")
        if len(beginning) == 64:
            return beginning
        time.sleep(2)
    raise AssertionError("no block in two minutes")


@pytest.fixture(scope="module")
def before(host) -> dict:
    return json.loads(output(host, "cat /root/before-reboot"))


def test_the_host_did_boot(host, before):
    assert output(host, "cat /proc/sys/kernel/random/boot_id") != before["boot"]


def test_the_volume_has_a_new_key(host, before):
    key = output(host, "dmsetup table --showkeys llmhost_chat").split()[4]
    assert len(key) == 128
    assert hashlib.sha256(key.encode()).hexdigest() != before["key"]


def test_blocks_of_the_time_before_are_gone_for_good(host, before):
    old = list(before["blocks"].values())
    # A block of today shows that the search would find them, and that the image holds no clear text at all.
    today = beginning_of_a_block(host)
    output(host, "sync && echo 3 >/proc/sys/vm/drop_caches")
    assert count(host, MAPPING, [today]) == 1
    assert count(host, MAPPING, old) == 0
    assert count(host, IMAGE, [today, *old]) == 0
