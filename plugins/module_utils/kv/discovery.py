# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What runs on the host: processes, the units they belong to, and which engine in which version they are.

Reads /proc only, works without privileges for the account's own processes, and never reads a process's environment or
memory. A process that vanishes meanwhile is not there.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from .datamap import Tier
from .stores import ENGINES, STORES, Engine, live_safe, parse_version
from .units import CONTAINER_DAEMONS

RUNTIMES = ("conmon", "podman", "dockerd", "docker", "containerd", "containerd-shim", "crun", "runc", "catatonit")

# What may stand in a version that is believed and shown.
_VERSION = re.compile(r"[0-9][0-9A-Za-z.+!_-]{0,63}", re.ASCII)
_CONTAINER = re.compile(
    r"(?:docker|libpod|libpod-payload|crio|cri-containerd|nerdctl)[-/]([0-9a-f]{12,64})|/([0-9a-f]{64})(?:/|$)",
    re.ASCII,
)
_SITE = re.compile(r"(/[^\0\n]*?/(?:site|dist)-packages)/")


class Process(NamedTuple):
    """One process. start_time: clock ticks since boot; core_limit: bytes or `unlimited`, as text; container: its id."""

    pid: int
    uid: int
    comm: str
    cmdline: tuple[str, ...]
    unit: str | None
    start_time: int
    umask: int | None
    core_limit: str | None
    coredump_filter: int | None
    container: str | None = None


class Found(NamedTuple):
    """A running engine of a tier. version None: nobody could tell; source: where the version was read, or why not."""

    pid: int
    unit: str | None
    version: str | None
    source: str


def unit_of(cgroup: str) -> str | None:
    """The innermost systemd service or scope in the text of /proc/PID/cgroup (v2, hybrid and v1)."""
    for line in cgroup.splitlines():
        hierarchy, _colon, rest = line.partition(":")
        controllers, _colon, path = rest.partition(":")
        if hierarchy != "0" and controllers != "name=systemd":
            continue
        for part in reversed(path.split("/")):
            if part.endswith((".service", ".scope")):
                return part
    return None


def container_of(cgroup: str) -> str | None:
    """Id of the container in the text of /proc/PID/cgroup, None if there is none."""
    match = _CONTAINER.search(cgroup)
    return (match.group(1) or match.group(2))[:12] if match else None


def _read(path: str, limit: int = 1 << 16) -> str:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = b""
        # The kernel gives a page or a line at a time.
        while len(data) < limit and (more := os.read(fd, limit - len(data))):
            data += more
    finally:
        os.close(fd)
    return data.decode("utf-8", "surrogateescape")


def _field(status: str, key: str) -> str | None:
    """A field of /proc/PID/status."""
    _before, found, after = status.partition(f"\n{key}:\t")
    return after.partition("\n")[0] if found else None


def _process(pid: int, proc: str) -> Process | None:
    """A process as it is; None if it is gone or a thread of the kernel's, which has no command line."""
    base = f"{proc}/{pid}"
    try:
        cmdline = tuple(_read(f"{base}/cmdline").split("\0")[:-1])
        if not cmdline:
            return None
        status = "\n" + _read(f"{base}/status")
        stat = _read(f"{base}/stat")
        cgroup = _read(f"{base}/cgroup")
    except OSError:
        return None
    # The name in parentheses may hold anything, spaces and parentheses too.
    fields = stat.rpartition(")")[2].split()
    try:
        return Process(
            pid=pid,
            uid=int((_field(status, "Uid") or "").split()[1]),
            comm=(_field(status, "Name") or "").strip(),
            cmdline=cmdline,
            unit=unit_of(cgroup),
            start_time=int(fields[19]),
            umask=int(umask, 8) if (umask := _field(status, "Umask")) is not None else None,
            core_limit=_core_limit(base),
            coredump_filter=_coredump_filter(base),
            container=container_of(cgroup),
        )
    except (ValueError, IndexError):
        return None


def _core_limit(base: str) -> str | None:
    try:
        for line in _read(f"{base}/limits").splitlines():
            if line.startswith("Max core file size"):
                return line[18:].split()[0]
    except (OSError, IndexError):
        pass
    return None


def _coredump_filter(base: str) -> int | None:
    try:
        return int(_read(f"{base}/coredump_filter"), 16)
    except (OSError, ValueError):
        return None


def processes(proc: str = "/proc") -> list[Process]:
    """Every process that can be seen, kernel threads left out."""
    found = (_process(int(name), proc) for name in os.listdir(proc) if name.isdigit())
    return [process for process in found if process is not None]


def is_of(unit: str | None, services: Iterable[str]) -> bool:
    """True if unit is one of services; a template (`vllm@.service`) stands for each of its instances."""
    if unit is None:
        return False
    template = re.sub(r"@[^@]*\.service$", "@.service", unit)
    return any(service == unit or ("@." in service and service == template) for service in services)


