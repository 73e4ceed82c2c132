# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A pass while things go wrong around it: killed anywhere, names that change what they are, file systems that fail.

With test_walk.py and test_expiry.py this is the list "never wrong under" of docs/testing.md.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import socket
import stat
import subprocess
import time
from pathlib import Path

import pytest
from fixtures import (
    NAMESPACE,
    Tree,
    digest,
    in_child,
    leaf_of,
    make_state,
    mount,
    tier_for,
    walked,
    with_own_mounts,
)
from syscalls import killed_at

from ansible_collections.llmhost.hardening.plugins.module_utils.kv import clock, discovery, expiry, fsio, state, walk

both = pytest.mark.parametrize("guarded", [True, False], ids=["guarded", "guard removed"])
EVERY = int(os.environ.get("LLMHOST_KILL_EVERY", "13"))  # 1: at each and every call
YEAR = 365 * 86400


@pytest.fixture
def tree(tmp_path):
    return Tree(tmp_path / "kv")


@pytest.fixture
def outside(tmp_path):
    """Somebody else's files, old enough to go if a pass ever got there."""
    other = Tree(tmp_path / "outside")
    other.block(1, 9000)
    other.put("precious", 9000)
    return other


# -- killed


class Killed:
    """A tier with something of everything, and what a pass must leave of it."""

    def __init__(self, root: Path) -> None:
        self.tree, self.state_root = Tree(root / "kv"), root / "state"
        self.tier = tier_for(self.tree.root, max_files=2)
        self.state = make_state(self.state_root, self.tier)
        ended = {self.tree.block(1, 4000), self.tree.temp(4, 700)}
        capped = {self.tree.block(10, 900)}
        self.kept = {self.tree.block(one, 60) for one in (20, 21)} | {self.tree.config(), self.tree.put("notes", 9000)}
        self.empty = self.tree.directory(f"{NAMESPACE}_r0/abc/de_g0", 4000)
        self.ended, self.capped, self.before = ended, capped, self.tree.files()

    def expire(self):
        return expiry.expire(self.tier, state_root=str(self.state_root), workers=1)

    def wait_for_workers(self) -> None:
        """A killed pass takes its workers with it, and the lock is free when the last one is gone."""
        fd = os.open(self.state, os.O_RDONLY)
        signal.alarm(20)
        fcntl.flock(fd, fcntl.LOCK_EX)
        signal.alarm(0)
        os.close(fd)


def test_a_run_killed_at_any_system_call_leaves_a_valid_store(tmp_path, monkeypatch):
    """The next run always ends with what the reference says, whatever the first one got to.

    Seen failing with a lock file instead of a locked directory, with a record that is written before its pass is done,
    and with a record's temporary that is in the next one's way.
    """
    monkeypatch.setattr(discovery, "engines", lambda *_: [])
    stops, half_done = 0, 0
    at = 1
    while True:
        place = Killed(tmp_path / str(at))
        ended = not killed_at(at, place.expire)
        place.wait_for_workers()
        left = place.tree.files()
        assert place.kept <= left <= place.before and place.before - left <= place.ended | place.capped
        assert place.capped <= left or not place.ended & left, "the cap takes only from what is left after age"
        record = state.read_run(place.tier, str(place.state_root))
        assert record is None or record["finished"] is None or left == place.kept, "a record of what was not done"
        half_done += left not in (place.before, place.kept)
        if not ended:
            assert place.expire()["exit"] == expiry.OK
        assert place.tree.files() == place.kept and place.empty not in place.tree.dirs()
        assert state.read_run(place.tier, str(place.state_root))["exit"] == expiry.OK
        assert not [path.name for path in place.state.iterdir() if path.name.endswith(".tmp")]
        if ended:
            break
        stops += 1
        at += EVERY
    assert stops > 30 and half_done > 1, (stops, half_done)


# -- what is swapped in for a block, between the last look at it and its end


def put_symlink(path: Path, outside: Tree) -> None:
    path.symlink_to(outside.path("precious"))


def put_fifo(path: Path, outside: Tree) -> None:
    os.mkfifo(path)


def put_device(path: Path, outside: Tree) -> None:
    os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 3))


