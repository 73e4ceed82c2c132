# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every place of a host where KV state is or would be written: by what runs, what is configured, and what lies there.

Reads only. No process memory is read; of an environment only the variables of stores_settings are kept; text that
leaves here has its secrets masked. A process that vanishes is not there.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from . import account, discovery, listeners, stray, system, tiers_files
from .discovery import Process
from .judge import clean
from .stores import ENGINES, STORES
from .stores_settings import ENVIRONMENT, Named, Place, named

SCHEMA = 1
RUNNING, CONFIGURED, LIES_THERE = "running", "configured", "lies there"
_MAX_ENVIRON = 1 << 20
_SECRET = re.compile(
    r"(?i)((?:access|secret|api|admin|session|auth|account)[-_]?(?:api[-_]?)?(?:key|token|id)(?:[-_]id)?|password|passwd"
    r"|secret|hf[-_]token|token)(\"?\s*[:=\0]\s*\"?)([^\s\"',}\0]+)"
)
_USERINFO = re.compile(r"(\w+://)[^/@\s]+@")


@dataclass
class Tier:
    """One place. path: on the host, None if it is inside a container or a bucket; inside: as the engine says it."""

    store: str
    path: str | None
    inside: str | None
    sure: str
    bucket: str | None = None
    endpoint: str | None = None
    prefix: str | None = None
    found: list[dict[str, Any]] = field(default_factory=list)


def masked(text: str | None) -> str | None:
    """text without what looks like a key, a token or a password."""
    if text is None:
        return None
    return _USERINFO.sub(r"\1***@", _SECRET.sub(r"\1\2***", text))


def _is_engine(words: Sequence[str]) -> bool:
    # An engine's name far back in a command is a model or a path.
    line = "\0".join(words[:8])
    return any(engine.programs.search(line) for engine in ENGINES.values())


def environment_of(pid: int, proc: str = "/proc") -> dict[str, str] | None:
    """The variables of a process that name places, None if they cannot be read."""
    try:
        with open(f"{proc}/{pid}/environ", "rb") as file:
            text = file.read(_MAX_ENVIRON).decode("utf-8", "surrogateescape")
    except OSError:
        return None
    pairs = (entry.partition("=")[::2] for entry in text.split("\0"))
    return {name: value for name, value in pairs if ENVIRONMENT.fullmatch(name)}


def host_path(path: str, inside: Sequence[system.Mount], outside: Sequence[system.Mount]) -> str | None:
    """The host's path of a path in another mount namespace, None if the host sees no such place."""
    best = _covering(path, inside)
    if best is None:
        return None
    below = os.path.normpath(best.root + path[len(best.point.rstrip("/")) :])
    seen = [one for one in outside if one.device == best.device and _below(below, one.root)]
    # Of several mounts of one device the one that shows the least besides.
    for mount in sorted(seen, key=lambda one: len(one.root), reverse=True):
        there = os.path.normpath(mount.point + "/" + below[len(mount.root.rstrip("/")) :])
        # Another mount may lie over it.
        over = _covering(there, outside)
        if over is not None and over.id == mount.id:
            return there if there[:2] != "//" else there[1:]
    return None


def _covering(path: str, mounts: Sequence[system.Mount]) -> system.Mount | None:
    # The last one of equal points lies on top.
    above = [one for one in mounts if _below(path, one.point)]
    return max(above, key=lambda one: (len(one.point), one.id), default=None)


def _below(path: str, above: str) -> bool:
    return path == above or path.startswith(above.rstrip("/") + "/")


def _mounts(path: str) -> list[system.Mount] | None:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return system.parse_mounts(file.read(1 << 22))
    except (OSError, ValueError):
        return None


def _link(path: str) -> str | None:
    try:
        return os.readlink(path)
    except OSError:
        return None


