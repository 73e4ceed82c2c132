# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The index and the workers: they make a pass cheap and never change what it deletes."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import struct
import tempfile
import time
import zlib
from pathlib import Path

import pytest
from fixtures import HOSTILE_NAMESPACE, NAMESPACE, NS, POLICY, VLLM, Tree, digest, leaf_of, tier_for, walked
from hypothesis import HealthCheck, given, settings, target
from hypothesis import strategies as st

from ansible_collections.llmhost.hardening.plugins.module_utils.kv import discovery, expiry, index, indexed, state
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.index import Index
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.indexed import IndexedWalk
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.survey import AGE_BOUNDS
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.walk import Policy, Stop
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.workers import default_workers


class Indexed:
    """A tree with an index, and passes over it."""

    def __init__(self, base: Path, now: int | None = None) -> None:
        self.tree = Tree(base / "kv", now)
        self.state = base / "state"
        self.state.mkdir(parents=True)

    def walk(self, policy: Policy = POLICY, full: bool = False, at: float = 0, **options):
        """A pass `at` seconds after the tree's own time."""
        options = {"delete": True, "workers": 1, **options}
        with contextlib.ExitStack() as stack:
            root = os.open(self.tree.root, os.O_RDONLY | os.O_DIRECTORY)
            stack.callback(os.close, root)
            state_fd = os.open(self.state, os.O_RDONLY | os.O_DIRECTORY)
            stack.callback(os.close, state_fd)
            kept = Index(state_fd, os.fstat(root).st_dev, os.getuid())
            stack.callback(kept.close)
            now = self.tree.now + at
            return IndexedWalk(root, VLLM, os.getuid(), now, policy, index=kept, full=full, **options).run()

    def shards(self) -> list[Path]:
        return sorted((self.state / index.DIRECTORY).iterdir())

    def leaf(self, number: int) -> Path:
        return self.tree.path(f"{NAMESPACE}_r0/{leaf_of(digest(number))}")


@pytest.fixture(autouse=True)
def _settled_at_once(monkeypatch):
    """A leaf may be believed without waiting for two seconds; the test of that rule sets it back."""
    monkeypatch.setattr(index, "RACY_NS", -60 * NS)


@pytest.fixture
def place(tmp_path):
    return Indexed(tmp_path)


# -- what is passed over


def test_a_leaf_that_did_not_change_is_not_read_again_and_still_counted(place):
    for number in range(5):
        place.tree.block(number, 100 + number, size=number)
    first, second = place.walk(), place.walk()
    assert (first.skipped, second.skipped) == (0, 5)
    for name in ("blocks", "block_bytes", "dirs", "oldest_mtime", "newest_mtime", "ages", "loose_dirs"):
        assert getattr(first, name) == getattr(second, name), name


def test_a_leaf_that_changed_is_read(place):
    for number in range(3):
        place.tree.block(number, 100)
    place.walk()
    os.utime(place.leaf(1))
    assert place.walk().skipped == 2


def test_a_leaf_is_read_once_something_in_it_may_have_ended(place):
    place.tree.block(1, 3000)
    place.tree.block(2, 100)
    place.walk()
    found = place.walk(at=600)
    assert (found.expired, found.blocks, found.skipped) == (1, 1, 1)


def test_an_unchanged_leaf_whose_block_ended_stays_without_the_guard(place, monkeypatch):
    place.tree.block(1, 3000)
    place.walk()
    monkeypatch.setattr(indexed, "_SLACK", -1e9)
    assert place.walk(at=600).expired == 0, "this is what the comparison with the oldest block prevents"


def test_an_empty_leaf_goes_when_its_grace_is_over(place):
    leaf = place.tree.directory(f"{NAMESPACE}_r0/abc/de_g0", 0)
    place.walk()
    assert place.walk().skipped == 1
    assert place.walk(at=700).dirs_removed == 1
    assert leaf not in place.tree.dirs()


@pytest.mark.parametrize("what", ["temp", "stranger", "open", "future", "hard link", "overdue"])
def test_a_leaf_with_anything_odd_is_read_each_time(place, what):
    path = place.tree.path(place.tree.block(1, 100))
    if what == "temp":
        place.tree.temp(1, 100)
    elif what == "stranger":
        (path.parent / "notes.txt").touch()
    elif what == "open":
        path.chmod(0o644)
    elif what == "future":
        place.tree.age(str(path.relative_to(place.tree.root)), -9000)
    elif what == "hard link":
        os.link(path, place.tree.root.parent / "second")
    else:
        place.tree.block(1, 9000)
    options = {"delete": what != "overdue"}
    assert place.walk(**options).skipped == place.walk(**options).skipped == 0


