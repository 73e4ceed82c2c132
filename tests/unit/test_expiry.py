# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""One pass over one tier: when it must not run, what it records, and what is left when it is killed."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fixtures import (
    HOSTILE_NAMESPACE,
    NAMESPACE,
    NOBODY,
    NS,
    POLICY,
    Tree,
    digest,
    make_state,
    mount,
    public_directory,
    strings,
    tier_for,
    walked,
    with_own_mounts,
)

from ansible_collections.llmhost.hardening.plugins.module_utils.kv import (
    account,
    clock,
    discovery,
    expiry,
    mounts,
    state,
    walk,
)

both = pytest.mark.parametrize("guarded", [True, False], ids=["guarded", "guard removed"])
YEAR = 365 * 86400


class Place:
    """A tier with its tree and its state."""

    def __init__(self, root: Path, **changes) -> None:
        self.tree = Tree(root / "kv")
        self.tier = tier_for(self.tree.root, **changes)
        self.state_root = root / "state"
        self.state = make_state(self.state_root, self.tier)

    def expire(self, **options):
        return expiry.expire(self.tier, state_root=str(self.state_root), **options)

    def record(self):
        return state.read_run(self.tier, str(self.state_root))


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setattr(discovery, "engines", lambda *_: [])
    return Place(tmp_path)


# -- a pass


def test_a_pass_deletes_what_ended_and_records_it(place):
    old, young = place.tree.block(1, 4000), place.tree.block(2, 60)
    result = place.expire()
    assert place.tree.files() == {young} and old not in place.tree.files()
    record = place.record()
    assert (record["exit"], record["full"], record["expired"], record["blocks"]) == (expiry.OK, True, 1, 1)
    assert record["started"] <= record["finished"] <= time.time()
    assert record["last_full"] == record["last_success"] == record["started"]
    assert {key: result[key] for key in record} == record
    assert record["oldest_mtime"] == place.tree.now - 60


def test_the_summary_adds_up(place):
    place.tier["max_files"] = 3
    for number in range(4):
        place.tree.block(number, 4000, size=100)
    for number in range(10, 14):
        place.tree.block(number, 600 - number, size=10)
    place.tree.temp(20, 700), place.tree.temp(21, 60), place.tree.config(9000)
    os.link(place.tree.path(place.tree.block(30, 5000)), place.tree.root.parent / "copy")
    place.tree.put("notes", 9000)
    result = place.expire()
    assert (result["seen"], result["expired"], result["capped"], result["temps_removed"]) == (12, 4, 1, 1)
    assert result["freed"] == 4 * 100 + 10 + 16 and result["kept"] == result["blocks"] == 4
    assert (result["overdue"], result["leftovers"], result["strangers"], result["hardlinks"]) == (1, 0, 1, 1)
    assert 5000 <= result["oldest_age"] < 5100 and sum(count for _bound, count in result["ages"]) == 4
    assert result["errors"] == {} and result["seconds"] > 0


def test_every_field_of_the_summary_is_documented(place):
    place.tree.block(1, 4000)
    page = (Path(__file__).resolve().parents[2] / "docs/kvtier.md").read_text()
    told = page.partition("## JSON of `expire --json`")[2].partition("\n## ")[0]
    missing = {key for key in place.expire() if f"`{key}`" not in told}
    assert missing == set()
    for code, meaning in expiry.EXIT_CODES.items():
        assert f"| {code} | {meaning} |" in page


def test_listing_deletes_and_records_nothing(place):
    place.tree.block(1, 4000)
    listed = []
    result = place.expire(delete=False, on_delete=lambda path, kind: listed.append(path))
    assert result["exit"] == expiry.OK and len(listed) == 1
    assert len(place.tree.files()) == 1 and list(place.state.iterdir()) == []


def test_age_counts_from_the_beginning_of_the_pass_to_the_second(place, monkeypatch):
    place.tree.now = int(time.time()) + 3
    goes, stays = place.tree.block(1, 3600), place.tree.block(2, 3599)
    at = clock.now()
    monkeypatch.setattr(clock, "now", lambda: {**at, "wall": float(place.tree.now)})
    place.expire()
    assert place.tree.files() == {stays} and goes not in place.tree.files()


def test_what_is_overdue_and_not_ours_is_no_success(place):
    linked = place.tree.block(1, 4000)
    os.link(place.tree.path(linked), place.tree.root.parent / "copy")
    result = place.expire()
    assert result["exit"] == expiry.ERRORS and result["last_success"] is None
    assert result["messages"] == [f"1 overdue blocks could not be deleted, the first is {linked}"]


