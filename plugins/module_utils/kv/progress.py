# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""How far a long pass is, for a person at a terminal: one line that is written over and over."""

from __future__ import annotations

import mmap
import os
import struct
import time
from typing import TextIO

_SLOTS = 64
_SIZE = 8
_TOLD = _SLOTS * _SIZE


class Progress:
    """Counts the directories that a pass has read, in whatever process that works on it, and shows them.

    The numbers lie in memory that forked processes share, one slot each, so that nobody waits for anybody. Nothing is
    shown before `after` seconds, and no more often than `every`.
    """

    after, every = 2.0, 0.5

    def __init__(self, name: str, stream: TextIO) -> None:
        self.name, self.stream, self.began = name, stream, time.monotonic()
        self.memory = mmap.mmap(-1, _TOLD + 8)

    def directory(self) -> None:
        """Called once per directory."""
        place = os.getpid() % _SLOTS * _SIZE
        (count,) = struct.unpack_from("q", self.memory, place)
        struct.pack_into("q", self.memory, place, count + 1)
        now = time.monotonic()
        (told,) = struct.unpack_from("d", self.memory, _TOLD)
        if now - self.began >= self.after and now - told >= self.every:
            struct.pack_into("d", self.memory, _TOLD, now)
            counts = struct.unpack_from(f"{_SLOTS}q", self.memory)
            self._write("\r\x1b[K%s: %d directories read, %.0f s" % (self.name, sum(counts), now - self.began))

    def end(self) -> None:
        """Takes the line away."""
        if struct.unpack_from("d", self.memory, _TOLD) != (0.0,):
            self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        try:
            self.stream.write(text)
            self.stream.flush()
        except (OSError, ValueError):
            pass  # the terminal is gone; the pass is not


def at_terminal(name: str, stream: TextIO) -> Progress | None:
    """A progress line if somebody looks at the stream; cron and pipes get none."""
    try:
        return Progress(name, stream) if stream.isatty() else None
    except ValueError:
        return None
