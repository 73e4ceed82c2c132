# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Leaves that are looked at by name: such a look may end in "nothing to do here" and in nothing else.

Tests with `guarded` show both: with the guard nothing is harmed, and without it something is.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from pathlib import Path

import pytest
from fixtures import (
    NAMESPACE,
    NOBODY,
    NS,
    POLICY,
    VLLM,
    Tree,
    digest,
    full_tree,
    leaf_of,
    mount,
    walked,
    with_own_mounts,
)

from ansible_collections.llmhost.hardening.plugins.module_utils.kv import fsio, index, indexed
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.index import Index
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.indexed import IndexedWalk
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.walk import Policy, Stop

both = pytest.mark.parametrize("guarded", [True, False], ids=["guarded", "guard removed"])
LEAF = f"{NAMESPACE}_r0/{leaf_of(digest(1))}"


class Place:
    """A tier beside which lies a tree of somebody else, and passes over it."""

    def __init__(self, base: Path) -> None:
        self.tree, self.outside = Tree(base / "kv"), Tree(base / "outside")
        self.state, self.aside = base / "state", base / "aside"
        self.state.mkdir()
        self.leaf = self.tree.path(LEAF)

    def walk(self, policy: Policy = POLICY, full: bool = True, at: float = 0, tree: Tree | None = None, **options):
        """A pass that looks; of the tier, or of another tree without what is known of the tier."""
        tree = tree or self.tree
        with contextlib.ExitStack() as stack:
            root = os.open(tree.root, os.O_RDONLY | os.O_DIRECTORY)
            stack.callback(os.close, root)
            state_fd = os.open(self.state, os.O_RDONLY | os.O_DIRECTORY)
            stack.callback(os.close, state_fd)
            kept = Index(state_fd, os.fstat(root).st_dev, os.getuid())
            stack.callback(kept.close)
            options = {"delete": True, "workers": 1, "index": kept, "full": full, **options}
            return IndexedWalk(root, VLLM, os.getuid(), float(tree.now + at), policy, **options).run()

    def swap(self) -> None:
        """The leaf goes away, a symlink to the other tree's comes in its place."""
        self.leaf.rename(self.aside)
        self.leaf.symlink_to(self.outside.path(LEAF))

    def swap_back(self) -> None:
        self.leaf.unlink()
        self.aside.rename(self.leaf)


@pytest.fixture(autouse=True)
def _settled_at_once(monkeypatch):
    """A leaf may be believed without waiting for two seconds."""
    monkeypatch.setattr(index, "RACY_NS", -60 * NS)


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path)


def after_its_stat(monkeypatch, name: str, action) -> list[str]:
    """Call action once, right after something called name was looked at by that name."""
    real = os.lstat
    done: list[str] = []

    def lstat(path, **options):
        info = real(path, **options)
        if path == name and not done:
            done.append(name)
            action()
        return info

    monkeypatch.setattr(os, "lstat", lstat)
    return done


# -- swapped during the look


@both
def test_a_leaf_swapped_for_a_symlink_during_the_look_costs_nobody_a_file(place, monkeypatch, guarded):
    place.tree.block(1, 60)
    place.outside.block(1, 9000)
    before = place.outside.files()
    with monkeypatch.context() as patch:
        done = after_its_stat(patch, place.leaf.name, place.swap)
        if not guarded:
            patch.setattr(fsio, "open_subdir", lambda parent, name: os.open(name, os.O_RDONLY, dir_fd=parent))
        found = place.walk()
    assert done and (place.outside.files() == before) == guarded
    assert not guarded or (found.expired, found.overdue, found.not_regular) == (0, 0, 1)
    assert list(place.aside.iterdir())


@pytest.mark.parametrize("what", ["loose", "stranger", "temp", "foreign"])
def test_nothing_that_lies_elsewhere_is_told_of_as_the_tiers(place, monkeypatch, what):
    """What is loose, strange or overdue is judged by the open directory, so a swap cannot make it up."""
    place.tree.block(1, 60)
    path = place.outside.path(place.outside.block(1, 60))
    if what == "loose":
        path.chmod(0o644)
    elif what == "stranger":
        place.outside.put(f"{LEAF}/notes", 60)
    elif what == "temp":
        place.outside.temp(1, 9000)
    else:
        os.chown(path, NOBODY, NOBODY)
    done = after_its_stat(monkeypatch, place.leaf.name, place.swap)
    found = place.walk()
    assert done and (found.loose, found.strangers, found.stale_temps, found.foreign_owner) == (0, 0, 0, 0)
    assert found.not_regular == 1 and found.blocks == 0