def test_a_leaf_that_changed_within_two_seconds_of_the_visit_is_not_believed(place, monkeypatch):
    monkeypatch.setattr(index, "RACY_NS", 2 * NS)
    place.tree.block(1, 100)
    place.walk()
    assert place.walk().skipped == 0
    time.sleep(2.1)
    place.walk()
    assert place.walk().skipped == 1


def test_a_change_within_the_clock_tick_of_the_visit_is_missed_without_the_two_seconds(place):
    place.tree.block(1, 100)
    place.walk()
    leaf = place.leaf(1)
    seen = leaf.stat()
    (leaf / f"{leaf.parent.name}{leaf.name[:2]}{'0' * 59}.bin").touch(mode=0o600)
    # The kernel's tick is 1 to 10 ms long; what falls into the same one leaves the same times, as here by hand.
    frozen = {"st_ctime_ns": seen.st_ctime_ns, "st_mtime_ns": seen.st_mtime_ns}
    real = os.lstat

    def same_tick(path, *arguments, **options):
        info = real(path, *arguments, **options)
        return info if info.st_ino != seen.st_ino else _Stat(info, frozen)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "lstat", same_tick)
        found = place.walk()
    assert (found.skipped, found.blocks) == (1, 1), "the second block was not seen"


class _Stat:
    def __init__(self, info, changes) -> None:
        self.info, self.changes = info, changes

    def __getattr__(self, name):
        return self.changes.get(name, getattr(self.info, name))


def test_a_file_that_cannot_be_looked_at_does_not_keep_its_neighbours(place, monkeypatch):
    path = place.tree.path(place.tree.block(1, 9000))
    others = [
        place.tree.put(f"{path.parent.relative_to(place.tree.root)}/{digest(1)[:5]}{n:059x}.bin", 9000) for n in (1, 2)
    ]
    real = os.stat

    def failing(name, **options):
        if name == path.name:
            raise OSError(errno.EIO, "broken")
        return real(name, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", failing)
        found = place.walk()
    assert found.errors == {"EIO": 1} and found.expired == len(others)
    assert place.walk().expired == 1


def test_a_namespace_that_is_renamed_during_the_run_does_not_end_it(place):
    for number in range(12):
        place.tree.block(number, 9000)
        place.tree.block(number, 9000, namespace="other_0123456789ab")
    top = place.tree.path(f"{NAMESPACE}_r0")

    def rename():
        if top.exists():
            top.rename(top.with_name("moved_0123456789ab_r0"))

    found = place.walk(pause=rename)
    assert found.complete and found.errors == {}
    assert place.walk().complete and place.tree.files() == set()


@pytest.mark.parametrize("change", ["utime", "chmod"])
def test_what_changes_no_directory_is_put_right_by_the_next_full_pass(place, change):
    path = place.tree.path(place.tree.block(1, 100))
    place.walk()
    if change == "utime":
        os.utime(path, (place.tree.now - 9000, place.tree.now - 9000))
        assert (place.walk().expired, place.walk(full=True).expired) == (0, 1)
    else:
        path.chmod(0o644)
        assert (place.walk().loose, place.walk(full=True).loose, place.walk().loose) == (0, 1, 1)


def test_a_cap_is_kept_to_the_byte_with_leaves_passed_over(place):
    for number in range(6):
        place.tree.block(number, 100 + number, size=10)
    extra = f"{leaf_of(digest(1))}"
    place.tree.put(f"{NAMESPACE}_r0/{extra}/{digest(1)[:60]}0000.bin", 50, 10)
    assert place.walk().skipped == 0
    found = place.walk(Policy(3600, 600, 600, max_bytes=40))
    assert (found.capped, found.blocks, found.block_bytes) == (3, 4, 40)
    assert found.oldest_mtime == place.tree.now - 102
    found = place.walk(Policy(3600, 600, 600, max_files=3), at=1)
    assert (found.capped, found.blocks) == (1, 3)


def test_namespaces_with_hostile_names_are_indexed_too(place):
    for number in range(3):
        place.tree.block(number, 100, namespace=HOSTILE_NAMESPACE)
    place.walk()
    assert place.walk().skipped == 3


# -- the index on disk


def test_the_index_is_closed_to_others_and_names_no_block(place):
    place.tree.block(1, 100)
    place.walk()
    assert (place.state / index.DIRECTORY).stat().st_mode & 0o777 == 0o700
    (shard,) = place.shards()
    assert shard.stat().st_mode & 0o777 == 0o600
    assert digest(1)[5:].encode() not in shard.read_bytes() and NAMESPACE.encode() not in shard.read_bytes()


def test_nothing_is_written_where_little_changed(place):
    for number in range(40):
        place.tree.put(f"{NAMESPACE}_r0/abc/{number:02x}_g0/abc{number:02x}{'0' * 59}.bin", 100)
    place.walk()
    (shard,) = place.shards()
    before = shard.stat().st_ino
    os.utime(place.tree.path(f"{NAMESPACE}_r0/abc/00_g0"))
    assert place.walk().skipped == 39 and place.shards()[0].stat().st_ino == before
    for number in range(20):
        os.utime(place.tree.path(f"{NAMESPACE}_r0/abc/{number:02x}_g0"))
    assert place.walk().skipped == 20 and place.shards()[0].stat().st_ino != before
    assert place.walk().skipped == 40


def test_shards_of_what_is_gone_go_and_so_does_what_else_lies_there(place):
    place.tree.block(1, 100)
    place.walk()
    (place.state / index.DIRECTORY / ".x.tmp").touch()
    shutil.rmtree(place.tree.path(f"{NAMESPACE}_r0"))
    place.walk()
    assert place.shards() == []


def test_units_that_a_pass_did_not_come_to_stay_in_the_index(place):
    tree = place.tree
    for number in range(4):
        tree.put(f"{NAMESPACE}_r0/a{number:02x}/de_g0/a{number:02x}de{'0' * 59}.bin", 100)
    place.walk()
    ending = place.walk(deadline=0.0)
    assert not ending.complete and ending.skipped == 1
    assert place.walk().skipped == 4


def damage_cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


def damage_flip(data: bytes) -> bytes:
    return data[:40] + bytes([data[40] ^ 1]) + data[41:]


def damage_empty(data: bytes) -> bytes:
    return b""


def damage_version(data: bytes) -> bytes:
    return sealed(data.replace(b"llmhost-index 1", b"llmhost-index 0")[:-4])


def damage_counts(data: bytes) -> bytes:
    body = bytearray(data[:-4])
    body[16 + 16 : 16 + 20] = struct.pack("<I", 1 << 30)
    return sealed(bytes(body))


def damage_device(data: bytes) -> bytes:
    body = bytearray(data[:-4])
    body[16:24] = struct.pack("<Q", 12345)
    return sealed(bytes(body))


def sealed(body: bytes) -> bytes:
    return body + struct.pack("<I", zlib.crc32(body))


DAMAGES = [damage_cut, damage_flip, damage_empty, damage_version, damage_counts, damage_device]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__[7:])
def test_a_damaged_index_costs_a_cold_pass_and_nothing_else(place, damage):
    place.tree.block(1, 3000)
    place.walk()
    (shard,) = place.shards()
    shard.write_bytes(damage(shard.read_bytes()))
    found = place.walk()
    assert (found.skipped, found.blocks, found.errors) == (0, 1, {})
    assert place.walk().skipped == 1
    assert place.walk(at=600).expired == 1


