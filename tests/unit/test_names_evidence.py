# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What KV-10 is told about canaries and servers, and what the audit says of the engine's files in memory."""

from __future__ import annotations

import json
import mmap
import os

import pytest

from ansible_collections.llmhost.hardening.plugins.module_utils.kv import (
    blocknames,
    controls,
    datamap,
    discovery,
    evidence_names,
    fsio,
    memory,
)
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.evidence_engine import Running

VERSION, TOKENS, SALT = "0.33.0", list(range(100, 132)), "tenant-secret"


@pytest.fixture
def host(tmp_path, monkeypatch):
    """A tier with the blocks of one canary, whose salt and names root alone may read (here: the test's account)."""
    real = fsio.read_small
    monkeypatch.setattr(
        fsio, "read_small", lambda name, dir_fd=None, owner=None, limit=1: real(name, None, None, limit)
    )
    root = tmp_path / "kv"
    root.mkdir()
    (raw,) = datamap.normalise(
        [{"name": "chat", "store": "vllm_fs", "path": "/srv/kv", "owner": "vllm", "services": ["vllm.service"]}], "gpu1"
    )["tiers"]
    secret = tmp_path / "salt"
    secret.write_text(SALT + "\n")
    secret.chmod(0o600)
    file = tmp_path / "canaries.json"

    class Host:
        tier = dict(raw, path=str(root))
        salt_file = secret
        words = ("/opt/bin/vllm", "serve", "m", "--host", "127.0.0.1")

        def store(self, salt):
            for name in blocknames.names(TOKENS, 16, VERSION, salt=salt):
                path = root / "m_0123456789ab_r0" / name[:3] / (name[3:5] + "_g0") / (name + ".bin")
                path.parent.mkdir(parents=True)
                path.write_bytes(b"x")

        def look(self, processes=(), **more):
            entry = {"tier": "chat", "token_ids": TOKENS, "salt_file": str(secret), **more}
            file.write_text(json.dumps({"canaries": [entry, {"tier": "other", "token_ids": [1]}]}))
            running = [Running(os.getpid(), "vllm.service", self.words, None, VERSION)]
            return evidence_names.look(self.tier, running, list(processes), path=str(file))

    return Host()


def test_a_canary_is_found_by_its_salted_names_and_by_its_plain_ones(host):
    host.store(SALT)
    (one,) = host.look().canaries
    assert (one.number, one.blocks, one.unsalted, one.salted, one.problem) == (1, 2, 0, 2, None)
    host.store(None)
    assert host.look().canaries[0].unsalted == 2


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"token_ids": [1, 2]}, "do not fill one block"),
        ({"token_ids": ["a"]}, "whole numbers"),
        ({"tokens": [1]}, "unknown key tokens"),
        ({"version": "0.99.0"}, "0.99.0"),
        ({"version": "0.27.1"}, "random first parent"),
        ({"salt_file": "/nonexistent"}, "No such file"),
        ({"block_size": "16"}, "'<' not supported"),
    ],
)
def test_a_canary_that_cannot_be_looked_for_says_why(host, more, words):
    (one,) = host.look(**more).canaries
    assert words in (one.problem or ""), one.problem


def test_a_salt_that_others_can_read_is_no_evidence(host):
    host.salt_file.chmod(0o644)
    assert "not root's alone" in host.look().canaries[0].problem


def test_the_gateway_is_seen_by_its_unit_and_servers_by_where_they_listen(host):
    def process(unit, *words):
        return discovery.Process(1, 0, "nginx", words, unit, 1, None, None, None)

    assert host.look().gateway is False
    assert host.look([process("llmhost-gateway.service", "nginx: master process /usr/sbin/nginx")]).gateway
    assert not host.look([process("user@1.service", "nginx: master", "-c", "/etc/llmhost/gateway/nginx.conf")]).gateway
    assert (host.look().servers[0].local, host.look().servers[0].own_network) == (True, False)
    for words, local in (
        (("--host=0.0.0.0",), False), ((), False), (("--uds", "/run/x"), True), (("--host", "::1"), True),
    ):  # fmt: skip
        host.words = ("/opt/bin/vllm", "serve", "m", *words)
        assert host.look().servers[0].local is local, words