def is_runtime(process: Process) -> bool:
    """True for what starts and watches containers and is in none: it belongs to their unit and writes no block."""
    if process.container is not None:
        return False
    return process.comm in RUNTIMES or process.unit in CONTAINER_DAEMONS


def of_services(services: Iterable[str], proc: str = "/proc") -> list[Process]:
    """The processes that run in one of these units."""
    wanted = list(services)
    return [process for process in processes(proc) if is_of(process.unit, wanted)]


def engines(tier: Tier, owner_uid: int | None = None, proc: str = "/proc") -> list[Found]:
    """The engines that may be using a tier now: in its units, or run by its owner on its path.

    A unit that runs but in which no process can be recognised gives one entry without a version.
    """
    engine = ENGINES[STORES[tier["store"]].engine]
    found: list[Found] = []
    unknown: dict[str, Found] = {}
    by_daemon = any(service in CONTAINER_DAEMONS for service in tier["services"])
    for process in processes(proc):
        # The daemon writes no block. Its containers have scopes of their own: the account tells which are the tier's.
        if process.unit in CONTAINER_DAEMONS and process.container is None:
            continue
        of_daemon = by_daemon and process.container is not None and process.uid == owner_uid
        ours = of_daemon or is_of(process.unit, tier["services"])
        # In a container the tier may have any name.
        at_home = process.uid == owner_uid and (
            _names(process.cmdline, tier["path"])
            or (process.container is not None and engine.programs.search("\0".join(process.cmdline)) is not None)
        )
        if not ours and not at_home:
            continue
        version, source = version_of(process, engine, proc)
        if version is not None or engine.programs.search("\0".join(process.cmdline)):
            found.append(Found(process.pid, process.unit, version, source))
        elif ours and process.unit is not None:
            unknown.setdefault(process.unit, Found(process.pid, process.unit, None, source))
    recognised = {entry.unit for entry in found if entry.version is not None}
    # A shell or a side process of a unit whose engine was recognised says nothing.
    found = [entry for entry in found if entry.version is not None or entry.unit not in recognised]
    return found + [entry for unit, entry in unknown.items() if unit not in {item.unit for item in found}]


def _names(cmdline: Sequence[str], path: str | None) -> bool:
    return bool(path) and any(str(path) in argument for argument in cmdline)


def version_of(process: Process, engine: Engine, proc: str = "/proc") -> tuple[str | None, str]:
    """Version of the engine that a process runs, and the directory it was read from (or why it is unknown).

    Read from the names of dist-info directories: those of the packages that the process has mapped, else those of the
    environment or interpreter it was started with. Several versions: the lowest.
    """
    if not engine.dists:
        return None, "this engine's version cannot be read from outside"
    try:
        root = _root(process.pid, proc)
    except OSError:
        return None, f"the files of pid {process.pid} cannot be seen by uid {os.geteuid()}"
    versions: list[tuple[str, str]] = []
    for site in _mapped_sites(process, proc):
        versions += _versions_in(root + site, engine)
    for site in [] if versions else _started_sites(process, proc, root):
        versions = _versions_in(root + site, engine)
        if versions:
            break
    if not versions:
        return None, f"no {' or '.join(engine.dists)} found for pid {process.pid}"
    version, where = min(versions, key=lambda item: parse_version(item[0]) or ())
    if _younger_than(where, process):
        return None, f"{where[len(root) :]} was installed after pid {process.pid} started: restart it"
    return version, where[len(root) :]


def started(process: Process) -> float:
    """When a process started, in seconds since the epoch by today's clock."""
    return process.start_time / os.sysconf("SC_CLK_TCK") + time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)


def _younger_than(path: str, process: Process) -> bool:
    """Was path made after the process started? Then it is not what the process runs."""
    try:
        return os.stat(path).st_ctime > started(process) + 0.1
    except OSError:
        return True


def _root(pid: int, proc: str) -> str:
    """Prefix under which a process's own paths are seen from here: its container's root where it has one."""
    inside, outside = os.stat(f"{proc}/{pid}/root"), os.stat("/")
    same = (inside.st_dev, inside.st_ino) == (outside.st_dev, outside.st_ino)
    return "" if same else f"{proc}/{pid}/root"


def _mapped_sites(process: Process, proc: str) -> list[str]:
    """Directories of the packages that the process has mapped."""
    try:
        maps = _read(f"{proc}/{process.pid}/maps", 1 << 22)
    except OSError:
        return []
    return list(dict.fromkeys(match.group(1) for match in _SITE.finditer(maps)))