@pytest.mark.parametrize("put", ["symlink", "fifo", "directory", "foreign"])
def test_what_somebody_else_put_in_place_of_a_shard_is_not_read(place, put):
    place.tree.block(1, 100)
    place.walk()
    (shard,) = place.shards()
    data = shard.read_bytes()
    shard.unlink()
    if put == "symlink":
        (place.state / "aside").write_bytes(data)
        shard.symlink_to(place.state / "aside")
    elif put == "fifo":
        os.mkfifo(shard)
    elif put == "directory":
        shard.mkdir()
    else:
        shard.write_bytes(data)
        os.chown(shard, 65534, 65534)
    found = place.walk()
    assert (found.skipped, found.blocks) == (0, 1)


def test_an_index_of_another_tree_is_not_believed(place, tmp_path):
    place.tree.block(1, 100)
    place.walk()
    other = Indexed(tmp_path / "other")
    other.tree.block(1, 100)
    shutil.copytree(place.state / index.DIRECTORY, other.state / index.DIRECTORY)
    assert other.walk().skipped == 0


# -- several workers


@pytest.mark.parametrize("workers", [2, 3, 8])
def test_workers_find_and_delete_what_one_does(tmp_path, workers):
    results, now = [], int(time.time())
    for count in (1, workers):
        place = Indexed(tmp_path / str(count), now)
        for number in range(60):
            place.tree.block(number, 100 * number, size=number)
        place.tree.temp(7, 900)
        place.tree.config()
        found = place.walk(Policy(3600, 600, 600, max_files=20), workers=count)
        found.seconds = 0
        results.append((vars(found), place.tree.files()))
    assert results[0] == results[1]


