# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the last passes saw in each leaf directory, so that the next one reads only the leaves that changed.

Adding, renaming or removing a file changes its directory's mtime and ctime: a leaf with the device, inode, mtime and
ctime that it had still holds the same names. chmod, utime and writes in place change no directory, so a full pass
reads every leaf again. The index is a hint: an entry that does not match, or a file of it that is missing, cut,
flipped, of another tree or of another version, costs reading and nothing else.

On disk: one file per shard (a top directory and the first two characters below it): header, units, CRC.
"""

from __future__ import annotations

import contextlib
import functools
import os
import struct
import zlib

from . import fsio

DIRECTORY = "index"
# A directory that changed less than this before it was read may have changed again within the same clock tick.
RACY_NS = 2_000_000_000
_MAGIC = b"llmhost-index 1\n"
_HEADER = struct.Struct("<QQI")  # device of the tier, inode of the top directory, number of units
_UNIT = struct.Struct("<HII")  # bytes of the unit's name, number of leaves, bytes of their names
_LEAF = struct.Struct("<QqqIQdd")  # Fields
pack_leaf = _LEAF.pack
_MAX_SHARD = 256 << 20
# A name has no slash: what is joined by it comes apart again.
_SEPARATOR = "/"
# A leaf with nothing in it but blocks as they should be: inode, mtime and ctime of the directory (nanoseconds), number
# and bytes of its blocks, mtimes of the oldest and the newest (seconds, infinite where there is none). Plain tuples:
# making a million objects would cost more than reading them.
Fields = tuple[int, int, int, int, int, float, float]


def settled_before(visited: int) -> int:
    """A directory read at or after visited may be believed later if its ctime was before this (both nanoseconds)."""
    return visited - RACY_NS


def shard_name(top: str, below: str) -> str:
    """File of the unit top/below; a top directory's own name may be as long as a name can be."""
    return f"{_top_name(top)}.{os.fsencode(below[:2]).hex()}"


@functools.lru_cache(maxsize=64)
def _top_name(top: str) -> str:
    # Two directories that share a name by chance would each read the other's shard as one of another inode.
    return f"{zlib.crc32(os.fsencode(top)):08x}"


def encode_unit(name: str, leaves: dict[str, bytes]) -> bytes:
    """One unit of a shard, of leaves that pack_leaf() made."""
    unit, names = os.fsencode(name), os.fsencode(_SEPARATOR.join(leaves))
    return b"".join((_UNIT.pack(len(unit), len(leaves), len(names)), unit, names, *leaves.values()))


def packed_leaves(data: bytes) -> dict[str, bytes]:
    """Leaves by name of what encode_unit() made; empty if it is not that."""
    keys, fields = _parts(data)
    return {key: fields[place : place + _LEAF.size] for key, place in zip(keys, range(0, len(fields), _LEAF.size))}


def decode_unit(data: bytes) -> dict[str, Fields]:
    """The same, unpacked."""
    keys, fields = _parts(data)
    return dict(zip(keys, _LEAF.iter_unpack(fields)))


def _parts(data: bytes) -> tuple[list[str], bytes]:
    """Names of the leaves of one unit, and their fields one after the other."""
    try:
        unit, count, names = _UNIT.unpack_from(data)
    except struct.error:
        return [], b""
    begin = _UNIT.size + unit
    keys = os.fsdecode(data[begin : begin + names]).split(_SEPARATOR) if count else []
    fields = data[begin + names :]
    return (keys, fields) if len(keys) == count and len(fields) == count * _LEAF.size else ([], b"")


def encode(device: int, top: int, units: dict[str, bytes]) -> bytes:
    """A shard. device: of the tier; top: inode of the top directory."""
    data = b"".join((_MAGIC, _HEADER.pack(device, top, len(units)), *units.values()))
    return data + struct.pack("<I", zlib.crc32(data))


def decode(data: bytes, device: int, top: int) -> dict[str, bytes]:
    """The encoded units of a shard by name; empty for anything but a whole shard of this version, device and top."""
    try:
        return _decode(data, device, top)
    except (struct.error, ValueError):
        return {}


def _decode(data: bytes, device: int, top: int) -> dict[str, bytes]:
    body = memoryview(data)[:-4]
    if data[: len(_MAGIC)] != _MAGIC or struct.unpack("<I", data[-4:])[0] != zlib.crc32(body):
        return {}
    stored_device, stored_top, count = _HEADER.unpack_from(body, len(_MAGIC))
    if (stored_device, stored_top) != (device, top):
        return {}
    units: dict[str, bytes] = {}
    position = len(_MAGIC) + _HEADER.size
    for _unit in range(count):
        unit, leaves, names = _UNIT.unpack_from(body, position)
        end = position + _UNIT.size + unit + names + leaves * _LEAF.size
        if end > len(body):
            return {}
        name = os.fsdecode(bytes(body[position + _UNIT.size : position + _UNIT.size + unit]))
        units[name] = bytes(body[position:end])
        position = end
    return units


class Index:
    """The shards of one tier, below its open state directory. Raises OSError where there can be none."""

    def __init__(self, state_fd: int, device: int, owner_uid: int) -> None:
        self.device, self.owner_uid = device, owner_uid
        with contextlib.suppress(FileExistsError):
            os.mkdir(DIRECTORY, 0o700, dir_fd=state_fd)
        self.fd = fsio.open_subdir(state_fd, DIRECTORY)

    def close(self) -> None:
        """Close the directory."""
        os.close(self.fd)

    def read(self, shard: str, top: int) -> dict[str, bytes]:
        """The encoded units of a shard, none if it cannot be believed."""
        try:
            data = fsio.read_small(shard, dir_fd=self.fd, owner=self.owner_uid, limit=_MAX_SHARD)
        except (OSError, fsio.UnsafePath):
            return {}
        return decode(data, self.device, top)

    def write(self, shard: str, top: int, units: dict[str, bytes]) -> None:
        """Replace a shard. Without it the next pass reads those leaves again, so no error stops the pass."""
        with contextlib.suppress(OSError):
            fsio.replace(self.fd, shard, encode(self.device, top, units))

    def keep_only(self, shards: set[str]) -> None:
        """Remove the shards of directories that are gone, and whatever else lies here."""
        with contextlib.suppress(OSError):
            for name in set(os.listdir(self.fd)) - shards:
                with contextlib.suppress(OSError):
                    os.unlink(name, dir_fd=self.fd)
