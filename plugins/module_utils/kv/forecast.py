# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What hardening will cost a host: engines that need a restart, caches that are lost with it, for how long.

gather() reads the host before anything is changed, tell() says it in lines for people.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from . import absent, access, account, discovery, evidence_engine, fsio, system, volume, walk
from .datamap import Document, Tier, file_tiers
from .standing import span
from .stores import STORES, parse_version
from .survey import Policy

WHEN_NEEDED = "when_needed"
# One look at all caches together; a larger one is counted as far as that goes.
MAX_SECONDS = 20.0

DESTROYED = "destroyed when the volume is mounted over them: they lie on storage that is not the tier's"
ENDED = "destroyed: the map declares the tier absent"
FORGOTTEN = "not found again by an engine of this version after its restart, unless its PYTHONHASHSEED is fixed"


@dataclass(frozen=True)
class Cache:
    """Blocks of one tier that will be lost. seconds: how old the oldest is, so how long they took to gather."""

    tier: str
    path: str
    blocks: int
    bytes: int
    complete: bool
    seconds: float | None
    fate: str
    units: tuple[str, ...] = ()


@dataclass(frozen=True)
class Restart:
    """A unit whose processes lack what the roles set. memory_bytes: its memory tier; start_seconds: None if untold."""

    unit: str
    reasons: tuple[str, ...]
    memory_bytes: int = 0
    start_seconds: float | None = None
    by_hand: bool = False


@dataclass(frozen=True)
class Forecast:
    """What is ahead of one host."""

    host: str
    restarts: tuple[Restart, ...] = ()
    caches: tuple[Cache, ...] = ()

    def destroys(self, restart: str) -> bool:
        """Will this run take a cache from the host? restart: the value of llmhost_restart."""
        if any(cache.fate in (DESTROYED, ENDED) for cache in self.caches):
            return True
        return restart == WHEN_NEEDED and bool(self.caches or any(one.memory_bytes for one in self.restarts))

    def as_result(self, restart: str) -> dict[str, Any]:
        """The same as plain JSON values, with lines for people."""
        return {
            "restarts": [dict(asdict(one), reasons=list(one.reasons)) for one in self.restarts],
            "caches": [dict(asdict(one), units=list(one.units)) for one in self.caches],
            "destroys": self.destroys(restart),
            "lines": tell(self, restart),
        }


def counted(tier: Tier, now: float, deadline: float) -> walk.Survey | None:
    """The blocks that lie at a tier's path now; None if nothing can be read there."""
    policy = Policy(tier["retention_minutes"] * 60, tier["tmp_grace_minutes"] * 60, tier["dir_grace_minutes"] * 60)
    try:
        uid = account.uid_of(tier["owner"])
    except KeyError:
        uid = 0
    try:
        with fsio.opened(tier["path"]) as fd:
            return walk.survey(fd, STORES[tier["store"]], uid, now, policy, deadline)
    except (OSError, fsio.UnsafePath):
        return None


def _forgetting(tier: Tier, restarting: Sequence[str]) -> tuple[str, ...]:
    """Units about to be restarted whose engine gives its blocks new names then."""
    keeps = STORES[tier["store"]].found_again_from
    if keeps is None:
        return ()
    engines = [one for one in discovery.engines(tier) if one.unit in restarting and one.version]
    return tuple(sorted({str(one.unit) for one in engines if (parse_version(one.version or "") or ()) < keeps}))


def _start_seconds(units: Sequence[str]) -> dict[str, float]:
    """How long a unit's last start took, of those that tell systemd when they are ready."""
    names = ("Type", "InactiveExitTimestampMonotonic", "ActiveEnterTimestampMonotonic")
    found = {}
    for unit, values in system.show(list(units), names).items():
        left, entered = (int(text) if (text := values.get(name, "")).isdigit() else 0 for name in names[1:])
        if values.get("Type") in ("notify", "notify-reload", "forking", "dbus") and entered >= left > 0:
            found[unit] = (entered - left) / 1e6
    return found


def _memory(processes: Sequence[discovery.Process]) -> int:
    """Bytes of the memory tier's files that these processes have mapped, each file once."""
    files = {one["path"]: one["bytes"] or 0 for found in evidence_engine.running(processes, []) for one in found.memory}
    return sum(files.values())


def gather(
    document: Document,
    volumes: Mapping[str, volume.Seen],
    now: float | None = None,
    gone: Sequence[absent.Left] = (),
) -> Forecast:
    """Look at a host before it is changed.

    volumes: what preflight saw of the tiers with a volume of ours; gone: of the absent ones.
    """
    now = time.time() if now is None else now
    deadline = time.monotonic() + MAX_SECONDS
    needed = access.restarts(document)
    starts = _start_seconds(list(needed))
    restarts = [
        Restart(unit, tuple(reasons), _memory(discovery.of_services([unit])), starts.get(unit))
        for unit, reasons in needed.items()
    ]
    restarts += [Restart(who, tuple(why), by_hand=True) for who, why in access.apart(document).items()]
    caches = []
    ending = [left.tier for left in gone if left.plain or (left.open and left.seen and left.seen.is_ours())]
    for tier in [*file_tiers(document, ("present",)), *ending]:
        seen = volumes.get(tier["name"])
        units: tuple[str, ...] = ()
        if tier["state"] == "absent":
            fate = ENDED
        elif seen is not None and not seen.is_ours():
            fate = DESTROYED
        else:
            units = _forgetting(tier, list(needed))
            fate = FORGOTTEN
            if not units:
                continue
        found = counted(tier, now, deadline)
        if found is None or not found.blocks + found.temps:
            continue
        age = None if found.oldest_mtime is None else max(0.0, now - found.oldest_mtime)
        size = found.block_bytes + found.temp_bytes
        caches.append(Cache(tier["name"], tier["path"], found.blocks, size, found.complete, age, fate, units))
    return Forecast(document["host"], tuple(restarts), tuple(caches))


def size_text(size: int) -> str:
    """Bytes for people, in powers of 1024."""
    for unit, shift in (("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size >= 1 << shift:
            return f"{size / (1 << shift):.1f} {unit}"
    return f"{size} bytes"


def tell(forecast: Forecast, restart: str) -> list[str]:
    """One line for each engine and each cache; empty if the run costs nothing."""
    lines = []
    for one in forecast.restarts:
        when = "restarted at the end of the play" if restart == WHEN_NEEDED else "left to you (llmhost_restart: never)"
        if one.by_hand:
            when = "left to you, as it has no unit of its own"
        text = f"{forecast.host}: {one.unit} needs a restart, {when}: {'; '.join(one.reasons)}"
        if one.memory_bytes:
            text += f". It loses {size_text(one.memory_bytes)} of memory tier"
        if one.start_seconds is not None:
            text += f". Its last start took {span(one.start_seconds)}"
        else:
            text += ". How long it takes to start is not told by its unit"
        lines.append(text)
    for cache in forecast.caches:
        least = "" if cache.complete else "at least "
        gathered = "" if cache.seconds is None else f". They took {span(cache.seconds)} to gather"
        lines.append(
            f"{forecast.host}: tier {cache.tier} loses {least}{cache.blocks} blocks, {size_text(cache.bytes)}, "
            f"in {cache.path}: {cache.fate}{gathered}"
        )
    return lines
