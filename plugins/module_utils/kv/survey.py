# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a walk over a tier goes by and what it tells: the policy, the counts, and names made fit to be shown."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any, NamedTuple

MAX_OFFENDERS = 20
# A file may be stamped a little ahead of us by a coarse clock; beyond this it is from the future.
FUTURE_SLACK = 60
# Upper bounds, in seconds, of the age histogram; the last one is open.
AGE_BOUNDS = (60, 300, 900, 3600, 10800, 21600, 43200, 86400, 172800, 604800, 2592000)
NS = 1_000_000_000
# Fields of a Survey that say what a walk did.
DONE = (
    "expired",
    "expired_bytes",
    "capped",
    "capped_bytes",
    "temps_removed",
    "temp_bytes_removed",
    "dirs_removed",
)


class Policy(NamedTuple):
    """When things end, in seconds; the caps in bytes and files, None for no cap."""

    retention: int
    tmp_grace: int = 3600
    dir_grace: int = 3600
    max_bytes: int | None = None
    max_files: int | None = None


class Survey(SimpleNamespace):
    """What a walk saw and did. Counts are after deletion: what is left in the tier.

    skipped: leaf directories that were not read because the index knows them; their blocks are counted, each as old
    as the oldest of its leaf. complete: it got to the end; else stopped says why if it was not for lack of time, and
    resume where to go on.
    """

    blocks: int = 0
    block_bytes: int = 0
    temps: int = 0
    temp_bytes: int = 0
    configs: int = 0
    dirs: int = 0
    readable: int = 0
    loose: int = 0
    loose_first: list[str] = []
    loose_dirs: int = 0
    overdue: int = 0
    overdue_first: list[str] = []
    oldest_mtime: float | None = None
    newest_mtime: float | None = None
    future: int = 0
    stale_temps: int = 0
    stale_temp_bytes: int = 0
    foreign_owner: int = 0
    hardlinks: int = 0
    not_regular: int = 0
    strangers: int = 0
    offenders: list[dict[str, str]] = []
    ages: list[list[int | None]] = []
    expired: int = 0
    expired_bytes: int = 0
    capped: int = 0
    capped_bytes: int = 0
    temps_removed: int = 0
    temp_bytes_removed: int = 0
    dirs_removed: int = 0
    skipped: int = 0
    errors: dict[str, int] = {}
    complete: bool = True
    stopped: str | None = None
    resume: str | None = None
    seconds: float = 0.0

    def __init__(self, **counts: Any) -> None:
        # No dataclass: importing what makes one takes longer than a pass over a small tier.
        for name in Survey.__annotations__:
            zero = getattr(Survey, name)
            setattr(self, name, zero.copy() if isinstance(zero, (list, dict)) else zero)
        super().__init__(**counts)


def merge(into: Survey, other: Survey) -> None:
    """Add what another walk over other directories of the same tier found."""
    for name, value in vars(other).items():
        mine = getattr(into, name)
        if name in ("oldest_mtime", "newest_mtime"):
            values = [time for time in (mine, value) if time is not None]
            setattr(into, name, (min if name == "oldest_mtime" else max)(values) if values else None)
        elif name == "errors":
            for error, count in value.items():
                mine[error] = mine.get(error, 0) + count
        elif isinstance(value, list):
            setattr(into, name, (mine + value)[:MAX_OFFENDERS])
        elif isinstance(value, int) and not isinstance(value, bool):
            setattr(into, name, mine + value)


def printable(path: str) -> str:
    """A path as one safe line of text: names may hold any byte, newlines and terminal sequences among them."""
    if path.isascii() and path.isprintable():
        return path
    text = os.fsencode(path).decode("utf-8", "backslashreplace")
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)