def test_a_pass_may_be_called_where_its_account_may_not_be(place, monkeypatch):
    monkeypatch.chdir("/tmp")
    place.tree.block(1, 9000)
    real = os.open

    def closed(path, *arguments, **more):
        if path == ".":
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return real(path, *arguments, **more)

    monkeypatch.setattr(os, "open", closed)
    assert place.walk().complete and place.tree.files() == set()
    assert os.getcwd() == "/"


def wait_for(path, seconds=30):
    """On a busy machine one worker would do it all before the other gets something to do."""
    end = time.monotonic() + seconds
    while not path.exists() and time.monotonic() < end:
        time.sleep(0.01)


def test_a_worker_that_dies_is_noticed_and_its_work_is_done_again(place, monkeypatch):
    for number in range(30):
        place.tree.block(number, 9000)
    parent, about_to_die = os.getpid(), place.tree.root.parent / "about to die"
    real = IndexedWalk._unlink

    def dying(self, *arguments):
        if os.getpid() != parent:
            about_to_die.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        wait_for(about_to_die)
        return real(self, *arguments)

    monkeypatch.setattr(IndexedWalk, "_unlink", dying)
    found = place.walk(workers=2)
    assert found.errors == {"ECHILD": 1} and found.complete and place.tree.files() == set()


def test_a_stop_in_any_worker_ends_the_pass_with_its_reason(place, monkeypatch):
    for number in range(30):
        place.tree.block(number, 9000)
    parent, stopped = os.getpid(), place.tree.root.parent / "stopped"

    def stop():
        if os.getpid() != parent:
            stopped.touch()
            raise Stop("no longer the directory")
        wait_for(stopped)

    found = place.walk(workers=2, pause=stop)
    assert (found.complete, found.stopped) == (False, "no longer the directory") and found.resume
    assert place.walk(workers=2, start_at=found.resume).complete and place.tree.files() == set()


def test_workers_end_with_their_parent(place):
    """The children of a run that was killed would go on deleting without its lock's owner."""
    for number in range(30):
        place.tree.block(number, 9000)
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            parent = os.getpid()

            def hold():
                if os.getpid() != parent:
                    os.write(writer, b"%d\n" % os.getpid())
                time.sleep(60)

            place.walk(workers=2, pause=hold)
        finally:
            os._exit(0)
    child = int(os.read(reader, 20).split()[0])
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    for _try in range(100):
        if not Path(f"/proc/{child}").exists() or "Z" in Path(f"/proc/{child}/stat").read_text().split()[2]:
            break
        time.sleep(0.05)
    else:
        raise AssertionError("the worker outlives its parent")


def test_the_number_of_workers_respects_the_host(monkeypatch):
    counts = {}
    for cores in (1, 2, 3, 4, 8, 64):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _pid, cores=cores: set(range(cores)))
        counts[cores] = default_workers()
    assert counts == {1: 1, 2: 2, 3: 2, 4: 2, 8: 4, 64: 8}


# -- what the record says of it


def test_only_a_pass_that_read_everything_counts_as_full(tmp_path, monkeypatch):
    monkeypatch.setattr(discovery, "engines", lambda *_: [])
    tree = Tree(tmp_path / "kv")
    tier = tier_for(tree.root)
    (tmp_path / "state" / tier["name"]).mkdir(parents=True, mode=0o700)
    tree.block(1, 100)

    def run(**options):
        return expiry.expire(tier, state_root=str(tmp_path / "state"), **options)

    first, steady = run(), run()
    assert (first["full"], first["skipped"]) == (True, 0)
    assert (steady["full"], steady["skipped"], steady["exit"]) == (False, 1, expiry.OK)
    record = state.read_run(tier, str(tmp_path / "state"))
    assert record["last_full"] == first["started"] and record["measured"] == record["finished"]
    assert run(full=True)["full"]
    hours = tier["full_pass_hours"] * 3600
    monkeypatch.setattr(
        expiry, "_full_pass_due", lambda tier, last, now, real=expiry._full_pass_due: real(tier, last, now + hours)
    )
    assert run()["full"], "a full pass is due"


@pytest.mark.parametrize(("last", "due"), [(None, True), (0.0, True), (-3600.0, False), (-86400.0, True), (60.0, True)])
def test_a_full_pass_is_due_without_one_when_it_is_old_and_when_the_clock_went_back(last, due):
    now = 1e9
    tier = {"full_pass_hours": 24}
    assert expiry._full_pass_due(tier, None if last is None else now + last, now) is (due if last != 0.0 else False)


