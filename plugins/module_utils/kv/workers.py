# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The walk shared by several processes: each takes whole groups of first-level directories of its own."""

from __future__ import annotations

import json
import os
from typing import Any, Optional

from . import fsio
from .caps import CappedWalk
from .survey import Survey, merge
from .walk import Stop, Unit

# Why a walk ended early ("" for lack of time) and at which unit.
Ending = tuple[str, Optional[str]]


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
        groups: dict[tuple[str, str], list[Unit]] = {}
        for unit in units:
            groups.setdefault((unit.top, (unit.below or "")[:1]), []).append(unit)
        shares: list[list[Unit]] = [[] for _worker in range(min(self.workers, len(groups)))]
        for number, group in enumerate(groups.values()):
            shares[number % len(shares)] += group
        if len(shares) < 2:
            self._run_share(units)
        else:
            self._run_shares(units, shares)

    def _run_share(self, units: list[Unit]) -> None:
        """One process's part of the units."""
        super()._run_units(units)

    def _run_shares(self, units: list[Unit], shares: list[list[Unit]]) -> None:
        children = [_Child(self, share) for share in shares[1:]]
        endings: list[Ending] = []
        try:
            endings += self._ending(shares[0])
        finally:
            left = [child.units for child in children if not child.join(self, endings)]
        # The work of a process that died is done again; what it had deleted is gone, only its counts are lost.
        for share in left:
            self.found.errors["ECHILD"] = self.found.errors.get("ECHILD", 0) + 1
            endings += self._ending(share)
        if endings:
            # The next pass goes all the way round from there, so that no worker's rest is lost.
            order = {unit.position: place for place, unit in enumerate(units)}
            self._at = min((at for _why, at in endings), key=lambda at: order.get(at or "", 0))
            raise Stop(next((why for why, _at in endings if why), ""))

    def _ending(self, units: list[Unit]) -> list[Ending]:
        try:
            self._run_share(units)
        except Stop as stop:
            return [(str(stop), self._at)]
        return []

    def _report(self, units: list[Unit]) -> bytes:
        """What a child has to say when it is done with its share."""
        self.found, self._slots = Survey(), {}
        self._age_counts = [0] * len(self._age_counts)
        endings = self._ending(units)
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


class _Child:
    """A process at work on some units, and the pipe that it reports through."""

    def __init__(self, walk: SharedWalk, units: list[Unit]) -> None:
        self.units = units
        self.reader, writer = os.pipe()
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid:
            os.close(writer)
            return
        try:
            fsio.end_with(parent)
            with os.fdopen(writer, "wb") as pipe:
                pipe.write(walk._report(units))
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
