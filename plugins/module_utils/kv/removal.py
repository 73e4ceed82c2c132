# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Taking off a host what one role wrote: nothing that it did not write, no blocks and no evidence unless told.

Each step is judged by what is there, so a run that was killed is finished by the next one.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from . import (
    absent,
    access,
    datamap,
    discovery,
    fsio,
    history,
    host,
    luks,
    offload_host,
    offload_units,
    receipt,
    system,
    tables,
    units,
)
from .absent import Left
from .datamap import Document, MapError, Problem, Tier
from .mapkeys import LIB_ROOT
from .stores import CACHEDIR_TAG, COMMON_DIRS
from .system import Change

ETC_ROOT = os.path.dirname(datamap.PATH)
CRON = "/etc/cron.d/llmhost"
METRICS = "llmhost.prom"
_MAPPER = datamap.mapper_name({"name": ""})
_KEY_IN_MEMORY = "/dev/urandom"


class Told(NamedTuple):
    """What the operator said on the command line."""

    data: Sequence[str] = ()
    evidence: bool = False
    textfile_dir: str = ""


@dataclass
class Plan:
    """What has to go, and what stays and why. trees go with all that is in them, directories only if they are empty."""

    changes: list[Change] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    trees: list[str] = field(default_factory=list)
    directories: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)

    def paths(self) -> list[str]:
        """Everything that goes, without directories that other things may keep."""
        return [change.path for change in self.changes] + self.links + self.trees

    def file(self, path: str, holds: str = "") -> None:
        """A file goes if it is there and holds that text."""
        data = system.read_file(path)
        if data is not None and holds.encode() in data:
            self.changes.append(Change(path, data, None, 0))


def _program(todo: Plan) -> None:
    """What every role of a host shares: the program, its map, its run records."""
    todo.file(units.KVTIER)
    todo.file(datamap.PATH)
    if os.path.isdir(datamap.STATE_ROOT) and not os.path.islink(datamap.STATE_ROOT):
        todo.trees.append(datamap.STATE_ROOT)
    todo.directories += [ETC_ROOT, LIB_ROOT]


def retention(told: Told) -> Plan:
    """The jobs, waivers and metrics of kv_retention; the program too where no prepare unit calls it any more."""
    todo = Plan()
    todo.file(CRON, units.KVTIER)
    todo.file(datamap.WAIVERS)
    if told.textfile_dir:
        todo.file(os.path.join(told.textfile_dir, METRICS))
    for path, what in ((history.DIRECTORY, "the history of audits"), (receipt.DIRECTORY, "receipts of purges")):
        if os.path.isdir(path) and not os.path.islink(path):
            if told.evidence:
                todo.trees.append(path)
            else:
                todo.kept.append(f"{path}: {what}, evidence")
    if not host.prepared_names():
        _program(todo)
    return todo


def on_the_edge(crypttab: bytes) -> list[str]:
    """Volumes of ours that are made anew at each boot: without their prepare unit nobody could write to them then."""
    rows = tables.rows(crypttab)
    return [row[0] for row in rows if row[0].startswith(_MAPPER) and row[2:3] == (_KEY_IN_MEMORY,)]


def refuse_volumes_at_risk(name: str, act: bool) -> None:
    """MapError for volumes that nobody would prepare any more. A check run has not removed those that would go."""
    left = on_the_edge(system.read_file(tables.CRYPTTAB) or b"") if act else []
    fix = "remove the volumes first (kv_volume_state: absent), or keep kv_access"
    reason = "its volume is here and would be root's after the next boot"
    if left:
        named = [one[len(_MAPPER) :].replace("_", "-") for one in left]
        raise MapError([Problem(name, one, "volume", reason, fix) for one in named])


def closing(_told: Told) -> Plan:
    """Units and drop-ins of kv_access; the program too where cron does not call it any more."""
    nothing: Document = {"tiers": []}
    todo = Plan(access.file_changes(nothing), access.link_changes(nothing)[1])
    prepared = [os.path.basename(change.path) for change in todo.changes]
    todo.ended = [name for name in prepared if name.startswith(units.PREPARE_PREFIX)]
    if not os.path.lexists(CRON):
        _program(todo)
    return todo