def put_socket(path: Path, outside: Tree) -> None:
    os.chdir(path.parent)  # the whole path is longer than a socket's may be
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(path.name)
    os.chdir("/")


def put_hard_link(path: Path, outside: Tree) -> None:
    os.link(outside.path("precious"), path)


def put_directory(path: Path, outside: Tree) -> None:
    path.mkdir()
    (path / "precious").touch()


def put_symlink_to_directory(path: Path, outside: Tree) -> None:
    path.symlink_to(outside.root)


def put_file(path: Path, outside: Tree) -> None:
    path.write_bytes(b"x")


SWAPS = [put_symlink, put_fifo, put_device, put_socket, put_hard_link, put_directory, put_symlink_to_directory]


@both
@pytest.mark.parametrize("put", SWAPS, ids=lambda put: put.__name__)
def test_what_is_swapped_in_for_a_block_costs_at_most_its_own_name(tree, outside, monkeypatch, put, guarded):
    """The name that had been looked at may go, never what it leads to; with a deletion that follows, that goes too."""
    block, other = tree.block(1, 9000), tree.block(2, 9000)
    path, before = tree.path(block), outside.files()
    real_stat, real_unlink, swapped = os.stat, os.unlink, []

    def stat_then_swap(name, **options):
        info = real_stat(name, **options)
        if name == path.name and not swapped:
            swapped.append(name)
            real_unlink(path)
            put(path, outside)
        return info

    def careless(name, *, dir_fd):
        target = os.path.realpath(f"/proc/self/fd/{dir_fd}/{name}")
        subprocess.run(["rm", "-rf", target], check=True)

    with monkeypatch.context() as patch:
        patch.setattr(walk.os, "stat", stat_then_swap)
        if not guarded:
            patch.setattr(walk.os, "unlink", careless)
        found = walked(tree)
    assert swapped and other not in tree.files()
    follows = put in (put_symlink, put_symlink_to_directory, put_directory)
    harmed = outside.files() != before or (put is put_directory and not (path / "precious").exists())
    assert harmed == (follows and not guarded)
    if put is put_directory and guarded:
        assert (path / "precious").exists() and sum(found.errors.values()) == 1


@pytest.mark.parametrize("when", ["before", "during"])
def test_a_file_mounted_over_a_block_is_not_deleted(tmp_path, when):
    def work():
        tree, outside = Tree(tmp_path / "kv"), Tree(tmp_path / "outside")
        outside.put("precious", 9000)
        block, others = tree.block(1, 9000), [tree.block(number, 9000) for number in range(2, 6)]
        real, mounted = os.stat, []

        def cover(name, **options):
            info = real(name, **options)
            if name == os.path.basename(block) and not mounted:
                mounted.append(name)
                mount("--bind", outside.path("precious"), tree.path(block))
            return info

        if when == "before":
            mount("--bind", outside.path("precious"), tree.path(block))
        else:
            walk.os.stat = cover
        found = walked(tree)
        walk.os.stat = real
        return found.errors, outside.path("precious").exists(), [tree.path(path).exists() for path in (block, *others)]

    assert with_own_mounts(work) == [{"EBUSY": 1}, True, [True, False, False, False, False]]


# -- what is swapped in for a directory, between its name and its opening

LEVELS = [f"{NAMESPACE}_r0", f"{NAMESPACE}_r0/{digest(1)[:3]}", f"{NAMESPACE}_r0/{leaf_of(digest(1))}"]


def swapped_before_opening(tree, path, put, outside, opener):
    """A pass in a process of its own, which a hang ends; put takes path's place between its name and its opening."""

    def work():
        signal.alarm(20)

        def swap_then_open(parent, name):
            if name == path.name and not (tree.root.parent / "aside").exists():
                path.rename(tree.root.parent / "aside")
                put(path, outside)
            return opener(parent, name)

        fsio.open_subdir = swap_then_open
        walked(tree)

    status = in_child(work)
    assert (tree.root.parent / "aside").exists()
    return status


