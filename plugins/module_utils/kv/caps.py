# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The walk with caps: when ages are done, the oldest blocks go until a tier is no larger than it may be."""

from __future__ import annotations

import bisect
import os
import stat
from typing import Any, NamedTuple

from . import fsio
from .stores import BLOCK, Dir, File
from .survey import AGE_BOUNDS, NS, Survey
from .walk import Walk


class CappedWalk(Walk):
    """A Walk that keeps the policy's caps too. While it walks it counts blocks by mtime, in slots of a fixed width."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._slots: dict[int, list[int]] = {}
        self._slot_width = max(1, self.policy.retention // 100_000) * NS
        # A pass that may delete nothing has nothing to say about the caps.
        acts = self.delete or self.on_delete is not None
        self._capped = acts and bool(self.policy.max_bytes or self.policy.max_files)
        self._kept = self._count_slot if self._capped else None

    def _count_slot(self, info: os.stat_result) -> None:
        slot = self._slots.setdefault(info.st_mtime_ns // self._slot_width, [0, 0])
        slot[0] += 1
        slot[1] += info.st_size

    def _after(self) -> None:
        if self._capped:
            self._cap()

    def _cap(self) -> None:
        """Delete oldest blocks first until both caps hold.

        The histogram of the pass tells which slot the limit falls into: everything older goes, and of that slot alone
        a sorted list is made, so that memory stays bounded and the limit is met to the byte.
        """
        found, slots = self.found, self._slots
        excess_files, excess_bytes = self._excess()
        if not self._over():
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

    def _excess(self) -> tuple[int, int]:
        """Files and bytes above the caps, zero or less where a cap holds or is none."""
        policy = self.policy
        files = sum(slot[0] for slot in self._slots.values())
        size = sum(slot[1] for slot in self._slots.values())
        return files - policy.max_files if policy.max_files else 0, size - policy.max_bytes if policy.max_bytes else 0

    def _over(self) -> bool:
        return max(self._excess()) > 0

    def _forget_block(self, info: os.stat_result, reachable: bool) -> None:
        """Take a block that the caps deleted out of the counts of what is left."""
        found = self.found
        found.blocks -= 1
        found.block_bytes -= info.st_size
        self._age_counts[bisect.bisect_right(AGE_BOUNDS, self.now - info.st_mtime)] -= 1
        if info.st_mode & 0o077:
            found.loose -= 1
            found.readable -= reachable and bool(info.st_mode & 0o044)


class _Candidate(NamedTuple):
    """A block of the slot that the limit falls into; they go in this order."""

    mtime: int
    size: int
    path: str
    known: File
    reachable: bool


class _Cap(Walk):
    """Second walk for the caps: blocks before `low` go at once, those of the slot are sorted and go as needed."""

    def __init__(self, first: CappedWalk, low: int, width: int, excess_files: int, excess_bytes: int) -> None:
        policy = first.policy._replace(max_bytes=None, max_files=None)
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

    def _below(self, parent: int, subdirs: list[tuple[str, Dir]], path: str, reachable: bool) -> None:
        for name, level in subdirs:
            self._subtree(parent, name, level, f"{path}/{name}", reachable)

    def _judge(self, fd: int, name: str, known: File, info: os.stat_result, path: str, reachable: bool) -> None:
        if known.kind != BLOCK or not self._is_block(fd, name, known, info):
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
