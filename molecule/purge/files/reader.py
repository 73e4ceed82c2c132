# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Keeps a block open and mapped and reads it five times a second, into a log: what came, at which time."""

import mmap
import os
import pathlib
import sys
import time

root, log = sys.argv[1:]
block = None
while block is None:
    # From the end: the first level is made of other things.
    block = next((path for path in sorted(pathlib.Path(root).rglob("*.bin"), reverse=True)), None)
fd = os.open(block, os.O_RDONLY)
page = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
page[:64]
with open(log, "w", encoding="ascii", buffering=1) as out:
    while True:
        try:
            said = "ok" if len(os.pread(fd, 64, 0)) == 64 else "short"
        except OSError as error:
            said = os.strerror(error.errno)
        out.write(f"{time.time():.3f} {said}\n")
        time.sleep(0.2)