@both
def test_what_was_listed_in_a_leafs_place_is_never_believed_of_it(place, monkeypatch, guarded):
    """The young block of another directory must not keep the leaf's own block from ending in time."""
    ended = place.tree.block(1, 3000)
    place.outside.block(1, 0)
    seen = place.leaf.stat()
    with monkeypatch.context() as patch:
        done = after_its_stat(patch, place.leaf.name, place.swap)
        found = place.walk()
    assert done and found.blocks == 1 and found.oldest_mtime == place.tree.now
    place.swap_back()
    with monkeypatch.context() as patch:
        if not guarded:
            frozen_ctime(patch, seen)
        found = place.walk(full=False, at=900)
    assert (ended not in place.tree.files()) == guarded
    assert (found.skipped, found.expired) == ((0, 1) if guarded else (1, 0))


def frozen_ctime(monkeypatch, seen: os.stat_result) -> None:
    """A file system on which a rename changes nothing of what it renames."""
    real = os.lstat

    class Frozen:
        def __init__(self, info) -> None:
            self.info = info

        def __getattr__(self, name):
            return seen.st_ctime_ns if name == "st_ctime_ns" else getattr(self.info, name)

    def lstat(path, **options):
        info = real(path, **options)
        return Frozen(info) if info.st_ino == seen.st_ino else info

    monkeypatch.setattr(os, "lstat", lstat)


def test_a_rename_changes_the_ctime_of_a_directory(tmp_path):
    """What the index rests on where leaves are looked at by name."""
    directory = tmp_path / "leaf"
    directory.mkdir()
    before = directory.stat().st_ctime_ns
    time.sleep(0.02)  # more than a tick of the kernel's clock
    assert directory.rename(tmp_path / "other").stat().st_ctime_ns > before


@pytest.mark.parametrize("put", ["fifo", "file", "symlink", "nothing"])
@pytest.mark.parametrize("when", ["before its stat", "after its stat"])
def test_whatever_takes_a_leafs_place_hangs_and_stops_nothing(place, monkeypatch, put, when):
    ended = {place.tree.block(1, 60), place.tree.block(2, 9000)}
    place.outside.block(1, 60)

    def swap():
        place.leaf.rename(place.aside)
        if put == "fifo":
            os.mkfifo(place.leaf)
        elif put == "file":
            place.leaf.touch()
        elif put == "symlink":
            place.leaf.symlink_to(place.outside.root)

    real = os.scandir

    def listed(path):
        with real(path) as entries:
            found = list(entries)
        if isinstance(path, int) and any(entry.name == place.leaf.name for entry in found):
            swap()
        return Entries(found)

    with monkeypatch.context() as patch:
        if when == "before its stat":
            patch.setattr(os, "scandir", listed)
        else:
            after_its_stat(patch, place.leaf.name, swap)
        found = place.walk()
    assert found.complete and not ended & place.tree.files() and found.errors == {}
    assert found.not_regular == (put != "nothing")


class Entries(list):
    """What os.scandir() gives, of a list."""

    def __enter__(self):
        return iter(self)

    def __exit__(self, *_):
        return None


class Entry:
    """An entry of a directory with the inode of what its name leads to now."""

    def __init__(self, entry, fd) -> None:
        self.name, self.is_dir, self.fd = entry.name, entry.is_dir, fd

    def inode(self) -> int:
        return os.stat(self.name, dir_fd=self.fd).st_ino


# -- mounts


@both
def test_a_directory_mounted_over_a_leaf_is_not_counted(tmp_path, guarded):
    """A bind mount of the same file system: the device is the same, the inode is not the entry's."""

    def work():
        index.RACY_NS = -60 * NS
        place = Place(tmp_path)
        place.tree.block(1, 60)
        place.outside.block(1, 60, size=999)
        mount("--bind", place.outside.path(LEAF), place.leaf)
        if not guarded:
            real = os.scandir
            os.scandir = lambda fd: Entries([Entry(entry, fd) for entry in real(fd)])  # type: ignore[assignment]
        found = place.walk()
        return found.blocks, found.block_bytes, found.not_regular

    assert with_own_mounts(work) == ([0, 0, 1] if guarded else [1, 999, 0])


# -- the same as by the open directory


def counts(found) -> dict:
    return {name: value for name, value in vars(found).items() if name not in ("seconds", "skipped")}


@pytest.mark.parametrize("delete", [True, False])
def test_looking_tells_and_leaves_the_same_as_opening(tmp_path, monkeypatch, delete):
    monkeypatch.setattr(indexed, "_WORTH", 1)  # however often a look is in vain
    place = Place(tmp_path)
    one, _ended, _stays = full_tree(tmp_path / "one")
    two, _ended, stays = full_tree(tmp_path / "two", one.now)
    for tree in (one, two):
        odd_leaves(tree)
    looked = place.walk(tree=two, delete=delete)
    opened = walked(one, delete=delete)
    for found in (looked, opened):
        found.offenders.sort(key=str)
        found.loose_first.sort()
        found.overdue_first.sort()
    assert counts(looked) == counts(opened)
    assert one.files() == two.files() and one.dirs() == two.dirs()
    assert not delete or stays <= two.files()


