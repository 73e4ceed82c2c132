# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Closes the other ways by which blocks leave memory: swap, dumps, hibernation, left shared memory, copies.

plan() reads and says what differs, apply() does it. What a later map no longer asks for is put back as it was:
the record says what was masked, every file of ours begins with our line.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from . import evidence_spill, fsio, orphans, spill_swap, system, units
from .datamap import Document, file_tiers
from .encryption import Roots
from .mapkeys import within
from .system import Change, HostError

PARTS = ("backups", "core_dumps", "crash_kernel", "hibernation", "index", "orphans")
RECORD = "/etc/llmhost/spill.json"
EXCLUDES = evidence_spill.EXCLUDES
UPDATEDB = "/etc/updatedb.conf"
COREDUMP = "/etc/systemd/coredump.conf.d/50-llmhost.conf"
ORPHANS_UNIT = "llmhost-orphans.service"
ORPHANS_DROP_IN = "51-llmhost-orphans.conf"
FILE_MODE = 0o644
# What is masked for each part, where it exists.
MASKS = {
    "crash_kernel": ("kdump-tools.service", "kdump.service"),
    "hibernation": evidence_spill.HIBERNATION,
}
_HEADER = "# Written by llmhost.hardening (role host_spill); changes here are lost."
_MASK = "/dev/null"

_COREDUMP_TEXT = f"""{_HEADER}
# A core of an engine holds prompts, blocks and keys.
[Coredump]
Storage=none
ProcessSizeMax=0
"""
_ORPHANS_TEXT = f"""{_HEADER}
[Unit]
Description=Remove memory tiers of engines that are gone

[Service]
Type=oneshot
ExecStart={units.KVTIER} orphans --remove

[Install]
WantedBy={units.BOOT_TARGET}
"""
_ORPHANS_DROP_IN_TEXT = f"""{_HEADER}
[Service]
# An engine that is killed leaves its memory tier in /dev/shm. As root, and never a reason for the unit to fail.
ExecStopPost=-+{units.KVTIER} orphans --remove
"""


@dataclass
class Plan:
    """What differs. units: to be masked; free: to be unmasked."""

    changes: list[Change] = field(default_factory=list)
    mask: list[str] = field(default_factory=list)
    free: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    stale_links: list[str] = field(default_factory=list)
    swap: spill_swap.Plan = field(default_factory=spill_swap.Plan)
    loaded: bool = False
    masked: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)

    @property
    def steps(self) -> list[str]:
        """What apply() does, in words."""
        said = ["{} {}".format("remove" if one.after is None else "write", one.path) for one in self.changes]
        said += [f"mask {name}" for name in self.mask] + [f"unmask {name}" for name in self.free]
        said += [f"link {path}" for path in self.links] + [f"remove link {path}" for path in self.stale_links]
        said += [f"remove {orphans.DIRECTORY}/{name}, which no process maps" for name in self.left]
        return said + self.swap.steps + (["unload the crash kernel"] if self.loaded else [])

    def diffs(self) -> list[dict[str, str]]:
        """Files as text, the rest as steps."""
        shown = [change.diff() for change in [*self.changes, *self.swap.changes]]
        rest = [step for step in self.steps if not step.startswith(("write ", "remove /"))]
        return shown + ([system.text_diff("host", "", "".join(step + "\n" for step in rest))] if rest else [])


def wanted_files(document: Document, parts: Sequence[str]) -> dict[str, bytes]:
    """Every file of ours that these parts ask for."""
    tiers = file_tiers(document)
    files: dict[str, bytes] = {}
    if "core_dumps" in parts:
        files[COREDUMP] = _COREDUMP_TEXT.encode()
    if "orphans" in parts:
        files[os.path.join(units.UNIT_DIR, ORPHANS_UNIT)] = _ORPHANS_TEXT.encode()
        for service in sorted({service for tier in document["tiers"] for service in tier["services"] or ()}):
            if service not in units.CONTAINER_DAEMONS:
                path = os.path.join(units.UNIT_DIR, service + ".d", ORPHANS_DROP_IN)
                files[path] = _ORPHANS_DROP_IN_TEXT.encode()
    if "backups" in parts:
        lines = [_HEADER, *sorted({tier["path"] for tier in tiers})]
        files[EXCLUDES] = ("\n".join(lines) + "\n").encode()
    return files


