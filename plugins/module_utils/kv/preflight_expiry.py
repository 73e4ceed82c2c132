# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What expiry would do to what lies and runs on a host, asked before anything is changed.

Two mistakes show only there: an engine under which nothing may be deleted, so that the retention is a promise nobody
keeps, and a retention that is made shorter than what lies there is old.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from . import datamap, discovery, forecast, host, system
from .datamap import Document, Problem, Tier, file_tiers
from .stores import ENGINES, STORES, live_safe
from .survey import Survey

# All tiers whose retention becomes shorter are counted in that time, together.
MAX_SECONDS = 20.0
PERMISSION = "llmhost_shorten_retention"
Engines = Mapping[str, Sequence[discovery.Found]]
_PROGRAM = re.compile(r"\{ path=(\S+) ;")


@dataclass(frozen=True)
class Shorter:
    """A tier whose retention becomes shorter. lies: what is in it, counted by the new one; None: cannot be read."""

    tier: Tier
    before: int
    lies: Survey | None


@dataclass(frozen=True)
class Ahead:
    """What judge() goes by. engines: by tier, what runs; starts: by tier, what its stopped units would start."""

    engines: Engines = field(default_factory=dict)
    starts: Engines = field(default_factory=dict)
    shorter: Sequence[Shorter] = ()


def gather(document: Document, systemd: bool = True) -> Ahead:
    """Look at the engines of every present tier, and at the blocks of those whose retention becomes shorter."""
    tiers = file_tiers(document, ("present",))
    engines = {}
    for tier in tiers:
        account = system.account_of(tier["owner"])
        engines[tier["name"]] = discovery.engines(tier, account.uid if account else None)
    return Ahead(engines, _starts(tiers, engines) if systemd else {}, _shorter(document))


def _starts(
    tiers: Sequence[Tier], engines: Mapping[str, Sequence[discovery.Found]]
) -> dict[str, list[discovery.Found]]:
    """The engines on disk that units without a running one would start, of stores for which their version matters."""
    asked = {
        tier["name"]: [
            one
            for one in tier["services"]
            if not system.is_template(one) and one not in {found.unit for found in engines[tier["name"]]}
        ]
        for tier in tiers
        if STORES[tier["store"]].live_from is not None
    }
    names = sorted({name for units in asked.values() for name in units})
    # Of a unit that does not exist systemd shows no ExecStart= at all, so another property keeps the answers apart.
    shown = system.show(names, ("LoadState", "ExecStart"))
    found: dict[str, list[discovery.Found]] = {}
    for tier in tiers:
        for name in asked.get(tier["name"], ()):
            program = _PROGRAM.search(shown.get(name, {}).get("ExecStart", ""))
            if program is None:
                continue
            there = discovery.installed(program.group(1), ENGINES[STORES[tier["store"]].engine])
            if there.version is not None:
                one = discovery.Found(0, name, there.version, there.source)
                found.setdefault(tier["name"], []).append(one)
    return found


def shortened(old: Document | None, new: Document) -> list[tuple[Tier, int]]:
    """Tiers of the host whose blocks will be kept for less time than now, with the minutes of now.

    Those that left the map too: they follow the prompt log's retention.
    """
    before = {(tier["path"], tier["store"]): tier["retention_minutes"] for tier in file_tiers(old)} if old else {}
    found = []
    for tier in file_tiers(datamap.merge(old, new)):
        minutes = before.get((tier["path"], tier["store"]))
        if minutes is not None and tier["retention_minutes"] < minutes:
            found.append((tier, minutes))
    return found


def _shorter(document: Document) -> list[Shorter]:
    until = time.monotonic() + MAX_SECONDS
    tiers = shortened(host.old_map(document)[0], document)
    return [Shorter(tier, minutes, forecast.counted(tier, time.time(), until)) for tier, minutes in tiers]


def judge(document: Document, ahead: Ahead, allowed: Sequence[str] = ()) -> list[Problem]:
    """Every reason not to go on. allowed: tiers whose blocks may go because their retention becomes shorter."""
    name = document["host"]
    problems = []
    for tier in file_tiers(document, ("present",)):
        if tier["expire"] == "live":
            problems += _judge_live(tier, ahead, name)
    for one in ahead.shorter:
        text = falls_due(one)
        if text and one.tier["name"] not in allowed:
            fix = "write retention_minutes: %d, or let them go with -e %s=%s" % (
                one.before,
                PERMISSION,
                one.tier["name"],
            )
            problems.append(Problem(name, one.tier["name"], "retention_minutes", text, fix))
    return problems


def _judge_live(tier: Tier, ahead: Ahead, name: str) -> list[Problem]:
    """May the tier's blocks be deleted under the engines that write it?"""
    store = STORES[tier["store"]]
    stopped = "write `expire: stopped`: its blocks then go only while its engine is stopped"
    if not store.live:
        reason = f"blocks of {store.name} must not be deleted while the engine runs, whatever its version"
        return [Problem(name, tier["name"], "expire", reason, f"use a store that lets go of blocks, or {stopped}")]
    wanted = ".".join(map(str, store.live_from or ()))
    unsafe = [one for one in ahead.engines.get(tier["name"], ()) if live_safe(store, one.version) is False]
    unsafe += [one for one in ahead.starts.get(tier["name"], ()) if live_safe(store, one.version) is False]
    if not unsafe:
        return []
    named = ", ".join(
        f"{one.version} in {f'pid {one.pid} ({one.unit})' if one.pid else one.unit}" for one in unsafe[:5]
    )
    reason = f"{store.engine} {named} may hang when a block vanishes, so nothing would expire while it runs"
    fix = f"upgrade it to {wanted} and restart it, or {stopped}"
    return [Problem(name, tier["name"], "expire", reason, fix)]


def falls_due(one: Shorter) -> str:
    """What the next pass deletes because the retention becomes shorter; empty if it deletes nothing."""
    change = "it goes from %d to %d minutes" % (one.before, one.tier["retention_minutes"])
    if one.lies is None:
        return ""
    if not one.lies.overdue:
        if one.lies.complete:
            return ""
        return f"{change}, and what lies in {one.tier['path']} could not all be looked at in {MAX_SECONDS:.0f} s"
    # No walk counts the bytes of those that are due.
    size = one.lies.block_bytes * one.lies.overdue // max(1, one.lies.blocks)
    least = "" if one.lies.complete else "at least "
    return (
        f"{change}, and {least}{one.lies.overdue} of {one.lies.blocks} blocks in {one.tier['path']} "
        f"(about {forecast.size_text(size)}) are older: the next pass deletes them"
    )


def warnings(document: Document, ahead: Ahead, allowed: Sequence[str] = ()) -> list[str]:
    """What an operator should know although nothing stops."""
    texts = [
        f"tier {one.tier['name']}: {falls_due(one)}, as {PERMISSION} says"
        for one in ahead.shorter
        if one.tier["name"] in allowed and falls_due(one)
    ]
    for tier in file_tiers(document, ("present",)):
        for found in ahead.engines.get(tier["name"], ()):
            if live_safe(STORES[tier["store"]], found.version) is None:
                texts.append(
                    f"tier {tier['name']}: the version of the engine in pid {found.pid} ({found.unit}) is unknown: "
                    f"{found.source}; blocks expire only once it is known or the engine is stopped"
                )
    return texts
