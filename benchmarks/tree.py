# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A tree of the vLLM layout for benchmarks: empty files, names as the engine spreads them, ages as asked for."""

from __future__ import annotations

import hashlib
import os
import sys
import time

NAMESPACE = "bench_0123456789ab_r0"


def make(root: str, blocks: int, old: int, old_age: int, new_age: int) -> None:
    """Blocks below root; the first `old` of them get the age old_age, the others new_age (seconds)."""
    now = time.time()
    names = sorted(hashlib.sha256(b"%d" % number).hexdigest() for number in range(blocks))
    step = max(1, blocks // old) if old else 0
    last = ""
    fd = -1
    for number, name in enumerate(names):
        leaf = f"{root}/{NAMESPACE}/{name[:3]}/{name[3:5]}_g0"
        if leaf != last:
            if fd >= 0:
                os.close(fd)
            os.makedirs(leaf, mode=0o700, exist_ok=True)
            fd, last = os.open(leaf, os.O_RDONLY | os.O_DIRECTORY), leaf
        age = old_age if step and number % step == 0 else new_age
        file = os.open(f"{name}.bin", os.O_WRONLY | os.O_CREAT, 0o600, dir_fd=fd)
        os.utime(file, (now - age, now - age))
        os.close(file)
    if fd >= 0:
        os.close(fd)


if __name__ == "__main__":
    make(sys.argv[1], int(sys.argv[2]), *(int(value) for value in sys.argv[3:6]))
