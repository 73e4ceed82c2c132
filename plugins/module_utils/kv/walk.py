# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""One walk over a tier: counts what is there and, where told to, deletes what its policy says has ended.

The audit and the expiry are the same walk, so they cannot disagree. It goes by directory descriptors from the tier's
root, follows no symlink, crosses no mount, and touches nothing that the store registry does not know.
"""

from __future__ import annotations

import bisect
import errno
import os
import stat
import time
from dataclasses import replace
from typing import Callable, NamedTuple

from . import fsio
from .clear import destroy, foreign
from .stores import BLOCK, COMMON_DIRS, COMMON_FILES, TEMP, Dir, File, Store
from .survey import AGE_BOUNDS, FUTURE_SLACK, MAX_OFFENDERS, NS, Policy, Survey, printable

__all__ = ["Policy", "Stop", "Survey", "Walk", "destroy", "foreign", "printable", "survey"]

# So many entries of one directory are judged between two looks at the time.
_STRIDE = 1024


class Stop(Exception):
    """Raised by `pause` to end a walk early; the text says why. Without text: the time is up."""


class Unit(NamedTuple):
    """A part of the tier that a pass can begin at: a subdirectory of one of the root's, or one of these itself."""

    position: str
    top: str
    below: str | None
    level: Dir