@pytest.mark.parametrize("level", LEVELS, ids=["namespace", "hhh", "leaf"])
@pytest.mark.parametrize("put", [*SWAPS, put_file], ids=lambda put: put.__name__)
def test_what_is_swapped_in_for_a_directory_is_not_entered_and_stops_nothing(tree, outside, put, level):
    tree.block(1, 9000)
    ended = tree.block(2, 9000, namespace="Other_0123456789ab")
    before = outside.files()
    assert swapped_before_opening(tree, tree.path(level), put, outside, fsio.open_subdir) == 0
    assert outside.files() == before and ended not in tree.files()
    assert put is not put_directory or (tree.path(level) / "precious").exists()


@pytest.mark.parametrize("level", LEVELS, ids=["namespace", "hhh", "leaf"])
def test_without_the_guard_a_symlink_for_a_directory_is_entered(tree, outside, level):
    tree.block(1, 9000)

    def careless(parent, name):
        return os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=parent)

    def put(path, outside):
        path.symlink_to(outside.path(level))

    assert swapped_before_opening(tree, tree.path(level), put, outside, careless) == 0
    assert outside.files() == {"precious"}


def test_without_the_guard_a_fifo_for_a_directory_hangs_the_pass(tree, outside):
    tree.block(1, 9000)

    def careless(parent, name):
        signal.alarm(1)
        return os.open(name, os.O_RDONLY, dir_fd=parent)

    status = swapped_before_opening(tree, tree.path(LEVELS[0]), put_fifo, outside, careless)
    assert os.WTERMSIG(status) == signal.SIGALRM


def test_a_directory_swapped_for_another_during_the_run_keeps_the_rules(tree):
    """What is swapped in is judged like everything else: young blocks and strangers in it stay."""
    for number in range(200, 230):
        tree.block(number, 9000)
    last = sorted(tree.path(f"{NAMESPACE}_r0").iterdir())[-1]
    aside = Tree(tree.root.parent / "aside")
    name = last.name + digest(1)[3:]
    for file, age in ((f"{name}.bin", 10), ("notes", 9000), (f"{name[:-1]}x.bin", 9000), (f"{name[:32]}.bin", 9000)):
        aside.put(f"new/{name[3:5]}_g0/{file}", age)

    def swap(path, kind):
        if aside.path("new").exists():
            last.rename(aside.path("old"))
            aside.path("new").rename(last)

    walked(tree, on_delete=swap)
    left = {os.path.basename(path) for path in tree.files()}
    assert left == {f"{name}.bin", "notes", f"{name[:-1]}x.bin"}, "and the ended block in it went"


# -- file systems that fail


