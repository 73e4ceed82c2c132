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
_SIZE = 16
_TOLD = _SLOTS * _SIZE


class Progress:
    """Counts directories and deletions of a pass, in whatever process that works on it, and shows them.

    The numbers lie in memory that forked processes share, one slot each, so that nobody waits for anybody. Nothing is
    shown before `after` seconds, and no more often than `every`.
    """

    after, every = 2.0, 0.5

    def __init__(self, name: str, stream: TextIO) -> None:
        self.name, self.stream, self.began = name, stream, time.monotonic()
        self.memory = mmap.mmap(-1, _TOLD + 8)

    def directory(self) -> None:
        """Called once per directory."""
        self._add(0)
        now = time.monotonic()
        (told,) = struct.unpack_from("d", self.memory, _TOLD)
        if now - self.began >= self.after and now - told >= self.every:
            struct.pack_into("d", self.memory, _TOLD, now)
            self._show(now)

    def deleted(self) -> None:
        """Called once per deletion."""
        self._add(8)

    def end(self) -> None:
        """Takes the line away."""
        if struct.unpack_from("d", self.memory, _TOLD) != (0.0,):
            self._write("\r\x1b[K")

    def _add(self, offset: int) -> None:
        place = os.getpid() % _SLOTS * _SIZE + offset
        (count,) = struct.unpack_from("q", self.memory, place)
        struct.pack_into("q", self.memory, place, count + 1)

    def _show(self, now: float) -> None:
        counts = struct.unpack_from(f"{2 * _SLOTS}q", self.memory)
        line = "%s: %d directories, %d deleted, %.0f s" % (
            self.name,
            sum(counts[::2]),
            sum(counts[1::2]),
            now - self.began,
        )
        self._write(f"\r\x1b[K{line}")

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
