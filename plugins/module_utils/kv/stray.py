# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Trees that look like a known store, found by what lies in them: old directories that no configuration names.

Bounded in time and entries, breadth first, on local file systems only, follows no symlink. Opens no file but one whose
names say nothing, and of that reads the first bytes.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from . import fsio
from .stores import STORES, Dir, Store
from .stores_model import BLOCK

LOCAL = ("ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "zfs", "tmpfs", "bcachefs")
# Trees that are large and are no place for a cache of ours; /tmp and homes are looked at.
SKIPPED = ("/proc", "/sys", "/dev", "/run", "/usr", "/boot", "/lib", "/bin", "/sbin")
MAX_DEPTH = 8
MAX_ENTRIES = 200_000
MAX_SECONDS = 10.0
_FIRST = 64
_TRIED = 4
# Every slot file has any name: only the first bytes tell, and these many are looked at.
_MAGIC_TRIED = 8


class Stray(NamedTuple):
    """A directory that looks like the root of a store. why: the name that it was known by."""

    path: str
    store: str
    why: str


class Scan(NamedTuple):
    """What a scan found; complete is False if a bound ended it."""

    found: list[Stray]
    entries: int
    complete: bool
    seconds: float


def _entries(path: str, most: int) -> list[os.DirEntry[str]]:
    found = []
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                found.append(entry)
                if len(found) >= most:
                    break
    except OSError:
        pass
    return found


def _is_dir(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir(follow_symlinks=False)
    except OSError:
        return False


def block_below(level: Dir, path: str, entries: Sequence[os.DirEntry[str]] | None = None) -> str | None:
    """The name of a block that lies where this layout says, None if the first entries hold none."""
    entries = _entries(path, _FIRST) if entries is None else entries
    known = [file for file in level.files if file.kind == BLOCK and not file.common]
    magic = 0
    for entry in entries:
        if _is_dir(entry):
            continue
        for file in known:
            if not file.pattern.fullmatch(entry.name):
                continue
            if not file.magic:
                return entry.name
            magic += 1
            if magic <= _MAGIC_TRIED and _begins(path, entry.name, file.magic):
                return entry.name
    tried = 0
    for entry in entries:
        below = level.dir_for(entry.name)
        if below is None or not _is_dir(entry):
            continue
        found = block_below(below, entry.path)
        if found is not None:
            return found
        tried += 1
        if tried >= _TRIED:
            break
    return None


def _begins(path: str, name: str, magic: bytes) -> bool:
    try:
        fd = os.open(path, fsio.OPEN_DIR)
    except OSError:
        return False
    try:
        return fsio.begins_with(fd, name, magic)
    finally:
        os.close(fd)


def recognise(path: str, stores: Iterable[Store], entries: Sequence[os.DirEntry[str]] | None = None) -> Stray | None:
    """The store that a directory looks like, None for none. The first one in the registry's order wins."""
    for store in stores:
        name = block_below(store.layout, path, entries) if store.layout else None
        if name is not None:
            return Stray(path, store.name, name)
    return None


def candidates() -> list[Store]:
    """Stores whose blocks can be told from other files. Those whose names fit anything need the first bytes."""
    chosen = []
    for store in STORES.values():
        names = [file for file in store.layout.files if file.kind == BLOCK] if store.layout else []
        if store.layout and not any(file.pattern.fullmatch("any name") and not file.magic for file in names):
            chosen.append(store)
    return chosen


def scan(
    roots: Iterable[str],
    known: Iterable[str] = (),
    seconds: float = MAX_SECONDS,
    most: int = MAX_ENTRIES,
    skipped: Sequence[str] = SKIPPED,
) -> Scan:
    """Look below these mount points, each on its own file system. known: directories that are accounted for."""
    began = time.monotonic()
    stores = candidates()
    done = {os.path.normpath(path) for path in known}
    queue: deque[tuple[str, int, int]] = deque()
    for root in dict.fromkeys(roots):
        try:
            queue.append((root, os.lstat(root).st_dev, 0))
        except OSError:
            continue
    found: list[Stray] = []
    seen = 0
    while queue:
        if seen >= most or time.monotonic() - began > seconds:
            return Scan(found, seen, False, time.monotonic() - began)
        path, device, depth = queue.popleft()
        if path in done or path in skipped:
            continue
        done.add(path)
        entries = _entries(path, most - seen)
        seen += len(entries)
        stray = recognise(path, stores, entries[:_FIRST])
        if stray is not None:
            found.append(stray)
            continue
        if depth >= MAX_DEPTH:
            continue
        for entry in entries:
            try:
                if entry.is_dir(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_dev == device:
                    queue.append((entry.path, device, depth + 1))
            except OSError:
                continue
    return Scan(found, seen, True, time.monotonic() - began)
