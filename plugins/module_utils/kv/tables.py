# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Our lines in crypttab and fstab; every other byte of them belongs to somebody else."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from typing import Callable

from . import system, units
from .datamap import Tier, mapper_name

CRYPTTAB = "/etc/crypttab"
FSTAB = "/etc/fstab"
_MODE = 0o644


def rows(data: bytes) -> list[tuple[str, ...]]:
    """Fields of each entry of a crypttab or fstab."""
    lines = data.decode("utf-8", "surrogateescape").split("\n")
    return [tuple(line.split()) for line in lines if line.strip() and not line.lstrip().startswith("#")]


def with_line(data: bytes, mine: Callable[[tuple[str, ...]], bool], line: str) -> bytes:
    """The table with our entry in it, every other byte as it was."""
    lines = data.split(b"\n")
    for number, raw in enumerate(lines):
        entry = rows(raw)
        if entry and mine(entry[0]):
            lines[number] = line.encode()
            return b"\n".join(lines)
    end = b"" if not data or data.endswith(b"\n") else b"\n"
    return data + end + line.encode() + b"\n"


def without_line(data: bytes, mine: tuple[str, ...]) -> bytes:
    """The table without our entry, which begins with these fields; every other byte as it was."""
    kept = [raw for raw in data.split(b"\n") if not any(entry[: len(mine)] == mine for entry in rows(raw))]
    return b"\n".join(kept)


def what_is_left(path: str, data: bytes) -> bytes | None:
    """A table without our entries, None if the file goes: a crypttab in which nothing else was is of our making."""
    return data if data or path != CRYPTTAB else None


def own_crypttab(tier: Tier) -> Callable[[tuple[str, ...]], bool]:
    """Which crypttab entry is the tier's."""
    return lambda entry: entry[0] == mapper_name(tier)


def own_fstab(tier: Tier) -> Callable[[tuple[str, ...]], bool]:
    """Which fstab entry is the tier's."""
    return lambda entry: entry[0] == "/dev/mapper/" + mapper_name(tier)


def changes(tiers: Sequence[Tier]) -> list[system.Change]:
    """How crypttab and fstab have to change for all tiers."""
    found = []
    for path, own, line in (
        (CRYPTTAB, own_crypttab, units.crypttab_line),
        (FSTAB, own_fstab, units.fstab_line),
    ):
        before = system.read_file(path)
        after = before or b""
        for tier in tiers:
            after = with_line(after, own(tier), line(tier))
        if after != (before or b""):
            mode = stat.S_IMODE(os.stat(path).st_mode) if before is not None else _MODE
            found.append(system.Change(path, before, after, mode))
    return found


def diff(change: system.Change, tiers: Sequence[Tier]) -> dict[str, str]:
    """The diff of our own entries only: other people's lines in fstab may hold passwords."""
    own = own_crypttab if change.path == CRYPTTAB else own_fstab

    def ours(data: bytes | None) -> str:
        lines = (data or b"").split(b"\n")
        kept = [line for line in lines if (entry := rows(line)) and any(own(tier)(entry[0]) for tier in tiers)]
        return "".join(line.decode(errors="replace") + "\n" for line in kept)

    return system.text_diff(change.path, ours(change.before), ours(change.after))