def _ours(unit_dir: str) -> list[str]:
    """Files of ours that are there."""
    patterns = [COREDUMP, EXCLUDES, os.path.join(unit_dir, ORPHANS_UNIT), f"{unit_dir}/*.d/{ORPHANS_DROP_IN}"]
    found = []
    for path in [path for pattern in patterns for path in glob.glob(pattern)]:
        data = None if os.path.islink(path) else system.read_file(path)
        if data is not None and data.startswith(_HEADER.encode()):
            found.append(path)
    return sorted(found)


def pruned(text: str, paths: Sequence[str], known: Sequence[str]) -> str:
    """updatedb.conf with paths in PRUNEPATHS and without those of known that are not; every other word as it was."""
    pattern = re.compile(r'^(\s*PRUNEPATHS\s*\+?=\s*)"?([^"\n]*)"?[^\S\n]*$', re.MULTILINE)
    last = max(pattern.finditer(text), key=lambda one: one.start(), default=None)
    if last is None:
        return text + ('PRUNEPATHS="{}"\n'.format(" ".join(paths)) if paths else "")
    words = [word for word in last.group(2).split() if word.rstrip("/") not in set(known) - set(paths)]
    words += [path for path in paths if not any(within(path, word.rstrip("/") or "/") for word in words)]
    if words == last.group(2).split():
        return text
    return text[: last.start()] + '{}"{}"'.format(last.group(1), " ".join(words)) + text[last.end() :]


def _record() -> dict[str, Any]:
    """What an earlier run did to things that carry no mark of ours."""
    try:
        found = fsio.read_json(RECORD, owner=0)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, fsio.UnsafePath) as error:
        raise HostError(f"{RECORD} cannot be used: {error}. Fix: see what it says, then remove it") from error
    if not isinstance(found, dict) or not all(isinstance(value, list) for value in found.values()):
        raise HostError(f"{RECORD} is not what this role writes. Fix: see what it says, then remove it")
    return found


def _unit_there(name: str) -> bool:
    places = (units.UNIT_DIR, "/run/systemd/generator", "/lib/systemd/system", "/usr/lib/systemd/system")
    return any(os.path.lexists(os.path.join(place, name)) for place in places)


def _is_masked(name: str) -> bool:
    path = os.path.join(units.UNIT_DIR, name)
    return os.path.islink(path) and os.readlink(path) == _MASK


