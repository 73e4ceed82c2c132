# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A volume made larger under a running writer: its file or logical volume, the mapping, the file system, in this order.

Each part is judged by its own size, so a run that was killed is finished by the next one. Nothing is ever made smaller.
"""

from __future__ import annotations

import os
import re
import struct
from dataclasses import dataclass

from . import devices, fsio, lvm, system
from .datamap import Tier, mapper_name
from .drift import Table
from .system import HostError, Mapper

_EXT4_MAGIC, _XFS_MAGIC = 0xEF53, b"XFSB"
_XFS_DATA = re.compile(r"^data\s*=\s*bsize=(\d+)\s+blocks=(\d+)", re.MULTILINE)


@dataclass(frozen=True)
class Sizes:
    """Bytes of an open volume: what lies below the mapping, the mapping, the file system in it (None: cannot tell)."""

    below: int
    mapping: int
    offset: int
    filesystem: int | None

    @property
    def mapping_short(self) -> bool:
        """True if the mapping leaves a part of what lies below it unused."""
        return (self.below - self.offset) // devices.SECTOR * devices.SECTOR > self.mapping

    @property
    def filesystem_short(self) -> bool:
        """True if the file system leaves a part of the mapping unused, more than it could not use anyway."""
        return self.filesystem is not None and self.mapping - self.filesystem >= 1 << 20


def grows(tier: Tier) -> bool:
    """True if the size of the tier's source is ours to change."""
    return not tier["volume"]["source"].get("device")


def filesystem_bytes(head: bytes) -> int | None:
    """Size that the superblock of an ext4 or xfs says; head: its first 2048 bytes."""
    if head[:4] == _XFS_MAGIC:
        block, blocks = struct.unpack_from(">IQ", head, 4)
        return int(block * blocks)
    if len(head) >= 2048 and struct.unpack_from("<H", head, 1024 + 56)[0] == _EXT4_MAGIC:
        low, log = struct.unpack_from("<I", head, 1024 + 4)[0], struct.unpack_from("<I", head, 1024 + 24)[0]
        has_64bit = struct.unpack_from("<I", head, 1024 + 96)[0] & 0x80
        high = struct.unpack_from("<I", head, 1024 + 0x150)[0] if has_64bit else 0
        return int(((high << 32) + low) << (10 + log))
    return None


def mounted_xfs_bytes(device: str) -> int | None:
    """Size of a mounted xfs as the kernel has it: the superblock on the disk is older. None if it is neither."""
    found = _XFS_DATA.search(system.run(["xfs_growfs", "-n", device], 60).stdout)
    return int(found.group(1)) * int(found.group(2)) if found else None


def look(tier: Tier, mapper: Mapper | None, table: Table | None) -> Sizes | None:
    """Sizes of the tier's open volume, None if it is not ours to grow (read-only)."""
    # What is suspended never answers a read.
    if (
        mapper is None
        or table is None
        or not grows(tier)
        or fsio.line_of(f"/sys/dev/block/{mapper.device}/dm/suspended") != "0"
    ):
        return None
    try:
        device = "/dev/mapper/" + mapper_name(tier)
        with open(device, "rb") as mapped:
            head = mapped.read(2048)
        known = filesystem_bytes(head)
        if head[:4] == _XFS_MAGIC:
            known = mounted_xfs_bytes(device) or known
        return Sizes(_below(tier), table.sectors * 512, table.offset * 512, known)
    except OSError:
        return None


def _below(tier: Tier) -> int:
    with open(source_path(tier), "rb") as source:
        return source.seek(0, os.SEEK_END)


def source_path(tier: Tier) -> str:
    """The file or device of the tier's volume."""
    return devices.path(tier) if devices.of_device(tier) else str(tier["volume"]["source"]["file"])


def steps(tier: Tier, sizes: Sizes | None, source_short: bool) -> list[str]:
    """What is left to do. source_short: the map asks for a larger source."""
    todo = [f"grow {source_path(tier)} to {tier['volume']['source']['size'] >> 20}M"] if source_short else []
    if sizes is not None and (source_short or sizes.mapping_short):
        todo.append(f"grow {mapper_name(tier)}")
    if sizes is not None and (source_short or sizes.mapping_short or sizes.filesystem_short):
        todo.append(f"grow the file system at {tier['path']}")
    return todo


def source(tier: Tier, mark: str) -> None:
    """Give file or logical volume the size of the map. mark: the attribute by which a file is the tier's own."""
    if lvm.of(tier):
        lvm.extend(tier)
        return
    path = source_path(tier)
    fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.getxattr(fd, mark) != str(tier["name"]).encode():
            raise HostError(f"{path} is not the tier's image any more; nothing was touched")
        before = os.fstat(fd).st_size
        try:
            os.posix_fallocate(fd, 0, tier["volume"]["source"]["size"])
        except OSError:
            # What the loop device has of it ends where the file ended.
            os.ftruncate(fd, before)
            raise
        os.fsync(fd)
    finally:
        os.close(fd)


def mapping(tier: Tier) -> None:
    """Let an open mapping use all that lies below it, under the key that it has."""
    name = mapper_name(tier)
    if not devices.of_device(tier):
        listed = system.run(["losetup", "--noheadings", "--output", "NAME", "--associated", source_path(tier)], 60)
        for loop in listed.stdout.split():
            system.do("losetup", "--set-capacity", loop)
    opener = [] if tier["volume"]["key"] == "ephemeral" else ["--token-only"]
    if tier["volume"]["keyfile"]:
        opener = ["--key-file", tier["volume"]["keyfile"]]
    system.do("cryptsetup", "resize", *opener, name)


def filesystem(tier: Tier, fstype: str) -> None:
    """Let the mounted file system use all of its mapping."""
    if fstype == "xfs":
        system.do("xfs_growfs", "-d", tier["path"])
    else:
        system.do("resize2fs", "/dev/mapper/" + mapper_name(tier))