def test_errors_amid_the_pass_end_in_exit_code_and_message(place, monkeypatch):
    place.tree.block(1, 4000)

    def failing(name, *, dir_fd):
        raise OSError(errno.EIO, "broken")

    with monkeypatch.context() as patch:
        patch.setattr(walk.os, "unlink", failing)
        result = place.expire(delete=True)
    assert result["exit"] == expiry.ERRORS and "1 x EIO while walking" in result["messages"]


def test_all_that_is_recorded_and_returned_is_printable(place):
    for number in range(3):
        path = place.tree.block(number, 4000, namespace=HOSTILE_NAMESPACE)
        os.link(place.tree.path(path), place.tree.root.parent / f"copy{number}")
    result = place.expire(max_seconds=0)
    assert result["exit"] == expiry.UNFINISHED and "\\xff\\x1b" in place.record()["resume"]
    result2 = place.expire()
    texts = strings(result) + strings(result2) + strings(place.record())
    assert any("\\xff" in text for text in texts) and all(text.isprintable() for text in texts)
    json.dumps([result, result2]).encode("ascii")


@pytest.mark.parametrize("workers", [1, 3])
def test_runs_without_time_get_through_everything_by_their_record(place, workers):
    for number in range(12):
        place.tree.block(number, 4000)
    passes = 0
    while left := place.tree.files():
        assert place.expire(max_seconds=0, workers=workers)["exit"] == expiry.UNFINISHED
        # A pass may begin with what another worker of an earlier one has emptied, but always goes on from there.
        assert len(left) - workers <= len(place.tree.files()) <= len(left) - (workers == 1)
        passes += 1
        assert passes <= 2 * 12
    assert place.expire()["exit"] == expiry.OK
    assert place.tree.files() == set() and place.record()["resume"] is None


# -- where it may run


def test_nothing_happens_without_a_state_directory(place):
    place.tree.block(1, 4000)
    place.state.rmdir()
    result = place.expire()
    assert result["exit"] == expiry.REFUSED and "run the harden playbook" in result["messages"][0]
    assert len(place.tree.files()) == 1


def test_an_undeclared_directory_needs_and_leaves_no_state(place):
    place.tree.block(1, 4000)
    result = expiry.expire(place.tier, state_root=None)
    assert result["exit"] == expiry.OK and place.tree.files() == set()
    assert list(place.state.iterdir()) == [] and list(place.tree.root.iterdir()) != []


@both
def test_the_declared_volume_must_be_mounted(place, monkeypatch, guarded):
    place.tree.block(1, 4000)
    place.tier["volume"] = {"backend": "dmcrypt", "source": {"file": "/x", "size": 1}, "key": "ephemeral"}
    if not guarded:
        monkeypatch.setattr(mounts, "problem", lambda *_: None)
    result = place.expire()
    assert bool(place.tree.files()) == guarded
    if guarded:
        assert result["exit"] == expiry.REFUSED
        assert "is not the mount of /dev/mapper/llmhost_chat" in result["messages"][0]
        assert "systemctl start llmhost-tier@chat.service" in result["messages"][0]


@both
@pytest.mark.parametrize("kind", ["file system", "bind mount"])
def test_a_tier_that_was_a_mount_point_must_still_be_one(tmp_path, monkeypatch, kind, guarded):
    """Seen failing for `bind mount` when a mount was told by its device alone."""
    monkeypatch.setattr(discovery, "engines", lambda *_: [])

    def work():
        place = Place(tmp_path)
        below = place.tree.block(1, 4000)
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        arguments = ("-t", "tmpfs", "tmpfs") if kind == "file system" else ("--bind", tmp_path / "elsewhere")
        mount(*arguments, place.tree.root)
        first = place.expire()
        subprocess.run(["umount", place.tree.root], check=True)
        if not guarded:
            monkeypatch.setattr(mounts, "is_mountpoint", lambda fd: False)
            (place.state / state.RECORD).unlink()
        second = place.expire()
        return first["exit"], first["mounted"], second["exit"], below in place.tree.files(), second["messages"]

    exit1, mounted, exit2, there, messages = with_own_mounts(work)
    assert (exit1, mounted) == (expiry.OK, True)
    assert (exit2, there) == ((expiry.REFUSED, True) if guarded else (expiry.OK, False))
    assert not guarded or "was a mount point at the last run and is none now" in messages[0]


