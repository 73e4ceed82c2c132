# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Counts how many of the byte strings (hex, as arguments) a file or device holds."""

import mmap
import sys

path, *wanted = sys.argv[1:]
found = set()
with open(path, "rb") as file:
    size = file.seek(0, 2)
    with mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ) as data:
        found = {text for text in wanted if data.find(bytes.fromhex(text)) >= 0}
print(len(found))
