# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Trees in the layout of vLLM's fs tier: empty files, named as the engine spreads them, aged as asked for."""

from __future__ import annotations

import hashlib
import os
import shutil
import time

NAMESPACE = "bench_0123456789ab_r0"


def make(root: str, blocks: int, old: int, old_age: int, new_age: int) -> None:
    """Build the tree again: so many blocks, `old` of them, evenly spread, old_age seconds old, the others new_age."""
    shutil.rmtree(root, ignore_errors=True)
    now = time.time()
    names = sorted(hashlib.sha256(b"%d" % number).digest() for number in range(blocks))
    every = blocks // old if old else 0
    last, fd = "", -1
    for number, digest in enumerate(names):
        name = digest.hex()
        leaf = f"{root}/{NAMESPACE}/{name[:3]}/{name[3:5]}_g0"
        if leaf != last:
            if fd >= 0:
                os.close(fd)
            os.makedirs(leaf, mode=0o700, exist_ok=True)
            fd, last = os.open(leaf, os.O_RDONLY | os.O_DIRECTORY), leaf
        age = old_age if every and number % every == 0 else new_age
        file = os.open(f"{name}.bin", os.O_WRONLY | os.O_CREAT, 0o600, dir_fd=fd)
        os.utime(file, (now - age, now - age))
        os.close(file)
    if fd >= 0:
        os.close(fd)
    for directory, _below, _files in os.walk(root):
        os.chmod(directory, 0o700)


def leaves(root: str) -> list[str]:
    """Paths of all leaf directories, in order."""
    top = f"{root}/{NAMESPACE}"
    return [f"{top}/{unit}/{leaf}" for unit in sorted(os.listdir(top)) for leaf in sorted(os.listdir(f"{top}/{unit}"))]
