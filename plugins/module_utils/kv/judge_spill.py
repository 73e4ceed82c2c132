# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""KV-01, KV-12, KV-15 and KV-16 in their first form: used, no spill, room left, no copies. Pure."""

from __future__ import annotations

import re
from typing import Any

from .evidence_tier import Evidence
from .judge import Parts, Verdict
from .mapkeys import within

MOST_FULL_PERCENT = 95
_ROOM_FOR_CAP = "lower max_bytes or enlarge the volume"
# A younger tier says nothing of how fast it fills.
_SHORTEST = 3600.0


def declared(evidence: Evidence) -> Verdict:
    """KV-01, of a tier that the map declares: something here writes it."""
    parts, services = Parts(), evidence.tier["services"]
    known = sorted(name for name, unit in evidence.units.items() if unit.found)
    facts = {"services": services, "found": known, "pids": [one.pid for one in evidence.processes][:20]}
    broken = sorted(name for name, unit in evidence.units.items() if unit.error)
    if not known and not evidence.processes:
        if evidence.host.processes is None or broken:
            parts.unknown("whether anything writes the tier cannot be told", "run the audit as root")
        elif not any("@." in name for name in services):
            parts.fail(f"none of its units exists: {', '.join(services)}", "correct services, or set state: planned")
        else:
            parts.note("no instance of its units runs")
    elif not evidence.processes:
        parts.note("services not running")
    return parts.verdict("declared and has a writer", facts)


def no_spill(evidence: Evidence) -> Verdict:
    """KV-12."""
    parts, spill = Parts(), evidence.spill
    open_swaps = [one for one in spill.swaps or () if not one.safe]
    piped = (spill.core_pattern or "").startswith("|")
    facts: dict[str, Any] = {
        "swaps": None if spill.swaps is None else [vars(one) for one in spill.swaps],
        "core_pattern": spill.core_pattern,
        "crash_kernel": spill.crash_kernel,
        "hibernation": spill.hibernates,
        "orphans": None if spill.orphans is None else [{"path": path, "bytes": size} for path, size in spill.orphans],
        "processes_never_swapped": sorted(pid for pid, never in spill.no_swap.items() if never),
    }
    if spill.swaps is None or spill.core_pattern is None:
        parts.unknown("swap or the core pattern cannot be read", "run the audit as root")
    for one in open_swaps:
        named = f"swap on {one.name} ({one.why})"
        remedy = "swapoff it, or give it plain dm-crypt with a random key"
        if not evidence.processes:
            parts.fail(f"{named}, and no process that could be kept off it runs", remedy)
        elif not all(spill.no_swap.get(process.pid) for process in evidence.processes):
            parts.fail(
                f"{named} can take pages of the tier's engines", f"{remedy}; or restart them with MemorySwapMax=0"
            )
    for process in evidence.processes:
        label = "process %d of %s" % (process.pid, process.unit)
        remedy = f"run the harden playbook, then systemctl restart {process.unit}"
        if process.core_limit is None or process.coredump_filter is None:
            parts.unknown(f"what a core of {label} holds cannot be read", "run the audit as root")
            continue
        if process.core_limit != "0":
            parts.fail(f"{label} may write core files", remedy)
        # A handler in a pipe gets the memory whatever the limit says.
        if piped and process.coredump_filter:
            parts.fail("%s gives its memory to a core handler (filter %#x)" % (label, process.coredump_filter), remedy)
    if spill.crash_kernel:
        parts.fail("a crash kernel is loaded: its dump holds keys and blocks", "disable kdump")
    if spill.hibernates:
        parts.fail(
            "the host can hibernate: that writes the memory-only key to disk", "mask hibernate.target, no resume="
        )
    if spill.orphans is None:
        parts.unknown("which files in /dev/shm are still mapped cannot be seen", "run the audit as root")
    elif spill.orphans:
        size = sum(size for _path, size in spill.orphans)
        names = ", ".join(path for path, _size in spill.orphans[:3])
        parts.fail(
            f"{len(spill.orphans)} memory tiers that no process maps, {size} bytes: {names}", "remove these files"
        )
    return parts.verdict("no swap, core, crash dump or leftover memory can carry blocks away", facts)


