# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The words in which the store registry is written: stores, engines, directory levels and file names."""

from __future__ import annotations

import re
from functools import cached_property
from re import Match, Pattern
from typing import Any, Callable, NamedTuple, cast

BLOCK = "block"
TEMP = "temp"
CONFIG = "config"

OBSERVED = "observed"
FROM_SOURCE = "from source, not run"

Version = tuple[int, ...]


class _Late:
    """A pattern that is compiled when it is first asked: a host has few of the registry's stores, and an audit of a
    fleet is mostly Python's start on each host."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern

    def __getattr__(self, asked: str) -> Any:
        if asked.startswith("__"):
            raise AttributeError(asked)
        value = getattr(re.compile(self.pattern, re.ASCII), asked)
        setattr(self, asked, value)
        return value


def name(pattern: str) -> Pattern[str]:
    """A pattern of file or directory names; walks use fullmatch.

    ASCII: `\\d` must not accept other digits; `.` without DOTALL keeps newlines out of known names.
    """
    return cast("Pattern[str]", _Late(pattern))


class _Program(_Late):
    """Most command lines hold none of the names, and the pattern is never compiled."""

    def __init__(self, *names: str) -> None:
        super().__init__(r"(?:^|[/\s\0.])(?:" + "|".join(map(re.escape, names)) + r")(?:[./:\s\0]|$)")
        self._names = names

    def search(self, line: str) -> Match[str] | None:
        if not any(one in line for one in self._names):
            return None
        return re.compile(self.pattern, re.ASCII).search(line)


def program(*names: str) -> Pattern[str]:
    """Command lines in which one of these programs or modules is started."""
    return cast("Pattern[str]", _Program(*names))


class File(NamedTuple):
    """A file that belongs to the store. kind: BLOCK, TEMP (temporaries and probes) or CONFIG (never expires).

    magic: first bytes that the file must have, for stores whose names say nothing; common: other programs' files have
    such names too, so that no tree is known by it.
    """

    kind: str
    pattern: Pattern[str]
    magic: bytes = b""
    common: bool = False


class _Level(NamedTuple):
    pattern: Pattern[str] | None = None  # None: the root of the tier
    files: tuple[File, ...] = ()
    dirs: tuple[Dir, ...] = ()
    prune: bool = False


class Dir(_Level):
    """A directory level: which names it has, what may lie in it, and whether it may be removed once empty."""

    @cached_property
    def plain_block(self) -> Callable[[str], Match[str] | None] | None:
        """Tells whether a name is a block's, where the name alone tells; None where it does not."""
        first = self.files[0] if self.files else None
        return first.pattern.fullmatch if first and first.kind == BLOCK and not first.magic else None

    @cached_property
    def leaf(self) -> Dir | None:
        """The level below, where nothing else may lie here and nothing but plain blocks there."""
        below = self.dirs[0] if len(self.dirs) == 1 and not self.files else None
        return below if below is not None and below.plain_block and not below.dirs else None

    @cached_property
    def holds_leaves(self) -> bool:
        """True if there are levels below and none below these."""
        return bool(self.dirs) and not any(below.dirs for below in self.dirs)

    def dir_for(self, name: str) -> Dir | None:
        """The level that a subdirectory called name belongs to, or None for a stranger."""
        for level in self.dirs:
            if level.pattern is not None and level.pattern.fullmatch(name):
                return level
        return None

    def file_for(self, name: str) -> File | None:
        """The entry that a file called name has, or None for a stranger."""
        for known in self.files:
            if known.pattern.fullmatch(name):
                return known
        return None


class Danger(NamedTuple):
    """Something an operator has to know about a store, with its source."""

    text: str
    source: str


class Engine(NamedTuple):
    """How a running engine is recognised and how its version is found on the host.

    dists: names of the Python distributions (as in NAME-VERSION.dist-info) that are this engine.
    programs: a process is the engine if this pattern is found in its command line.
    """

    name: str
    dists: tuple[str, ...] = ()
    programs: Pattern[str] = re.compile(r"(?!)")


class Namespaces(NamedTuple):
    """How a store keeps the blocks of different engine configurations apart: by names of directories at its root.

    home: a directory that each start of an engine with this configuration writes into, from version touched_from on.
    blocks: those of its blocks. Group 1 of both is the namespace.
    """

    home: Pattern[str]
    blocks: Pattern[str]
    touched_from: Version


class Store(NamedTuple):
    """One place where an engine keeps KV state.

    layout: names below the tier's path; None for a store that leaves no files there.
    live: may blocks be deleted under a running engine? `live_from` is the first engine version where they may,
    None with live=True means every version; live=False means only when stopped.
    memory: pattern of the files that the engine keeps above this store in memory; no directory of a tier covers them.
    keys: names of the parts of an object's key below the tier's key prefix, for a store in a bucket.
    evidence: OBSERVED if a real writer made these names here, else FROM_SOURCE.
    found_again_from: an engine before that version gives its blocks new names at each start, unless told not to.
    namespaces: None if what no configuration can read any more cannot be told by names and times.
    """

    name: str
    title: str
    engine: str
    layout: Dir | None
    live: bool
    live_from: Version | None
    removing: str
    filesystems: tuple[str, ...] = ("ext4", "xfs")
    default_paths: tuple[str, ...] = ()
    dangers: tuple[Danger, ...] = ()
    evidence: str = FROM_SOURCE
    namespaces: Namespaces | None = None
    keys: Dir | None = None
    memory: str | None = None
    found_again_from: Version | None = None

    @property
    def has_files(self) -> bool:
        """True if the store's blocks are files below the tier's path."""
        return self.layout is not None
