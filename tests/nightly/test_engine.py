# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The whole vLLM 0.29 or 0.32 on the CPU with rendered settings on an encrypted and closed tier (engine_server.py).

One server for all tests, in their order: it has to survive each of them.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time

import engine_server
import pytest
from engine_server import BLOCK, PAGE, PLACE, TIER, UID, VERSION, run

from ansible_collections.llmhost.hardening.plugins.module_utils.kv import (
    access,
    blocknames,
    discovery,
    encryption,
    evidence_engine,
    fsio,
    judge_engine,
    prefixprobe,
    preflight,
    walk,
)
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.stores import STORES


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    if os.geteuid():
        pytest.fail("root is needed: the engine runs as another account and on a mount of its own")
    try:
        engine = engine_server.installed()
    except RuntimeError as error:
        pytest.fail(str(error), pytrace=False)
    with engine_server.running(engine, tmp_path_factory.mktemp("engine") / "log", encrypted=True) as this:
        yield this


def test_blocks_are_written_closed_and_as_the_account(server):
    server.complete(server.tokens())
    server.crowd_out()
    server.wait_for(server.blocks)
    for path in TIER.rglob("*"):
        info = path.lstat()
        assert (info.st_uid, stat.S_IMODE(info.st_mode)) == (UID, 0o700 if path.is_dir() else 0o600), path
    assert all(block.stat().st_size == PAGE for block in server.blocks())
    with fsio.opened(str(TIER)) as fd:
        survey = walk.survey(fd, STORES["vllm_fs"], UID, time.time(), walk.Policy(3600, 600, 600))
    assert (survey.strangers, survey.loose, survey.foreign_owner) == (0, 0, 0) and survey.blocks


def test_the_tier_is_encrypted_as_the_audit_sees_it_and_no_block_is_on_the_disk_in_clear(server):
    storage = encryption.describe(str(TIER))
    assert (storage.encrypted, storage.local, storage.cipher) == (True, True, "AES-256-XTS"), storage
    assert storage.by == f"fscrypt {TIER}" and storage.mountpoint == str(TIER)
    assert preflight._judge_existing(server.document["tiers"][0], storage, "gpu1") == []
    assert access.shortcomings(server.document["tiers"][0]) == []
    os.sync()
    disk = (PLACE / "disk.img").read_bytes()
    parts = {block.read_bytes()[PAGE // 2 : PAGE // 2 + 64] for block in server.blocks()}
    assert len(parts) > 1 and not any(part in disk for part in parts)


def test_blocks_are_read_back_and_the_answer_is_the_same(server):
    prompt = server.tokens()
    first = server.complete(prompt)
    server.crowd_out()
    names = blocknames.names(prompt, BLOCK, VERSION)
    server.wait_for(lambda: all(prefixprobe.in_directory(names, str(TIER))))
    hits = server.counter("vllm:external_prefix_cache_hits_total")
    reads = server.counter("vllm:kv_offload_tiering_read_bytes_total")
    assert server.complete(prompt) == first
    assert server.counter("vllm:external_prefix_cache_hits_total") > hits
    assert server.counter("vllm:kv_offload_tiering_read_bytes_total") > reads


def test_a_salt_hides_the_prompt_and_the_probe_finds_it_with_the_salt_only(server):
    prompt = server.tokens()
    server.complete(prompt, salt="tenant secret")
    server.crowd_out()
    salted = blocknames.names(prompt, BLOCK, VERSION, salt="tenant secret")
    server.wait_for(lambda: all(prefixprobe.in_directory(salted, str(TIER))))
    assert not any(prefixprobe.in_directory(blocknames.names(prompt, BLOCK, VERSION), str(TIER)))


def test_the_engine_s_own_tokenizer_serves_the_probe(server):
    url = f"http://127.0.0.1:{server.port}/tokenize"
    tokens = prefixprobe.tokenize(url, "hello", "tiny")
    assert len(tokens) == 5


def test_the_audit_sees_the_settings_and_the_memory_tier(server):
    me = next(one for one in discovery.processes() if one.pid == server.process.pid)
    version, source = discovery.version_of(me, discovery.ENGINES["vllm"])
    assert version == VERSION
    (one,) = evidence_engine.running([me], [discovery.Found(me.pid, "vllm.service", version, source)])
    assert one.python == "3.11"
    judged = judge_engine.settings_safe(server.document["tiers"][0], server.document["tiers"], [one], [])
    (found,) = judged.evidence["engines"]
    # torch's wheel for CPUs is for Python 3.11 alone: the one thing that is wrong with this engine, and it is told.
    assert (judged.status, {finding["code"] for finding in found["findings"]}) == ("fail", {"old-python"})
    everyone = [process for process in discovery.processes() if process.uid == UID]
    memory = [piece for part in evidence_engine.running(everyone, []) for piece in part.memory]
    assert memory and all(piece["mode"] == "0600" for piece in memory)


def test_expiry_under_the_running_engine_is_a_miss_and_nothing_more(server):
    prompt = server.tokens()
    first = server.complete(prompt)
    server.crowd_out()
    names = blocknames.names(prompt, BLOCK, VERSION)
    server.wait_for(lambda: all(prefixprobe.in_directory(names, str(TIER))))
    with fsio.opened(str(TIER)) as fd:
        policy = walk.Policy(0, 0, 0)
        walk.Walk(fd, STORES["vllm_fs"], UID, time.time() + 1, policy, delete=True).run()
    assert not any(prefixprobe.in_directory(names, str(TIER)))
    assert server.complete(prompt) == first
    server.crowd_out()
    server.wait_for(lambda: all(prefixprobe.in_directory(names, str(TIER))))


def test_a_full_disk_costs_no_request(server):
    filler = TIER / "filler"
    with contextlib.suppress(OSError), filler.open("wb") as file:
        while True:
            file.write(b"\0" * (1 << 16))
            file.flush()
    prompt = server.tokens()
    first = server.complete(prompt)
    server.crowd_out()
    assert server.complete(prompt) == first
    assert "ENOSPC" in server.log.read_text() or "No space left" in server.log.read_text()
    assert not list(TIER.rglob("*.tmp")) and all(block.stat().st_size == PAGE for block in server.blocks())
    filler.unlink()
    names = blocknames.names(prompt, BLOCK, VERSION)
    server.complete(prompt)
    server.crowd_out()
    server.complete(prompt)
    server.crowd_out()
    server.wait_for(lambda: any(prefixprobe.in_directory(names, str(TIER))))


def test_a_read_only_remount_costs_no_request(server):
    run("mount", "-o", "remount,ro", TIER)
    try:
        prompt = server.tokens()
        first = server.complete(prompt)
        server.crowd_out()
        assert server.complete(prompt) == first
    finally:
        run("mount", "-o", "remount,rw", TIER)
    server.crowd_out()
    assert server.process.poll() is None
