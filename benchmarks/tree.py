# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Trees in the layout of vLLM's fs tier: empty files, spread over the directories as hashes are, aged as asked for."""

from __future__ import annotations

import os
import random
import shutil
import time

NAMESPACE = "bench_0123456789ab_r0"
UNITS = 4096
LEAVES = 256


def make(root: str, blocks: int, old: float, old_age: int, new_age: int) -> None:
    """Build the tree again: so many blocks, the share `old` of them old_age seconds old, the others new_age."""
    shutil.rmtree(root, ignore_errors=True)
    top = f"{root}/{NAMESPACE}"
    os.makedirs(top, mode=0o700)
    os.chmod(root, 0o700)
    now = time.time()
    workers = os.cpu_count() or 1
    children = []
    for worker in range(workers):
        child = os.fork()
        if not child:
            status = 1
            try:
                for unit in range(worker, UNITS, workers):
                    count = blocks // UNITS + (unit < blocks % UNITS)
                    _unit(top, unit, count, old, now - old_age, now - new_age)
                status = 0
            finally:
                os._exit(status)
        children.append(child)
    failed = [child for child in children if os.waitpid(child, 0)[1]]
    if failed:
        raise SystemExit(f"the tree in {root} could not be made")


def _unit(top: str, unit: int, count: int, old: float, old_mtime: float, new_mtime: float) -> None:
    dice = random.Random(unit)
    here = f"{top}/{unit:03x}"
    os.mkdir(here, 0o700)
    last, fd = -1, -1
    for number, leaf in enumerate(sorted(dice.randrange(LEAVES) for _block in range(count))):
        if leaf != last:
            if fd >= 0:
                os.close(fd)
            os.mkdir(f"{here}/{leaf:02x}_g0", 0o700)
            last, fd = leaf, os.open(f"{here}/{leaf:02x}_g0", os.O_RDONLY | os.O_DIRECTORY)
        name = f"{unit:03x}{leaf:02x}{dice.getrandbits(236):059x}.bin"
        file = os.open(name, os.O_WRONLY | os.O_CREAT, 0o600, dir_fd=fd)
        # Evenly spread: each time the share passes the next whole block, that one is old.
        is_old = int((number + 1) * old) > int(number * old)
        os.utime(file, (old_mtime, old_mtime) if is_old else (new_mtime, new_mtime))
        os.close(file)
    if fd >= 0:
        os.close(fd)


def leaves(root: str) -> list[str]:
    """Paths of all leaf directories, in order."""
    top = f"{root}/{NAMESPACE}"
    return [f"{top}/{unit}/{leaf}" for unit in sorted(os.listdir(top)) for leaf in sorted(os.listdir(f"{top}/{unit}"))]