def odd_leaves(tree: Tree) -> None:
    """Leaves that are not closed, not ours, empty, hidden in, linked to, and with more than one block."""
    tree.path(tree.block(200, 60)).parent.chmod(0o755)
    os.chown(tree.path(tree.block(201, 60)).parent, NOBODY, NOBODY)
    os.link(tree.path(tree.block(202, 60)), tree.root.parent / f"{tree.root.name}.link")
    tree.directory(f"{NAMESPACE}_r0/ab0/00_g0", 60)
    tree.directory(f"{NAMESPACE}_r0/ab0/01_g0", 9000)
    tree.put(f"{NAMESPACE}_r0/ab0/02_g0/.hidden", 60)
    for number in range(5):
        tree.put(f"{NAMESPACE}_r0/ab0/03_g0/ab003{number:059x}.bin", 700 * number)
        tree.put(f"{NAMESPACE}_r0/ab0/04_g0/ab004{number:059x}.bin", 900 * number)
    tree.put(f"{NAMESPACE}_r0/ab0/05_g0/ab005{0:059x}.bin", -9000)
    tree.path(f"{NAMESPACE}_r0/ab0/06_g0").symlink_to(tree.path(f"{NAMESPACE}_r0/ab0/03_g0"))
    tree.path(tree.put(f"{NAMESPACE}_r0/ab0/07_g0/ab007{0:059x}.bin", 60)).chmod(0o640)


def test_the_age_of_a_block_that_is_looked_at_is_exact_to_the_second(place):
    goes, stays = place.tree.block(1, 3600), place.tree.block(2, 3599)
    found = place.walk()
    assert place.tree.files() == {stays} and goes not in place.tree.files()
    assert (found.expired, found.blocks) == (1, 1)


@pytest.mark.parametrize("call", ["lstat", "listdir"])
def test_what_cannot_be_looked_at_is_opened_and_counted_once(place, monkeypatch, call):
    for number in range(4):
        place.tree.block(number, 60)
    real, name = getattr(os, call), leaf_of(digest(1)).split("/")[1]

    def failing(path, **options):
        if path == name:
            raise OSError(errno.EIO, "broken")
        return real(path, **options)

    monkeypatch.setattr(os, call, failing)
    found = place.walk()
    assert (found.blocks, found.errors, found.complete) == (4, {}, True), "by its handle it could be read"


def test_where_much_has_ended_leaves_are_opened_at_once(place, monkeypatch):
    """Looking first would be done in vain; what goes is the same."""
    for unit in ("aaa", "bbb"):
        for leaf in range(8):
            place.tree.put(f"{NAMESPACE}_r0/{unit}/{leaf:02x}_g0/{unit}{leaf:02x}{0:059x}.bin", 9000)
    looks = []
    real = IndexedWalk._look

    def look(self, *arguments):
        listed, unread = real(self, *arguments)
        looks.append(listed)
        return listed, unread

    monkeypatch.setattr(IndexedWalk, "_look", look)
    assert place.walk().expired == 16 and place.tree.files() == set() and looks == [8]


def test_what_the_caps_go_by_is_counted_by_the_open_directory(place, monkeypatch):
    """Else blocks that lie elsewhere could count against a cap, and young ones of the tier would go for them.

    Seen failing without the question for caps.
    """
    young = {place.tree.block(1, 60), place.tree.block(2, 50)}
    for number in range(3):
        place.outside.put(f"{LEAF}/{digest(1)[:60]}{number:04x}.bin", 10)
    done = after_its_stat(monkeypatch, place.leaf.name, place.swap)
    found = place.walk(Policy(3600, 600, 600, max_files=2))
    assert not done and (found.capped, found.blocks) == (0, 2) and young == place.tree.files()


# -- the working directory


@pytest.mark.parametrize("ending", ["end", "stop", "error"])
def test_the_working_directory_is_that_of_the_caller_again(place, tmp_path, monkeypatch, ending):
    place.tree.block(1, 60)
    monkeypatch.chdir(tmp_path)

    def pause():
        if ending == "stop":
            raise Stop("now")
        if ending == "error":
            raise ZeroDivisionError

    with contextlib.suppress(ZeroDivisionError):
        assert place.walk(pause=pause).complete == (ending == "end")
    assert os.getcwd() == str(tmp_path)


def test_a_working_directory_that_is_gone_is_no_obstacle(place, tmp_path):
    place.tree.block(1, 60)
    pid = os.fork()
    if not pid:
        status = 1
        try:
            gone = tmp_path / "gone"
            gone.mkdir()
            os.chdir(gone)
            gone.rmdir()
            status = 0 if place.walk().blocks == 1 else 2
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0