class _Host:
    """One look at a host, its parts replaceable by a test's."""

    def __init__(self, proc: str, root: str) -> None:
        self.proc, self.root = proc, root
        self.tiers: dict[tuple[Any, ...], Tier] = {}
        self.unread: list[str] = []
        self.outside = _mounts(f"{proc}/1/mountinfo") or _mounts(f"{proc}/self/mountinfo") or []
        self.namespace = _link(f"{proc}/1/ns/mnt") or _link(f"{proc}/self/ns/mnt")

    def add(self, place: Place, path: str | None, sure: str, evidence: Mapping[str, Any]) -> None:
        key = (place.store, path or place.path, place.bucket, place.endpoint, place.prefix)
        tier = self.tiers.get(key)
        if tier is None:
            tier = Tier(place.store, path, place.path, sure, place.bucket, place.endpoint, place.prefix)
            self.tiers[key] = tier
        if sure == RUNNING:
            tier.sure = sure
        tier.found.append({**evidence, "named_by": place.named_by, "default": place.default})

    def note(self, where: str, settings: Named) -> None:
        self.unread += [f"{where}: {text}" for text in settings.unread]

    def process(self, process: Process) -> None:
        environment = environment_of(process.pid, self.proc)
        base = f"{self.proc}/{process.pid}"
        if environment is None and not os.path.isdir(base):
            return
        prefix = f"{base}/root"
        working = _link(f"{base}/cwd")

        def read(path: str) -> str | None:
            absolute = os.path.normpath(os.path.join(working or "/", path))
            text = tiers_files.text_of(absolute, prefix) if os.path.isdir(prefix) else None
            return text

        settings = named(process.cmdline, environment or {}, read)
        if environment is None:
            self.unread.append(f"pid {process.pid} ({process.comm}): its environment cannot be read")
        self.note(f"pid {process.pid} ({process.comm})", settings)
        namespace = _link(f"{base}/ns/mnt")
        inside = _mounts(f"{base}/mountinfo") if namespace != self.namespace else None
        evidence = self._evidence(process)
        for place in settings.places:
            path = None
            if place.path is not None:
                if working is None and not place.path.startswith("/"):
                    self.unread.append(f"pid {process.pid}: {place.path} is relative to an unknown directory")
                else:
                    absolute = os.path.normpath(os.path.join(working or "/", place.path))
                    place = place._replace(path=absolute)
                    path = absolute if inside is None else host_path(absolute, inside, self.outside)
            self.add(place, path, RUNNING, evidence)

    def _evidence(self, process: Process) -> dict[str, Any]:
        version, source, engine = None, "", None
        line = "\0".join(process.cmdline[:8])
        for one in ENGINES.values():
            if one.programs.search(line):
                engine = engine or one.name
                found, where = discovery.version_of(process, one, self.proc)
                if found is not None:
                    engine, version, source = one.name, found, where
                    break
        return {
            "kind": "process",
            "pid": process.pid,
            "engine": engine,
            "version": version,
            "version_source": source,
            "user": account.name_of(process.uid),
            "umask": None if process.umask is None else f"{process.umask:04o}",
            "unit": process.unit,
            "container": process.container,
        }

    def source(self, source: tiers_files.Source) -> None:
        settings = named(source.words, source.environment, lambda path: self._read_for(source, path))
        self.note(source.file, settings)
        evidence = {
            "kind": source.kind,
            "file": source.file,
            "user": source.user,
            "umask": source.umask,
            "unit": source.unit,
            "container": source.container,
        }
        for place in settings.places:
            path = None
            if place.path is not None:
                place = place._replace(path=os.path.normpath(os.path.join(source.directory or "/", place.path)))
                path = source.on_host(str(place.path))
            self.add(place, path, CONFIGURED, evidence)

    def _read_for(self, source: tiers_files.Source, path: str) -> str | None:
        there = source.on_host(path)
        return None if there is None else tiers_files.text_of(there, self.root)


def find(
    proc: str = "/proc",
    root: str = "",
    scan_seconds: float = stray.MAX_SECONDS,
    scan_entries: int = stray.MAX_ENTRIES,
) -> dict[str, Any]:
    """Everything that was found, fit to be shown. scan_seconds 0: no scan for trees that nothing names."""
    host = _Host(proc, root)
    seen = discovery.processes(proc)
    engines = [process for process in seen if _is_engine(process.cmdline)]
    for process in engines:
        host.process(process)
    for source in tiers_files.sources(root):
        host.source(source)
    known = {tier.path for tier in host.tiers.values() if tier.path}
    _defaults(host, known)
    scan = stray.Scan([], 0, True, 0.0)
    if scan_seconds > 0:
        scan = stray.scan(_roots(host.outside, root), [root + path for path in known], scan_seconds, scan_entries)
        for one in scan.found:
            path = one.path[len(root) :] if root else one.path
            place = Place(one.store, path, f"it holds blocks like {one.why[:12]}...")
            host.add(place, path, LIES_THERE, {"kind": "scan", "complete": scan.complete})
    opened = listeners.of_processes([process.pid for process in engines], proc)
    answer: dict[str, Any] = shown(
        {
            "schema": SCHEMA,
            "tiers": [_shown(tier) for tier in sorted(host.tiers.values(), key=_order)],
            "listeners": [one._asdict() for one in opened],
            "unread": sorted(set(host.unread))[:200],
            "processes": len(seen),
            "engines": len(engines),
            "scan": {"entries": scan.entries, "complete": scan.complete, "seconds": round(scan.seconds, 3)},
        }
    )
    return answer


def look(scan_seconds: float = 0) -> dict[str, Any]:
    """find() on this host; a host that cannot be looked at gives why, as `error`."""
    try:
        return find(scan_seconds=scan_seconds)
    except OSError as error:
        return {"error": str(error)}


def _order(tier: Tier) -> tuple[str, ...]:
    return (tier.path or tier.inside or "", tier.bucket or "", tier.store)


def _shown(tier: Tier) -> dict[str, Any]:
    store = STORES[tier.store]
    return {**vars(tier), "title": store.title, "engine": store.engine, "live_deletion": store.live}


def shown(value: Any) -> Any:
    """A JSON value with secrets masked and nothing in it that a terminal obeys."""
    if isinstance(value, str):
        return clean(masked(value))
    if isinstance(value, dict):
        return {clean(str(key)): shown(one) for key, one in value.items()}
    if isinstance(value, list):
        return [shown(one) for one in value]
    return value


def _defaults(host: _Host, known: Iterable[str]) -> None:
    """The places where engines write unless told otherwise, if something of theirs lies there."""
    known = set(known)
    for store in STORES.values():
        for path in store.default_paths:
            if not path.startswith("/") or path in known or store.layout is None:
                continue
            if not os.path.isdir(host.root + path):
                continue
            one = stray.recognise(host.root + path, [store])
            if one is not None:
                place = Place(store.name, path, f"blocks like {one.why[:12]}... lie in its default directory", True)
                host.add(place, path, LIES_THERE, {"kind": "default directory"})


def _roots(mounts: Sequence[system.Mount], root: str) -> list[str]:
    """Where a scan begins: the mounts of local file systems, the root first."""
    if root:
        return [root]
    points = {one.point for one in mounts if one.fstype in stray.LOCAL or one.point == "/"}
    return sorted(point for point in points if not any(_below(point, skipped) for skipped in stray.SKIPPED))
