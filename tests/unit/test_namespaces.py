# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Namespaces that no running configuration can read: only those that certainly are, and only on request."""

from __future__ import annotations

import json
import os
import time

import pytest
from fixtures import NAMESPACE, NOBODY, Tree, leaf_of, make_state, public_directory, remember_in, tier_for
from fixtures import digest as block_name

from ansible_collections.llmhost.hardening.plugins.module_utils.kv import (
    cli,
    clock,
    datamap,
    discovery,
    expiry,
    namespaces,
    state,
    walk,
)
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.stores import STORES

OLD = "Qwen_Qwen2-7B_00000000dead"
TICKS = os.sysconf("SC_CLK_TCK")
both = pytest.mark.parametrize("guarded", [True, False], ids=["guarded", "guard removed"])


class Host:
    """A tier with one namespace in use and one of before, and an engine that started an hour ago."""

    def __init__(self, root, monkeypatch, owner=0):
        self.tree, self.monkeypatch = Tree(root / "kv"), monkeypatch
        self.tier = tier_for(self.tree.root, owner=owner)
        self.state_root = str(root / "state")
        make_state(root / "state", self.tier)
        self.engines, self.processes = [], []
        monkeypatch.setattr(discovery, "engines", lambda *_: self.engines)
        monkeypatch.setattr(discovery, "processes", lambda *_: self.processes)
        monkeypatch.setattr(clock, "synchronised", lambda: True)
        self.live = self.namespace(NAMESPACE, 3500, [60, 7200])
        self.dead = self.namespace(OLD, 90000, [80000, 9000])
        self.engine(11, 3600)

    def engine(self, pid, age, unit="vllm.service", version="0.29.0"):
        self.engines.append(discovery.Found(pid, unit, version, "/x"))
        started = int((time.clock_gettime(time.CLOCK_BOOTTIME) - age) * TICKS)
        self.processes.append(discovery.Process(pid, 0, "python3", ("python3",), unit, started, 0, "0", 0))

    def namespace(self, name, marked, ages):
        """marked: seconds since an engine started on it; ages of its blocks. The files that it has."""
        made = [self.tree.put(f"{name}/config.json", 100000, data=b"{}")]
        for number, age in enumerate(ages):
            block = block_name(number)
            made.append(self.tree.put(f"{name}_r0/{leaf_of(block)}/{block}.bin", age, 16))
        for directory, _names, _files in os.walk(self.tree.root, topdown=False):
            path = os.path.relpath(directory, self.tree.root)
            if path.partition("/")[0].removesuffix("_r0") == name:
                self.tree.age(path, marked)
        return set(made)

    def judge(self, **options):
        fd = os.open(self.tree.root, os.O_RDONLY)
        try:
            return namespaces.judge(self.tier, fd, self.engines, self.processes, clock.synchronised(), **options)
        finally:
            os.close(fd)

    def dead_names(self):
        judged = self.judge()
        assert judged.unknown is None, judged.unknown
        return [one.name for one in judged.dead]

    def delete_dead(self, **options):
        return namespaces.delete_dead(self.tier, state_root=self.state_root, **options)


@pytest.fixture
def host(tmp_path, monkeypatch):
    return Host(tmp_path, monkeypatch)


# -- which are dead


def test_what_was_not_opened_since_the_engine_started_is_dead(host):
    (one,) = host.judge().dead
    assert (one.name, one.blocks, one.size) == (OLD, 2, 32)


def test_a_store_without_namespaces_says_so(host):
    host.tier["store"] = "llamacpp_slots"
    assert "nothing in llamacpp_slots says" in host.judge().unknown
    assert [name for name, one in STORES.items() if one.namespaces] == ["vllm_fs"]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda host: host.engines.clear(), "no engine of the tier is running"),
        (lambda host: host.engine(12, 60, "b.service", None), "version of the engine in pid 12 is unknown"),
        (lambda host: host.engine(12, 60, "b.service", "0.27.0"), "0.27.0 leaves no mark at its start"),
        (lambda host: host.processes.clear(), "an engine ended meanwhile"),
        (lambda host: host.engine(12, 60, "b.service"), "b.service has not opened its namespace since it started"),
        (lambda host: host.engine(12, 3600, "b.service"), "2 engines run and only 1 namespaces are marked"),
        (lambda host: host.monkeypatch.setattr(clock, "synchronised", lambda: False), "clock is not synchronised"),
        (lambda host: host.monkeypatch.setattr(clock, "synchronised", lambda: None), "clock is not synchronised"),
        (lambda host: host.tree.age(NAMESPACE, 4000), "vllm.service has not opened its namespace"),
    ],
)
def test_what_is_not_certain_is_not_dead(host, change, why):
    change(host)
    judged = host.judge()
    assert judged.dead == [] and why in judged.unknown
    assert judged.evidence() == f"cannot tell: {judged.unknown}"
    before = host.tree.files()
    result = host.delete_dead()
    assert result["exit"] == expiry.REFUSED and host.tree.files() == before


