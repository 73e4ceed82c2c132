# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""An encrypted directory on a kernel without device mapper: ext4 in a file, under fscrypt, its key in memory alone."""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

# include/uapi/linux/fscrypt.h
_ADD_KEY, _SET_POLICY = 0xC0506617, 0x800C6613
_BY_IDENTIFIER, _AES_256_XTS, _AES_256_CTS, _PAD_32 = 2, 1, 4, 3


def _call(path: Path, request: int, argument: bytes) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        answer = bytearray(argument)
        fcntl.ioctl(fd, request, answer, True)
        return bytes(answer)
    finally:
        os.close(fd)


@contextlib.contextmanager
def directory(place: Path, size: int) -> Iterator[Path]:
    """A directory for files of size bytes in sum; nobody knows the key, and it is gone with the mount."""
    image, at = place / "disk.img", place / "disk"
    with image.open("wb") as file:
        # ext4's own: inodes, and each name's block in a directory.
        file.truncate(size + size // 4 + (4 << 20))
    options = ["-O", "encrypt,^has_journal", "-b", "4096", "-i", "4096", "-m", "0"]
    subprocess.run(["mkfs.ext4", "-q", *options, image], check=True)
    at.mkdir()
    subprocess.run(["mount", "-o", "loop,nodev,nosuid,noexec,noatime", image, at], check=True)
    try:
        key = os.urandom(64)
        added = _call(at, _ADD_KEY, struct.pack("<II32sII32s", _BY_IDENTIFIER, 0, b"", len(key), 0, b"") + key)
        inside = at / "kv"
        inside.mkdir()
        policy = struct.pack("<BBBBB3s16s", 2, _AES_256_XTS, _AES_256_CTS, _PAD_32, 0, b"", added[8:24])
        _call(inside, _SET_POLICY, policy)
        yield inside
    finally:
        subprocess.run(["umount", "-l", at], check=True)