def test_a_refusal_does_not_forget_that_the_tier_was_a_mount_point(tmp_path, monkeypatch):
    monkeypatch.setattr(discovery, "engines", lambda *_: [])

    def work():
        place = Place(tmp_path)
        place.tree.block(1, 4000)
        mount("-t", "tmpfs", "tmpfs", place.tree.root)
        place.expire()
        subprocess.run(["umount", place.tree.root], check=True)
        return [place.expire()["exit"] for _count in range(3)]

    assert with_own_mounts(work) == [expiry.REFUSED] * 3


def test_the_root_must_belong_to_the_account(place):
    place.tree.block(1, 4000)
    place.tier["owner"] = NOBODY
    os.chown(place.state, NOBODY, NOBODY)
    result = place.expire()
    assert result["exit"] == expiry.REFUSED and "kvtier prepare chat" in result["messages"][0]
    assert len(place.tree.files()) == 1


@pytest.mark.parametrize("kind", ["missing", "file", "symlink", "symlinked parent"])
def test_a_path_that_is_no_plain_directory_is_refused(place, kind):
    place.tree.block(1, 4000)
    aside = place.tree.root.parent / "aside"
    place.tree.root.rename(aside)
    if kind == "file":
        place.tree.root.touch()
    elif kind == "symlink":
        place.tree.root.symlink_to(aside)
    elif kind == "symlinked parent":
        (aside.parent / "link").symlink_to(aside.parent)
        aside.rename(place.tree.root)
        place.tier["path"] = str(aside.parent / "link" / "kv")
    result = place.expire()
    assert result["exit"] == expiry.REFUSED
    assert len(list(place.tree.root.parent.rglob("*.bin"))) == 1


@pytest.mark.parametrize("owner", ["no-such-account", "no\nsuch\x1b[2J"])
def test_a_missing_account_is_refused_in_words(place, owner):
    place.tier["owner"] = owner
    result = place.expire()
    assert result["exit"] == expiry.REFUSED and "there is no account" in result["messages"][0]
    assert result["messages"][0].isprintable()


# -- while it runs


@both
def test_a_tier_renamed_during_the_run_ends_it(place, monkeypatch, guarded):
    for number in range(10):
        place.tree.block(number, 4000)
    aside = Tree(place.tree.root.parent / "aside")
    aside.root.rmdir()
    monkeypatch.setattr(expiry.Watch, "every", 0.0 if guarded else 10**9)

    def rename(path, kind):
        if place.tree.root.exists():
            place.tree.root.rename(aside.root)

    result = place.expire(on_delete=rename)
    assert len(aside.files()) == (9 if guarded else 0)
    if guarded:
        assert result["exit"] == expiry.REFUSED and not result["full"]
        assert "is no longer the directory that the pass began in" in result["messages"][0]
        assert result["last_full"] is None and result["expired"] == 1


@both
def test_a_tier_replaced_during_the_run_ends_it(place, monkeypatch, guarded):
    for number in range(10):
        place.tree.block(number, 4000)
    aside = place.tree.root.parent / "aside"
    monkeypatch.setattr(expiry.Watch, "every", 0.0 if guarded else 10**9)

    def replace_root(path, kind):
        if not aside.exists():
            place.tree.root.rename(aside)
            place.tree.root.mkdir(mode=0o700)
            place.tree.block(77, 4000)

    place.expire(on_delete=replace_root)
    assert len(list(aside.rglob("*.bin"))) == (9 if guarded else 0)
    assert len(place.tree.files()) == 1, "what is there now was not part of the pass"


@both
def test_a_lazily_unmounted_tier_ends_the_run(tmp_path, monkeypatch, guarded):
    monkeypatch.setattr(discovery, "engines", lambda *_: [])
    monkeypatch.setattr(expiry.Watch, "every", 0.0 if guarded else 10**9)

    def work():
        place = Place(tmp_path)
        below = place.tree.block(99, 4000)
        mount("-t", "tmpfs", "-o", "mode=0700", "tmpfs", place.tree.root)
        for number in range(10):
            place.tree.block(number, 4000)
        left = []

        def unmount(path, kind):
            left.append(path)
            if len(left) == 1:
                subprocess.run(["umount", "-l", place.tree.root], check=True)

        result = place.expire(on_delete=unmount)
        return result["exit"], len(left), place.tree.files() == {below}

    assert with_own_mounts(work) == ([expiry.REFUSED, 1, True] if guarded else [expiry.OK, 10, True])


# -- the engine


