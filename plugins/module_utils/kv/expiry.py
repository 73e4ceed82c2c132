# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""One expiry pass over one tier: may it run, where does it run, what does it delete, what does it record.

Everything that could make a deletion wrong is asked first: the right mount, the right owner, an engine that lets go of
blocks, a clock that can be believed, no other run. Any no stops the pass and says what to do.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from typing import Any, Callable, NamedTuple

from . import account, clock, discovery, fsio, mounts, state
from .datamap import STATE_ROOT, Tier
from .index import Index
from .indexed import IndexedWalk
from .stores import STORES
from .walk import Policy, Stop, Survey, printable
from .workers import default_workers

OK, ERRORS, USAGE, REFUSED, BUSY, CLOCK, UNFINISHED = 0, 1, 2, 3, 4, 5, 6
EXIT_CODES = {
    OK: "the pass is complete and nothing is overdue",
    ERRORS: "something could not be read, deleted or recorded, or is overdue and not ours to delete",
    USAGE: "wrong use, or no usable data map",
    REFUSED: "refused: not the declared mount, wrong owner, or deletion is not safe under the running engine",
    BUSY: "another run of the tier is active",
    CLOCK: "the clock jumped: nothing was expired by age",
    UNFINISHED: "time was up; the next run goes on where this one stopped",
}
MAX_SECONDS = 3000.0
MAX_MESSAGES = 20
MAX_MESSAGE = 1000
_PRESSURE = "/proc/pressure/io"
_BUSY_PERCENT = 40.0


class Refused(Exception):
    """A pass that must not run now; the text says why and what to do."""


class Pacer:
    """Slows a pass down while the host's tasks wait for I/O, but never to less than half its speed.

    The idle I/O class does nothing on NVMe (no scheduler), so the kernel's own pressure figure is asked.
    """

    every = 0.25  # seconds

    def __init__(self, path: str = _PRESSURE, clock_: Callable[[], float] = time.monotonic) -> None:
        self.path, self.clock = path, clock_
        self.looked = self.begun = clock_()
        self.slept = 0.0

    def __call__(self) -> None:
        """Called once per directory."""
        now = self.clock()
        if now - self.looked < self.every:
            return
        self.looked = now
        if self._pressure() > _BUSY_PERCENT and self.slept < (now - self.begun) / 2:
            time.sleep(0.1)
            self.slept += 0.1

    def _pressure(self) -> float:
        try:
            with open(self.path, encoding="ascii") as file:
                return float(file.readline().split("avg10=")[1].split()[0])
        except (OSError, IndexError, ValueError):
            return 0.0


class Hooks(NamedTuple):
    """What the caller of a pass wants to be told or asked; see expire()."""

    on_delete: Callable[[str, str], None] | None = None
    stopped: Callable[[], str | None] | None = None
    progress: Callable[[], None] | None = None


class Listed:
    """For on_delete: the first paths, and how many there were."""

    def __init__(self, most: int) -> None:
        self.most, self.count = most, 0
        self.paths: list[str] = []

    def __call__(self, path: str, _kind: str) -> None:
        self.count += 1
        if self.count <= self.most:
            self.paths.append(path)


class Watch:
    """Called after a few directories: paces the pass, and ends it when the tier's path is no longer the open directory.

    Descriptors outlive a lazy umount and a rename, so without this a pass would go on in a tree that is no tier now.
    Where the engine has to be stopped, it is asked again and again whether it still is.
    """

    every = 1.0  # seconds
    # A fifth of the time at most goes into looking at processes.
    stopped_every, stopped_share = 0.2, 4

    def __init__(self, tier: Tier, fd: int, hooks: Hooks | None = None) -> None:
        self.tier, self.fd, self.pacer, self.hooks = tier, fd, Pacer(), hooks or Hooks()
        self.progress = self.hooks.progress
        self.looked = self.ask_at = self.due = time.monotonic()

    def __call__(self) -> None:
        """Raises Stop."""
        if self.progress is not None:
            self.progress()
        now = time.monotonic()
        if now < self.due:
            return
        self.due = now + min(self.every, self.stopped_every)
        if self.hooks.stopped is not None and now >= self.ask_at:
            why = self.hooks.stopped()
            if why is not None:
                raise Stop(why)
            ended = time.monotonic()
            self.ask_at = ended + max(self.stopped_every, self.stopped_share * (ended - now))
        self.pacer()
        if now - self.looked < self.every:
            return
        self.looked = now
        try:
            with fsio.opened(self.tier["path"]) as again:
                same = _identity(again) == _identity(self.fd)
        except (OSError, fsio.UnsafePath):
            same = False
        if not same:
            raise Stop(
                f"{self.tier['path']} is no longer the directory that the pass began in: stopped; "
                f"run systemctl start llmhost-tier@{self.tier['name']}.service"
            )


