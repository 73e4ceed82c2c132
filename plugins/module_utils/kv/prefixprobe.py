# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Can whoever lists a store recognise a known prompt prefix? Looks for names only, reads no block."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Sequence

from . import fsio
from .stores_places import block_of_key, block_place, is_namespace

# A directory that went away, or a symlink or file where one belongs: no block of the engine's lies there.
_NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


def in_keys(wanted: Sequence[str], keys: Iterable[str]) -> list[bool]:
    """Which of the wanted names stand in a listing of paths or object keys."""
    return in_names(wanted, map(block_of_key, keys))


def in_names(wanted: Sequence[str], names: Iterable[str | None]) -> list[bool]:
    """Which of the wanted names stand in others, of which no more is read than needed."""
    missing, there = set(wanted), set()
    for name in names:
        if name in missing:
            missing.discard(name)
            there.add(name)
            if not missing:
                break
    return [name in there for name in wanted]


def in_directory(wanted: Sequence[str], root: str) -> list[bool]:
    """Which of the wanted names are files of blocks below a tier's root, in any namespace and group."""
    with fsio.opened(root) as top:
        spaces = [name for name in sorted(os.listdir(top)) if is_namespace(name)]
        return [any(_has(top, space, name) for space in spaces) for name in wanted]


def _has(top: int, space: str, block: str) -> bool:
    """Does a namespace hold a block? Symlinks are never followed: the tree is not ours."""
    first, second, file = block_place(block)
    opened: list[int] = []
    try:
        opened.append(os.open(space, fsio.OPEN_DIR, dir_fd=top))
        opened.append(os.open(first, fsio.OPEN_DIR, dir_fd=opened[0]))
        groups = [name for name in os.listdir(opened[1]) if name.startswith(second)]
        return any(_is_file(f"{group}/{file}", opened[1]) for group in groups)
    except OSError as error:
        if error.errno in _NOT_THERE:
            return False
        raise
    finally:
        for fd in opened:
            os.close(fd)


def _is_file(path: str, at: int) -> bool:
    """A regular file two levels down, reached through no symlink."""
    directory, name = path.split("/")
    try:
        fd = os.open(directory, fsio.OPEN_DIR, dir_fd=at)
    except OSError as error:
        if error.errno in _NOT_THERE:
            return False
        raise
    try:
        return stat.S_ISREG(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False
    finally:
        os.close(fd)
