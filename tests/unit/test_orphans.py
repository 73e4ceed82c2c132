# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which shared memory of engines nobody maps."""

from __future__ import annotations

import mmap
import os

import pytest

from ansible_collections.llmhost.hardening.plugins.module_utils.kv import orphans

NAME = "vllm_offload_test-i9.mmap"


@pytest.fixture
def shared():
    path = f"{orphans.DIRECTORY}/{NAME}.{os.getpid() % 90}"
    with open(path, "wb") as file:
        file.write(b"k" * 4096)
    yield path
    os.unlink(path)


@pytest.fixture
def proc(tmp_path):
    """This process alone: of some test machines' first process not even root may see the maps."""
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / str(os.getpid())).symlink_to(f"/proc/{os.getpid()}")
    return str(tmp_path / "proc")


def names(proc):
    return [one.name for one in orphans.find(proc=proc)]


def test_what_nobody_maps_is_an_orphan(shared, proc):
    assert os.path.basename(shared) in names(proc)


def test_what_a_process_maps_is_none(shared, proc):
    with open(shared, "r+b") as file:
        held = mmap.mmap(file.fileno(), 4096)
    assert os.path.basename(shared) not in names(proc)
    held.close()
    assert os.path.basename(shared) in names(proc)


def test_what_a_process_holds_open_is_none(shared, proc):
    with open(shared, "rb"):
        assert os.path.basename(shared) not in names(proc)


def test_files_of_others_are_not_looked_at(tmp_path, proc):
    for name in ("vllm_offload_x.mmap", "vllm_offload_y.mmap.31", "notes", "xvllm_offload_x.mmap"):
        (tmp_path / name).write_text("x")
    (tmp_path / "vllm_offload_link.mmap").symlink_to(tmp_path / "notes")
    found = orphans.find(str(tmp_path), proc)
    assert [one.name for one in found] == ["vllm_offload_x.mmap", "vllm_offload_y.mmap.31"]


def test_a_process_that_cannot_be_looked_at_makes_the_answer_unknown(tmp_path):
    (tmp_path / "vllm_offload_x.mmap").write_text("x")
    (tmp_path / "proc/7/maps").mkdir(parents=True)
    assert orphans.find(str(tmp_path), str(tmp_path / "proc")) is None


def test_a_process_that_vanishes_holds_nothing(tmp_path):
    (tmp_path / "vllm_offload_x.mmap").write_text("x")
    (tmp_path / "proc/7").mkdir(parents=True)
    assert [one.name for one in orphans.find(str(tmp_path), str(tmp_path / "proc"))] == ["vllm_offload_x.mmap"]


def test_only_what_nobody_holds_is_removed(shared, proc):
    with open(shared, "rb"):
        assert os.path.basename(shared) not in [one.name for one in orphans.remove(proc=proc) or ()]
    assert os.path.exists(shared)


def test_what_nobody_holds_is_removed(tmp_path, proc):
    (tmp_path / NAME).write_bytes(b"k")
    (tmp_path / "notes").write_text("x")
    assert [one.name for one in orphans.remove(str(tmp_path), proc) or ()] == [NAME]
    assert sorted(os.listdir(tmp_path)) == ["notes", "proc"]


def test_a_new_file_of_the_same_name_is_not_removed(tmp_path, proc, monkeypatch):
    (tmp_path / NAME).write_bytes(b"old")
    found = orphans.find(str(tmp_path), proc)
    (tmp_path / "new").write_bytes(b"new")
    os.replace(tmp_path / "new", tmp_path / NAME)
    monkeypatch.setattr(orphans, "find", lambda directory, proc: found)
    assert orphans.remove(str(tmp_path), proc) == []
    assert (tmp_path / NAME).read_bytes() == b"new"


def test_nothing_is_removed_where_processes_cannot_be_seen(tmp_path, monkeypatch):
    monkeypatch.setattr(orphans, "find", lambda directory, proc: None)
    assert orphans.remove(str(tmp_path)) is None