def _identity(fd: int) -> tuple[int, int, int]:
    info = os.fstat(fd)
    return info.st_dev, info.st_ino, fsio.mount_id(fd)


def policy_of(tier: Tier) -> Policy:
    """A tier's policy in seconds, bytes and files."""
    return Policy(
        retention=tier["retention_minutes"] * 60,
        tmp_grace=tier["tmp_grace_minutes"] * 60,
        dir_grace=tier["dir_grace_minutes"] * 60,
        max_bytes=tier["max_bytes"],
        max_files=tier["max_files"],
    )


class _Options(NamedTuple):
    """What expire() was asked for."""

    delete: bool
    trust_clock: bool
    max_seconds: float
    hooks: Hooks
    workers: int
    full: bool


def expire(
    tier: Tier,
    delete: bool = True,
    trust_clock: bool = False,
    max_seconds: float = MAX_SECONDS,
    state_root: str | None = STATE_ROOT,
    on_delete: Callable[[str, str], None] | None = None,
    stopped: Callable[[], str | None] | None = None,
    progress: Callable[[], None] | None = None,
    workers: int | None = None,
    full: bool = False,
) -> dict[str, Any]:
    """One pass over a tier, as the tier's own account; the record that it left.

    delete=False only lists, through on_delete, and records nothing. max_seconds bounds the pass; the next one goes on
    where it stopped. state_root None: a directory that no data map declares; nothing is remembered about it. stopped:
    why the tier is in use, or None (holders.sentinel); it is asked before the first deletion and again and again, and
    replaces what is asked about running engines. progress: called once per directory that is read. workers: how many
    processes, None for default_workers(), or one where on_delete has to be called in order; full: read every directory
    although the last full pass is less than full_pass_hours ago. The record has the keys of state.py and, once the walk
    began, those of walk.Survey; `exit` is one of EXIT_CODES.
    """
    began = clock.now()
    hooks = Hooks(on_delete, stopped, progress)
    workers = workers or (1 if on_delete else default_workers())
    options = _Options(delete, trust_clock, max_seconds, hooks, workers, full)
    with contextlib.ExitStack() as stack:
        try:
            lock_fd = stack.enter_context(state.locked(tier, state_root))
        except state.Busy as error:
            return failed(tier, BUSY, str(error), began["wall"])
        except (OSError, fsio.UnsafePath) as error:
            where = tier["path"] if state_root is None else "its state directory; run the harden playbook"
            return failed(tier, REFUSED, f"tier {tier['name']} cannot be locked: {error} ({where})", began["wall"])
        before = None if state_root is None else state.read_run(tier, state_root)
        state_fd = lock_fd if delete and state_root is not None else None
        return _locked(tier, options, state_fd, before, began)


def failed(tier: Tier, code: int, message: str, started: float | None = None) -> dict[str, Any]:
    """The record of a pass that did not take place."""
    now = time.time()
    record = state.new_record(tier, now if started is None else started)
    record.update(finished=now, exit=code, messages=[printable(message)[:MAX_MESSAGE]])
    return record


def _locked(
    tier: Tier, options: _Options, state_fd: int | None, before: dict[str, Any] | None, began: dict[str, Any]
) -> dict[str, Any]:
    # A run that is killed leaves this behind: started, not finished.
    record = state.new_record(tier, began["wall"], before)
    _write(state_fd, record)
    detail: dict[str, Any] = {}
    try:
        fd = open_tier(tier, bool(before and before["mounted"]))
    except Refused as error:
        record.update(exit=REFUSED, messages=[str(error)])
    else:
        try:
            detail = _walk(tier, fd, record, options, state_fd, began)
        finally:
            os.close(fd)
    record["finished"] = time.time()
    record["seconds"] = round(record["finished"] - began["wall"], 3) if not detail else detail["seconds"]
    if detail.get("complete"):
        record.update({name: detail[name] for name in state.MEASURED}, measured=record["finished"])
    if record["full"]:
        record["last_full"] = record["started"]
    if record["exit"] == OK:
        record["last_success"] = record["started"]
    record["messages"] = [printable(message)[:MAX_MESSAGE] for message in record["messages"][:MAX_MESSAGES]]
    unwritten = _write(state_fd, record)
    if unwritten is not None:
        record["messages"].append(unwritten)
        record["exit"] = record["exit"] or ERRORS
    return {**record, **detail}


def _write(state_fd: int | None, record: dict[str, Any]) -> str | None:
    """Why the record cannot be written, or None. Blocks must go in time on a full disk too: it stops nothing."""
    if state_fd is None:
        return None
    try:
        state.write_run(state_fd, record)
    except OSError as error:
        return f"the pass is not on record: {error.strerror} in the tier's state directory"
    return None


