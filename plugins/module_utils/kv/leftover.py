# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What of ours still lies on a host of a tier that the map declares absent. Reads only, runs no command."""

from __future__ import annotations

import contextlib
import os

from . import datamap, fsio, luks, luksheader, lvm, prepare, stray, system, tables, units
from .datamap import Tier, mapper_name
from .stores import CACHEDIR_TAG, STORES
from .system import HostError


def is_tagged(path: str) -> bool:
    """Does our own tag lie in a directory? Then it was closed by us."""
    try:
        with fsio.opened(path) as fd:
            return fsio.read_small(CACHEDIR_TAG, dir_fd=fd, limit=4096) == prepare.TAG_TEXT
    except (OSError, fsio.UnsafePath):
        return False


def keys(tier: Tier) -> tuple[str, ...]:
    """Files with a persistent key or a copy of its header that are ours."""
    if not units.has_own_volume(tier) or not luks.persistent(tier):
        return ()
    paths = (luksheader.backup_path(tier), luksheader.making_path(tier), tier["volume"]["keyfile"])
    return tuple(path for path in paths if path and _is_our_key(tier, path))


def _is_our_key(tier: Tier, path: str) -> bool:
    if os.path.dirname(path) == luksheader.HEADERS:
        return os.path.lexists(path)
    try:
        return os.getxattr(path, luks.MARK, follow_symlinks=False) == str(tier["name"]).encode()
    except OSError:
        return False


def traces(tier: Tier, state_root: str = datamap.STATE_ROOT) -> list[str]:
    """What is left of an absent tier, one line each."""
    found = []
    path = tier["path"]
    if units.has_own_volume(tier):
        name = mapper_name(tier)
        if system.mapper(name) is not None:
            found.append(f"/dev/mapper/{name} is open")
        for table, first in ((tables.CRYPTTAB, name), (tables.FSTAB, "/dev/mapper/" + name)):
            with contextlib.suppress(HostError):
                if any(row[0] == first for row in tables.rows(system.read_file(table) or b"")):
                    found.append(f"{table} names {name}")
        if lvm.of(tier):
            with contextlib.suppress(HostError):
                if (group := lvm.look(tier)) is not None and group.ours:
                    found.append(f"{lvm.path(tier)} exists")
        image = tier["volume"]["source"].get("file")
        if image and os.path.lexists(image):
            found.append(f"{image} exists")
    if is_tagged(path):
        found.append(f"{path} is closed as a tier")
    if os.path.isdir(path) and stray.recognise(path, [STORES[tier["store"]]]) is not None:
        found.append(f"blocks lie in {path}")
    ours = (units.prepare_path(tier), datamap.state_dir(tier, state_root), *keys(tier))
    return found + [f"{one} exists" for one in ours if os.path.lexists(one)]
