# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The walk made cheap: leaves that did not change are not read again.

What is deleted is the same as without the index: an unchanged leaf is passed over only while nothing in it can have
ended, and a leaf that holds anything but blocks as they should be is read each time.
"""

from __future__ import annotations

import os
import time
from typing import Any

from .caps import CappedWalk
from .index import Fields, Index, decode_unit, encode_unit, settled_before, shard_name
from .stores import Dir
from .survey import DONE, NS
from .walk import SMALL, Unit
from .workers import SharedWalk

# mtimes are compared as fractions of seconds, which are not exact.
_SLACK = 0.001
# A shard is written again once so much of it has changed: what is not on record is read again, which is cheaper.
_CHANGED_SHARE = 32


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
        self._new: dict[str, bytes] = {}
        self._changed = self._known = 0
        self._read: dict[str, Fields] = {}
        self._settled_before = 0

    def _run_units(self, units: list[Unit]) -> None:
        for unit in units:
            if unit.below is not None:
                self._present.setdefault(shard_name(unit.top, unit.below), set()).add(unit.below)
        super()._run_units(units)
        if self.index is not None:
            self.index.keep_only(set(self._present))

    def _run_share(self, units: list[Unit]) -> None:
        try:
            super()._run_share(units)
        finally:
            self._leave_shard()

    def _inside(self, fd: int, info: os.stat_result, level: Dir, path: str, reachable: bool) -> bool:
        if self.index is None or path.count("/") != 1 or not level.dirs or any(below.dirs for below in level.dirs):
            return super()._inside(fd, info, level, path, reachable)
        top, unit = path.split("/")
        self._enter_shard(top, unit)
        return self._leaves(fd, info, unit, level, path, reachable)

    def _leaves(self, fd: int, info: os.stat_result, unit: str, level: Dir, path: str, reachable: bool) -> bool:
        """All leaves of one unit: passed over where the index allows it, read otherwise. True if there is nothing."""
        before = self._files_seen
        self._settled_before = settled_before(time.time_ns())
        listed = self._listed(fd, info, level, path, reachable)
        old_data = self._old.pop(unit, b"")
        known = {} if self.full else decode_unit(old_data)
        passed: dict[str, Fields] = {}
        unread: list[str] = []
        self._read = {}
        device, owner_uid, look = info.st_dev, self.owner_uid, os.stat
        limit = self.now - self.policy.retention + _SLACK
        grace = int((self.now - self.policy.dir_grace + _SLACK) * NS)
        blocks = size = loose = 0
        oldest, newest = float("inf"), -float("inf")
        for name in listed:
            leaf = known.get(name)
            if leaf is not None:
                try:
                    seen = look(name, dir_fd=fd, follow_symlinks=False)
                except OSError:
                    seen = info
                if (
                    leaf[0] == seen.st_ino
                    and leaf[1] == seen.st_mtime_ns
                    and leaf[2] == seen.st_ctime_ns
                    and leaf[5] > limit
                    and (leaf[3] or leaf[1] > grace)
                    and seen.st_uid == owner_uid
                    and seen.st_dev == device
                ):
                    passed[name] = leaf
                    blocks += leaf[3]
                    size += leaf[4]
                    if seen.st_mode & 0o077:
                        loose += 1
                    if leaf[3]:
                        if leaf[5] < oldest:
                            oldest = leaf[5]
                        if leaf[6] > newest:
                            newest = leaf[6]
                        self._pass_over(leaf)
                    continue
            unread.append(name)
        self._below(fd, self._known_dirs(fd, unread, level, path, reachable), path, reachable)
        self.found.dirs += len(passed)
        self.found.skipped += len(passed)
        self.found.loose_dirs += loose
        if blocks:
            self._count_blocks(blocks, size, oldest, newest)
        self._keep(unit, old_data, passed, len(known))
        return not listed and self._files_seen == before

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

    def _keep(self, unit: str, old_data: bytes, passed: dict[str, Fields], known: int) -> None:
        """What the index shall hold of a unit, and how much of that is new."""
        if len(passed) == known and passed and not self._read:
            self._known += known
            self._new[unit] = old_data
            return
        leaves = {**passed, **self._read}
        self._known += len(leaves)
        data = self._new[unit] = encode_unit(unit, leaves)
        if data != old_data:
            old = decode_unit(old_data)
            changed = sum(old.get(name) != leaf for name, leaf in self._read.items())
            self._changed += changed + len(old.keys() - leaves.keys())

    def _pass_over(self, leaf: Fields) -> None:
        """Blocks that were not looked at count as old as the oldest of their leaf."""
        self._count_age(self.now - leaf[5], leaf[3])
        if self._capped:
            slot = self._slots.setdefault(int(leaf[5] * NS) // self._slot_width, [0, 0])
            slot[0] += leaf[3]
            slot[1] += leaf[4]

    def _note_leaf(self, info: os.stat_result, leaf: str, blocks: int, size: int, oldest: float, newest: float) -> None:
        if info.st_ctime_ns < self._settled_before:
            self._read[leaf] = (info.st_ino, info.st_mtime_ns, info.st_ctime_ns, blocks, size, oldest, newest)

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
            self.index.write(self._shard, self._top, {**kept, **self._new})
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
