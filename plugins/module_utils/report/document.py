# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""One document about a fleet, from what each host answered. Pure: what report.json holds is made here."""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..kv.judge_found import HOST, PREFIX

SCHEMA = 1
BAD = ("fail", "unknown")
STATUSES = ("pass", "fail", "unknown", "not_applicable", "waived")
AUDITED, UNREACHABLE, FAILED, NOT_AUDITED = "audited", "unreachable", "failed", "not audited"
# Between two audits of a host this long is a gap, unless it says otherwise.
GAP_SECONDS = 7200
_SEVERITY = {"high": 0, "medium": 1, "low": 2}


def _mapping(value: Any) -> dict[str, Any]:
    return dict(value) if isinstance(value, Mapping) else {}


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else []


def _number(value: Any) -> float | None:
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e18
    return value if good else None


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def failures(report: Mapping[str, Any], fail_on: str) -> list[str]:
    """One line for each host that fails. fail_on: high, any or none, the severities of findings that count."""
    severities = {"high": ("high",), "any": tuple(_SEVERITY), "none": ()}[fail_on]
    lines = []
    for one in report["hosts"]:
        if one["state"] != AUDITED or one["reason"]:
            lines.append(f"{one['name']}: {one['state']}: {one['reason']}")
            continue
        found = [r for r in one["results"] if r["status"] in BAD and r["severity"] in severities]
        names = ", ".join(dict.fromkeys(r["control"] for r in found))
        said = [f"{len(found)} findings: {names}"] if found else []
        if one["undeclared"] and severities:
            said.append(f"{len(one['undeclared'])} places that no data map names")
        if said:
            lines.append(f"{one['name']}: {'; '.join(said)}")
    return lines


def iso(seconds: Any) -> str:
    """A time as UTC text, "" for none."""
    number = _number(seconds)
    try:
        moment = datetime.datetime.fromtimestamp(number or 0, datetime.timezone.utc)
    except (OverflowError, OSError, ValueError):
        return ""
    return moment.strftime("%Y-%m-%d %H:%M UTC") if number is not None else ""


def host(name: str, answer: Any, data_map: Any = None, found: Any = None) -> dict[str, Any]:
    """One host. answer: the registered result of kv_audit; found: that of kv_tier_info."""
    answer, known = _mapping(answer), _mapping(_mapping(found).get("found"))
    audit = _mapping(answer.get("audit"))
    results = [_result(one) for one in _list(audit.get("results")) if isinstance(one, Mapping)]
    state, reason = AUDITED, ""
    if answer.get("unreachable"):
        state, reason = UNREACHABLE, _text(answer.get("msg"))
    elif not audit:
        state = FAILED if answer.get("failed") else NOT_AUDITED
        reason = _text(answer.get("msg")) or "no audit came back from this host"
    tiers = [_tier(one, results) for one in _list(_mapping(data_map).get("tiers")) if isinstance(one, Mapping)]
    named = {one["name"] for one in tiers}
    tiers += [
        _tier({"name": name}, results) for name in dict.fromkeys(r["tier"] for r in results) if _is_tier(name, named)
    ]
    if audit and answer.get("failed"):
        reason = _text(answer.get("msg")) or "the audit did not end"
    waived = {one["tier"] for one in results if one["status"] == "waived"}
    undeclared = [one for one in _undeclared(_list(known.get("tiers")), tiers) if PREFIX + one["where"] not in waived]
    bad = any(one["status"] in BAD for one in results)
    history = [line for line in _list(answer.get("history")) if isinstance(line, Mapping)]
    return {
        "name": name,
        "state": state,
        "reason": reason,
        "verdict": "fail" if state != AUDITED or reason or bad or undeclared else "pass",
        "time": _number(audit.get("time")),
        "counts": {status: sum(one["status"] == status for one in results) for status in STATUSES},
        "tiers": tiers,
        "undeclared": undeclared,
        "listeners": [_mapping(one) for one in _list(known.get("listeners"))],
        "unread": [_text(one) for one in _list(known.get("unread"))],
        "scan_complete": _mapping(known.get("scan")).get("complete"),
        "results": results,
        "history": [_line(one) for one in history],
        "history_problems": [_text(one) for one in _list(answer.get("history_problems"))],
        "gaps": _gaps(answer, history),
    }


def _gaps(answer: Mapping[str, Any], history: Sequence[Mapping[str, Any]]) -> list[dict[str, float]]:
    """What the host counted itself, over all it keeps; the lines that came from it are only some of them."""
    if "history_gaps" not in answer:
        return gaps(history)
    pairs = [(_number(one.get("from")), _number(one.get("to"))) for one in map(_mapping, _list(answer["history_gaps"]))]
    return [{"from": one, "to": two} for one, two in pairs if one is not None and two is not None and two > one]


def _is_tier(name: str, named: Iterable[str]) -> bool:
    return bool(name) and name not in named and name != HOST and not name.startswith(PREFIX)


def _result(one: Mapping[str, Any]) -> dict[str, Any]:
    result = {
        key: _text(one.get(key)) for key in ("control", "title", "severity", "tier", "status", "message", "remedy")
    }
    # What is no known status has not passed.
    if result["status"] not in STATUSES:
        result["status"] = "unknown"
    return {**result, "evidence": _mapping(one.get("evidence"))}


def _line(one: Mapping[str, Any]) -> dict[str, Any]:
    tiers = _mapping(one.get("tiers"))
    return {
        "time": _number(one.get("time")),
        "verdict": _text(one.get("verdict")),
        "bytes": sum(_number(_mapping(tier).get("block_bytes")) or 0 for tier in tiers.values()),
        "oldest_age_seconds": max(
            (_number(_mapping(tier).get("oldest_age_seconds")) or 0 for tier in tiers.values()), default=None
        ),
    }


