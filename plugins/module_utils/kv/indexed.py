# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The walk made cheap: leaves that did not change are not read again.

What is deleted is the same as without the index: an unchanged leaf is passed over only while nothing in it can have
ended, and a leaf that holds anything but blocks as they should be is read each time.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from typing import Any, NamedTuple

from .caps import CappedWalk
from .index import Fields, Index, decode_unit, encode_unit, pack_leaf, packed_leaves, settled_before, shard_name
from .stores import Dir
from .survey import DONE, FUTURE_SLACK, NS
from .walk import PLAIN_MASK, SMALL, Unit, age_slot
from .workers import SharedWalk

# mtimes are compared as fractions of seconds, which are not exact.
_SLACK = 0.001
# A shard is written again once so much of it has changed: what is not on record is read again, which is cheaper.
_CHANGED_SHARE = 32
# Looking first pays while no more than one leaf of so many has to be opened after all.
_WORTH = 4
# Of a directory that is closed to group and others.
_DIR_MASK = 0o170077
_NEVER = float("inf")
_MANY_NAMES = 4096
# So many leaves are looked at between two calls of pause.
_BETWEEN_PAUSES = 16


class _Merge(NamedTuple):
    """A unit of which some leaves are as they were on record, and others were read."""

    unit: str
    old_data: bytes
    passed: list[str]
    read: dict[str, bytes]

    def encoded(self) -> bytes:
        old = packed_leaves(self.old_data)
        return encode_unit(self.unit, {**{name: old[name] for name in self.passed}, **self.read})


