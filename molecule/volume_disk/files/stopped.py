# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Makes a tool stop at a point, where the power is then lost: stopped.py TOOL WORD before|half.

It stands in the tool's place and lets every call through but the one that has WORD among its arguments: of that one it
starts nothing (before), or stops it right after its first write to the device that it names (half).
"""

import os
import shutil
import signal
import stat
import subprocess
import sys
import time

# Nothing can be executed in /run.
REAL, REACHED = "/root/real/", "/run/stopped"


def install(tool: str, word: str, when: str) -> None:
    found = shutil.which(tool)
    assert found
    place = os.path.realpath(found)
    os.makedirs(REAL, exist_ok=True)
    shutil.copy2(place, REAL + tool)
    shim = f"/root/{tool}.shim"
    with open(shim, "w", encoding="ascii") as file:
        file.write(f'#!/bin/sh\nexec /usr/bin/python3 {os.path.realpath(__file__)} {tool} {word} {when} - "$0" "$@"\n')
    os.chmod(shim, 0o755)
    subprocess.run(["mount", "--bind", shim, place], check=True)


def device_of(words: list[str]) -> str:
    return next(word for word in reversed(words) if os.path.exists(word) and stat.S_ISBLK(os.stat(word).st_mode))


def call(tool: str, word: str, when: str, argv: list[str]) -> None:
    if word not in argv:
        os.execv(REAL + tool, argv)
    if when == "half":
        with open(device_of(argv), "rb", buffering=0) as device:
            before = os.pread(device.fileno(), 8192, 0)
            process = subprocess.Popen(argv, executable=REAL + tool)
            while process.poll() is None and os.pread(device.fileno(), 8192, 0) == before:
                pass
            os.kill(process.pid, signal.SIGSTOP)
    os.sync()
    with open(REACHED, "w", encoding="ascii"):
        pass
    time.sleep(9999)


if sys.argv[4:]:
    call(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[5:])
else:
    install(*sys.argv[1:])
