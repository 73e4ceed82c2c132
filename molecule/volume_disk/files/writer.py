# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes a file of a tier over and over, as an engine that must not notice what is done below it; an error ends it."""

import os
import sys
import time

os.chdir(sys.argv[1])
count = 0
while True:
    count += 1
    with open(".o_direct_probe_1.tmp", "w", encoding="ascii") as file:
        file.write(str(count))
        file.flush()
        os.fsync(file.fileno())
    os.unlink(".o_direct_probe_1.tmp")
    time.sleep(5)