@pytest.mark.parametrize("kind", ["bytes", "inodes"])
def test_blocks_go_from_a_file_system_without_room(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(discovery, "engines", lambda *_: [])

    def work():
        options = "size=64k" if kind == "bytes" else "nr_inodes=24,size=1m"
        (tmp_path / "kv").mkdir()
        mount("-t", "tmpfs", "-o", f"mode=0700,{options}", "tmpfs", tmp_path / "kv")
        tree = Tree(tmp_path / "kv")
        for number in range(4):
            tree.block(number, 9000)
        young, number, problem = tree.block(50, 10), 100, 0
        try:
            while True:
                (tree.path(young).parent / f"fill{number}").write_bytes(b"x" * 4096)
                number += 1
        except OSError as error:
            problem = error.errno
        tier = tier_for(tree.root)
        make_state(tmp_path / "state", tier)
        result = expiry.expire(tier, state_root=str(tmp_path / "state"))
        return problem, result["exit"], result["expired"], result["errors"], tree.path(young).exists()

    assert with_own_mounts(work) == [errno.ENOSPC, expiry.OK, 4, {}, True]


def test_a_read_only_file_system_ends_in_the_exit_code_and_the_counts(tmp_path, monkeypatch):
    monkeypatch.setattr(discovery, "engines", lambda *_: [])

    def work():
        tree = Tree(tmp_path / "kv")
        for number in range(3):
            tree.block(number, 9000)
        tier = tier_for(tree.root)
        make_state(tmp_path / "state", tier)
        mount("--bind", tree.root, tree.root)
        mount("-o", "remount,bind,ro", tree.root)
        result = expiry.expire(tier, state_root=str(tmp_path / "state"))
        return result["exit"], result["errors"], result["overdue"], result["last_success"]

    assert with_own_mounts(work) == [expiry.ERRORS, {"EROFS": 3}, 3, None]


def test_an_immutable_block_is_counted_and_the_rest_goes(tree):
    stuck = tree.block(1, 9000)
    for number in range(2, 6):
        tree.block(number, 9000)
    subprocess.run(["chattr", "+i", tree.path(stuck)], check=True)
    try:
        found = walked(tree)
    finally:
        subprocess.run(["chattr", "-i", tree.path(stuck)], check=True)
    assert tree.files() == {stuck} and found.errors == {"EPERM": 1} and found.overdue == 1


@pytest.mark.parametrize("call", ["stat", "unlink", "listdir", "open_subdir"])
def test_an_io_error_in_the_middle_is_counted_and_the_rest_goes(tree, monkeypatch, call):
    """A mock of the call, not of a disk: no device here can be made to fail."""
    stuck, *others = [tree.block(number, 9000) for number in range(6)]
    name, leaf = os.path.basename(stuck), tree.path(stuck).parent
    module = fsio if call == "open_subdir" else walk.os
    real = getattr(module, call)

    def failing(*arguments, **options):
        at = arguments[0] if call != "open_subdir" else arguments[1]
        here = os.readlink(f"/proc/self/fd/{at}") if call == "listdir" and isinstance(at, int) else at
        if here in (name, str(leaf), leaf.name if call == "open_subdir" else name):
            raise OSError(errno.EIO, "broken")
        return real(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(module, call, failing)
        found = walked(tree)
    assert tree.files() == {stuck} and found.errors == {"EIO": 1}


# -- the clock, during the run


@both
@pytest.mark.parametrize("shift", [YEAR, -YEAR])
def test_a_clock_that_jumps_during_the_run_changes_no_age(tree, monkeypatch, shift, guarded):
    """Ages are told by the time at which the pass began."""
    old = {tree.block(number, 3600 + number) for number in range(10)}
    young = {tree.block(number, 60) for number in range(100, 110)}
    real, jumped = time.time, []

    def jump(path, kind):
        jumped.append(path)
        monkeypatch.setattr(walk.time, "time", lambda: real() + shift)

    if not guarded:
        each_look = property(lambda self: walk.time.time(), lambda self, value: None)
        monkeypatch.setattr(walk.Walk, "now", each_look, raising=False)
    walked(tree, on_delete=jump)
    assert jumped
    if guarded:
        assert tree.files() == young
    elif shift > 0:
        assert not young <= tree.files(), "with the time of each look, young blocks go"
    else:
        assert old & tree.files(), "with the time of each look, ended blocks stay"


def test_the_first_boot_time_of_a_run_is_the_one_that_is_recorded(tmp_path, monkeypatch):
    """So that a jump during a run is seen by the next one."""
    monkeypatch.setattr(discovery, "engines", lambda *_: [])
    monkeypatch.setattr(clock, "synchronised", lambda: False)
    place = Killed(tmp_path)
    real = time.time

    def jump(path, kind):
        monkeypatch.setattr(clock.time, "time", lambda: real() + YEAR)

    assert expiry.expire(place.tier, state_root=str(place.state_root), on_delete=jump)["exit"] == expiry.OK
    assert place.tree.files() == place.kept
    assert place.expire()["exit"] == expiry.CLOCK and place.tree.files() == place.kept


# -- very many


def test_very_many_files_in_one_directory(tmp_path):
    """LLMHOST_FLAT_FILES=1000000 makes it a million; what it costs in memory is in test_walk.py."""
    many = int(os.environ.get("LLMHOST_FLAT_FILES", "20000"))
    tree = Tree(Path("/dev/shm") / f"llmhost-test-{os.getpid()}")
    leaf = tree.path(tree.directory(f"{NAMESPACE}_r0/abc/de_g0"))
    try:
        for number in range(many):
            path = f"{leaf}/{number:064x}.bin"
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
            if number % 2:
                os.utime(path, (tree.now - 9000,) * 2)
        began = time.monotonic()
        found = walked(tree)
        print(f"{many} files, half of them ended: {time.monotonic() - began:.1f} s")
        assert (found.expired, found.blocks, found.errors) == (many // 2, many - many // 2, {})
    finally:
        subprocess.run(["rm", "-rf", tree.root], check=True)