class IndexedWalk(SharedWalk):
    """A walk that keeps an index of leaves. index: where, None for none; full: read every leaf all the same."""

    def __init__(self, *args: Any, index: Index | None = None, full: bool = True, **options: Any) -> None:
        super().__init__(*args, **options)
        self.index, self.full = index, full
        self._seen_plain = None if index is None else self._note_leaf
        self._present: dict[str, set[str]] = {}
        self._shard: str | None = None
        self._top = 0
        self._old: dict[str, bytes] = {}
        self._new: dict[str, bytes | _Merge] = {}
        self._changed = self._known = 0
        self._read: dict[str, bytes] = {}
        self._settled_before = self._plain_read = 0
        self._looks = True
        self._leaf_names: dict[int, set[str]] = {}

    def _run_units(self, units: list[Unit]) -> None:
        for unit in units:
            if unit.below is not None:
                self._present.setdefault(shard_name(unit.top, unit.below), set()).add(unit.below)
        super()._run_units(units)
        if self.index is not None:
            self.index.keep_only(set(self._present))

    def _run_share(self, units: list[Unit]) -> None:
        flags = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
        try:
            here = os.open(".", flags)
        except PermissionError:
            # Root may have called it where the account may not be.
            here = os.open("/", flags)
        try:
            super()._run_share(units)
        finally:
            self._leave_shard()
            with contextlib.suppress(OSError):
                os.fchdir(here)
            os.close(here)

    def _inside(self, fd: int, info: os.stat_result, level: Dir, path: str, reachable: bool) -> bool:
        if self.index is None or not level.holds_leaves or path.count("/") != 1:
            return super()._inside(fd, info, level, path, reachable)
        top, unit = path.split("/")
        self._enter_shard(top, unit)
        return self._leaves(fd, info, unit, level, path, reachable)

    def _leaves(self, fd: int, info: os.stat_result, unit: str, level: Dir, path: str, reachable: bool) -> bool:
        """All leaves of one unit: passed over, looked at or read, whichever is the least. True if there is nothing."""
        before = self._files_seen
        self._settled_before = settled_before(time.time_ns())
        old_data = self._old.pop(unit, b"")
        known = {} if self.full else decode_unit(old_data)
        passed: list[str] = []
        self._read, self._plain_read = {}, 0
        # Names are looked up from here on from the open directory, whatever becomes of its own name.
        os.fchdir(fd)
        # What the caps delete depends on the counts, so they are made of what was opened.
        looks = self._looks and not known and self._kept is None and level.leaf is not None and info.st_size <= SMALL
        if looks:
            listed, unread = self._look(fd, level, info.st_dev)
        else:
            names = unread = self._listed(fd, info, level, path, reachable)
            listed = len(names)
            if known:
                passed, unread = self._pass_over(names, known, info.st_dev)
        rest = listed - len(passed)
        opened = len(unread)
        if unread:
            self._below(fd, self._known_dirs(fd, unread, level, path, reachable), path, reachable)
        if rest:
            self._looks = (rest - opened + self._plain_read) * _WORTH >= rest * (_WORTH - 1)
        self._keep(unit, old_data, passed, len(known))
        return not listed and self._files_seen == before

    def _pass_over(self, names: list[str], known: dict[str, Fields], device: int) -> tuple[list[str], list[str]]:
        """Count the leaves that are as they were and hold nothing that can have ended; their names, and the others."""
        passed: list[str] = []
        rest: list[str] = []
        get, look, owner_uid, ages, now, capped = (
            known.get,
            os.lstat,
            self.owner_uid,
            self._age_counts,
            self.now,
            self._capped,
        )
        limit = now - self.policy.retention + _SLACK
        grace = int((now - self.policy.dir_grace + _SLACK) * NS)
        blocks = size = loose = slot = 0
        oldest, newest = _NEVER, -_NEVER
        from_age = to_age = _NEVER
        for name in names:
            leaf = get(name)
            if leaf is None:
                rest.append(name)
                continue
            inode, mtime, ctime, count, length, first, last = leaf
            try:
                seen = look(name)
            except OSError:
                rest.append(name)
                continue
            if not (
                inode == seen.st_ino
                and mtime == seen.st_mtime_ns
                and ctime == seen.st_ctime_ns
                and first > limit
                and (count or mtime > grace)
                and seen.st_uid == owner_uid
                and seen.st_dev == device
            ):
                rest.append(name)
                continue
            passed.append(name)
            if seen.st_mode & 0o077:
                loose += 1
            if not count:
                continue
            blocks += count
            size += length
            if first < oldest:
                oldest = first
            if last > newest:
                newest = last
            # Blocks that were not looked at count as old as the oldest of their leaf.
            age = now - first
            if not from_age <= age < to_age:
                slot, from_age, to_age = age_slot(age)
            ages[slot] += count
            if capped:
                counted = self._slots.setdefault(int(first * NS) // self._slot_width, [0, 0])
                counted[0] += count
                counted[1] += length
        self.found.dirs += len(passed)
        self.found.skipped += len(passed)
        self.found.loose_dirs += loose
        if blocks:
            self._count_blocks(blocks, size, oldest, newest)
        return passed, rest

    def _look(self, fd: int, level: Dir, device: int) -> tuple[int, list[str]]:
        """Count the leaves that hold nothing but closed blocks of ours that stay.

        Returns how many entries there are, and the names of those that are to be opened.

        A leaf is looked at by its name, which is fewer calls than opening it. Nobody holds that name meanwhile, so all
        that this can end in is "nothing to do here": whatever else there is, is judged again by the open directory.
        Where another directory was listed in a leaf's place, the leaf's ctime has changed with its name, and what the
        index says of it is never believed.
        """
        look, listdir, owner_uid, ages, now = os.lstat, os.listdir, self.owner_uid, self._age_counts, self.now
        is_leaf, prune, pause = level.dir_for, level.dirs[0].prune, self.pause
        is_block = level.dirs[0].plain_block or level.file_for
        low, high = now - self.policy.retention, now + FUTURE_SLACK
        unread: list[str] = []
        try:
            with os.scandir(fd) as found:
                listed = [(entry.name, entry.inode()) for entry in found]
        except OSError as error:
            self._error(error)
            return 0, []
        self._files_seen += len(listed)
        dirs = entries = blocks = size = slot = 0
        oldest, newest = _NEVER, -_NEVER
        from_age = to_age = _NEVER
        read, settled = self._read, self._settled_before
        # The same few names come back in each unit.
        leaf_names = self._leaf_names.setdefault(id(level), set())
        if len(leaf_names) > _MANY_NAMES:
            leaf_names.clear()
        try:
            for name, inode in listed:
                try:
                    info = look(name)
                    # Below a mount the name has another inode than its entry.
                    if (
                        info.st_mode & _DIR_MASK != stat.S_IFDIR
                        or info.st_ino != inode
                        or info.st_uid != owner_uid
                        or info.st_dev != device
                        or info.st_size > SMALL
                        or (name not in leaf_names and not is_leaf(name))
                    ):
                        unread.append(name)
                        continue
                    files = listdir(name)
                    length = 0
                    mtimes = []
                    for file in files:
                        if not is_block(file):
                            break
                        seen = look(f"{name}/{file}")
                        if seen.st_mode & PLAIN_MASK != stat.S_IFREG or seen.st_uid != owner_uid or seen.st_nlink != 1:
                            break
                        mtimes.append(seen.st_mtime)
                        length += seen.st_size
                    count = len(files)
                    if len(mtimes) != count:
                        unread.append(name)
                        continue
                except OSError:
                    unread.append(name)
                    continue
                if count:
                    first, last = (mtimes[0], mtimes[0]) if count == 1 else (min(mtimes), max(mtimes))
                    if first <= low or last > high:
                        unread.append(name)
                        continue
                    blocks += count
                    size += length
                    if first < oldest:
                        oldest = first
                    if last > newest:
                        newest = last
                    if from_age <= now - last and now - first < to_age:
                        ages[slot] += count
                    else:
                        for mtime in mtimes:
                            slot, from_age, to_age = age_slot(now - mtime)
                            ages[slot] += 1
                elif prune and self._aged(info):
                    unread.append(name)
                    continue
                else:
                    first, last = _NEVER, -_NEVER
                leaf_names.add(name)
                dirs += 1
                entries += count
                if info.st_ctime_ns < settled:
                    read[name] = pack_leaf(inode, info.st_mtime_ns, info.st_ctime_ns, count, length, first, last)
                if pause is not None and not dirs % _BETWEEN_PAUSES:
                    pause()
        finally:
            self.found.dirs += dirs
            self._files_seen += entries
            if blocks:
                self._count_blocks(blocks, size, oldest, newest)
        return len(listed), unread

    def _listed(self, fd: int, info: os.stat_result, level: Dir, path: str, reachable: bool) -> list[str]:
        """Names of the leaves in one directory; of a small one all names: what is no leaf's is judged after that."""
        if level.leaf is None or info.st_size > SMALL:
            return [name for name, _below in self._scan(fd, level, path, reachable)]
        try:
            names = os.listdir(fd)
        except OSError as error:
            self._error(error)
            return []
        self._files_seen += len(names)
        return names

    def _known_dirs(self, fd: int, names: list[str], level: Dir, path: str, reachable: bool) -> list[tuple[str, Dir]]:
        """Those of the names that a leaf may have, with its level; the others are judged."""
        subdirs: list[tuple[str, Dir]] = []
        for name in names:
            below = level.dir_for(name)
            if below is None:
                self._name(fd, name, level, path, reachable)
            else:
                subdirs.append((name, below))
        return subdirs

    def _keep(self, unit: str, old_data: bytes, passed: list[str], known: int) -> None:
        """What the index shall hold of a unit, and how much of that is new."""
        self._known += len(passed) + len(self._read)
        if passed:
            # Most passes change too little for a shard to be written, so nothing is put together before it is.
            self._changed += max(known - len(passed), len(self._read))
            unchanged = len(passed) == known and not self._read
            self._new[unit] = old_data if unchanged else _Merge(unit, old_data, passed, self._read)
            return
        data = self._new[unit] = encode_unit(unit, self._read)
        if data != old_data:
            old = packed_leaves(old_data)
            changed = sum(old.get(name) != leaf for name, leaf in self._read.items())
            self._changed += changed + len(old.keys() - self._read.keys())

    def _note_leaf(self, info: os.stat_result, leaf: str, blocks: int, size: int, oldest: float, newest: float) -> None:
        self._plain_read += 1
        if info.st_ctime_ns < self._settled_before:
            self._read[leaf] = pack_leaf(info.st_ino, info.st_mtime_ns, info.st_ctime_ns, blocks, size, oldest, newest)

    def _enter_shard(self, top: str, unit: str) -> None:
        shard = shard_name(top, unit)
        if shard == self._shard or self.index is None:
            return
        self._leave_shard()
        try:
            self._top = os.stat(top, dir_fd=self.root, follow_symlinks=False).st_ino
        except OSError:
            # It is open but has lost its name: no index is believed of it.
            self._top = 0
        self._shard, self._old, self._new, self._changed = shard, self.index.read(shard, self._top), {}, 0
        self._known = 0

    def _leave_shard(self) -> None:
        if self._shard is None or self.index is None:
            return
        # A pass may begin or end in the middle of a shard: what it did not come to stays as it was.
        kept = {unit: data for unit, data in self._old.items() if unit in self._present[self._shard]}
        if self._changed * _CHANGED_SHARE > self._known or len(kept) != len(self._old):
            new = {unit: data.encoded() if isinstance(data, _Merge) else data for unit, data in self._new.items()}
            self.index.write(self._shard, self._top, {**kept, **new})
        self._shard, self._old, self._new = None, {}, {}

    def _cap(self) -> None:
        """The sums are exact; which blocks are the oldest is not known of leaves that were passed over."""
        if not (self.found.skipped and self._over()):
            super()._cap()
            return
        first = self.found
        exact = CappedWalk(
            self.root, self.store, self.owner_uid, self.now, self.policy, self.delete, self.deadline, pause=self.pause
        )
        self.found, self._age_counts = exact.run(), exact._age_counts
        for name in DONE:
            setattr(self.found, name, getattr(self.found, name) + getattr(first, name))
        for name, count in first.errors.items():
            self.found.errors[name] = max(count, self.found.errors.get(name, 0))