def engines(_told: Told) -> Plan:
    """Every file of engine_offload, whatever engine it is for."""
    todo = Plan([Change(path, data, None, 0) for path, data in offload_host.our_files().items()])
    todo.file(offload_host.RECORD)
    names = [os.path.basename(change.path) for change in todo.changes if change.path.startswith(units.UNIT_DIR)]
    links = [os.path.join(units.UNIT_DIR, "multi-user.target.wants", name) for name in names]
    todo.links = [link for link in links if os.path.islink(link)]
    todo.directories = [offload_units.DIRECTORY, ETC_ROOT]
    touched = {name for name in names if name.endswith(".service")}
    touched |= {
        os.path.basename(os.path.dirname(change.path))[: -len(".d")]
        for change in todo.changes
        if change.path.endswith(offload_units.DROP_IN)
    }
    running = {process.unit for process in discovery.of_services(sorted(touched)) if process.unit}
    todo.kept = [f"{unit}: runs on with its settings until it is restarted" for unit in sorted(running)]
    return todo


def apply(todo: Plan) -> None:
    """Do what was planned."""
    for link in todo.links:
        os.unlink(link)
    for change in todo.changes:
        change.make()
    of_units = [path for path in todo.paths() if path.startswith((units.UNIT_DIR, offload_units.QUADLET_DIR))]
    if of_units:
        for directory in {os.path.dirname(path) for path in of_units}:
            if directory.endswith((".d", ".wants")):
                access.remove_empty(directory)
        system.daemon_reload()
    # Nothing requires them any more, or stopping them would stop the writers.
    if todo.ended:
        system.run(["systemctl", "stop", "--", *todo.ended], 300)
    for tree in todo.trees:
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(tree)
    for directory in todo.directories:
        access.remove_empty(directory)


def everything(document: Document) -> Document:
    """Every tier that the host or the map knows, as one that is to go; the host's word counts."""
    try:
        there = datamap.load()["tiers"]
    except MapError:
        there = []
    named = {tier["name"]: tier for tier in [*document["tiers"], *there]}
    return {**document, "tiers": [dict(tier, state="absent") for tier in named.values()]}


def has_blocks(tier: Tier) -> bool:
    """Does anything but our own mark lie in the tier's directory?"""
    try:
        with fsio.opened(tier["path"]) as fd:
            return bool(set(os.listdir(fd)) - {CACHEDIR_TAG, *COMMON_DIRS})
    except (OSError, fsio.UnsafePath):
        return False


def tiers(document: Document, told: Told, own: bool) -> tuple[list[Left], list[str]]:
    """The tiers that may be taken away, and a line for each whose blocks keep it. MapError for a refusal."""
    going, kept, problems = [], [], []
    for left in absent.look_all(everything(document), own=own):
        tier = left.tier
        if not absent.steps(left):
            continue
        if tier["name"] in told.data or not has_blocks(tier):
            going.append(left)
        elif own and not luks.persistent(tier):
            reason = "blocks lie on a volume that does not outlive a boot, and would go with it"
            fix = f"""say so with -e '{{"llmhost_remove_data": ["{tier["name"]}"]}}', or keep the roles"""
            problems.append(Problem(document["host"], tier["name"], "volume", reason, fix))
        else:
            what = "its volume, opened at boot as before" if own else "its directory, closed to all but its account"
            kept.append(f"tier {tier['name']}: blocks lie in {tier['path']}; {what}, stays")
    if problems:
        raise MapError(problems)
    absent.refuse(going, document["host"])
    return going, kept


# What each role wrote besides volumes and tiers' directories.
ROLES: dict[str, Callable[[Told], Plan]] = {
    "engine_offload": engines,
    "kv_access": closing,
    "kv_retention": retention,
    "kv_volume": lambda _told: Plan(),
}


def run(role: str, document: Document, told: Told, act: bool) -> dict[str, Any]:
    """The module kv_removal for one role; MapError for a refusal, HostError for a failure."""
    result: dict[str, Any] = {"changed": False, "steps": [], "diff": []}
    kept: list[str] = []
    if role in ("kv_volume", "kv_access"):
        going, kept = tiers(document, told, own=role == "kv_volume")
        if role == "kv_access":
            refuse_volumes_at_risk(document["host"], act)
        result = absent.finish(going, document, act, result)
    todo = ROLES[role](told)
    if act:
        apply(todo)
    kept += todo.kept + (strangers(todo.directories) if act else [])
    return {
        "changed": result["changed"] or bool(todo.paths()),
        "removed": result["steps"] + todo.paths(),
        "kept": kept,
        "diff": result["diff"] + [_shown(change) for change in todo.changes],
    }


def _shown(change: Change) -> dict[str, str]:
    if change.path == units.KVTIER:
        return system.text_diff(change.path, "(a program)\n", "")
    return change.diff()


def strangers(directories: Sequence[str]) -> list[str]:
    """What lies in directories of ours that could not go."""
    found = []
    for directory in directories:
        with contextlib.suppress(OSError):
            found += [os.path.join(directory, name) for name in sorted(os.listdir(directory))]
    return [path for path in found if path not in directories]
