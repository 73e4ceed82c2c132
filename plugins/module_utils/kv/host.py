# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What of ours lies on a host: the program kvtier, the data map, the directories of run records."""

from __future__ import annotations

import glob
import hashlib
import json
import os
from dataclasses import dataclass, field
from typing import Any

from . import datamap, program, state, system, units
from .datamap import STATE_ROOT, Document, MapError, Problem, file_tiers, state_dir
from .mapkeys import LIB_ROOT
from .stores import STORES
from .system import Account, Change, Directory

ROOT = Account(0, 0)


def render(document: Document) -> bytes:
    """The text of tiers.json."""
    return (json.dumps(document, indent=2, sort_keys=True) + "\n").encode()


def prepared_names(unit_dir: str = units.UNIT_DIR) -> set[str]:
    """Tiers that this host has a prepare unit of ours for."""
    names = set()
    for path in glob.glob(os.path.join(unit_dir, units.PREPARE_PREFIX + "*.service")):
        data = system.read_file(path) if not os.path.islink(path) else None
        if data is not None and data.startswith(units.HEADER.encode()):
            names.add(os.path.basename(path)[len(units.PREPARE_PREFIX) : -len(".service")])
    return names


def _names_in_broken(path: str) -> set[str]:
    """Tier names that can still be read in a map that cannot be used."""
    try:
        tiers = json.loads((system.read_file(path) or b"").decode())["tiers"]
        return {tier["name"] for tier in tiers if isinstance(tier["name"], str) and tier.get("state") != "absent"}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, system.HostError):
        return set()


def old_map(new: Document) -> tuple[Document | None, list[str], list[Problem]]:
    """The host's map, warnings, and refusals.

    A broken map is only replaced if the new one names every tier that the host is known to have: merge() cannot carry
    over what it cannot read, and a tier that is forgotten stops expiring.
    """
    try:
        old = datamap.load()
    except MapError as error:
        reason = error.problems[0].reason
    else:
        try:
            datamap.merge(old, new)
        except MapError as error:
            return None, [], error.problems
        return old, [], []
    path = datamap.PATH
    there = os.path.lexists(path)
    named = {tier["name"] for tier in new["tiers"]}
    lost = sorted((prepared_names() | (_names_in_broken(path) if there else set())) - named)
    fix = "name it in llmhost_tiers, with `state: absent` if its blocks are gone, and run again"
    what = f"{path} cannot be used ({reason})" if there else f"{path} is gone"
    problems = [
        Problem(new["host"], name, "name", f"{what} and this host had a tier of this name", fix) for name in lost
    ]
    return None, ([f"{what}; it is written anew"] if there and not problems else []), problems


@dataclass(frozen=True)
class Plan:
    """What kv_host has to do."""

    document: Document
    directories: list[Directory] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    stale: list[str] = field(default_factory=list)

    def diffs(self) -> list[dict[str, str]]:
        """The map as text, the program as its digest, directories as their mode and owner."""
        result = []
        for change in self.changes:
            if change.path == units.KVTIER:
                result.append(system.text_diff(change.path, _digest(change.before), _digest(change.after)))
            else:
                result.append(change.diff())
        for directory in self.directories:
            owner = "{}:{}".format(*directory.account) if directory.account else "an account to be created"
            result.append(system.text_diff(directory.path, "", f"directory {directory.mode:04o} {owner}\n"))
        result += [system.text_diff(path, "run records\n", "") for path in self.stale]
        return result


def _digest(data: bytes | None) -> str:
    return f"sha256 {hashlib.sha256(data).hexdigest()}\n" if data is not None else ""


def plan(new: Document) -> Plan:
    """What differs between the host and the new map (read-only)."""
    old, warnings, problems = old_map(new)
    document = datamap.merge(old, new)
    wanted = [Directory(os.path.dirname(datamap.PATH), 0o755, ROOT), Directory(LIB_ROOT, 0o755, ROOT)]
    wanted.append(Directory(STATE_ROOT, 0o755, ROOT))
    for tier in file_tiers(document):
        account = system.account_of(tier["owner"])
        if account is None and tier["state"] == "vanished":
            warnings.append("tier {}: its account {} is gone, nothing expires it".format(tier["name"], tier["owner"]))
            continue
        wanted.append(Directory(state_dir(tier), 0o700, account))
    there = system.read_file(units.KVTIER)
    # The program first: a new map may need it.
    files: list[tuple[str, bytes, int]] = [
        (units.KVTIER, there if there and program.is_current(there) else program.build(), 0o755),
        (datamap.PATH, render(document), 0o644),
    ]
    changes = [change for path, data, mode in files if (change := system.file_change(path, data, mode))]
    kept = {tier["name"] for tier in file_tiers(document)}
    stale = [os.path.join(STATE_ROOT, name) for name in state.remembered(STATE_ROOT) if name not in kept]
    differing = [directory for directory in wanted if directory.differs()]
    return Plan(document, differing, changes, warnings, problems, stale)


def apply(todo: Plan) -> None:
    """Do what plan() found."""
    for directory in todo.directories:
        directory.make()
    for change in todo.changes:
        change.make()
    # Only now: the map that cron reads does not name these tiers any more.
    for path in todo.stale:
        if left := state.forget(os.path.basename(path)):
            todo.warnings.append("{} stays, others have put there: {}".format(path, ", ".join(left)))


def only_stopped(document: Document) -> list[str]:
    """Tiers that expire only while their engine is stopped, which root alone can see."""
    return [tier["name"] for tier in document["tiers"] if not STORES[tier["store"]].live]


def result(todo: Plan) -> dict[str, Any]:
    """What a module returns of a plan."""
    return {
        "data_map": todo.document,
        "changed": bool(todo.directories or todo.changes or todo.stale),
        "written": [directory.path for directory in todo.directories] + [change.path for change in todo.changes],
        "stopped": only_stopped(todo.document),
        "removed": todo.stale,
        "vanished": [tier["name"] for tier in todo.document["tiers"] if tier["state"] == "vanished"],
    }
