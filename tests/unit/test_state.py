# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The run record: what an account leaves there can neither crash nor fool root."""

from __future__ import annotations

import json
import os
import time

import pytest
from fixtures import NOBODY, make_state, tier_for

from ansible_collections.llmhost.hardening.plugins.module_utils.kv import fsio, standing, state


@pytest.fixture
def tier(tmp_path):
    return tier_for(tmp_path / "kv")


@pytest.fixture
def place(tmp_path, tier):
    return make_state(tmp_path / "state", tier)


def read(place, tier):
    return state.read_run(tier, str(place.parent))


def good(tier, **changes):
    return {**state.new_record(tier, 1000.5), **changes}


def write(place, record):
    (place / state.RECORD).write_text(record if isinstance(record, str) else json.dumps(record))


def test_what_was_written_is_read_back(place, tier):
    record = good(tier, finished=1001.0, exit=0, full=True, messages=["all well"], clock={"wall": 1.5, "boot_id": "x"})
    with fsio.opened(str(place)) as fd:
        state.write_run(fd, record)
        state.write_run(fd, record)
    assert read(place, tier) == record
    assert [(path.name, path.stat().st_mode & 0o777) for path in place.iterdir()] == [(state.RECORD, 0o600)]


def test_there_is_no_record_before_the_first_run(place, tier, tmp_path):
    assert read(place, tier) is None
    assert state.read_run(tier, str(tmp_path / "nowhere")) is None
    assert state.read_run({**tier, "owner": "no-such-account"}, str(place.parent)) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"schema": 1},
        {"schema": True},
        {"tier": "other"},
        {"started": "1000"},
        {"started": None},
        {"started": True},
        {"started": [1000]},
        {"finished": "soon"},
        {"exit": 1.5},
        {"full": 1},
        {"blocks": 1.0},
        {"blocks": None},
        {"messages": "text"},
        {"messages": [1]},
        {"messages": [["x"]]},
        {"clock": []},
        {"clock": {"wall": {"deep": 1}}},
        {"mounted": "yes"},
        {"resume": 5},
        {"more": 1},
        # Numbers that Python takes and that later arithmetic breaks on.
        {"started": float("nan")},
        {"started": float("inf")},
        {"finished": -float("inf")},
        {"blocks": 10**400},
        {"oldest_mtime": 1e300},
        {"clock": {"wall": float("nan"), "since_boot": 1, "boot_id": "x"}},
        # What a terminal would obey.
        {"messages": ["\x1b]0;owned\x07"]},
        {"messages": ["two\nlines"]},
        {"messages": ["\u202etxt"]},
        {"messages": ["\udcff"]},
        {"resume": "\x1b[2J"},
        {"clock": {"boot_id": "\x1b[2J"}},
    ],
    ids=repr,
)
def test_a_record_of_another_form_is_no_record(place, tier, changes):
    write(place, good(tier))
    assert read(place, tier) is not None
    write(place, {**good(tier), **changes})
    assert read(place, tier) is None


@pytest.mark.parametrize("key", sorted(state._FORM))
def test_a_record_that_lacks_a_key_is_no_record(place, tier, key):
    record = good(tier)
    del record[key]
    write(place, record)
    assert read(place, tier) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\0",
        "{",
        "null",
        "[]",
        "1",
        '"text"',
        "[" * 50_000,
        '{"a":' * 10_000,
        "\ufeff{}",
        '{"schema": 1' + "0" * 5000 + "}",
        " " * 70_000,
    ],
    ids=lambda text: repr(text[:12]),
)
def test_what_is_no_json_object_is_no_record(place, tier, text):
    write(place, text)
    assert read(place, tier) is None


def test_bytes_that_are_no_text_are_no_record(place, tier):
    (place / state.RECORD).write_bytes(b"\xff\xfe\x00{")
    assert read(place, tier) is None


@pytest.mark.parametrize("kind", ["symlink", "fifo", "directory", "sparse", "stranger's", "device"])
def test_what_is_no_small_file_of_the_account_is_no_record_and_never_blocks(place, tier, tmp_path, kind):
    path = place / state.RECORD
    if kind == "symlink":
        (tmp_path / "elsewhere").write_text(json.dumps(good(tier)))
        path.symlink_to(tmp_path / "elsewhere")
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "device":
        os.mknod(path, 0o020666, os.makedev(1, 5))
    elif kind == "sparse":
        write(place, good(tier))
        os.truncate(path, 10 << 30)
    else:
        write(place, good(tier))
        os.chown(path, NOBODY, NOBODY)
    began = time.monotonic()
    assert read(place, tier) is None
    assert time.monotonic() - began < 2


def test_a_symlink_in_place_of_the_directory_is_not_followed(place, tier, tmp_path):
    write(place, good(tier))
    place.rename(tmp_path / "aside")
    place.symlink_to(tmp_path / "aside")
    assert read(place, tier) is None
    with pytest.raises(fsio.UnsafePath), state.locked(tier, str(place.parent)):
        pass


def test_status_survives_every_believable_record(place, tier, monkeypatch, tmp_path):
    (tmp_path / "kv").mkdir()
    monkeypatch.setattr(state, "read_run", lambda tier: state_record)
    for key in state._FORM:
        for value in (-(1 << 60), 1 << 60, 0, None, "", "x" * 60_000, 1e18, [], ["x"], {}):
            state_record = {**good(tier, finished=1001.0, exit=0), key: value}
            if state.valid(state_record, tier):
                line = "".join(standing.of_tier(tier, time.time()).lines())
                assert line.isprintable()


def test_a_lock_is_held_once_and_free_after(place, tier):
    root = str(place.parent)
    with state.locked(tier, root):
        with pytest.raises(state.Busy, match="another run of tier chat is active"), state.locked(tier, root):
            pass
    with state.locked(tier, root):
        pass
    assert list(place.iterdir()) == []


def test_a_tier_without_state_is_locked_by_its_own_directory(tier, tmp_path):
    (tmp_path / "kv").mkdir()
    with state.locked(tier, None) as fd:
        assert os.path.samestat(os.fstat(fd), (tmp_path / "kv").stat())
        with pytest.raises(state.Busy), state.locked(tier, None):
            pass


def test_a_record_that_cannot_be_written_leaves_the_old_one(place, tier, monkeypatch):
    with fsio.opened(str(place)) as fd:
        state.write_run(fd, good(tier))

        def full(*_args, **_options):
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(fsio.os, "rename", full)
            with pytest.raises(OSError, match="No space"):
                state.write_run(fd, good(tier, exit=1))
    assert read(place, tier)["exit"] is None


def test_a_symlink_that_comes_in_between_is_not_written_through(place, tier, tmp_path, monkeypatch):
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (place / f".{state.RECORD}.tmp").symlink_to(victim)
    monkeypatch.setattr(fsio.os, "unlink", lambda *_arguments, **_options: None)
    with fsio.opened(str(place)) as fd, pytest.raises(FileExistsError):
        state.write_run(fd, good(tier))
    assert victim.read_text() == "mine"