def found(*versions):
    return [discovery.Found(100 + number, "vllm.service", version, "/x") for number, version in enumerate(versions)]


@pytest.mark.parametrize(
    ("versions", "code"),
    [
        ([], expiry.OK),
        (["0.28.0"], expiry.OK),
        (["0.29.0", "0.33.1"], expiry.OK),
        (["0.27.9"], expiry.REFUSED),
        ([None], expiry.REFUSED),
        (["0.29.0", "0.27.0"], expiry.REFUSED),
        (["0.29.0", None], expiry.REFUSED),
        (["0.28.0rc1"], expiry.REFUSED),
        (["0.28.0.dev5+gabcdef"], expiry.REFUSED),
    ],
)
def test_blocks_go_only_under_an_engine_that_lets_go_of_them(place, monkeypatch, versions, code):
    place.tree.block(1, 4000)
    place.tree.temp(2, 4000)
    place.tree.directory(f"{NAMESPACE}_r0/abc/de_g0", 4000)
    monkeypatch.setattr(discovery, "engines", lambda *_: found(*versions))
    result = place.expire()
    assert result["exit"] == code
    assert bool(place.tree.files()) == (code == expiry.REFUSED)
    assert (f"{NAMESPACE}_r0/abc/de_g0" in place.tree.dirs()) == (code == expiry.REFUSED)
    if code == expiry.REFUSED:
        assert "vllm.service" in result["messages"][0] and result["overdue"] == 1 and result["last_full"] is None


def test_an_unsafe_engine_is_why_blocks_stay(place, monkeypatch):
    """The guard removed: with a gate that says yes, the same pass deletes."""
    place.tree.block(1, 4000)
    monkeypatch.setattr(discovery, "engines", lambda *_: found("0.27.0"))
    assert place.expire()["exit"] == expiry.REFUSED and len(place.tree.files()) == 1
    monkeypatch.setattr(discovery, "live_gate", lambda *_: discovery.Gate(True, "", None, ""))
    assert place.expire()["exit"] == expiry.OK and place.tree.files() == set()


def test_an_unsafe_engine_caps_nothing(place, monkeypatch):
    for number in range(5):
        place.tree.block(number, 60)
    place.tier["max_files"] = 1
    monkeypatch.setattr(discovery, "engines", lambda *_: found(None))
    result = place.expire()
    assert result["exit"] == expiry.REFUSED and (result["capped"], len(place.tree.files())) == (0, 5)


# -- the clock


def shifted(monkeypatch, seconds, synchronised=False):
    """From now on the wall clock is so many seconds away from the truth."""
    real_now, real_time = clock.now, time.time
    monkeypatch.setattr(clock, "now", lambda: {**real_now(), "wall": real_time() + seconds})
    monkeypatch.setattr(walk.time, "time", lambda: real_time() + seconds)
    monkeypatch.setattr(clock, "synchronised", lambda: synchronised)


@pytest.mark.parametrize("synchronised", [False, None])
@pytest.mark.parametrize("shift", [YEAR, -YEAR, 3700, -120])
def test_a_clock_that_jumped_expires_nothing(place, monkeypatch, shift, synchronised):
    young = place.tree.block(1, 60)
    place.expire()
    with monkeypatch.context() as patch:
        shifted(patch, shift, synchronised)
        for _again in range(2):
            result = place.expire()
            assert result["exit"] == expiry.CLOCK and "the clock jumped" in result["messages"][0]
    assert place.tree.files() == {young}
    old = place.tree.block(2, 4000)
    assert place.expire()["exit"] == expiry.OK and old not in place.tree.files()


@pytest.mark.parametrize("way", ["synchronised", "trusted", "first run"])
def test_without_the_guard_a_clock_a_year_ahead_expires_all(place, monkeypatch, way):
    place.tree.block(1, 60)
    if way != "first run":
        place.expire()
    shifted(monkeypatch, YEAR, way == "synchronised")
    assert place.expire(trust_clock=way == "trusted")["exit"] == expiry.OK
    assert place.tree.files() == set()


def test_a_clock_a_year_back_keeps_all_and_tells_of_the_future(place, monkeypatch):
    for number in range(3):
        place.tree.block(number, 4000)
    place.expire(delete=False)
    shifted(monkeypatch, -YEAR, True)
    result = place.expire()
    assert (result["exit"], result["future"], len(place.tree.files())) == (expiry.OK, 3, 3)


