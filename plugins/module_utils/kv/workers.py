# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The walk shared by several processes: each takes groups of first-level directories, until there are no more."""

from __future__ import annotations

import itertools
import json
import mmap
import os
import struct
from collections.abc import Iterable, Iterator
from typing import Any, Optional

from . import fsio
from .caps import CappedWalk
from .survey import Survey, merge
from .walk import Stop, Unit

# Why a walk ended early ("" for lack of time) and at which unit.
Ending = tuple[str, Optional[str]]
_NUMBER = struct.Struct("<I")
_MOST_GROUPS = 4096


def default_workers() -> int:
    """Half the cores, at least 2 where there are 2, at most 8: the rest is the engine's."""
    cores = len(os.sched_getaffinity(0))
    return min(8, max(cores // 2, min(2, cores)))


class SharedWalk(CappedWalk):
    """A walk by `workers` processes; pause and on_delete are called in whichever is at it."""

    def __init__(self, *args: Any, workers: int = 1, **options: Any) -> None:
        super().__init__(*args, **options)
        self.workers = workers

    def _run_units(self, units: list[Unit]) -> None:
        # Of neighbours only: a pass that begins in the middle of a group comes round to the rest of it last.
        by_name = itertools.groupby(units, key=lambda unit: (unit.top, (unit.below or "")[:2]))
        groups = [list(group) for _key, group in by_name]
        workers = min(self.workers, len(groups))
        if workers < 2:
            self._run_share(units)
        else:
            self._run_shared(units, groups, workers)

    def _run_share(self, units: list[Unit]) -> None:
        """One process's part of the units."""
        super()._run_units(units)

    def _run_shared(self, units: list[Unit], groups: list[list[Unit]], workers: int) -> None:
        queue = _Queue(groups)
        endings: list[Ending] = []
        died: list[int] = []
        try:
            children = [_Child(self, queue, number) for number in range(2, workers + 1)]
            try:
                endings += self._ending(queue.taken_by(1), queue)
            finally:
                died = [child.number for child in children if not child.join(self, endings)]
            # The work of a process that died is done again; what it had deleted is gone, only its counts are lost.
            if died:
                self.found.errors["ECHILD"] = self.found.errors.get("ECHILD", 0) + len(died)
                endings += self._ending(queue.left_by(died), queue)
            untaken = queue.untaken()
        finally:
            queue.close()
        if endings or untaken:
            # The next pass goes all the way round from the first that was not done, so that none is left out for ever.
            order = {unit.position: place for place, unit in enumerate(units)}
            self._at = min([*(at for _why, at in endings), *untaken], key=lambda at: order.get(at or "", 0))
            raise Stop(next((why for why, _at in endings if why), ""))

    def _ending(self, groups: Iterable[list[Unit]], queue: _Queue) -> list[Ending]:
        try:
            for group in groups:
                self._run_share(group)
                # Without time nothing is taken that would not be done.
                if self._late():
                    break
        except Stop as stop:
            if str(stop):
                queue.drain()
            return [(str(stop), self._at)]
        return []

    def _report(self, queue: _Queue, number: int) -> bytes:
        """What a child has to say when nothing is left to do."""
        self.found, self._slots = Survey(), {}
        self._age_counts = [0] * len(self._age_counts)
        endings = self._ending(queue.taken_by(number), queue)
        return json.dumps([vars(self.found), self._age_counts, list(self._slots.items()), endings]).encode("ascii")

    def _add(self, report: bytes) -> list[Ending]:
        found, ages, slots, endings = json.loads(report)
        merge(self.found, Survey(**found))
        self._age_counts = [mine + more for mine, more in zip(self._age_counts, ages)]
        for slot, (files, size) in slots:
            mine = self._slots.setdefault(slot, [0, 0])
            mine[0] += files
            mine[1] += size
        return list(map(tuple, endings))


class _Queue:
    """Groups of units, which the processes of a pass take one after the other: who is faster takes more.

    A pipe holds the numbers of those that nobody took; shared memory holds who took which, 0 for nobody.
    """

    def __init__(self, groups: list[list[Unit]]) -> None:
        # All numbers must fit into the pipe.
        at_once = -(-len(groups) // _MOST_GROUPS)
        self.groups = [sum(groups[at : at + at_once], []) for at in range(0, len(groups), at_once)]
        self.takers = mmap.mmap(-1, len(self.groups))
        self.reader, writer = os.pipe()
        os.write(writer, b"".join(map(_NUMBER.pack, range(len(self.groups)))))
        os.close(writer)

    def taken_by(self, worker: int) -> Iterator[list[Unit]]:
        """The groups that this process takes, until there are no more."""
        while True:
            taken = os.read(self.reader, _NUMBER.size)
            if not taken:
                return
            (number,) = _NUMBER.unpack(taken)
            self.takers[number] = worker
            yield self.groups[number]

    def drain(self) -> None:
        """Nobody takes any more."""
        while os.read(self.reader, 1 << 16):
            pass

    def left_by(self, died: list[int]) -> Iterator[list[Unit]]:
        """Groups of processes that died, and those that nobody is known to have taken: for whoever is left."""
        for number, taker in enumerate(self.takers[:]):
            if taker in died:
                self.takers[number] = 0
        for number, group in enumerate(self.groups):
            if not self.takers[number]:
                self.takers[number] = 1
                yield group

    def untaken(self) -> list[str]:
        """First positions of the groups that nobody took."""
        return [group[0].position for group, taker in zip(self.groups, self.takers[:]) if not taker]

    def close(self) -> None:
        """To be called by whoever made it."""
        os.close(self.reader)
        self.takers.close()


class _Child:
    """A process that works on groups of a queue, and the pipe that it reports through."""

    def __init__(self, walk: SharedWalk, queue: _Queue, number: int) -> None:
        self.number = number
        self.reader, writer = os.pipe()
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid:
            os.close(writer)
            return
        try:
            fsio.end_with(parent)
            with os.fdopen(writer, "wb") as pipe:
                pipe.write(walk._report(queue, number))
        finally:
            os._exit(0)

    def join(self, walk: SharedWalk, endings: list[Ending]) -> bool:
        """Add what the child found to the walk's counts; False if it died and said nothing."""
        with os.fdopen(self.reader, "rb") as pipe:
            report = pipe.read()
        os.waitpid(self.pid, 0)
        try:
            endings += walk._add(report)
        except ValueError:
            return False
        return True
