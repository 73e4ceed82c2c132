# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The audit: every control over every tier of a host. Evidence is collected first, then judged by pure functions."""

from __future__ import annotations

import datetime
import hashlib
import json
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any, Callable, NamedTuple

from . import (
    discovery,
    evidence_engine,
    evidence_host,
    history,
    judge_blocks,
    judge_bucket,
    judge_engine,
    judge_names,
    judge_place,
    judge_spill,
    leftover,
    memory,
)
from .datamap import PATH, Document, Tier, merge
from .evidence_tier import Evidence, Host, collect, host_facts
from .judge import FAIL, NOT_APPLICABLE, STATUSES, UNKNOWN, WAIVED, Verdict, clean

SCHEMA = 1
MAX_SECONDS = 60.0
Result = dict[str, Any]


class Control(NamedTuple):
    """A control: judge is None where this version judges only a part of it elsewhere."""

    title: str
    severity: str
    judge: Callable[[Evidence], Verdict] | None


CONTROLS: dict[str, Control] = {
    "KV-01": Control("declared", "high", judge_spill.declared),
    "KV-02": Control("local encrypted volume", "high", judge_place.encrypted_volume),
    "KV-03": Control("owned and closed", "high", judge_place.owned_and_closed),
    "KV-04": Control("no readable block", "high", judge_blocks.no_readable_block),
    "KV-05": Control("safe path", "high", judge_place.safe_path),
    "KV-06": Control("in time", "high", judge_blocks.in_time),
    "KV-07": Control("expiry is alive", "high", judge_blocks.expiry_alive),
    "KV-08": Control("no leftovers", "medium", judge_blocks.no_leftovers),
    # Of buckets alone, from the answer that a playbook brings.
    "KV-09": Control("bucket expires", "high", None),
    "KV-10": Control("names tell nothing", "high", judge_names.from_evidence),
    "KV-12": Control("no spill", "high", judge_spill.no_spill),
    "KV-13": Control("settings are safe", "high", judge_blocks.settings_safe),
    "KV-14": Control("live expiry is safe", "high", judge_blocks.live_expiry_safe),
    "KV-15": Control("room left", "medium", judge_spill.room_left),
    "KV-16": Control("no copies", "medium", judge_spill.no_copies),
}
# Not a control of the host: reports a waiver that is void.
WAIVER = Control("waivers are valid", "medium", None)


def _result(control: str, tier: str, verdict: Verdict) -> Result:
    entry = CONTROLS.get(control, WAIVER)
    return {
        "control": control,
        "title": entry.title,
        "severity": entry.severity,
        "tier": tier,
        "status": verdict.status,
        "message": clean(verdict.message),
        "evidence": clean(verdict.evidence),
        "remedy": clean(verdict.remedy),
    }


def _all(tier: Tier, status: str, message: str) -> list[Result]:
    judged = [name for name, control in CONTROLS.items() if control.judge]
    return [_result(name, tier["name"], Verdict(status, message, {})) for name in judged]


def judge(evidence: Evidence) -> list[Result]:
    """Every control over one tier with files, from its evidence alone."""
    results = []
    name = evidence.tier["name"]
    if evidence.tier["state"] == "vanished":
        gone = evidence.place.missing
        results.append(_result("KV-01", name, judge_place.vanished(evidence.tier, not gone)))
        if gone:
            rest = _all(evidence.tier, NOT_APPLICABLE, "nothing lies at its path any more")
            return results + [one for one in rest if one["control"] != "KV-01"]
    for control, entry in CONTROLS.items():
        if entry.judge and not (results and control == "KV-01"):
            results.append(_result(control, name, entry.judge(evidence)))
    return results


def _audit_tier(tier: Tier, host: Host, deadline: float, buckets: Mapping[str, Any] | None = None) -> list[Result]:
    if tier["state"] == "absent" and tier["path"]:
        results = _all(tier, NOT_APPLICABLE, "the tier is absent")
        first = _result("KV-01", tier["name"], judge_place.absent(tier, leftover.traces(tier)))
        return [first] + [one for one in results if one["control"] != "KV-01"]
    if tier["state"] in ("planned", "absent"):
        return _all(tier, NOT_APPLICABLE, "the tier is {}".format(tier["state"]))
    if not tier["path"]:
        results = _without_files(tier, host)
        if tier["bucket"]:
            verdict = judge_bucket.bucket_expires(tier, buckets, host.now)
            results.append(_result("KV-09", tier["name"], verdict))
        return results
    try:
        return judge(collect(tier, host, deadline))
    except OSError as error:
        return _all(tier, UNKNOWN, f"evidence could not be collected: {error}")


def _without_files(tier: Tier, host: Host) -> list[Result]:
    """A tier that leaves no files is judged by the settings of the engines in its services, where it names some."""
    results = _all(tier, NOT_APPLICABLE, "store {} keeps no files on this host".format(tier["store"]))
    processes = [one for one in host.processes or [] if discovery.is_of(one.unit, tier["services"])]
    if not processes:
        return results
    running = evidence_engine.running(processes, discovery.engines(tier))
    verdict = judge_engine.settings_safe(tier, host.tiers, running, host.declared)
    return [_result("KV-13", tier["name"], verdict) if one["control"] == "KV-13" else one for one in results]