def gaps(history: Sequence[Mapping[str, Any]], longest: float = GAP_SECONDS) -> list[dict[str, float]]:
    """Where longer than that passed between two audits."""
    times = [time for time in (_number(line.get("time")) for line in history) if time is not None]
    return [{"from": one, "to": two} for one, two in zip(times, times[1:]) if two - one > longest]


def _tier(tier: Mapping[str, Any], results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    name = _text(tier.get("name"))
    mine = {one["control"]: one for one in results if one["tier"] == name}
    evidence = {control: one["evidence"] for control, one in mine.items()}
    blocks, age = evidence.get("KV-04", {}), evidence.get("KV-06", {})
    minutes = _number(tier.get("retention_minutes"))
    limit = _number(age.get("limit_seconds"))
    return {
        "name": name,
        "store": _text(tier.get("store")),
        "state": _text(tier.get("state")),
        "where": _text(tier.get("path") or tier.get("bucket")),
        "owner": _text(tier.get("owner")),
        "purpose": _text(tier.get("purpose")),
        "data_owner": _text(tier.get("data_owner")),
        "engine": _text(evidence.get("KV-14", {}).get("version")),
        "encryption": mine["KV-02"]["status"] if "KV-02" in mine else "",
        "encryption_message": mine["KV-02"]["message"] if "KV-02" in mine else "",
        "retention_minutes": minutes if minutes is not None else (limit / 60 if limit is not None else None),
        "limit_seconds": limit if limit is not None else (minutes * 60 if minutes is not None else None),
        "oldest_age_seconds": _number(age.get("oldest_age_seconds")),
        "overdue": _number(age.get("overdue")),
        "blocks": _number(blocks.get("blocks")),
        "block_bytes": _number(blocks.get("block_bytes")),
        "ages": [
            [_number(pair[0]), _number(pair[1]) or 0]
            for pair in _list(age.get("ages"))
            if isinstance(pair, (list, tuple)) and len(pair) == 2
        ],
    }


def _undeclared(found: Sequence[Any], tiers: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What was found and is in no data map."""
    declared = {os.path.normpath(one["where"]) for one in tiers if one["where"]}
    stores = {one["store"] for one in tiers}
    extra = []
    for one in map(_mapping, found):
        places = [_text(one.get(key)) for key in ("path", "inside", "bucket") if one.get(key)]
        # A listener's tier has no place to compare.
        known = {os.path.normpath(place) for place in places} & declared if places else one.get("store") in stores
        if not known:
            how = [_mapping(item) for item in _list(one.get("found"))]
            extra.append(
                {
                    "store": _text(one.get("store")),
                    "where": _text(one.get("path") or one.get("bucket") or one.get("inside")),
                    "sure": _text(one.get("sure")),
                    "engine": " ".join(
                        _text(item.get(key)) for item in how[:1] for key in ("engine", "version")
                    ).strip(),
                    "found_in": [
                        " ".join(_text(item.get(key)) for key in ("kind", "pid", "file", "unit", "container")).strip()
                        for item in how[:5]
                    ],
                }
            )
    return extra


def build(hosts: Iterable[Mapping[str, Any]], now: float, title: str = "KV state of the fleet") -> dict[str, Any]:
    """The whole report."""
    hosts = sorted((dict(one) for one in hosts), key=lambda one: one["name"])
    controls: dict[str, dict[str, str]] = {}
    waivers = []
    for one in hosts:
        for result in one["results"]:
            control = result["control"]
            controls.setdefault(control, {key: result[key] for key in ("control", "title", "severity")})
            if result["status"] == "waived":
                note = _mapping(result["evidence"].get("waiver"))
                waivers.append(
                    {
                        "host": one["name"],
                        "tier": result["tier"],
                        "control": control,
                        "until": _text(note.get("until")),
                        "reason": _text(note.get("reason")),
                    }
                )
    counts = {status: sum(one["counts"][status] for one in hosts) for status in STATUSES}
    return {
        "schema": SCHEMA,
        "title": title,
        "generated": now,
        "verdict": "fail" if not hosts or any(one["verdict"] != "pass" for one in hosts) else "pass",
        "counts": {
            **counts,
            "hosts": len(hosts),
            "hosts_failing": sum(one["verdict"] != "pass" for one in hosts),
            "hosts_not_audited": sum(one["state"] != AUDITED for one in hosts),
            "undeclared": sum(len(one["undeclared"]) for one in hosts),
        },
        "controls": [controls[key] for key in sorted(controls)],
        "waivers": sorted(waivers, key=lambda one: (one["until"], one["host"], one["tier"], one["control"])),
        "hosts": hosts,
    }


def merge(reports: Sequence[Mapping[str, Any]], now: float) -> dict[str, Any]:
    """One report out of several runs: of each host the newest audit; a host that no run reached stays so."""
    best: dict[str, Mapping[str, Any]] = {}
    for report in reports:
        if report.get("schema") != SCHEMA:
            raise ValueError(f"a report of schema {report.get('schema')!r} cannot be merged, only {SCHEMA}")
        for one in report["hosts"]:
            rank = (one["state"] == AUDITED, one["time"] or 0)
            other = best.get(one["name"])
            if other is None or rank > (other["state"] == AUDITED, other["time"] or 0):
                best[one["name"]] = one
    return build(best.values(), now, str(reports[0]["title"]) if reports else "KV state of the fleet")


def by_severity(results: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """What is bad first, the severe first."""
    order = {"fail": 0, "unknown": 1, "waived": 2, "pass": 3, "not_applicable": 4}
    return sorted(
        results,
        key=lambda one: (order[one["status"]], _SEVERITY.get(one["severity"], 3), one["control"], one["tier"]),
    )