def test_a_clock_right_again_is_believed_again(place, monkeypatch):
    place.tree.block(1, 4000)
    place.tree.path(place.tree.block(2, 60))
    place.expire()
    with monkeypatch.context() as patch:
        shifted(patch, YEAR)
        assert place.expire()["exit"] == expiry.CLOCK
    assert place.expire()["exit"] == expiry.OK and len(place.tree.files()) == 1


# -- two at once, and killed

RUN = """
import json, os, sys, time
from pathlib import Path
from ansible_collections.llmhost.hardening.plugins.module_utils.kv import discovery, expiry
discovery.engines = lambda *_: []
tier, state_root, hold = json.loads(sys.argv[1]), sys.argv[2], float(sys.argv[3])
def hook(path, kind):
    print(path, flush=True)
    time.sleep(hold)
result = expiry.expire(tier, state_root=state_root, on_delete=hook)
print(json.dumps(result))
"""


def start(place, hold=0.0):
    arguments = [sys.executable, "-c", RUN, json.dumps(place.tier), str(place.state_root), str(hold)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, env=environment)


def test_two_runs_at_once_are_one_run(place):
    for number in range(3):
        place.tree.block(number, 4000)
    with start(place, hold=0.3) as first:
        first.stdout.readline()
        record = place.record()
        assert record["finished"] is None and record["exit"] is None
        result = place.expire()
        assert result["exit"] == expiry.BUSY and result["expired"] == 0
        assert place.expire(delete=False)["exit"] == expiry.BUSY
        assert place.record()["finished"] is None, "the second run must not write the first one's record"
        output = first.communicate()[0]
    assert json.loads(output.splitlines()[-1])["expired"] == 3
    assert place.expire()["exit"] == expiry.OK


def test_many_runs_at_once_count_each_block_once(place):
    for number in range(60):
        place.tree.block(number, 4000)
    runs = [start(place) for _count in range(4)]
    results = [json.loads(run.communicate()[0].splitlines()[-1]) for run in runs]
    assert {result["exit"] for result in results} <= {expiry.OK, expiry.BUSY}
    assert sum(result["expired"] for result in results) == 60 and place.tree.files() == set()


def test_a_killed_run_frees_the_lock_and_is_on_record_as_not_finished(place):
    for number in range(3):
        place.tree.block(number, 4000)
    with start(place, hold=60) as first:
        first.stdout.readline()
        first.kill()
        first.wait()
    record = place.record()
    assert record["started"] > 0 and record["finished"] is None and record["exit"] is None
    assert place.expire()["exit"] == expiry.OK and place.tree.files() == set()


# -- the record


@pytest.mark.parametrize("fill", [True, False], ids=["full", "read-only"])
def test_blocks_go_although_the_record_cannot_be_written(tmp_path, monkeypatch, fill):
    monkeypatch.setattr(discovery, "engines", lambda *_: [])

    def work():
        place = Place(tmp_path)
        place.tree.block(1, 4000)
        mount("-t", "tmpfs", "-o", "size=8k,mode=0700", "tmpfs", place.state)
        if fill:
            (place.state / "fill").write_bytes(b"x" * 4096)
        else:
            mount("-o", "remount,ro", place.state)
        result = place.expire()
        return result["exit"], result["messages"], len(place.tree.files()), result["expired"]

    code, messages, left, expired = with_own_mounts(work)
    assert (code, left, expired) == (expiry.ERRORS, 0, 1)
    reason = "No space left on device" if fill else "Read-only file system"
    assert messages == [f"the pass is not on record: {reason} in the tier's state directory"]


def test_what_stands_in_the_records_place_stops_nothing_but_the_record(place):
    place.tree.block(1, 4000)
    (place.state / state.RECORD).mkdir()
    (place.state / state.RECORD / "x").touch()
    result = place.expire()
    assert result["exit"] == expiry.ERRORS and place.tree.files() == set()
    assert "not on record" in result["messages"][0] and len(result["messages"]) == 1


