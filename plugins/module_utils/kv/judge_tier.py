# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every control over one tier, or over the memory of one service: evidence is collected, then judged."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Callable

from . import (
    discovery,
    evidence_engine,
    evidence_host,
    evidence_ports,
    judge_blocks,
    judge_bucket,
    judge_engine,
    judge_names,
    judge_place,
    judge_ports,
    judge_spill,
    memory,
)
from .control_list import Result, memory_name, result_of
from .datamap import Document, Tier
from .evidence_tier import Evidence, Host, collect
from .judge import NOT_APPLICABLE, UNKNOWN, Verdict

# KV-09 is of buckets alone, judged by the answer that a playbook brings.
JUDGES: dict[str, Callable[[Evidence], Verdict]] = {
    "KV-01": judge_spill.declared,
    "KV-02": judge_place.encrypted_volume,
    "KV-03": judge_place.owned_and_closed,
    "KV-04": judge_blocks.no_readable_block,
    "KV-05": judge_place.safe_path,
    "KV-06": judge_blocks.in_time,
    "KV-07": judge_blocks.expiry_alive,
    "KV-08": judge_blocks.no_leftovers,
    "KV-10": judge_names.from_evidence,
    "KV-11": judge_ports.no_open_port,
    "KV-12": judge_spill.no_spill,
    "KV-13": judge_blocks.settings_safe,
    "KV-14": judge_blocks.live_expiry_safe,
    "KV-15": judge_spill.room_left,
    "KV-16": judge_spill.no_copies,
}


def _all(tier: Tier, status: str, message: str) -> list[Result]:
    return [result_of(name, tier["name"], Verdict(status, message, {})) for name in JUDGES]


def judge(evidence: Evidence) -> list[Result]:
    """Every control over one tier with files, from its evidence alone."""
    results = []
    name = evidence.tier["name"]
    if evidence.tier["state"] == "vanished":
        gone = evidence.place.missing
        results.append(result_of("KV-01", name, judge_place.vanished(evidence.tier, not gone)))
        if gone:
            rest = _all(evidence.tier, NOT_APPLICABLE, "nothing lies at its path any more")
            return results + [one for one in rest if one["control"] != "KV-01"]
    for control, judged in JUDGES.items():
        if not (results and control == "KV-01"):
            results.append(result_of(control, name, judged(evidence)))
    return results


def audit_tier(
    tier: Tier, host: Host, deadline: float, buckets: Mapping[str, Any] | None = None, full: bool = False
) -> list[Result]:
    """Every control over one tier. deadline: in time.monotonic() seconds, when the walk has to end; full: as there."""
    if tier["state"] == "absent" and tier["path"]:
        # Few hosts have one, and reading what makes volumes takes time.
        from . import leftover

        results = _all(tier, NOT_APPLICABLE, "the tier is absent")
        first = result_of("KV-01", tier["name"], judge_place.absent(tier, leftover.traces(tier)))
        return [first] + [one for one in results if one["control"] != "KV-01"]
    if tier["state"] in ("planned", "absent"):
        return _all(tier, NOT_APPLICABLE, "the tier is {}".format(tier["state"]))
    if not tier["path"]:
        results = _without_files(tier, host)
        if tier["state"] == "vanished":
            lost = result_of("KV-01", tier["name"], judge_place.vanished(tier, None))
            results = [lost if one["control"] == "KV-01" else one for one in results]
        if tier["bucket"]:
            named = judge_bucket.names_tell_nothing(tier, buckets, host.now)
            if named is not None:
                told = result_of("KV-10", tier["name"], named)
                results = [told if one["control"] == "KV-10" else one for one in results]
            verdict = judge_bucket.bucket_expires(tier, buckets, host.now)
            results.append(result_of("KV-09", tier["name"], verdict))
        return results
    try:
        return judge(collect(tier, host, deadline, full=full))
    except OSError as error:
        return _all(tier, UNKNOWN, f"evidence could not be collected: {error}")


def _without_files(tier: Tier, host: Host) -> list[Result]:
    """A tier that leaves no files is judged by the settings of the engines in its services, where it names some."""
    results = _all(tier, NOT_APPLICABLE, "store {} keeps no files on this host".format(tier["store"]))
    processes = [one for one in host.processes or [] if discovery.is_of(one.unit, tier["services"])]
    if not processes:
        return results
    running = evidence_engine.running(processes, discovery.engines(tier))
    judged = {
        "KV-11": judge_ports.judge(evidence_ports.look(running), tier["peers"] or [], True, True),
        "KV-13": judge_engine.settings_safe(tier, host.tiers, running, host.declared),
    }
    return [
        result_of(one["control"], tier["name"], judged[one["control"]]) if one["control"] in judged else one
        for one in results
    ]


def audit_memory(entry: dict[str, Any], host: Host) -> list[Result]:
    """The files in memory of one service, judged like a tier's blocks."""
    owners = [tier["owner"] for tier in host.tiers if tier["name"] in entry["tiers"] and tier["owner"] is not None]
    uids = [evidence_host.account_of(owner).uid for owner in owners]
    judged = memory.audit(entry, host.processes, host.root, uids)
    return [result_of(control, memory_name(entry), verdict) for control, verdict in judged.items()]


def audit(
    document: Document, host: Host, end: float, buckets: Mapping[str, Any] | None = None, full: bool = False
) -> list[Result]:
    """Every control over every tier of a map. end: in time.monotonic() seconds, when all walks have to end.

    full: walk through large tiers too, whatever their records say.
    """
    results: list[Result] = []
    walked = [tier for tier in document["tiers"] if tier["path"] and tier["state"] in ("present", "vanished")]
    left = len(walked)
    for tier in document["tiers"]:
        # Tiers share what is left, so a large one cannot starve those after it.
        share = max(0.0, end - time.monotonic()) / max(1, left)
        results += audit_tier(tier, host, time.monotonic() + share, buckets, full)
        left -= tier in walked
    for entry in document["memory"]:
        results += audit_memory(entry, host)
    return results