def open_tier(tier: Tier, was_mounted: bool) -> int:
    """The open root of a tier if it is the declared place and the account's; else Refused."""
    try:
        uid = account.uid_of(tier["owner"])
        fd, _ancestors = fsio.open_path(tier["path"])
    except KeyError as error:
        raise Refused(f"there is no account {tier['owner']}; run the harden playbook") from error
    except (OSError, fsio.UnsafePath) as error:
        raise Refused(
            f"{tier['path']} cannot be opened as {tier['owner']}: {error}; "
            f"run systemctl start llmhost-tier@{tier['name']}.service"
        ) from error
    try:
        wrong = mounts.problem(tier, fd, was_mounted)
        if wrong is None and os.fstat(fd).st_uid != uid:
            wrong = f"{tier['path']} does not belong to {tier['owner']}: run kvtier prepare {tier['name']}"
    except BaseException:
        os.close(fd)
        raise
    if wrong is not None:
        os.close(fd)
        raise Refused(wrong)
    return fd


def _gate(tier: Tier, uid: int, stopped: Callable[[], str | None] | None) -> discovery.Gate:
    """May this pass delete? A store that needs its engine stopped needs somebody who can see that it is."""
    if stopped is not None:
        why = stopped()
        return discovery.Gate(why is None, why or "nothing holds the tier", None, "all processes of the host")
    gate = discovery.live_gate(tier, discovery.engines(tier, uid))
    if gate.allowed and not STORES[tier["store"]].live:
        reason = (
            f"blocks of {tier['store']} go only while its engine is stopped, and only root can see that: "
            f"run kvtier expire --stopped {tier['name']} as root (module kv_block_expire: stopped)"
        )
        return discovery.Gate(False, reason, gate.version, gate.source)
    return gate


def _walk(
    tier: Tier, fd: int, record: dict[str, Any], options: _Options, state_fd: int | None, began: dict[str, Any]
) -> dict[str, Any]:
    uid = account.uid_of(tier["owner"])
    jump = None if options.trust_clock else clock.problem(record["clock"], began, clock.synchronised() is True)
    gate = _gate(tier, uid, options.hooks.stopped)
    record["mounted"] = mounts.is_mountpoint(fd)
    if jump is None:
        record["clock"] = began
    may = gate.allowed is True and jump is None
    with _index(state_fd if may and options.delete else None, fd, uid) as index:
        found = IndexedWalk(
            fd,
            STORES[tier["store"]],
            uid,
            began["wall"],
            policy_of(tier),
            delete=options.delete and may,
            deadline=time.monotonic() + options.max_seconds,
            start_at=record["resume"],
            pause=Watch(tier, fd, options.hooks),
            on_delete=options.hooks.on_delete if may else None,
            workers=options.workers,
            index=index,
            full=options.full or _full_pass_due(tier, record["last_full"], began["wall"]),
        ).run()
    messages = [message for message in (None if gate.allowed else gate.reason, jump, found.stopped) if message]
    messages += [f"{count} x {name} while walking" for name, count in sorted(found.errors.items())]
    left = found.overdue if options.delete and may else 0
    if left:
        messages.append(f"{left} overdue blocks could not be deleted, the first is {found.overdue_first[0]}")
    for name in record.keys() & vars(found).keys() - set(state.MEASURED):
        record[name] = getattr(found, name)
    full = may and found.complete and not found.skipped and not found.errors
    record.update(full=full, messages=messages, exit=_exit_code(found, gate.allowed, jump, left))
    totals = _totals(found, began["wall"])
    return {**vars(found), **totals, "version": gate.version, "version_source": printable(gate.source)}


def _totals(found: Survey, now: float) -> dict[str, Any]:
    """What a person asks of a pass, out of its counts."""
    return {
        "seen": found.blocks + found.temps + found.configs + found.expired + found.capped + found.temps_removed,
        "freed": found.expired_bytes + found.capped_bytes + found.temp_bytes_removed,
        "kept": found.blocks,
        "leftovers": found.stale_temps,
        "oldest_age": None if found.oldest_mtime is None else max(0, int(now - found.oldest_mtime)),
    }


def _full_pass_due(tier: Tier, last: float | None, now: float) -> bool:
    # A last one in the future is a clock that went back.
    return last is None or not 0 <= now - last < tier["full_pass_hours"] * 3600


@contextlib.contextmanager
def _index(state_fd: int | None, fd: int, uid: int) -> Iterator[Index | None]:
    """The tier's index, None where nothing is remembered or nothing can be: then every directory is read."""
    try:
        index = None if state_fd is None else Index(state_fd, os.fstat(fd).st_dev, uid)
    except OSError:
        index = None
    try:
        yield index
    finally:
        if index is not None:
            index.close()


def _exit_code(found: Survey, allowed: bool | None, jump: str | None, left: int) -> int:
    if allowed is not True or found.stopped is not None:
        return REFUSED
    if jump is not None:
        return CLOCK
    if not found.complete:
        return UNFINISHED
    return ERRORS if found.errors or left else OK
