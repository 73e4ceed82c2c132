# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""File access that cannot be led astray."""

from __future__ import annotations

import errno
import json
import os
import stat
import subprocess

import pytest
from fixtures import HOSTILE, mount, with_own_mounts

from ansible_collections.llmhost.hardening.plugins.module_utils.kv import fsio


@pytest.fixture(params=[True, False], ids=["openat2", "without openat2"])
def openat2(request, monkeypatch):
    if request.param and not fsio.HAVE_OPENAT2:
        pytest.skip("this kernel has no openat2")
    monkeypatch.setattr(fsio, "HAVE_OPENAT2", request.param)


def open_in(place, name):
    with fsio.opened(str(place)) as fd:
        below = fsio.open_subdir(fd, name)
        try:
            return os.fstat(below).st_ino
        finally:
            os.close(below)


def test_a_subdirectory_of_any_name_is_opened(openat2, tmp_path):
    for name in ("plain", *map(os.fsdecode, HOSTILE)):
        (tmp_path / name).mkdir()
        assert open_in(tmp_path, name) == (tmp_path / name).stat().st_ino


@pytest.mark.parametrize(
    ("kind", "number"),
    [
        ("symlink", (errno.ELOOP, errno.ENOTDIR)),
        ("dangling", (errno.ELOOP, errno.ENOTDIR)),
        ("file", (errno.ENOTDIR,)),
        ("fifo", (errno.ENOTDIR,)),
        ("nothing", (errno.ENOENT,)),
    ],
)
def test_what_is_no_directory_is_not_opened(openat2, tmp_path, kind, number):
    (tmp_path / "real").mkdir()
    path = tmp_path / "it"
    if kind in ("symlink", "dangling"):
        path.symlink_to("real" if kind == "symlink" else "nowhere")
    elif kind == "file":
        path.touch()
    elif kind == "fifo":
        os.mkfifo(path)
    with pytest.raises(OSError) as caught:
        open_in(tmp_path, "it")
    assert caught.value.errno in number


@pytest.mark.parametrize("kind", ["tmpfs", "bind"])
def test_a_mount_is_not_entered(openat2, tmp_path, kind):
    def work():
        (tmp_path / "it").mkdir()
        (tmp_path / "other").mkdir()
        mount(*(("-t", "tmpfs", "tmpfs") if kind == "tmpfs" else ("--bind", tmp_path / "other")), tmp_path / "it")
        descriptors = len(os.listdir("/proc/self/fd"))
        try:
            open_in(tmp_path, "it")
        except OSError as error:
            return error.errno, len(os.listdir("/proc/self/fd")) - descriptors
        return None

    assert with_own_mounts(work) == [errno.EXDEV, 0]


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_a_path_with_a_symlink_anywhere_is_not_opened(tmp_path, depth):
    (tmp_path / "a/b/c").mkdir(parents=True)
    path = tmp_path / "a/b/c"
    assert fsio.open_path(str(path))[1][-1][0] == str(path.parent)
    part = [path, path.parent, path.parent.parent][depth]
    part.rename(tmp_path / "aside")
    part.symlink_to(tmp_path / "aside")
    descriptors = len(os.listdir("/proc/self/fd"))
    with pytest.raises(fsio.UnsafePath, match=f"{part} is a symlink"):
        fsio.open_path(str(path))
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_what_a_mount_covers_is_seen_and_nothing_is_left_mounted(tmp_path):
    def work():
        place = tmp_path / "place"
        place.mkdir()
        (place / "below").touch()
        mount("-t", "tmpfs", "tmpfs", place)
        before = open("/proc/self/mountinfo").read()
        with fsio.covered(str(place)) as fd:
            names = os.listdir(fd)
        return names, os.listdir(place), open("/proc/self/mountinfo").read() == before

    assert with_own_mounts(work) == [["below"], [], True]


def test_the_immutable_flag_is_set_seen_and_cleared(tmp_path):
    with fsio.opened(str(tmp_path)) as fd:
        if not fsio.set_immutable(fd, False):
            pytest.skip("this file system has no immutable flag")
        assert fsio.is_immutable(fd) is False
        assert fsio.set_immutable(fd, True) and fsio.is_immutable(fd) is True
        try:
            with pytest.raises(PermissionError):
                (tmp_path / "x").touch()
            assert (
                "i"
                in subprocess.run(
                    ["lsattr", "-d", tmp_path], capture_output=True, text=True, check=True
                ).stdout.split()[0]
            )
        finally:
            fsio.set_immutable(fd, False)
    (tmp_path / "x").touch()


def test_only_small_regular_files_of_the_owner_are_read(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"x" * 100)
    assert fsio.read_small(str(path), owner=os.getuid(), limit=100) == b"x" * 100
    with pytest.raises(fsio.UnsafePath, match="larger than 99 bytes"):
        fsio.read_small(str(path), limit=99)
    with pytest.raises(fsio.UnsafePath, match="belongs to uid"):
        fsio.read_small(str(path), owner=12345)
    link = tmp_path / "link"
    link.symlink_to(path)
    with pytest.raises(OSError):
        fsio.read_small(str(link))
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(fsio.UnsafePath, match="not a regular file"):
        fsio.read_small(str(tmp_path / "fifo"))
    with pytest.raises(fsio.UnsafePath, match="not a regular file"):
        fsio.read_small(str(tmp_path))


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b"[" * 100_000])
def test_what_is_no_json_is_unsafe(tmp_path, data):
    (tmp_path / "x").write_bytes(data)
    with pytest.raises(fsio.UnsafePath, match="is not JSON"):
        fsio.read_json(str(tmp_path / "x"))


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "file"
    fsio.write_atomic(str(path), b"old", 0o644)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644

    def full(*_arguments):
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patch:
        patch.setattr(fsio.os, "fsync", full)
        with pytest.raises(OSError):
            fsio.write_atomic(str(path), b"new", 0o644)
    assert path.read_bytes() == b"old" and os.listdir(tmp_path) == ["file"]
    fsio.write_atomic(str(path), json.dumps({}).encode(), 0o600)
    assert fsio.read_json(str(path)) == {} and stat.S_IMODE(path.stat().st_mode) == 0o600


def test_first_bytes_are_compared_without_following_or_waiting(tmp_path):
    (tmp_path / "a").write_bytes(b"qsgg...")
    (tmp_path / "short").write_bytes(b"qs")
    (tmp_path / "link").symlink_to("a")
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "dir").mkdir()
    with fsio.opened(str(tmp_path)) as fd:
        answers = [fsio.begins_with(fd, name, b"qsgg") for name in ("a", "short", "link", "fifo", "dir", "none")]
    assert answers == [True, False, False, False, False, False]
