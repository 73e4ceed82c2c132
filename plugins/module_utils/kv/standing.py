# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""How a host stands, in at most ten lines for a tired person: what is wrong comes first, each with what to do."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass

from . import account, clock, containers, discovery, expiry, fsio, mounts, namespaces, state, walk
from .datamap import Document, Tier, file_tiers, place_text

MAX_LINES = 10
_LOOK_SECONDS = 2.0


@dataclass(frozen=True)
class Standing:
    """One tier: is it well, what is so, and what to do (empty: nothing)."""

    name: str
    good: bool
    text: str
    todo: str = ""

    def lines(self) -> list[str]:
        """Its line, and one more for what to do."""
        first = f"{'ok ' if self.good else 'BAD'} {self.name}: {walk.printable(self.text)}"
        return [first, f"    do: {walk.printable(self.todo)}"] if self.todo else [first]


_BACK = "put it back into llmhost_tiers, or there with state: absent once its blocks are gone"


def of_tier(tier: Tier, now: float) -> Standing:
    """How one tier stands that has files, or had a bucket."""
    name = tier["name"]
    if tier["bucket"]:
        return Standing(name, False, f"LEFT THE MAP, its blocks may remain: {place_text(tier)}", _BACK)
    if tier["state"] == "planned":
        return Standing(name, True, "planned, not in use")
    start = f"systemctl start llmhost-tier@{name}.service"
    try:
        with fsio.opened(tier["path"]) as fd:
            wrong, todo = mounts.problem(tier, fd), start
    except PermissionError:
        wrong, todo = f"{tier['path']} is closed to you", "run this as root"
    except (OSError, fsio.UnsafePath) as error:
        wrong, todo = str(error), start
    if wrong:
        return Standing(name, False, f"NOT THERE, {wrong}", todo)
    record = state.read_run(tier)
    if record is None:
        return Standing(name, False, "no expiry has run", f"wait for cron, or kvtier expire {name}")
    ago = max(0.0, now - record["started"])
    oldest = "none" if record["oldest_mtime"] is None else span(now - record["oldest_mtime"])
    text = "%d blocks, %d MiB, oldest %s of %s allowed, expired %s ago" % (
        record["blocks"],
        record["block_bytes"] >> 20,
        oldest,
        span(tier["retention_minutes"] * 60),
        span(ago),
    )
    if record["finished"] is None or record["exit"] != expiry.OK:
        code = record["exit"]
        meaning = expiry.EXIT_CODES.get(code, "unknown") if code is not None else "it did not end"
        why = "; ".join(record["messages"][:2]) or meaning
        return Standing(name, False, f"EXPIRY FAILED, {why}", f"kvtier expire {name}; journalctl -t kvtier")
    if ago > 2 * 60 * tier["expire_every_minutes"]:
        todo = "systemctl status cron; look at /etc/cron.d/llmhost"
        return Standing(name, False, f"STALE, no expiry for {span(ago)}", todo)
    if tier["state"] == "vanished":
        return Standing(name, False, f"LEFT THE MAP, still expires: {text}", _BACK)
    apart = containers.bare(tier)
    if apart:
        todo = "; ".join(dict.fromkeys(containers.restart_of(view) for view in apart[:3]))
        return Standing(name, False, f"NOT ON THE VOLUME, {apart[0].named()} sees below the mount: {text}", todo)
    waiting = pending(tier)
    if waiting:
        units = " ".join(waiting)
        return Standing(name, False, f"RESTART PENDING of {units}: {text}", f"systemctl restart {units}")
    return Standing(name, True, text, dead(tier) or "")


def pending(tier: Tier) -> list[str]:
    """Units of a tier whose processes run with an umask that the drop-in closes: only a restart changes that."""
    found = [
        one
        for one in discovery.of_services(tier["services"])
        if one.umask is not None and one.umask & 0o077 != 0o077 and not discovery.is_runtime(one)
    ]
    return sorted({str(one.unit) for one in found if _in_our_root(one.pid)})


def _in_our_root(pid: int) -> bool:
    """False in a container, whose runtime sets the umask and not the unit, and where it cannot be told."""
    try:
        return os.path.samefile(f"/proc/{pid}/root", "/")
    except OSError:
        return False


def dead(tier: Tier) -> str | None:
    """What to do about what a tier's engine cannot read any more; None if nothing is known."""
    try:
        engines = discovery.engines(tier, account.uid_of(tier["owner"]))
        with fsio.opened(tier["path"]) as fd:
            until = time.monotonic() + _LOOK_SECONDS
            judged = namespaces.judge(tier, fd, engines, discovery.processes(), clock.synchronised(), until)
    except (OSError, KeyError, fsio.UnsafePath):
        return None
    if judged.unknown or not judged.dead:
        return None
    names = ", ".join(walk.printable(one.name) for one in judged.dead[:3])
    size = sum(one.size for one in judged.dead) >> 20
    return (
        f"kvtier expire {tier['name']} --dead-namespaces: "
        f"{len(judged.dead)} dead namespaces, {size} MiB ({names}) that the engine cannot read"
    )


def of_host(document: Document, now: float) -> list[Standing]:
    """How every tier with files stands, and every bucket that left the map: the others are `kvsweep status`'s."""
    lost = [tier for tier in document["tiers"] if tier["bucket"] and tier["state"] == "vanished"]
    return [of_tier(tier, now) for tier in file_tiers(document, ("present", "vanished", "planned")) + lost]


def render(host: str, standings: Sequence[Standing]) -> list[str]:
    """At most ten lines: the sum, then what is wrong, then what is well, then how much did not fit."""
    bad = [one for one in standings if not one.good]
    ordered = bad + [one for one in standings if one.good]
    many = "1 tier" if len(standings) == 1 else f"{len(standings)} tiers"
    if bad:
        lines = [f"{walk.printable(host)}: NOT WELL, look at {len(bad)} of {many}. Details: kvtier audit"]
    else:
        lines = [f"{walk.printable(host)}: all well, {many}"]
    for number, one in enumerate(ordered):
        more = one.lines()
        last = number == len(ordered) - 1
        if len(lines) + len(more) > MAX_LINES - (not last):
            left = ordered[number:]
            lines.append(f"and {len(left)} more, {sum(not rest.good for rest in left)} of them BAD")
            break
        lines += more
    return lines


def span(seconds: float) -> str:
    """A span of time for people."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