# -- against a reference that is obviously right


RETENTION, GRACE = 3600, 600


def reference(tree: Tree, at: float) -> set[str]:
    """What a pass must leave: each file by its own age, nothing else matters."""
    limits = {".bin": RETENTION, ".tmp": GRACE}
    return {path for path in tree.files() if tree.now + at - tree.path(path).stat().st_mtime < limits[path[-4:]]}


@pytest.fixture
def shared_memory():
    """A directory in memory where there is one: a history is some hundred small changes."""
    base = Path(tempfile.mkdtemp(prefix="llmhost-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
    yield base
    shutil.rmtree(base)


LEAVES = [f"{NAMESPACE}_r0/{unit}/{leaf}_g0" for unit in ("abc", "abd", "f00") for leaf in ("00", "01")]
leaves = st.sampled_from(LEAVES)
ages = st.integers(0, 4000)
OPERATIONS = st.one_of(
    st.tuples(st.just("create"), leaves, st.integers(0, 3), ages),
    st.tuples(st.just("temp"), leaves, st.integers(0, 3), ages),
    st.tuples(st.just("unlink"), leaves, st.integers(0, 3), ages),
    st.tuples(st.just("rename"), leaves, st.integers(0, 3), leaves),
    st.tuples(st.just("rmdir"), leaves, st.just(0), ages),
    st.tuples(st.just("mkdir"), leaves, st.just(0), ages),
    st.tuples(st.just("time"), leaves, st.just(0), st.integers(1, 1500)),
    st.tuples(st.just("damage"), leaves, st.integers(0, 8), st.integers(0, 4096)),
)


def name_in(leaf: str, number: int) -> str:
    unit, last = leaf.split("/")[1:]
    return f"{leaf}/{unit}{last[:2]}{number:059x}.bin"


def apply(place: Indexed, what: str, leaf: str, number: int, value, at: float) -> None:
    tree = place.tree
    path = tree.path(name_in(leaf, number))
    with contextlib.suppress(FileNotFoundError, OSError):
        if what == "create":
            # A block that is there already would be written in place, which changes no directory.
            path.unlink(missing_ok=True)
            tree.put(name_in(leaf, number), value - at, 3)
        elif what == "temp":
            tree.path(name_in(leaf, number) + f"_{number}.tmp").unlink(missing_ok=True)
            tree.put(name_in(leaf, number) + f"_{number}.tmp", value - at, 3)
        elif what == "unlink":
            path.unlink()
        elif what == "rename":
            path.rename(tree.path(name_in(value, number)))
        elif what == "rmdir":
            path.parent.rmdir()
        elif what == "mkdir":
            path.parent.mkdir(parents=True, mode=0o700, exist_ok=True)
        elif what == "damage":
            shards = place.shards()
            shard = shards[number % len(shards)] if shards else None
            if shard and value % 3 == 0:
                shard.unlink()
            elif shard and value % 3 == 1:
                shard.write_bytes(shard.read_bytes()[:value])
            elif shard:
                data = bytearray(shard.read_bytes())
                data[value % len(data)] ^= 1 << number % 8
                shard.write_bytes(data)


EXAMPLES = int(os.environ.get("LLMHOST_EXAMPLES", "60"))


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(OPERATIONS, min_size=1, max_size=15), st.sampled_from([1, 1, 1, 2]))
def test_after_any_history_the_files_left_are_what_a_plain_reference_decides(shared_memory, history, workers):
    place, at, skipped = Indexed(shared_memory / f"run{time.monotonic_ns()}"), 0.0, 0
    with pytest.MonkeyPatch.context() as patch:
        # Histories play within milliseconds: the rule of two seconds becomes one of the clock's tick, slept below.
        patch.setattr(index, "RACY_NS", 0)
        for what, leaf, number, value in history:
            if what == "time":
                at += value
            else:
                apply(place, what, leaf, number, value, at)
            time.sleep(0.005)
            expected = reference(place.tree, at)
            found = place.walk(Policy(RETENTION, GRACE, GRACE), at=at, workers=workers)
            skipped += found.skipped
            assert place.tree.files() == expected
            assert found.blocks == sum(path.endswith(".bin") for path in expected)
    if len(history) > 5:
        target(float(skipped))
    shutil.rmtree(place.tree.root.parent)


def test_a_walk_without_an_index_reads_everything(place):
    place.tree.block(1, 100)
    assert walked(place.tree).skipped == walked(place.tree).skipped == 0
    assert len(AGE_BOUNDS) + 1 == len(walked(place.tree).ages)