def plan(
    document: Document, parts: Sequence[str], swap: str, swap_size: int | None, roots: Roots | None = None
) -> Plan:
    """What differs between the host and what is asked for (read-only). HostError for what must not be done."""
    roots = roots or Roots()
    record, todo = _record(), Plan()
    wanted = wanted_files(document, parts)
    for path, data in wanted.items():
        before = system.read_file(path)
        if before is not None and not before.startswith(_HEADER.encode()):
            raise HostError(f"{path} exists and was not written by this role. Fix: move it away, then run again")
        change = system.file_change(path, data, FILE_MODE)
        todo.changes += [change] if change else []
    gone = [path for path in _ours(units.UNIT_DIR) if path not in wanted]
    todo.changes += [Change(path, system.read_file(path), None, FILE_MODE) for path in gone]
    _plan_index(document, parts, record, todo)
    link = os.path.join(units.UNIT_DIR, units.BOOT_TARGET + ".wants", ORPHANS_UNIT)
    if "orphans" in parts and not os.path.lexists(link):
        todo.links.append(link)
    elif "orphans" not in parts and os.path.lexists(link):
        todo.stale_links.append(link)
    names = [name for part in parts for name in MASKS.get(part, ()) if _unit_there(name)]
    todo.mask = [name for name in names if not _is_masked(name)]
    ours = [name for name in record.get("masked", []) if name not in record.get("swaps", [])]
    todo.free = [name for name in ours if name not in names and _is_masked(name)]
    todo.masked = sorted({*todo.mask, *(name for name in ours if name in names)})
    if "orphans" in parts:
        todo.left = [one.name for one in orphans.find(proc=roots.proc) or ()]
    loaded = os.path.join(roots.sys, "kernel/kexec_crash_loaded")
    todo.loaded = "crash_kernel" in parts and (evidence_spill.text_of(loaded) or "0") == "1"
    todo.swap = spill_swap.plan(swap, swap_size, record.get("swaps", []), roots)
    after: dict[str, Any] = {"masked": todo.masked, "swaps": todo.swap.masked, "pruned": _paths(document, parts)}
    kept = {key: value for key, value in after.items() if value}
    text = (json.dumps(kept, indent=2, sort_keys=True) + "\n").encode()
    before = system.read_file(RECORD)
    if kept:
        change = system.file_change(RECORD, text, FILE_MODE)
        todo.changes += [change] if change else []
    elif before is not None:
        todo.changes.append(Change(RECORD, before, None, FILE_MODE))
    return todo


def _paths(document: Document, parts: Sequence[str]) -> list[str]:
    return sorted({tier["path"] for tier in file_tiers(document)}) if "index" in parts else []


def _plan_index(document: Document, parts: Sequence[str], record: dict[str, Any], todo: Plan) -> None:
    """The locate index. Without its configuration there is none that would list a tier."""
    before = system.read_file(UPDATEDB)
    if before is None:
        return
    known = [path for path in record.get("pruned", []) if isinstance(path, str)]
    text = before.decode("utf-8", "surrogateescape")
    after = pruned(text, _paths(document, parts), known).encode("utf-8", "surrogateescape")
    if after != before:
        mode = os.lstat(UPDATEDB).st_mode & 0o7777
        todo.changes.append(Change(UPDATEDB, before, after, mode))


def apply(todo: Plan) -> None:
    """Do what plan() found; HostError where the host does not follow. The record first: a kill loses no undoing."""
    if todo.links and not os.path.exists(units.KVTIER):
        raise HostError(f"{units.KVTIER} is missing. Fix: run the role kv_access before this one")
    for change in sorted(todo.changes, key=lambda one: (one.path != RECORD or one.after is None, one.path)):
        change.make()
        if change.after is None:
            with contextlib.suppress(OSError):
                os.rmdir(os.path.dirname(change.path))
    for path in todo.stale_links:
        os.unlink(path)
    for path in todo.links:
        system.make_dirs(os.path.dirname(path))
        os.symlink(os.path.join(units.UNIT_DIR, ORPHANS_UNIT), path)
    if todo.mask:
        system.do("systemctl", "mask", "--now", "--", *todo.mask)
    if todo.free:
        system.do("systemctl", "unmask", "--", *todo.free)
    spill_swap.apply(todo.swap)
    if any(change.path.startswith(units.UNIT_DIR) for change in todo.changes) or todo.links or todo.stale_links:
        system.daemon_reload()
    if todo.left:
        orphans.remove()
    if todo.loaded:
        if evidence_spill.text_of("/sys/kernel/kexec_crash_loaded") == "1":
            system.do("kexec", "-p", "-u")
        if evidence_spill.text_of("/sys/kernel/kexec_crash_loaded") == "1":
            raise HostError("the crash kernel is still loaded. Fix: find what loads it, then run again")


def run(document: Document, parts: Sequence[str], swap: str, swap_size: int | None, act: bool) -> dict[str, Any]:
    """The module kv_spill: plan, and do it if act."""
    todo = plan(document, parts, swap, swap_size)
    result = {"changed": bool(todo.steps), "steps": todo.steps, "diff": todo.diffs()}
    if act:
        apply(todo)
    return result