def room_left(evidence: Evidence) -> Verdict:
    """KV-15."""
    parts, spill, tier = Parts(), evidence.spill, evidence.tier
    survey, cap = evidence.tree.survey, tier["max_bytes"]
    facts: dict[str, Any] = {
        "free_bytes": spill.free_bytes,
        "total_bytes": spill.total_bytes,
        "free_inodes": spill.free_files,
        "total_inodes": spill.total_files,
        "cap_bytes": cap,
        "bytes_per_hour": None,
        "full_in_seconds": None,
        "out_of_inodes_in_seconds": None,
    }
    if not spill.total_bytes:
        parts.unknown("the room on its file system cannot be read", "run the audit as root")
        return parts.verdict("", facts)
    larger = "enlarge the volume, shorten the retention or set max_bytes"
    # xfs and btrfs make inodes as they need them and tell 0.
    kinds = (("space", spill.free_bytes, spill.total_bytes), ("inodes", spill.free_files, spill.total_files))
    for what, free, total in kinds:
        if total and free * 100 < total * (100 - MOST_FULL_PERCENT):
            parts.fail(f"{what}: only {free} of {total} left", larger)
    # What root alone may use of the file system is no room for the tier.
    room = spill.free_bytes + (survey.block_bytes + survey.temp_bytes if survey is not None else 0)
    if cap is not None and survey is not None and cap > room:
        parts.fail(f"the cap of {cap} bytes is above the room of {room}: the volume is full first", _ROOM_FOR_CAP)
    if survey is not None and survey.blocks and survey.oldest_mtime is not None:
        age = evidence.host.now - survey.oldest_mtime
        keeps = tier["retention_minutes"] * 60
        if age >= _SHORTEST or age >= keeps:
            rate = survey.block_bytes / age
            left = spill.free_bytes if cap is None else min(spill.free_bytes, max(0, cap - survey.block_bytes))
            facts["bytes_per_hour"], seconds = round(rate * 3600), left / rate if rate else None
            facts["full_in_seconds"] = None if seconds is None else round(seconds)
            # At its retention a tier stops growing; a cap makes room by itself, early.
            if seconds is not None and cap is None and age < keeps and seconds < keeps - age:
                parts.fail(f"at its rate the tier is full in {seconds / 3600:.0f} h, before its retention ends", larger)
            seconds = spill.free_files * age / (survey.blocks + survey.dirs) if spill.total_files else None
            facts["out_of_inodes_in_seconds"] = None if seconds is None else round(seconds)
            if seconds is not None and tier["max_files"] is None and age < keeps and seconds < keeps - age:
                told = f"at its rate it is out of inodes in {seconds / 3600:.0f} h, before its retention ends"
                parts.fail(told, "shorten the retention, set max_files, or use a file system with more inodes")
    return parts.verdict("%d %% of its space is free" % (spill.free_bytes * 100 // spill.total_bytes), facts)


def no_copies(evidence: Evidence) -> Verdict:
    """KV-16."""
    parts, spill, path = Parts(), evidence.spill, evidence.tier["path"]
    snapshots = [one["name"] for one in evidence.storage.chain if one.get("uuid", "").endswith("-real")]
    pruned = _pruned(spill.updatedb) if spill.updatedb is not None else None
    facts = {
        "tag": spill.tagged,
        "updatedb_prunes": pruned,
        "backup_configs": [{"path": name, "leaves_it_out": out} for name, out in spill.backups],
        "snapshots_of": snapshots,
    }
    if not spill.tagged:
        parts.fail(f"{path} has no valid CACHEDIR.TAG", "kvtier prepare {}".format(evidence.tier["name"]))
    if pruned is not None and not any(within(path, one) for one in pruned):
        parts.fail(f"the locate index lists {path}", f"add {path} to PRUNEPATHS in /etc/updatedb.conf")
    for name, left_out in spill.backups:
        if not left_out:
            parts.unknown(f"whether {name} copies {path} cannot be told", f"exclude {path} or tagged caches there")
    if snapshots:
        parts.fail(f"snapshots exist of {', '.join(snapshots)}", "lvremove those older than the retention")
    if any(one.get("uuid", "").endswith("-tpool") for one in evidence.storage.chain):
        parts.unknown("snapshots of thin LVM volumes are not looked at", "list them (lvs), and waive this for a time")
    if evidence.storage.fstype in ("zfs", "btrfs"):
        parts.unknown(
            f"snapshots of {evidence.storage.fstype} are not looked at", "list them, and waive this for a time"
        )
    return parts.verdict("tagged as a cache, in no index, backup configuration or LVM snapshot that was found", facts)


def _pruned(text: str) -> list[str]:
    found: list[str] = []
    for line in text.splitlines():
        match = re.match(r"\s*PRUNEPATHS\s*(\+?)=\s*\"?([^\"]*)", line)
        if match:
            found = (found if match.group(1) else []) + [one.rstrip("/") or "/" for one in match.group(2).split()]
    return found
