# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The audit: every control over every tier of a host. Evidence is collected first, then judged by pure functions."""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

from . import datamap, history, judge_found
from .control_list import CONTROLS, Result, memory_name, result_of
from .datamap import PATH, Document, merge
from .judge import FAIL, STATUSES, UNKNOWN, WAIVED, Verdict, clean

SCHEMA = 1
MAX_SECONDS = 60.0


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
        void.append(result_of("WAIVER", str(tier or "-"), Verdict(FAIL, message, facts, remedy)))
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
    found: Mapping[str, Any] | None = None,
    full: bool = False,
) -> dict[str, Any]:
    """Judge every tier of a validated data map on this host, and those of the installed map that it left out.

    Changes nothing. now: Unix time in seconds; max_seconds: what the walks through all tiers may take together;
    map_path: the installed map; buckets: answers of bucket_lifecycle_info by tier, None where no bucket was asked;
    past: the history of audits, None if it is not judged; found: what tiers_found.look() gave, None if what no tier
    names is not judged; full: walk through large tiers too, whatever their records say.
    """
    now = time.time() if now is None else now
    end = time.monotonic() + max_seconds
    installed, problem = datamap.installed_map(map_path)
    given, document = document, merge(installed, document)
    results: list[Result] = []
    if document["tiers"] or document["memory"]:
        # Most of what a module ships, and Python compiles all of it on each host: not where there is nothing to judge.
        from . import evidence_tier, judge_tier

        host = evidence_tier.host_facts(given, now, installed, problem)
        results = judge_tier.audit(document, host, end, buckets, full)
    if past is not None:
        results = history.judge(results, past, now)
    names = [tier["name"] for tier in document["tiers"]] + [memory_name(entry) for entry in document["memory"]]
    if found is not None:
        judged = judge_found.judge(document, found, os.geteuid() == 0)
        results += [result_of("KV-01", name, verdict) for name, verdict in judged]
        names += [name for name, _verdict in judged]
    results = apply_waivers(results, waivers, now, names)
    return report(document, results, now)