def test_no_salt_stands_in_the_evidence(host):
    host.store(SALT)
    assert SALT not in repr(host.look())


@pytest.mark.parametrize(
    ("config", "local"),
    [
        ("# ours\n" + json.dumps({"host": "127.0.0.1"}, indent=2), True),
        (json.dumps({"kv-events-config": {"host": "127.0.0.1"}}, indent=2), False),
        ("host: 127.0.0.1\n", True),
        ("events:\n  host: 127.0.0.1\n", False),
        ("host: 0.0.0.0\n", False),
        ("[]", False),
    ],
)
def test_only_the_server_s_own_host_in_its_settings_file_counts(config, local):
    one = Running(os.getpid(), "vllm.service", ("/opt/bin/vllm", "serve", "m"), config, VERSION)
    assert evidence_names._server(one, "/proc").local is local


# Memory


def document(**changes):
    fs = {"name": "chat", "store": "vllm_fs", "path": "/srv/kv", "owner": os.getuid() or 990,
          "services": ["vllm.service", "b.service"]}  # fmt: skip
    peer = {"name": "peer", "store": "vllm_p2p", "services": ["vllm.service"]}
    slots = {"name": "slots", "store": "llamacpp_slots", "path": "/srv/s", "owner": "llama", "services": ["l.service"]}
    return datamap.normalise([dict(fs, **changes), peer, slots], "gpu1")


def test_the_map_has_the_memory_tier_of_each_service_and_reads_it_back():
    found = document()
    path = "/dev/shm/vllm_offload_*"
    assert found["memory"] == [
        {"service": "b.service", "path": path, "tiers": ["chat"]},
        {"service": "vllm.service", "path": path, "tiers": ["chat", "peer"]},
    ]
    assert datamap.validate(json.loads(json.dumps(found))) == found
    without = {key: value for key, value in found.items() if key != "memory"}
    assert datamap.validate(without) == found
    with pytest.raises(datamap.MapError):
        datamap.validate(dict(found, memory=[]))
    assert [one["tiers"] for one in document(state="planned")["memory"]] == [["peer"]]


def test_the_audit_lists_memory_and_peers_though_they_have_no_directory(tmp_path):
    results = controls.audit(document(state="planned"), map_path=str(tmp_path / "none"))["results"]
    seen = {(one["tier"], one["control"]): one["status"] for one in results}
    assert seen["shm:vllm.service", "KV-04"] in ("not_applicable", "unknown")
    assert ("shm:vllm.service", "KV-08") in seen
    assert ("peer", "KV-13") in seen


def piece(tmp_path, mode, pid=None):
    path = f"/dev/shm/vllm_offload_test_{os.getpid()}.mmap"
    fd = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    os.ftruncate(fd, 4096)
    os.fchmod(fd, mode)
    return path, fd


def test_a_file_in_memory_that_others_can_read_fails_and_one_that_nobody_maps_is_left(tmp_path):
    entry = {"service": "vllm.service", "path": "/dev/shm/vllm_offload_test_*", "tiers": ["chat"]}
    me = discovery.Process(os.getpid(), os.getuid(), "x", (), "vllm.service", 1, None, None, None)
    path, fd = piece(tmp_path, 0o644)
    try:
        mapped = mmap.mmap(fd, 4096)
        found = memory.audit(entry, [me], True, [os.getuid()])
        assert (found["KV-04"].status, found["KV-08"].status) == ("fail", "pass")
        os.fchmod(fd, 0o600)
        assert memory.audit(entry, [me], True, [])["KV-04"].status == "pass"
        mapped.close()
        found = memory.audit(entry, [me], True, [os.getuid()])
        assert (found["KV-04"].status, found["KV-08"].status) == ("not_applicable", "fail")
        assert path in found["KV-08"].message
        assert memory.audit(entry, [me], True, [os.getuid() + 1])["KV-08"].status == "pass"
        assert memory.audit(entry, [me], False, [])["KV-08"].status == "unknown"
        assert {one.status for one in memory.audit(entry, None, True, []).values()} == {"unknown"}
    finally:
        os.close(fd)
        os.unlink(path)