def stray(cmdline, uid=0, unit="other.service"):
    return discovery.Process(99, uid, "python3", cmdline, unit, 1, 0, "0", 0)


@both
def test_another_engine_of_the_account_may_use_what_looks_dead(host, monkeypatch, guarded):
    """It may have been told of the tier in a file: neither its unit nor its command line names it."""
    host.processes.append(stray(("/opt/v/bin/vllm", "serve", "--config", "/etc/x.yaml")))
    if not guarded:
        monkeypatch.setattr(namespaces, "_stray", lambda *_: None)
    judged = host.judge()
    assert bool(judged.dead) != guarded
    assert not guarded or "pid 99 may be another engine of 0" in judged.unknown


def test_what_is_not_another_engine_of_the_account_is_not_in_the_way(host):
    host.processes += [
        stray(("/opt/v/bin/vllm", "serve"), uid=NOBODY),
        stray(("sh", "-c", "/usr/local/sbin/kvtier expire vllm --dead-namespaces")),
        stray(("/usr/sbin/sshd",)),
    ]
    assert host.dead_names() == [OLD]


def test_two_engines_on_two_namespaces_keep_both(host):
    host.namespace("other_0123456789ff", 100, [])
    host.engine(12, 110, "b.service")
    assert host.dead_names() == [OLD]


def test_the_first_process_of_a_unit_is_when_it_started(host):
    host.namespace("early_0123456789ff", 3590, [])
    host.engines[:] = [discovery.Found(13, "vllm.service", "0.29.0", "/x")]
    host.engine(13, 3000)
    host.engines[:] = host.engines[:1]
    assert host.dead_names() == [OLD], "the core process is younger than the mark of its server's start"


@both
@pytest.mark.parametrize("sign", ["block", "temporary", "leaf"])
def test_a_sign_of_life_is_enough(host, monkeypatch, sign, guarded):
    """Whatever wrote there since, the namespace is not certainly dead."""
    block = block_name(7)
    path = {
        "block": f"{OLD}_r0/{leaf_of(block)}/{block}.bin",
        "temporary": f"{OLD}_r0/{leaf_of(block)}/{block}.bin_7.tmp",
        "leaf": f"{OLD}_r1/abc",
    }[sign]
    if sign == "leaf":
        host.tree.directory(path)
    else:
        host.tree.put(path, 100)
        for part in (path.rpartition("/")[0], f"{OLD}_r0/{block[:3]}", f"{OLD}_r0"):
            host.tree.age(part, 90000)
    if not guarded:
        monkeypatch.setattr(namespaces, "SLACK", -(10**9))
    assert (OLD in host.dead_names()) == (not guarded)


def test_blocks_without_a_home_are_not_dead(host):
    host.tree.path(f"{OLD}/config.json").unlink()
    host.tree.path(OLD).rmdir()
    assert host.dead_names() == []


def test_what_cannot_be_read_to_its_end_is_not_dead(host, monkeypatch):
    real = os.scandir

    def failing(fd):
        if isinstance(fd, int) and f"{OLD}_r0/" in os.readlink(f"/proc/self/fd/{fd}"):
            raise OSError(5, "broken")
        return real(fd)

    monkeypatch.setattr(walk.os, "scandir", failing)
    assert "cannot be read to its end" in host.judge().unknown


def test_a_stranger_or_a_symlink_is_no_namespace(host):
    host.tree.directory("notes", 90000)
    host.tree.path("link_0123456789aa").symlink_to(host.tree.path(NAMESPACE))
    host.tree.put("file_0123456789aa", 90000)
    assert host.dead_names() == [OLD]


# -- their end


def test_the_dead_go_whole_and_nothing_else(host):
    before = host.tree.files()
    result = host.delete_dead()
    assert (result["exit"], result["removed"], result["blocks"], result["bytes"]) == (expiry.OK, [OLD], 2, 32)
    assert host.tree.files() == before - host.dead
    assert sorted(os.listdir(host.tree.root)) == [NAMESPACE, f"{NAMESPACE}_r0"]
    assert host.delete_dead()["dead"] == []


def test_listing_names_them_and_takes_nothing(host):
    before = host.tree.files()
    result = host.delete_dead(delete=False)
    assert result["dead"] == [{"name": OLD, "blocks": 2, "bytes": 32}] and result["removed"] == []
    assert host.tree.files() == before and result["exit"] == expiry.OK


