# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The memory tier of each service: files in /dev/shm that hold blocks and that no directory of a tier covers."""

from __future__ import annotations

import contextlib
import glob
import os
import stat
from collections.abc import Sequence
from typing import Any

from . import discovery, evidence_engine
from .judge import NOT_APPLICABLE, Parts, Verdict


def audit(
    entry: dict[str, Any],
    processes: Sequence[discovery.Process] | None,
    root: bool,
    uids: Sequence[int | None],
    proc: str = "/proc",
) -> dict[str, Verdict]:
    """The controls over one entry. uids: of its tiers' owners; without any, all files there count."""
    if processes is None:
        gone = Parts()
        gone.unknown("processes cannot be seen", "run the audit as root")
        return dict.fromkeys(("KV-04", "KV-08"), gone.verdict("", {}))
    mine = [one for one in processes if discovery.is_of(one.unit, [entry["service"]])]
    pieces = [piece for one in evidence_engine.running(mine, [], proc) for piece in one.memory]
    return {
        "KV-04": _closed(pieces, mine, root),
        "KV-08": _left(entry, processes, root, set(uids) - {None}, proc),
    }


def _closed(pieces: Sequence[dict[str, Any]], mine: Sequence[discovery.Process], root: bool) -> Verdict:
    unique = list({piece["path"]: piece for piece in pieces}.values())
    facts = {"files": unique, "processes": len(mine)}
    if not unique and (root or not mine):
        return Verdict(NOT_APPLICABLE, "no process of the service has such a file mapped", facts)
    parts = Parts()
    if not unique:
        parts.unknown("what its processes have mapped cannot be seen", "run the audit as root")
    for piece in unique:
        if piece["mode"] is not None and int(piece["mode"], 8) & 0o077:
            line = "{path} holds blocks and has mode {mode}".format(**piece)
            parts.fail(line, "stop the engine, remove it, start it again")
    return parts.verdict("%d files, all closed" % len(unique), facts)


def _left(
    entry: dict[str, Any], processes: Sequence[discovery.Process], root: bool, uids: set[Any], proc: str
) -> Verdict:
    """Files of an engine that is gone: nothing reuses them, and they keep their blocks and the host's memory."""
    there = []
    for path in sorted(glob.glob(entry["path"])):
        try:
            info = os.stat(path, follow_symlinks=False)
        except OSError:
            continue
        if stat.S_ISREG(info.st_mode) and (not uids or info.st_uid in uids):
            there.append({"path": path, "bytes": info.st_size, "uid": info.st_uid})
    parts = Parts()
    left: list[dict[str, Any]] = []
    if there and not root:
        parts.unknown("only root sees whether a process has them mapped", "run the audit as root")
    elif there:
        left = [one for one in there if not _mapped(one["path"], processes, proc)]
    if left:
        size = sum(one["bytes"] for one in left)
        parts.fail(
            "%d files with %d bytes that no process has mapped: %s" % (len(left), size, left[0]["path"]),
            "remove them: their engine ended without",
        )
    return parts.verdict("no file of an engine that has ended", {"files": there, "left": left})


def _mapped(path: str, processes: Sequence[discovery.Process], proc: str) -> bool:
    """Has any process this very file mapped? A container may have another one of that name."""
    for one in evidence_engine.running(processes, [], proc):
        if any(piece["path"] == path for piece in one.memory):
            with contextlib.suppress(OSError):
                if os.path.samefile(path, f"{proc}/{one.pid}/root{path}"):
                    return True
    return False