class Walk:
    """One pass over the tier that root, an open directory, is the root of.

    now: the time that ages are judged by (seconds); deadline: time.monotonic() at which to stop and say where;
    delete: really delete; on_delete: called with (path, kind) for each deletion, done or (delete=False) due;
    pause: called once per directory, and now and then in a large one (pacing, progress, and Stop to end the pass).
    """

    def __init__(
        self,
        root: int,
        store: Store,
        owner_uid: int,
        now: float,
        policy: Policy,
        delete: bool = False,
        deadline: float | None = None,
        start_at: str | None = None,
        pause: Callable[[], None] | None = None,
        on_delete: Callable[[str, str], None] | None = None,
    ) -> None:
        if store.layout is None:
            raise ValueError(f"store {store.name} leaves no files")
        self.root, self.store, self.layout, self.owner_uid = root, store, store.layout, owner_uid
        self.now, self.policy, self.delete = now, policy, delete
        self.deadline, self.start_at, self.pause, self.on_delete = deadline, start_at, pause, on_delete
        self.found = Survey()
        self._age_counts = [0] * (len(AGE_BOUNDS) + 1)
        self._files_seen = self._removed = 0
        self._at: str | None = None
        # Caps: bytes and files of kept blocks by mtime, in slots of `width` nanoseconds.
        self._slots: dict[int, list[int]] | None = {} if policy.max_bytes or policy.max_files else None
        self._slot_width = max(1, policy.retention // 100_000) * NS

    def run(self) -> Survey:
        """The whole pass: age first, then the caps."""
        begun = time.monotonic()
        found = self.found
        try:
            self._pass()
            self._at = None
            # A pass that may delete nothing has nothing to say about the caps.
            if self._slots is not None and (self.delete or self.on_delete is not None):
                self._cap()
        except Stop as stop:
            found.complete, found.stopped, found.resume = False, str(stop) or None, self._at
        bounds: list[int | None] = [*AGE_BOUNDS, None]
        found.ages = [[bound, count] for bound, count in zip(bounds, self._age_counts)]
        found.seconds = time.monotonic() - begun
        return found

    # -- walking

    def _pass(self) -> None:
        info = os.fstat(self.root)
        tops = self._scan(self.root, self.layout, "", _open_to_others(info))
        units: list[Unit] = []
        for name, level in tops:
            shown = printable(name)
            if not level.dirs:
                units.append(Unit(f"{shown}/", name, None, level))
                continue
            fd = self._open(self.root, name, name)
            if fd is None:
                continue
            try:
                info = os.fstat(fd)
                self._count_dir(info, name)
                for below, sub in self._scan(fd, level, name, _open_to_others(info)):
                    units.append(Unit(f"{shown}/{printable(below)}", name, below, sub))
            finally:
                os.close(fd)
        units.sort(key=lambda unit: unit.position)
        if self.start_at:
            first = bisect.bisect_left([unit.position for unit in units], self.start_at)
            units = units[first:] + units[:first]
        self._run_units(units)

    def _run_units(self, units: list[Unit]) -> None:
        open_name, fd, reachable = None, None, False
        try:
            for number, unit in enumerate(units):
                self._at = unit.position
                # However little time there is, each run gets through one unit: in the end all are done.
                if number and self._late():
                    raise Stop
                if unit.below is None:
                    self._subtree(self.root, unit.top, unit.level, unit.top, True)
                    continue
                if unit.top != open_name:
                    if fd is not None:
                        os.close(fd)
                    fd, open_name = self._open(self.root, unit.top, unit.top), unit.top
                    if fd is not None:
                        reachable = _open_to_others(os.fstat(fd))
                if fd is not None:
                    self._subtree(fd, unit.below, unit.level, f"{unit.top}/{unit.below}", reachable)
        finally:
            if fd is not None:
                os.close(fd)

    def _late(self) -> bool:
        return self.deadline is not None and time.monotonic() >= self.deadline

    def _amid(self) -> None:
        """In the middle of a large directory: a pass that deletes may stop if it got on, the next begins here again."""
        if self.pause is not None:
            self.pause()
        if self._late() and (self._removed or not self.delete):
            raise Stop

    def _subtree(self, parent: int, name: str, level: Dir, path: str, reachable: bool) -> None:
        fd = self._open(parent, name, path)
        if fd is None:
            return
        try:
            info = os.fstat(fd)
            self._count_dir(info, path)
            reachable = reachable and _open_to_others(info)
            before = self._files_seen
            subdirs = self._scan(fd, level, path, reachable)
            for below, sub in subdirs:
                self._subtree(fd, below, sub, f"{path}/{below}", reachable)
            empty = not subdirs and self._files_seen == before
        finally:
            os.close(fd)
        if self.pause is not None:
            self.pause()
        if empty and level.prune and self._aged(info):
            self._rmdir(parent, name, path)

    def _aged(self, info: os.stat_result) -> bool:
        """True if an empty directory with this stat may go."""
        return info.st_uid == self.owner_uid and self.now - info.st_mtime >= self.policy.dir_grace

    def _open(self, parent: int, name: str, path: str) -> int | None:
        try:
            return fsio.open_subdir(parent, name)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR):
                self._offend("not_regular", path, "not a directory")
            elif error.errno == errno.EXDEV:
                self._offend("not_regular", path, "something is mounted here")
            else:
                self._error(error)
            return None

    def _scan(self, fd: int, level: Dir, path: str, reachable: bool) -> list[tuple[str, Dir]]:
        """Judge every file of one directory; its known subdirectories are returned."""
        subdirs: list[tuple[str, Dir]] = []
        at_root = level is self.layout
        try:
            with os.scandir(fd) as entries:
                for entry in entries:
                    self._files_seen += 1
                    if self._files_seen % _STRIDE == 0:
                        self._amid()
                    name = entry.name
                    if at_root and (name in COMMON_FILES or name in COMMON_DIRS):
                        continue
                    known = level.file_for(name)
                    if known is not None:
                        self._file(fd, name, known, path, reachable)
                        continue
                    below = level.dir_for(name)
                    where = f"{path}/{name}" if path else name
                    if below is None:
                        self._offend("strangers", where, "not a name of this store")
                    elif entry.is_dir(follow_symlinks=False):
                        subdirs.append((name, below))
                    else:
                        self._offend("not_regular", where, "not a directory")
        except OSError as error:
            self._error(error)
        return subdirs

    # -- judging

    def _file(self, fd: int, name: str, known: File, path: str, reachable: bool) -> None:
        found = self.found
        try:
            info = os.stat(name, dir_fd=fd, follow_symlinks=False)
        except FileNotFoundError:
            return
        except OSError as error:
            self._error(error)
            return
        where = f"{path}/{name}" if path else name
        if not stat.S_ISREG(info.st_mode):
            self._offend("not_regular", where, "not a regular file")
            return
        if known.magic and not fsio.begins_with(fd, name, known.magic):
            self._offend("strangers", where, "not a file of this store")
            return
        ours = True
        if info.st_uid != self.owner_uid:
            self._offend("foreign_owner", where, f"belongs to uid {info.st_uid}")
            ours = False
        if info.st_nlink != 1:
            self._offend("hardlinks", where, "has another name elsewhere")
            ours = False
        age = self.now - info.st_mtime
        if self._from_future(info):
            found.future += 1
            self._note(where, "is from the future")
            ours = False
        if known.kind == BLOCK:
            if age >= self.policy.retention:
                if ours and self._unlink(fd, name, where, BLOCK):
                    found.expired += 1
                    found.expired_bytes += info.st_size
                    return
                found.overdue += 1
                if len(found.overdue_first) < MAX_OFFENDERS:
                    found.overdue_first.append(printable(where))
                # Without deleting, what has ended is as good as gone for the caps.
                ours = ours and self.delete
            self._keep_block(info, age, ours)
        elif known.kind == TEMP:
            if age >= self.policy.tmp_grace:
                if ours and self._unlink(fd, name, where, TEMP):
                    found.temps_removed += 1
                    found.temp_bytes_removed += info.st_size
                    return
                found.stale_temps += 1
                found.stale_temp_bytes += info.st_size
            found.temps += 1
            found.temp_bytes += info.st_size
        else:
            found.configs += 1
        if info.st_mode & 0o077:
            found.loose += 1
            if len(found.loose_first) < MAX_OFFENDERS:
                found.loose_first.append(printable(where))
            if reachable and info.st_mode & 0o044:
                found.readable += 1

    def _from_future(self, info: os.stat_result) -> bool:
        # A long pass sees files that were made after it began.
        return info.st_mtime > self.now + FUTURE_SLACK and info.st_mtime > time.time() + FUTURE_SLACK

    def _keep_block(self, info: os.stat_result, age: float, ours: bool) -> None:
        found = self.found
        found.blocks += 1
        found.block_bytes += info.st_size
        mtime = info.st_mtime
        found.oldest_mtime = mtime if found.oldest_mtime is None else min(mtime, found.oldest_mtime)
        found.newest_mtime = mtime if found.newest_mtime is None else max(mtime, found.newest_mtime)
        self._age_counts[bisect.bisect_right(AGE_BOUNDS, age)] += 1
        if self._slots is not None and ours:
            slot = self._slots.setdefault(info.st_mtime_ns // self._slot_width, [0, 0])
            slot[0] += 1
            slot[1] += info.st_size

    def _count_dir(self, info: os.stat_result, path: str) -> None:
        self.found.dirs += 1
        if info.st_mode & 0o077:
            self.found.loose_dirs += 1
        if info.st_uid != self.owner_uid:
            self._offend("foreign_owner", path, f"belongs to uid {info.st_uid}")

    # -- deleting

    def _unlink(self, fd: int, name: str, where: str, kind: str) -> bool:
        if not self.delete:
            if self.on_delete is not None:
                self.on_delete(printable(where), kind)
            return False
        try:
            os.unlink(name, dir_fd=fd)
        except FileNotFoundError:
            return False
        except OSError as error:
            self._error(error)
            return False
        self._removed += 1
        if self.on_delete is not None:
            self.on_delete(printable(where), kind)
        return True

    def _rmdir(self, parent: int, name: str, path: str) -> None:
        if not self.delete:
            if self.on_delete is not None:
                self.on_delete(printable(path), "dir")
            return
        try:
            os.rmdir(name, dir_fd=parent)
        except OSError as error:
            # The writer was faster and put something in.
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
                self._error(error)
            return
        self.found.dirs_removed += 1
        self.found.dirs -= 1
        if self.on_delete is not None:
            self.on_delete(printable(path), "dir")

    # -- caps

    def _cap(self) -> None:
        """Delete oldest blocks first until both caps hold.

        The histogram of the pass tells which slot the limit falls into: everything older goes, and of that slot alone
        a sorted list is made, so that memory stays bounded and the limit is met to the byte.
        """
        policy, found, slots = self.policy, self.found, self._slots or {}
        kept_files = sum(slot[0] for slot in slots.values())
        kept_bytes = sum(slot[1] for slot in slots.values())
        excess_files = kept_files - policy.max_files if policy.max_files else 0
        excess_bytes = kept_bytes - policy.max_bytes if policy.max_bytes else 0
        if excess_files <= 0 and excess_bytes <= 0:
            return
        files = size = limit = 0
        for limit in sorted(slots):
            files += slots[limit][0]
            size += slots[limit][1]
            if files >= excess_files and size >= excess_bytes:
                break
        second = _Cap(self, limit * self._slot_width, self._slot_width, excess_files, excess_bytes)
        try:
            second.run()
        finally:
            found.capped, found.capped_bytes = second.files, second.bytes
            for name, count in second.found.errors.items():
                found.errors[name] = found.errors.get(name, 0) + count
        if self.delete:
            found.oldest_mtime = second.oldest_left
            found.newest_mtime = found.newest_mtime if found.blocks else None

    def _forget_block(self, info: os.stat_result, reachable: bool) -> None:
        """Take a block that the caps deleted out of the counts of what is left."""
        found = self.found
        found.blocks -= 1
        found.block_bytes -= info.st_size
        self._age_counts[bisect.bisect_right(AGE_BOUNDS, self.now - info.st_mtime)] -= 1
        if info.st_mode & 0o077:
            found.loose -= 1
            found.readable -= reachable and bool(info.st_mode & 0o044)

    # -- telling

    def _note(self, path: str, why: str) -> None:
        if len(self.found.offenders) < MAX_OFFENDERS:
            self.found.offenders.append({"path": printable(path), "why": why})

    def _offend(self, counter: str, path: str, why: str) -> None:
        setattr(self.found, counter, getattr(self.found, counter) + 1)
        self._note(path, why)

    def _error(self, error: OSError) -> None:
        name = errno.errorcode.get(error.errno or 0, str(error.errno))
        self.found.errors[name] = self.found.errors.get(name, 0) + 1


class _Candidate(NamedTuple):
    """A block of the slot that the limit falls into; they go in this order."""

    mtime: int
    size: int
    path: str
    known: File
    reachable: bool


class _Cap(Walk):
    """Second walk for the caps: blocks before `low` go at once, those of the slot are sorted and go as needed."""

    def __init__(self, first: Walk, low: int, width: int, excess_files: int, excess_bytes: int) -> None:
        policy = replace(first.policy, max_bytes=None, max_files=None)
        super().__init__(first.root, first.store, first.owner_uid, first.now, policy, first.delete, first.deadline)
        self.pause, self.on_delete = first.pause, first.on_delete
        self.first, self.low, self.high = first, low, low + width
        self.excess_files, self.excess_bytes = excess_files, excess_bytes
        self.files = self.bytes = 0
        self.candidates: list[_Candidate] = []
        self.oldest_left: float | None = None

    def run(self) -> Survey:
        self._pass()
        self.candidates.sort(key=lambda block: block[:3])
        for block in self.candidates:
            if self.files < self.excess_files or self.bytes < self.excess_bytes:
                self._remove_at(block)
            else:
                self._stays(block.mtime / NS)
                break
        return self.found

    def _file(self, fd: int, name: str, known: File, path: str, reachable: bool) -> None:
        if known.kind != BLOCK:
            return
        try:
            info = os.stat(name, dir_fd=fd, follow_symlinks=False)
        except OSError:
            return
        if not self._is_block(fd, name, known, info):
            return
        if info.st_mtime_ns >= self.high or not self._is_ours(info):
            self._stays(info.st_mtime)
            return
        if not self.delete and self.now - info.st_mtime >= self.policy.retention:
            return
        where = f"{path}/{name}" if path else name
        if info.st_mtime_ns >= self.low:
            self.candidates.append(_Candidate(info.st_mtime_ns, info.st_size, where, known, reachable))
        else:
            self._take(fd, name, where, info, reachable)

    def _stays(self, mtime: float) -> None:
        self.oldest_left = mtime if self.oldest_left is None else min(mtime, self.oldest_left)

    def _is_block(self, fd: int, name: str, known: File, info: os.stat_result) -> bool:
        return stat.S_ISREG(info.st_mode) and (not known.magic or fsio.begins_with(fd, name, known.magic))

    def _is_ours(self, info: os.stat_result) -> bool:
        return info.st_uid == self.owner_uid and info.st_nlink == 1 and not self._from_future(info)

    def _take(self, fd: int, name: str, where: str, info: os.stat_result, reachable: bool) -> None:
        if self._unlink(fd, name, where, BLOCK):
            self.first._forget_block(info, reachable)
        elif self.delete:
            self._stays(info.st_mtime)
            return
        self.files += 1
        self.bytes += info.st_size

    def _remove_at(self, block: _Candidate) -> None:
        *parents, name = block.path.split("/")
        fd = os.dup(self.root)
        try:
            for parent in parents:
                below = fsio.open_subdir(fd, parent)
                os.close(fd)
                fd = below
            info = os.stat(name, dir_fd=fd, follow_symlinks=False)
            # It was sorted in some time ago: it must still be the block that it was.
            if info.st_mtime_ns == block.mtime and self._is_block(fd, name, block.known, info) and self._is_ours(info):
                self._take(fd, name, block.path, info, block.reachable)
        except OSError:
            return
        finally:
            os.close(fd)

    def _rmdir(self, parent: int, name: str, path: str) -> None:
        return


def _open_to_others(info: os.stat_result) -> bool:
    return bool(info.st_mode & 0o011)


def survey(fd: int, store: Store, owner_uid: int, now: float, policy: Policy, deadline: float | None = None) -> Survey:
    """A walk that only looks. fd: the open root; now: seconds since the epoch; deadline: time.monotonic() seconds."""
    return Walk(fd, store, owner_uid, now, policy, deadline=deadline).run()