def _started_sites(process: Process, proc: str, root: str) -> list[str]:
    """Directories of packages of the environment or interpreter that the process was started with."""
    sites: list[str] = []
    prefixes = [os.path.dirname(os.path.dirname(argument)) for argument in process.cmdline[:2] if argument[:1] == "/"]
    with contextlib.suppress(OSError):
        prefixes.append(os.path.dirname(os.path.dirname(os.readlink(f"{proc}/{process.pid}/exe"))))
    for prefix in dict.fromkeys(prefixes + ["/usr/local"]):
        for library in ("lib", "lib64"):
            sites += _python_directories(root, f"{prefix}/{library}")
    return list(dict.fromkeys(sites))


def _python_directories(root: str, library: str) -> list[str]:
    try:
        names = os.listdir(root + library)
    except OSError:
        return []
    return [
        f"{library}/{name}/{packages}"
        for name in sorted(names)
        if name.startswith("python3")
        for packages in ("site-packages", "dist-packages")
        if os.path.isdir(f"{root}{library}/{name}/{packages}")
    ]


def _versions_in(site: str, engine: Engine) -> list[tuple[str, str]]:
    found = []
    try:
        names = os.listdir(site)
    except OSError:
        return []
    for name in names:
        if not name.endswith(".dist-info"):
            continue
        dist, _dash, version = name[: -len(".dist-info")].partition("-")
        if dist.lower().replace("-", "_").replace(".", "_") in engine.dists and _VERSION.fullmatch(version):
            found.append((version, f"{site}/{name}"))
    return found


class Installed(NamedTuple):
    """An engine's package on disk. version None: it could not be told; source: where it was read, or why not."""

    version: str | None
    python: str | None
    source: str


def installed(program: str, engine: Engine, root: str = "") -> Installed:
    """The engine that a command line beginning with that program would start: read from its environment's packages.

    A script's interpreter is the one in its first line. Several versions: the lowest.
    """
    if not engine.dists:
        return Installed(None, None, "this engine's version cannot be read from outside")
    prefixes = []
    for candidate in (program, _interpreter(root + program)):
        if candidate and candidate.startswith("/"):
            prefixes.append(os.path.dirname(os.path.dirname(candidate)))
    for prefix in dict.fromkeys(prefixes):
        versions: list[tuple[str, str]] = []
        for library in ("lib", "lib64"):
            for site in _python_directories(root, f"{prefix}/{library}"):
                versions += _versions_in(root + site, engine)
        if versions:
            version, where = min(versions, key=lambda item: parse_version(item[0]) or ())
            return Installed(version, python_of_site(where), where[len(root) :])
    return Installed(None, None, f"no {' or '.join(engine.dists)} found for {program}")


def python_of_site(path: str) -> str | None:
    """Major and minor of the Python whose packages lie there (`lib/python3.12/site-packages`)."""
    match = re.search(r"/python(3\.\d{1,3})/(?:site|dist)-packages(?:/|$)", path, re.ASCII)
    return match.group(1) if match else None


def _interpreter(path: str) -> str | None:
    """The interpreter in a script's first line."""
    try:
        with open(path, "rb") as file:
            first = file.readline(512).decode("utf-8", "replace")
    except OSError:
        return None
    words = first[2:].split() if first.startswith("#!") else []
    return words[0] if words else None


class Gate(NamedTuple):
    """May a tier's blocks be deleted now? allowed None: nobody knows, which is a no. reason: one line for people."""

    allowed: bool | None
    reason: str
    version: str | None
    source: str


def live_gate(tier: Tier, found: Sequence[Found]) -> Gate:
    """Judge deletion under the engines that run now; one that is known to be unsafe decides, an unknown one is a no."""
    store = STORES[tier["store"]]
    if not found:
        return Gate(True, "no engine of the tier is running", None, "no process")
    judged = [(live_safe(store, entry.version), entry) for entry in found]
    for verdict in (False, None):
        for answer, entry in judged:
            if answer is verdict:
                return Gate(verdict, _no(tier, entry, verdict), entry.version, entry.source)
    lowest = min((entry for _answer, entry in judged), key=lambda entry: parse_version(entry.version or "") or ())
    return Gate(True, f"{store.name} may lose blocks while the engine runs", lowest.version, lowest.source)


def _no(tier: Tier, entry: Found, verdict: bool | None) -> str:
    store = STORES[tier["store"]]
    where = f"pid {entry.pid} ({entry.unit})"
    if verdict is None:
        return (
            f"the version of the {store.engine} engine in {where} is unknown: {entry.source}; "
            f"stop {' '.join(tier['services'])} or run the engine from an installed package"
        )
    if not store.live:
        stop = f"run systemctl stop {' '.join(tier['services'])}" if tier["services"] else "stop it"
        return (
            f"blocks of {store.name} must not be deleted while the engine runs ({where}): {stop}, "
            f"then kvtier expire --stopped {tier['name']}"
        )
    wanted = ".".join(map(str, store.live_from or ()))
    return (
        f"{store.engine} {entry.version} in {where} may hang when a block vanishes: "
        f"upgrade to {wanted} or stop {' '.join(tier['services'])}"
    )
