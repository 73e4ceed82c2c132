# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Shared memory of engines that no process maps any more: what a killed engine left in /dev/shm. `kvtier orphans`."""

from __future__ import annotations

import argparse
import os
import stat
import sys
import syslog
from typing import NamedTuple

from .datamap import Document
from .stores_settings import SHARED_MEMORY

DIRECTORY = "/dev/shm"  # noqa: S108  where the engine makes them


class Orphan(NamedTuple):
    """A file that nobody maps. key: its device and inode."""

    name: str
    size: int
    key: tuple[int, int] = (0, 0)


def find(directory: str = DIRECTORY, proc: str = "/proc") -> list[Orphan] | None:
    """The files that no process maps or holds open; None if a process could not be looked at (be root)."""
    files = {}
    try:
        names = [name for name in os.listdir(directory) if SHARED_MEMORY.fullmatch(name)]
    except OSError:
        return None
    for name in names:
        try:
            info = os.lstat(os.path.join(directory, name))
        except OSError:
            continue
        if stat.S_ISREG(info.st_mode):
            key = (info.st_dev, info.st_ino)
            files[key] = Orphan(name, info.st_blocks * 512, key)
    if not files:
        return []
    for pid in [name for name in os.listdir(proc) if name.isdigit()]:
        held = _held(f"{proc}/{pid}")
        if held is None:
            return None
        for one in held:
            files.pop(one, None)
    return sorted(files.values())


def _held(base: str) -> set[tuple[int, int]] | None:
    """Device and inode of what a process maps or has open; none for one that is gone, None if it cannot be seen."""
    found: set[tuple[int, int]] = set()
    try:
        with open(f"{base}/maps", encoding="utf-8", errors="surrogateescape") as lines:
            for line in lines:
                fields = line.split(None, 5)
                if len(fields) > 5:
                    major, _colon, minor = fields[3].partition(":")
                    found.add((os.makedev(int(major, 16), int(minor, 16)), int(fields[4])))
        for name in os.listdir(f"{base}/fd"):
            try:
                info = os.stat(f"{base}/fd/{name}")
            except FileNotFoundError:
                continue
            found.add((info.st_dev, info.st_ino))
    except (FileNotFoundError, ProcessLookupError):
        return found
    except (OSError, ValueError):
        return None
    return found


def remove(directory: str = DIRECTORY, proc: str = "/proc") -> list[Orphan] | None:
    """Remove what no process maps or holds open and say what went; None, and nothing gone, if that is not known."""
    found = find(directory, proc)
    gone = []
    for one in found or ():
        path = os.path.join(directory, one.name)
        try:
            info = os.lstat(path)
            # An engine that starts may have made a new file of this name.
            if (info.st_dev, info.st_ino) == one.key:
                os.unlink(path)
                gone.append(one)
        except FileNotFoundError:
            continue
    return None if found is None else gone


def run(_document: Document, options: argparse.Namespace) -> int:
    """List or remove them."""
    found = remove() if options.remove else find()
    if found is None:
        sys.stderr.write("kvtier: orphans: what processes map cannot be seen; run it as root\n")
        return 3
    for one in found:
        line = "{} {}/{} ({} bytes)".format("removed" if options.remove else "orphan", DIRECTORY, one.name, one.size)
        sys.stdout.write(line + "\n")
        if options.remove:
            syslog.syslog(syslog.LOG_NOTICE, line)
    return 0 if options.remove or not found else 1
