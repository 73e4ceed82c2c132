# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Is an open tier the mount that the data map declares? Answered from sysfs and procfs, without privileges."""

from __future__ import annotations

import os

from . import fsio
from .datamap import Tier, mapper_name


def dm_name(device: int, sysfs: str = "/sys") -> str | None:
    """Name of the device mapper target with this device number (st_dev), None if it is no such device."""
    try:
        with open(f"{sysfs}/dev/block/{os.major(device)}:{os.minor(device)}/dm/name", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return None


def is_mountpoint(fd: int) -> bool:
    """True if the open directory is the root of a mount; a bind mount of the same file system is one too."""
    above = os.open("..", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=fd)
    try:
        return fsio.mount_id(fd) != fsio.mount_id(above)
    finally:
        os.close(above)


def problem(tier: Tier, fd: int, was_mounted: bool = False) -> str | None:
    """Why the open directory is not the tier's declared place, or None.

    For a volume of ours it must be the mount point of its mapper. For others, a path that was a mount point at the
    last run must still be one: what is below it now would be the root disk.
    """
    volume = tier["volume"]
    mounted = is_mountpoint(fd)
    if volume and volume["backend"] == "dmcrypt":
        name = dm_name(os.fstat(fd).st_dev)
        if not mounted or name != mapper_name(tier):
            found = f"is on {name}" if name else "is not on a device mapper volume"
            return (
                f"{tier['path']} is not the mount of /dev/mapper/{mapper_name(tier)} (it {found}): "
                f"run systemctl start llmhost-tier@{tier['name']}.service"
            )
    elif was_mounted and not mounted:
        return f"{tier['path']} was a mount point at the last run and is none now: mount it again"
    return None
