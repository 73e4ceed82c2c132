# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""One walk over a tier: counts what is there and, where told to, deletes what its policy says has ended.

The audit and the expiry are the same walk, so they cannot disagree. It goes by directory descriptors from the tier's
root, follows no symlink, crosses no mount, and touches nothing that the store registry does not know. indexed.py adds a
look that is cheaper and may find that there is nothing to do.
"""

from __future__ import annotations

import bisect
import errno
import os
import stat
import time
from typing import Callable, NamedTuple

from . import fsio
from .clear import destroy, foreign
from .stores import BLOCK, COMMON_DIRS, COMMON_FILES, TEMP, Dir, File, Store
from .survey import AGE_BOUNDS, FUTURE_SLACK, MAX_OFFENDERS, Policy, Survey, printable

__all__ = ["Policy", "Stop", "Survey", "Walk", "destroy", "foreign", "printable", "survey"]

# So many entries of one directory are judged between two looks at the time.
_STRIDE = 1024
# A directory file of at most so many bytes is listed at once; a larger one is read entry by entry.
SMALL = 1 << 16
# Of a plain block: a regular file that is closed to group and others.
PLAIN_MASK = 0o170077
_NEVER = float("inf")
_AGE_LIMITS = (-_NEVER, *AGE_BOUNDS, _NEVER)


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
    pause: called after each directory or a few small ones, and now and then in a large one (pacing, progress, and Stop
    to end the pass).
    """

    # Called, if set, for each block of ours that stays.
    _kept: Callable[[os.stat_result], None] | None = None
    # Called, if set, for each closed leaf that holds plain blocks alone: its stat before it was read, its name, number
    # and bytes of the blocks, mtimes of the oldest and the newest (infinite without any).
    _seen_plain: Callable[[os.stat_result, str, int, int, float, float], None] | None = None

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
        self._begun = False

    def run(self) -> Survey:
        """The whole pass."""
        begun = time.monotonic()
        try:
            self._pass()
            self._at = None
            self._after()
        except Stop as stop:
            found = self.found
            found.complete, found.stopped, found.resume = False, str(stop) or None, self._at
        bounds: list[int | None] = [*AGE_BOUNDS, None]
        self.found.ages = [[bound, count] for bound, count in zip(bounds, self._age_counts)]
        self.found.seconds = time.monotonic() - begun
        return self.found

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

    def _after(self) -> None:
        """What remains to be done when every directory was seen."""

    def _run_units(self, units: list[Unit]) -> None:
        open_name, fd, reachable = None, None, False
        try:
            for unit in units:
                self._at = unit.position
                # However little time there is, each run gets through one unit: in the end all are done.
                if self._begun and self._late():
                    raise Stop
                self._begun = True
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
            empty = self._inside(fd, info, level, path, reachable and _open_to_others(info))
        finally:
            os.close(fd)
        if self.pause is not None:
            self.pause()
        if empty and level.prune and self._aged(info):
            self._rmdir(parent, name, path)

    def _inside(self, fd: int, info: os.stat_result, level: Dir, path: str, reachable: bool) -> bool:
        """Everything in one open directory; True if that was nothing."""
        before = self._files_seen
        subdirs = self._scan(fd, level, path, reachable)
        self._below(fd, subdirs, path, reachable)
        return not subdirs and self._files_seen == before

    def _below(self, parent: int, subdirs: list[tuple[str, Dir]], path: str, reachable: bool) -> None:
        """The known subdirectories of one open directory.

        Leaves are where a walk spends its time, so they are read here, in one loop: a block about which there is
        nothing to say is counted on the spot, whatever else there is goes the general way.
        """
        open_subdir, fstat, listdir, look, close = fsio.open_subdir, os.fstat, os.listdir, os.stat, os.close
        now, retention, owner_uid, ages = self.now, self.policy.retention, self.owner_uid, self._age_counts
        pause, kept, seen_plain = self.pause, self._kept, self._seen_plain
        small, plain_mask, plain_mode, youngest = SMALL, PLAIN_MASK, stat.S_IFREG, -FUTURE_SLACK
        dirs = entries = blocks = size = slot = 0
        oldest, newest = _NEVER, -_NEVER
        # Blocks of about one age follow each other: the slot of the last one is the first guess.
        from_age = to_age = _NEVER
        is_block: Callable[[str], object] | None = None
        last_level: Dir | None = None
        try:
            for directory, level in subdirs:
                if level is not last_level:
                    is_block, last_level = None if level.dirs else level.plain_block, level
                if is_block is None:
                    self._subtree(parent, directory, level, f"{path}/{directory}", reachable)
                    continue
                try:
                    fd = open_subdir(parent, directory)
                except OSError as error:
                    self._closed(error, f"{path}/{directory}")
                    continue
                try:
                    info = fstat(fd)
                    if info.st_size > small or info.st_mode & 0o077 or info.st_uid != owner_uid:
                        where = f"{path}/{directory}"
                        self._count_dir(info, where)
                        empty = self._inside(fd, info, level, where, reachable and _open_to_others(info))
                    else:
                        dirs += 1
                        names = listdir(fd)
                        empty = not names
                        entries += len(names)
                        plain = plain_size = 0
                        first, last = _NEVER, -_NEVER
                        for name in names:
                            if not is_block(name):
                                self._name(fd, name, level, f"{path}/{directory}", False)
                                continue
                            try:
                                seen = look(name, dir_fd=fd, follow_symlinks=False)
                            except OSError as error:
                                # One broken file must not keep the others of its directory from ending.
                                if error.errno != errno.ENOENT:
                                    self._error(error)
                                continue
                            mtime = seen.st_mtime
                            age = now - mtime
                            if (
                                seen.st_mode & plain_mask == plain_mode
                                and seen.st_uid == owner_uid
                                and seen.st_nlink == 1
                                and youngest <= age < retention
                            ):
                                plain += 1
                                plain_size += seen.st_size
                                if not from_age <= age < to_age:
                                    slot, from_age, to_age = age_slot(age)
                                ages[slot] += 1
                                if mtime < first:
                                    first = mtime
                                if mtime > last:
                                    last = mtime
                                if kept is not None:
                                    kept(seen)
                            else:
                                self._judge(fd, name, level.files[0], seen, f"{path}/{directory}", False)
                        if plain:
                            blocks += plain
                            size += plain_size
                            if first < oldest:
                                oldest = first
                            if last > newest:
                                newest = last
                        if seen_plain is not None and plain == len(names):
                            seen_plain(info, directory, plain, plain_size, first, last)
                except OSError as error:
                    self._error(error)
                    continue
                finally:
                    close(fd)
                if pause is not None:
                    pause()
                if empty and level.prune and self._aged(info):
                    self._rmdir(parent, directory, f"{path}/{directory}")
        finally:
            self.found.dirs += dirs
            self._files_seen += entries
            if blocks:
                self._count_blocks(blocks, size, oldest, newest)

    def _aged(self, info: os.stat_result) -> bool:
        """True if an empty directory with this stat may go."""
        return info.st_uid == self.owner_uid and self.now - info.st_mtime >= self.policy.dir_grace

    def _open(self, parent: int, name: str, path: str) -> int | None:
        try:
            return fsio.open_subdir(parent, name)
        except OSError as error:
            self._closed(error, path)
            return None

    def _closed(self, error: OSError, path: str) -> None:
        """A directory that was listed cannot be opened."""
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            self._offend("not_regular", path, "not a directory")
        elif error.errno == errno.EXDEV:
            self._offend("not_regular", path, "something is mounted here")
        elif error.errno != errno.ENOENT:
            self._error(error)

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
                    below = level.dir_for(name)
                    if below is None or level.file_for(name) is not None:
                        self._name(fd, name, level, path, reachable)
                    elif entry.is_dir(follow_symlinks=False):
                        subdirs.append((name, below))
                    else:
                        self._offend("not_regular", f"{path}/{name}" if path else name, "not a directory")
        except OSError as error:
            self._error(error)
        return subdirs

    # -- judging

    def _name(self, fd: int, name: str, level: Dir, path: str, reachable: bool) -> None:
        """Judge one entry that is no known directory."""
        known = level.file_for(name)
        if known is None:
            self._offend("strangers", f"{path}/{name}" if path else name, "not a name of this store")
            return
        try:
            info = os.stat(name, dir_fd=fd, follow_symlinks=False)
        except FileNotFoundError:
            return
        except OSError as error:
            self._error(error)
            return
        self._judge(fd, name, known, info, path, reachable)

    def _judge(self, fd: int, name: str, known: File, info: os.stat_result, path: str, reachable: bool) -> None:
        found = self.found
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
        self._count_blocks(1, info.st_size, info.st_mtime, info.st_mtime)
        self._count_age(age, 1)
        if ours and self._kept is not None:
            self._kept(info)

    def _count_age(self, age: float, blocks: int) -> None:
        self._age_counts[age_slot(age)[0]] += blocks

    def _count_blocks(self, blocks: int, size: int, oldest: float, newest: float) -> None:
        found = self.found
        found.blocks += blocks
        found.block_bytes += size
        if found.oldest_mtime is None or oldest < found.oldest_mtime:
            found.oldest_mtime = oldest
        if found.newest_mtime is None or newest > found.newest_mtime:
            found.newest_mtime = newest

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


def age_slot(age: float) -> tuple[int, float, float]:
    """Number of an age's slot in the histogram, and its bounds."""
    slot = bisect.bisect_right(AGE_BOUNDS, age)
    return slot, _AGE_LIMITS[slot], _AGE_LIMITS[slot + 1]


def _open_to_others(info: os.stat_result) -> bool:
    return bool(info.st_mode & 0o011)


def survey(fd: int, store: Store, owner_uid: int, now: float, policy: Policy, deadline: float | None = None) -> Survey:
    """A walk that only looks. fd: the open root; now: seconds since the epoch; deadline: time.monotonic() seconds."""
    return Walk(fd, store, owner_uid, now, policy, deadline=deadline).run()