@pytest.mark.parametrize("what", ["stranger", "hard link", "foreign owner", "symlink"])
def test_what_is_not_the_stores_stays_and_its_directories_with_it(host, tmp_path, what):
    leaf = f"{OLD}_r0/{leaf_of(block_name(0))}"
    block = host.tree.path(f"{leaf}/{block_name(0)}.bin")
    if what == "stranger":
        kept = host.tree.path(host.tree.put(f"{leaf}/notes", 90000))
    elif what == "symlink":
        kept = host.tree.path(f"{leaf}/{block_name(9)}.bin")
        kept.symlink_to(tmp_path)
    elif what == "hard link":
        kept = block
        os.link(block, tmp_path / "copy")
    else:
        kept = block
        os.chown(block, NOBODY, NOBODY)
    result = host.delete_dead()
    assert os.path.lexists(kept) and result["exit"] == expiry.ERRORS and result["removed"] == []
    assert f"{OLD} is not empty" in result["messages"][0]


@both
def test_a_namespace_that_comes_to_life_before_its_turn_stays(host, monkeypatch, guarded):
    real, calls = namespaces._judged, []

    def late(tier, fd):
        judged = real(tier, fd)
        if not calls:
            host.tree.age(OLD, 0)  # an engine starts on it now
        elif not guarded:
            return calls[0]
        calls.append(judged)
        return judged

    monkeypatch.setattr(namespaces, "_judged", late)
    result = host.delete_dead()
    assert (host.dead <= host.tree.files()) == guarded
    assert not guarded or (result["exit"] == expiry.ERRORS and "not dead any more" in result["messages"][0])


def test_nothing_dead_goes_where_a_pass_would_refuse(host, monkeypatch):
    with state.locked(host.tier, host.state_root):
        assert host.delete_dead()["exit"] == expiry.BUSY
    host.tier["owner"] = NOBODY
    os.chown(host.state_root + "/chat", NOBODY, NOBODY)
    assert "kvtier prepare chat" in host.delete_dead()["messages"][0]
    host.tier["owner"] = 0
    os.chown(host.state_root + "/chat", 0, 0)
    host.engines[:] = [discovery.Found(11, "vllm.service", "0.27.1", "/x")]
    assert "upgrade to 0.28" in host.delete_dead()["messages"][0]
    monkeypatch.setattr(clock, "problem", lambda *_: "the clock jumped")
    assert host.delete_dead()["exit"] == expiry.CLOCK
    assert host.dead <= host.tree.files()


# -- told


@pytest.fixture
def command(monkeypatch):
    with public_directory() as root:
        host = Host(root, monkeypatch, owner=NOBODY)
        host.tree.give(NOBODY)
        document = {"schema": 1, "host": "h", "prompt_log_retention_minutes": 1440, "tiers": [host.tier]}
        monkeypatch.setattr(datamap, "load", lambda path: document)
        remember_in(monkeypatch, root / "state", namespaces.delete_dead)
        monkeypatch.setattr(state.read_run, "__defaults__", (host.state_root,))
        monkeypatch.setattr(cli.syslog, "syslog", lambda *_: None)
        before = os.umask(0o022)
        yield host
        os.umask(before)


def test_kvtier_lists_deletes_and_says_so(command, capsys):
    assert cli.main(["expire", "chat", "--dead-namespaces", "--dry-run"]) == expiry.OK
    text = capsys.readouterr().out
    assert (
        text == f"dead namespaces of chat: exit 0, 1 dead, 0 removed (0 blocks, 0 bytes); {OLD} (2 blocks, 32 bytes)\n"
    )
    assert command.dead <= command.tree.files()
    assert cli.main(["expire", "chat", "--dead-namespaces", "--json"]) == expiry.OK
    (result,) = json.loads(capsys.readouterr().out)
    assert (result["removed"], result["blocks"]) == ([OLD], 2) and not command.dead & command.tree.files()
    command.engines.clear()
    assert cli.main(["expire", "chat", "--dead-namespaces"]) == expiry.REFUSED
    assert "cannot be told: no engine of the tier is running" in capsys.readouterr().out


def test_status_names_them_and_the_command(command, capsys, monkeypatch):
    ended = {"finished": time.time(), "exit": 0}
    monkeypatch.setattr(state, "read_run", lambda tier: {**state.new_record(tier, time.time()), **ended})
    cli.main(["status"])
    what = "1 dead namespaces, 0 MiB (Qwen_Qwen2-7B_00000000dead)"
    assert f"    do: kvtier expire chat --dead-namespaces: {what} that the engine cannot read" in (
        capsys.readouterr().out.splitlines()
    )
    command.engines.clear()
    cli.main(["status"])
    assert "dead" not in capsys.readouterr().out


def test_the_two_special_forms_exclude_each_other(command):
    with pytest.raises(SystemExit):
        cli.main(["expire", "chat", "--dead-namespaces", "--stopped"])
