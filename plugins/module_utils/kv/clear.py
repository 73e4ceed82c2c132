# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The whole of a tree: what in it no store knows, and the end of all that one does know."""

from __future__ import annotations

import os
import re
from typing import Any, Callable

from . import fsio
from .stores import COMMON_DIRS, COMMON_FILES, CONFIG, Dir, File, Store
from .survey import printable

_OWN_TAG = File(CONFIG, re.compile(""))


def foreign(fd: int, store: Store, limit: int = 10) -> list[str]:
    """The first names below fd that the registry does not know, or that are not what their name says."""
    found: list[str] = []

    def visit(directory: int, name: str, path: str, known: Any) -> None:
        if known is None and len(found) < limit:
            found.append(printable(path))

    _each(fd, store, visit)
    return found


def destroy(fd: int, store: Store) -> tuple[int, int, int]:
    """Delete everything below fd that the registry knows, configuration and directories too; the root stays.

    For a tree that nobody may need any more. Returns the files and bytes deleted and the entries left.
    """
    totals = [0, 0, 0]

    def visit(directory: int, name: str, path: str, known: Any) -> None:
        try:
            if known is None:
                totals[2] += 1
            elif isinstance(known, Dir):
                os.rmdir(name, dir_fd=directory)
            else:
                size = os.stat(name, dir_fd=directory, follow_symlinks=False).st_size
                os.unlink(name, dir_fd=directory)
                totals[0] += 1
                totals[1] += size
        except FileNotFoundError:
            pass
        except OSError:
            totals[2] += 1

    _each(fd, store, visit)
    return totals[0], totals[1], totals[2]


def _each(fd: int, store: Store, visit: Callable[[int, str, str, Any], None]) -> None:
    """Call visit for each entry below fd, children before their directory, with what the registry knows of it."""

    def descend(directory: int, level: Dir, path: str) -> None:
        with os.scandir(directory) as entries:
            for entry in list(entries) if level.dirs else entries:
                name = entry.name
                where = f"{path}/{name}" if path else name
                is_dir = entry.is_dir(follow_symlinks=False)
                if level is store.layout and name in COMMON_FILES and entry.is_file(follow_symlinks=False):
                    visit(directory, name, where, _OWN_TAG)
                    continue
                if level is store.layout and name in COMMON_DIRS and is_dir:
                    continue
                below = level.dir_for(name) if is_dir else None
                if below is not None:
                    try:
                        sub = fsio.open_subdir(directory, name)
                    except OSError:
                        visit(directory, name, where, None)
                        continue
                    try:
                        descend(sub, below, where)
                    finally:
                        os.close(sub)
                    visit(directory, name, where, below)
                    continue
                known = level.file_for(name) if entry.is_file(follow_symlinks=False) else None
                if known is not None and known.magic and not fsio.begins_with(directory, name, known.magic):
                    known = None
                visit(directory, name, where, known)

    if store.layout is not None:
        descend(fd, store.layout, "")