def _audit_memory(entry: dict[str, Any], host: Host) -> list[Result]:
    """The files in memory of one service, judged like a tier's blocks."""
    owners = [tier["owner"] for tier in host.tiers if tier["name"] in entry["tiers"] and tier["owner"] is not None]
    uids = [evidence_host.account_of(owner).uid for owner in owners]
    judged = memory.audit(entry, host.processes, host.root, uids)
    return [_result(control, memory.name_of(entry), verdict) for control, verdict in judged.items()]


def _waiver_problem(waiver: Any, today: datetime.date) -> str | None:
    if not isinstance(waiver, dict):
        return "it is not a mapping"
    for key in ("control", "tier", "reason"):
        if not isinstance(waiver.get(key), str) or not waiver[key].strip():
            return f"{key} is missing"
    if waiver["control"] not in CONTROLS:
        return f"there is no control {waiver['control']}"
    until = str(waiver.get("until") or "")
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", until, re.ASCII):
        return "until is not a date like 2027-03-31"
    try:
        end = datetime.date.fromisoformat(until)
    except ValueError:
        return f"until is no date: {until}"
    return f"it expired on {until}" if end < today else None


def apply_waivers(results: Sequence[Result], waivers: Sequence[Any], now: float, tiers: Sequence[str]) -> list[Result]:
    """The results with what is waived marked so, and one more finding for each waiver that is void.

    A waiver for a tier that this host does not have is meant for another host.
    """
    today = datetime.datetime.fromtimestamp(now, datetime.timezone.utc).date()
    valid: dict[tuple[str, str], dict[str, Any]] = {}
    void: list[Result] = []
    for waiver in waivers:
        tier = waiver.get("tier") if isinstance(waiver, dict) else None
        if isinstance(tier, str) and tier.strip() and tier not in tiers:
            continue
        problem = _waiver_problem(waiver, today)
        if problem is None:
            valid[waiver["control"], waiver["tier"]] = waiver
            continue
        facts = {key: str(waiver.get(key)) for key in ("control", "tier", "reason", "until")} if tier else {}
        about = "{} of {}".format(waiver.get("control"), tier) if tier else "a waiver"
        message = f"the waiver for {about} is void: {problem}" if tier else f"{about} is void: {problem}"
        remedy = "remove it, or write control, tier, reason and until (a date) anew"
        void.append(_result("WAIVER", str(tier or "-"), Verdict(FAIL, message, facts, remedy)))
    final = []
    for result in results:
        found = valid.get((result["control"], result["tier"]))
        if found and result["status"] in (FAIL, UNKNOWN):
            note = {"reason": found["reason"], "until": str(found["until"]), "was": result["status"]}
            message = "waived until {} ({}): {}".format(note["until"], note["reason"], result["message"])
            evidence = dict(result["evidence"], waiver=clean(note))
            result = dict(result, status=WAIVED, message=clean(message), evidence=evidence)
        final.append(result)
    return final + void


def map_digest(document: Document) -> str:
    """A digest of a data map that is the same for the same map."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def report(document: Document, results: Sequence[Result], now: float) -> dict[str, Any]:
    """The audit's answer from its results."""
    counts = {status: sum(result["status"] == status for result in results) for status in STATUSES}
    return {
        "schema": SCHEMA,
        "host": document["host"],
        "time": now,
        "map_digest": map_digest(document),
        "verdict": "fail" if counts[FAIL] or counts[UNKNOWN] else "pass",
        "counts": counts,
        "results": list(results),
    }


def audit(
    document: Document,
    now: float | None = None,
    waivers: Sequence[Any] = (),
    max_seconds: float = MAX_SECONDS,
    map_path: str = PATH,
    buckets: Mapping[str, Any] | None = None,
    past: history.History | None = None,
) -> dict[str, Any]:
    """Judge every tier of a validated data map on this host, and those of the installed map that it left out.

    Changes nothing. now: Unix time in seconds; max_seconds: what the walks through all tiers may take together;
    map_path: the installed map; buckets: answers of bucket_lifecycle_info by tier, None where no bucket was asked;
    past: the history of audits, None if it is not judged.
    """
    now = time.time() if now is None else now
    end = time.monotonic() + max_seconds
    host = host_facts(document, now, map_path)
    document = merge(host.installed, document)
    walked = [tier for tier in document["tiers"] if tier["path"] and tier["state"] in ("present", "vanished")]
    results: list[Result] = []
    left = len(walked)
    for tier in document["tiers"]:
        # Tiers share what is left, so a large one cannot starve those after it.
        share = max(0.0, end - time.monotonic()) / max(1, left)
        results += _audit_tier(tier, host, time.monotonic() + share, buckets)
        left -= tier in walked
    for entry in document["memory"]:
        results += _audit_memory(entry, host)
    if past is not None:
        results = history.judge(results, past, now)
    names = [tier["name"] for tier in document["tiers"]] + [memory.name_of(entry) for entry in document["memory"]]
    results = apply_waivers(results, waivers, now, names)
    return report(document, results, now)
