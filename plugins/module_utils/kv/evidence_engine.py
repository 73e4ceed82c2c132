# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the audit reads about the engines that use a tier: their arguments, the file these name, their Python."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from . import discovery, fsio, offload_found, orphans
from .stores_settings import SHARED_MEMORY

RECORD = "/etc/llmhost/engines.json"
_LIMIT = 1 << 20
_SHM = re.compile(r"\s(%s/%s)(?: \(deleted\))?$" % (orphans.DIRECTORY, SHARED_MEMORY.pattern), re.ASCII)


@dataclass
class Running:
    """A process of a tier's services. config: the text of the file that its --config names, None if unreadable."""

    pid: int
    unit: str | None
    words: tuple[str, ...]
    config: str | None = None
    version: str | None = None
    source: str = ""
    python: str | None = None
    memory: list[dict[str, Any]] = field(default_factory=list)


def running(
    processes: Sequence[discovery.Process], engines: Sequence[discovery.Found], proc: str = "/proc"
) -> list[Running]:
    """Processes with what an engine's settings are judged by."""
    versions = {found.pid: found for found in engines}
    result = []
    for process in processes:
        one = Running(process.pid, process.unit, process.cmdline)
        found = versions.get(process.pid)
        if found is not None:
            one.version, one.source = found.version, found.source
        path = offload_found.config_file(process.cmdline)
        if path is not None:
            one.config = _text(f"{proc}/{process.pid}", path)
        one.python = discovery.python_of_site(one.source) or _python(f"{proc}/{process.pid}/exe")
        one.memory = _memory(f"{proc}/{process.pid}")
        result.append(one)
    return result


def _text(process: str, path: str) -> str | None:
    """A small regular file as the process sees it."""
    base = f"{process}/root" if path.startswith("/") else f"{process}/cwd/"
    try:
        fd = os.open(base + path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(fd, "rb") as file:
        try:
            data = file.read(_LIMIT + 1)
        except OSError:
            return None
    return data.decode("utf-8", "replace") if len(data) <= _LIMIT else None


def _python(exe: str) -> str | None:
    try:
        match = re.fullmatch(r".*/python(3\.\d{1,3})", os.readlink(exe), re.ASCII)
    except OSError:
        return None
    return match.group(1) if match else None


def _memory(process: str) -> list[dict[str, Any]]:
    """The memory tier's files that a process has mapped: they have no directory of a tier, but they hold blocks."""
    try:
        with open(f"{process}/maps", encoding="utf-8", errors="replace") as file:
            paths = dict.fromkeys(match.group(1) for match in map(_SHM.search, file) if match)
    except OSError:
        return []
    found = []
    for path in paths:
        try:
            info = os.stat(f"{process}/root{path}", follow_symlinks=False)
        except OSError:
            found.append({"path": path, "bytes": None, "mode": None})
            continue
        found.append({"path": path, "bytes": info.st_size, "mode": "%04o" % (info.st_mode & 0o7777)})
    return found


def declared(path: str = RECORD) -> list[dict[str, Any]]:
    """What the role engine_offload declared of each engine; empty where it declared nothing that can be used."""
    try:
        document = fsio.read_json(path, owner=0)
    except (OSError, ValueError, fsio.UnsafePath):
        return []
    engines = document.get("engines") if isinstance(document, dict) else None
    return [one for one in engines or [] if isinstance(one, dict) and isinstance(one.get("unit"), str)]
