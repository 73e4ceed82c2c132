# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Namespaces of a tier that no configuration of its engine can read any more, and their end on request.

A namespace is what one engine configuration reads and writes; another model, another setting, sometimes another release
makes a new one and strands the old. Which one is in use is known only of engines that run: each start leaves a mark in
its namespace. Whatever is not certain is not dead.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from . import account, clock, discovery, expiry, fsio, state
from .datamap import STATE_ROOT, Tier
from .stores import CONFIG, ENGINES, STORES, Dir, Store, parse_version
from .survey import Policy, Survey, printable
from .walk import Stop, Walk

# A mark and the start of the process that made it come from different clocks.
SLACK = 2.0


@dataclass
class Namespace:
    """One namespace: its directories at the tier's root, the home's mark, and what is in it."""

    name: str
    home: str | None = None
    directories: list[str] = field(default_factory=list)
    marked: float = 0.0
    changed: float = 0.0
    blocks: int = 0
    size: int = 0

    def evidence(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {"name": printable(self.name), "blocks": self.blocks, "bytes": self.size}


@dataclass
class Judgement:
    """dead: what nobody can read any more; unknown: why nobody can say, None if it can be said; since: the start of
    the oldest engine that runs."""

    dead: list[Namespace] = field(default_factory=list)
    unknown: str | None = None
    since: float = 0.0

    def evidence(self) -> list[dict[str, Any]] | str:
        """As plain JSON values."""
        return f"cannot tell: {self.unknown}" if self.unknown else [one.evidence() for one in self.dead]


class _Only(Walk):
    """A walk through some of the directories at the tier's root."""

    only: frozenset[str] = frozenset()

    def _scan(self, fd: int, level: Dir, path: str, reachable: bool) -> list[tuple[str, Dir]]:
        if level is not self.layout:
            return super()._scan(fd, level, path, reachable)
        names = [name for name in sorted(self.only) if _is_directory(fd, name)]
        known = [(name, level.dir_for(name)) for name in names]
        return [(name, below) for name, below in known if below is not None]


def _is_directory(fd: int, name: str) -> bool:
    try:
        return stat.S_ISDIR(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode)
    except OSError:
        return False


def there(fd: int, store: Store) -> dict[str, Namespace]:
    """The namespaces below an open root."""
    found: dict[str, Namespace] = {}
    if store.namespaces is None:
        return found
    for name in os.listdir(fd):
        if not _is_directory(fd, name):
            continue
        home, blocks = store.namespaces.home.fullmatch(name), store.namespaces.blocks.fullmatch(name)
        match = home or blocks
        if match is None:
            continue
        with contextlib.suppress(FileNotFoundError):
            info = os.stat(name, dir_fd=fd, follow_symlinks=False)
            one = found.setdefault(match.group(1), Namespace(match.group(1)))
            one.changed = max(one.changed, info.st_mtime)
            if home:
                one.home, one.marked = name, info.st_mtime
            else:
                one.directories.append(name)
    return found


def starts(tier: Tier, engines: Sequence[discovery.Found], processes: Sequence[discovery.Process]) -> dict[str, float]:
    """When each engine of the tier started: by unit, or by process where it runs in none."""
    units = {one.unit or f"pid {one.pid}" for one in engines}
    pids = {one.pid for one in engines}
    found: dict[str, float] = {}
    for process in processes:
        key = process.unit if process.unit in units else f"pid {process.pid}"
        if process.pid in pids or (key in units and discovery.is_of(process.unit, tier["services"])):
            at = discovery.started(process)
            found[key or ""] = min(at, found.get(key or "", at))
    return {unit: found[unit] for unit in units & found.keys()}


def judge(
    tier: Tier,
    fd: int,
    engines: Sequence[discovery.Found],
    processes: Sequence[discovery.Process],
    synchronised: bool | None,
    deadline: float | None = None,
) -> Judgement:
    """Which namespaces below the open root are dead. deadline: time.monotonic() at which looking into them ends."""
    store = STORES[tier["store"]]
    unknown = _unknown(store, engines, synchronised)
    if unknown:
        return Judgement(unknown=unknown)
    began = starts(tier, engines, processes)
    if len(began) < len({one.unit or one.pid for one in engines}):
        return Judgement(unknown="an engine ended meanwhile")
    stray = _stray(tier, engines, processes)
    if stray is not None:
        return Judgement(unknown=f"pid {stray} may be another engine of {tier['owner']} with a namespace of its own")
    since = min(began.values())
    found = there(fd, store)
    marked = [one for one in found.values() if one.home is not None and one.marked >= since]
    for unit, at in sorted(began.items()):
        if not any(one.marked >= at for one in marked):
            return Judgement(unknown=f"{unit} has not opened its namespace since it started")
    if len(marked) < len(began):
        return Judgement(unknown="%d engines run and only %d namespaces are marked" % (len(began), len(marked)))
    result = Judgement(since=since)
    for name in sorted(found):
        one = found[name]
        if one.home is None or one.changed >= since - SLACK:
            continue
        inside = _walk(tier, fd, one, since, deadline=deadline).run()
        if not inside.complete or inside.errors:
            return Judgement(unknown=f"{printable(name)} cannot be read to its end")
        if inside.blocks > inside.overdue or inside.temps > inside.stale_temps:
            continue  # something in it is younger than the engines
        one.blocks, one.size = inside.blocks, inside.block_bytes
        result.dead.append(one)
    return result


def _stray(tier: Tier, engines: Sequence[discovery.Found], processes: Sequence[discovery.Process]) -> int | None:
    """A process of the account that looks like the engine and is none of those that are known to use the tier.

    Its configuration may name the tier in a file that nobody reads here.
    """
    programs, uid = ENGINES[STORES[tier["store"]].engine].programs, account.uid_of(tier["owner"])
    pids, units = {one.pid for one in engines}, {one.unit for one in engines if one.unit}
    for process in processes:
        known = process.pid in pids or process.unit in units or discovery.is_of(process.unit, tier["services"])
        if known or process.uid != uid or not programs.search("\0".join(process.cmdline)):
            continue
        if not any("kvtier" in argument for argument in process.cmdline):
            return process.pid
    return None


def _unknown(store: Store, engines: Sequence[discovery.Found], synchronised: bool | None) -> str | None:
    if store.namespaces is None:
        return f"nothing in {store.name} says which configuration reads it"
    if not engines:
        return "no engine of the tier is running"
    if synchronised is not True:
        return "the clock is not synchronised, so times cannot be compared"
    for one in engines:
        version = parse_version(one.version or "")
        if version is None:
            return f"the version of the engine in pid {one.pid} is unknown"
        if version < store.namespaces.touched_from:
            return f"{store.engine} {one.version} leaves no mark at its start"
    return None


def _walk(tier: Tier, fd: int, one: Namespace, since: float, **options: Any) -> Walk:
    """A walk through one namespace; what is younger than the engines stays."""
    now = time.time()
    grace = max(0, int(now - since + SLACK))
    walk = _Only(fd, STORES[tier["store"]], account.uid_of(tier["owner"]), now, Policy(grace, grace, grace), **options)
    walk.only = frozenset([*one.directories, *([one.home] if one.home else [])])
    return walk


def delete_dead(tier: Tier, delete: bool = True, state_root: str = STATE_ROOT) -> dict[str, Any]:
    """Delete the dead namespaces of a tier, as its account; delete=False only says which. Same refusals as expire()."""
    result: dict[str, Any] = {"tier": tier["name"], "exit": expiry.OK, "messages": [], "dead": [], "removed": []}
    result.update(blocks=0, bytes=0, errors={})
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(state.locked(tier, state_root))
            before = state.read_run(tier, state_root)
            fd = expiry.open_tier(tier, bool(before and before["mounted"]))
            stack.callback(os.close, fd)
            jump = clock.problem(before["clock"] if before else None, clock.now(), clock.synchronised() is True)
            if jump is not None:
                return {**result, "exit": expiry.CLOCK, "messages": [jump]}
            _delete_dead(tier, fd, delete, result)
    except state.Busy as error:
        result.update(exit=expiry.BUSY, messages=[str(error)])
    except (expiry.Refused, OSError, fsio.UnsafePath, Stop) as error:
        result.update(exit=expiry.REFUSED, messages=[*result["messages"], printable(str(error))])
    return result


def _judged(tier: Tier, fd: int) -> Judgement:
    engines = discovery.engines(tier, account.uid_of(tier["owner"]))
    gate = discovery.live_gate(tier, engines)
    if gate.allowed is not True:
        return Judgement(unknown=gate.reason)
    return judge(tier, fd, engines, discovery.processes(), clock.synchronised())


def _delete_dead(tier: Tier, fd: int, delete: bool, result: dict[str, Any]) -> None:
    judged = _judged(tier, fd)
    if judged.unknown:
        raise expiry.Refused(f"which namespaces are dead cannot be told: {judged.unknown}")
    result["dead"] = [one.evidence() for one in judged.dead]
    for one in judged.dead if delete else ():
        # Time has passed: an engine may have been started on it. What is younger than the engines stays anyway.
        again = _judged(tier, fd)
        if one.name not in [other.name for other in again.dead]:
            result["messages"].append(f"{printable(one.name)} is not dead any more, or nobody can tell: it stays")
            continue
        walk = _walk(tier, fd, one, judged.since, delete=True, pause=expiry.Watch(tier, fd))
        done = walk.run()
        result["blocks"] += done.expired
        result["bytes"] += done.expired_bytes
        _add(result["errors"], done)
        if done.stopped:
            raise Stop(done.stopped)
        if _remove(fd, STORES[tier["store"]], one, account.uid_of(tier["owner"])):
            result["removed"].append(printable(one.name))
        else:
            result["messages"].append(f"{printable(one.name)} is not empty: something in it is not ours to delete")
    if result["errors"] or len(result["removed"]) < len(judged.dead if delete else ()):
        result["exit"] = expiry.ERRORS


def _add(errors: dict[str, int], done: Survey) -> None:
    for name, count in done.errors.items():
        errors[name] = errors.get(name, 0) + count


def _remove(fd: int, store: Store, one: Namespace, uid: int) -> bool:
    """Take away a namespace's configuration and its empty directories, the home last; True if nothing is left."""
    layout = store.layout
    whole = True
    for name in [*one.directories, *([one.home] if one.home else [])]:
        level = layout.dir_for(name) if layout else None
        whole = (level is not None and _remove_dir(fd, name, level, uid)) and whole
    return whole


def _remove_dir(parent: int, name: str, level: Dir, uid: int) -> bool:
    try:
        fd = fsio.open_subdir(parent, name)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    try:
        # A directory is read to its end before anything in it goes.
        for below in os.listdir(fd):
            known, deeper = level.file_for(below), level.dir_for(below)
            if deeper is not None:
                _remove_dir(fd, below, deeper, uid)
            elif known is not None and known.kind == CONFIG:
                info = os.stat(below, dir_fd=fd, follow_symlinks=False)
                if stat.S_ISREG(info.st_mode) and info.st_nlink == 1 and info.st_uid == uid:
                    os.unlink(below, dir_fd=fd)
    except OSError:
        return False
    finally:
        os.close(fd)
    try:
        os.rmdir(name, dir_fd=parent)
    except FileNotFoundError:
        pass
    except OSError:
        return False
    return True