def test_the_record_is_not_written_through_a_symlink(place, tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (place.state / state.RECORD).symlink_to(victim)
    (place.state / f".{state.RECORD}.tmp").symlink_to(victim)
    assert place.expire()["exit"] == expiry.OK
    assert victim.read_text() == "mine" and not (place.state / state.RECORD).is_symlink()


# -- as the account


def test_the_account_alone_can_do_the_whole_pass():
    with public_directory() as root:
        place = Place(root, owner=NOBODY)
        young = place.tree.block(2, 60)
        place.tree.block(1, 4000)
        place.tree.give(NOBODY)

        def work():
            discovery.engines = lambda *_: []
            return [os.getuid(), place.expire()]

        saved = discovery.engines
        try:
            uid, result = account.as_owner(NOBODY, work)
        finally:
            discovery.engines = saved
        assert uid == NOBODY and result["exit"] == expiry.OK, result["messages"]
        assert place.tree.files() == {young}
        assert (place.state / state.RECORD).stat().st_uid == NOBODY


# -- pacing


def test_the_pacer_slows_down_under_pressure_but_never_to_less_than_half(tmp_path, monkeypatch):
    pressure = tmp_path / "io"
    now = [0.0]
    slept = []
    monkeypatch.setattr(expiry.time, "sleep", slept.append)
    pacer = expiry.Pacer(str(pressure), lambda: now[0])
    for text, sleeps in (
        (None, 0),
        ("some avg10=39.00 avg60=0.00 avg300=0.00 total=0\n", 0),
        ("nonsense\n", 0),
        ("some avg10=41.00 avg60=0.00 avg300=0.00 total=0\n", 20),
    ):
        slept.clear()
        if text is not None:
            pressure.write_text(text)
        for _count in range(20):
            now[0] += 0.3
            pacer()
        assert len(slept) == sleeps
    assert sum(slept) <= now[0] / 2


# -- the reference

hypothesis = pytest.importorskip("hypothesis", reason="the property test needs hypothesis (tests/requirements.txt)")
from hypothesis import HealthCheck, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

AGES = st.sampled_from([-86400, 0, 1, 59, 60, 61, 599, 600, 601, 3599, 3600, 3601, 10**6])
ENTRY = st.tuples(
    st.sampled_from(["block", "block", "block", "block", "temp", "probe", "config", "stranger", "link", "foreign"]),
    st.integers(0, 30),
    AGES,
    st.integers(0, 50),
)
CAP = st.one_of(st.none(), st.integers(1, 8))


def plain_reference(entries, policy):
    """What must be left of (path, kind, mtime age, size): said as the rules are written, all at once."""
    left = [
        entry
        for entry in entries
        if not (entry[1] == "block" and entry[2] >= policy.retention)
        and not (entry[1] in ("temp", "probe") and entry[2] >= policy.tmp_grace)
    ]
    blocks = sorted(
        (entry for entry in left if entry[1] == "block" and entry[2] >= -60), key=lambda one: (-one[2], one[3], one[0])
    )
    while blocks and (
        (policy.max_files and len(blocks) > policy.max_files)
        or (policy.max_bytes and sum(entry[3] for entry in blocks) > policy.max_bytes)
    ):
        left.remove(blocks.pop(0))
    return {entry[0] for entry in left}


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    entries=st.lists(ENTRY, max_size=25),
    retention=st.sampled_from([60, 600, 3600]),
    max_files=CAP,
    max_bytes=st.one_of(st.none(), st.integers(1, 200)),
)
def test_what_is_left_is_what_a_plain_reference_says(tmp_path_factory, entries, retention, max_files, max_bytes):
    tree = Tree(tmp_path_factory.mktemp("tree") / "kv")
    known = {}
    for kind, number, age, size in entries:
        name = digest(number)
        path = {
            "temp": lambda: tree.temp(number, age),
            "probe": lambda: tree.probe(age),
            "config": lambda: tree.config(age),
            "stranger": lambda: tree.put(f"{NAMESPACE}_r0/{name[:3]}/{name}.bin", age, size),
        }.get(kind, lambda: tree.block(number, age, size))
        if kind in ("link", "foreign", "block") and any(digest(number) in one and "bin_" not in one for one in known):
            continue
        relative = path()
        if kind == "link":
            os.link(tree.path(relative), tree.root.parent / name)
        elif kind == "foreign":
            os.chown(tree.path(relative), NOBODY, NOBODY)
        known[relative] = (relative, kind, age, tree.path(relative).stat().st_size)
    policy = POLICY._replace(retention=retention, max_files=max_files, max_bytes=max_bytes)
    before = {path: tree.path(path).stat().st_mtime_ns for path in tree.files()}
    assert set(known) == tree.files()
    result = walked(tree, policy)
    wanted = plain_reference(list(known.values()), policy)
    assert tree.files() == wanted
    assert all(tree.path(path).stat().st_mtime_ns == before[path] for path in wanted)
    assert result.expired + result.capped + result.temps_removed == len(known) - len(wanted)
    assert sum(count for _bound, count in result.ages) == result.blocks
    assert all(mtime % NS == 0 for mtime in before.values())
