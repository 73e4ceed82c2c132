# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A volume on a file grows while it is in use: file, loop device, mapping, file system. Its key and blocks stay.

Each of the four is compared, so a run that was killed in between is finished by the next one.
"""

from __future__ import annotations

import os
import struct

from . import fsio, system
from .datamap import Tier, mapper_name
from .system import HostError, Mapper

_EXT4_MAGIC = 0xEF53
_EXT4_64BIT = 0x80
# A file system ends on a block of its own size, xfs on an allocation group that is worth having.
_SLACK = 16 << 20


def fs_bytes(device: str) -> int | None:
    """The size that a file system has by its superblock; None for anything but ext4 and xfs."""
    try:
        with open(device, "rb") as file:
            data = file.read(4096)
    except OSError:
        return None
    if data[:4] == b"XFSB" and len(data) >= 16:
        size, blocks = struct.unpack_from(">IQ", data, 4)
        return int(size * blocks)
    if len(data) < 2048 or struct.unpack_from("<H", data, 1024 + 0x38)[0] != _EXT4_MAGIC:
        return None
    blocks, shift = struct.unpack_from("<I", data, 1024 + 0x4)[0], struct.unpack_from("<I", data, 1024 + 0x18)[0]
    if struct.unpack_from("<I", data, 1024 + 0x60)[0] & _EXT4_64BIT:
        blocks += struct.unpack_from("<I", data, 1024 + 0x150)[0] << 32
    return int(blocks << (10 + shift))


def needed(size: int, image: int, mapper: Mapper | None, filesystem: int | None) -> bool:
    """Is a volume smaller than the map says? image: bytes of the file; filesystem: None if it is not mounted."""
    if image < size:
        return True
    if mapper is None or not mapper.size:
        return False
    return mapper.size < size or (filesystem is not None and filesystem + _SLACK < mapper.size)


def _run(*argv: str) -> None:
    done = system.run(argv, 1800)
    if done.returncode:
        raise HostError(f"{argv[0]} failed: {done.stderr.strip()}")


def grow(tier: Tier, mark: str, mapper: Mapper | None, filesystem: int | None) -> None:
    """Make the volume as large as the map says. mark: the attribute by which the image is the tier's own."""
    source = tier["volume"]["source"]
    directory, name = os.path.split(source["file"])
    with fsio.opened(directory) as parent:
        fd = os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        try:
            if os.getxattr(fd, mark) != str(tier["name"]).encode():
                raise HostError(f"{source['file']} is not the tier's image any more; nothing was touched")
            os.posix_fallocate(fd, 0, source["size"])
            os.fsync(fd)
        finally:
            os.close(fd)
    if mapper is None:
        return
    for loop in mapper.names:
        _run("losetup", "--set-capacity", "/dev/" + loop)
    _run("cryptsetup", "resize", "--batch-mode", mapper_name(tier))
    if filesystem is None:
        return
    if tier["volume"]["fstype"] == "xfs":
        _run("xfs_growfs", tier["path"])
    else:
        _run("resize2fs", "/dev/mapper/" + mapper_name(tier))
