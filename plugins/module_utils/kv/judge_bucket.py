# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""KV-09: what bucket_lifecycle_info found out about a tier's bucket, as a control. Pure.

A bucket is asked from where boto3 and credentials are, not from the tier's host; a playbook hands the answer over.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import judge_names
from .judge import FAIL, NOT_APPLICABLE, PASS, UNKNOWN, Verdict

# An answer may be that old, so that none of an earlier run is taken for one of today.
MAX_AGE = 3600
NOBODY_KNOWS = ("denied", "unreachable", "unknown")
_ASKED = ("bucket", "endpoint", "prefix", "retention_minutes")
_AGAIN = "run the playbook audit"


def bucket_expires(tier: Mapping[str, Any], answers: Mapping[str, Any] | None, now: float) -> Verdict:
    """answers: what bucket_lifecycle_info returned, by tier; None where no bucket was asked in this run."""
    if answers is None:
        message = "this run asked no bucket: the playbooks audit and harden do, from kv_bucket_host"
        return Verdict(NOT_APPLICABLE, message, {})
    doubt = why_not(tier, answers, now)
    return doubt if doubt is not None else _judged(answers[tier["name"]])


def why_not(tier: Mapping[str, Any], answers: Mapping[str, Any], now: float) -> Verdict | None:
    """Why the answer about a tier's bucket cannot be believed, None if it can."""
    answer = answers.get(tier["name"])
    if not isinstance(answer, Mapping):
        return Verdict(UNKNOWN, "nobody asked the bucket", {}, _AGAIN)
    if not isinstance(answer.get("kept"), bool) or not isinstance(answer.get("asked"), Mapping):
        reason = str(answer.get("msg") or "the answer is none of bucket_lifecycle_info's")
        return Verdict(UNKNOWN, f"the bucket could not be asked: {reason}", {}, "mend that on kv_bucket_host")
    asked = answer["asked"]
    other = [name for name in _ASKED if asked.get(name) != tier[name]]
    if other:
        message = f"the answer is about another {', '.join(other)} than the data map's"
        return Verdict(UNKNOWN, message, {}, _AGAIN)
    age = now - asked["time"] if isinstance(asked.get("time"), (int, float)) else None
    if age is None or abs(age) > MAX_AGE:
        shown = "has no time" if age is None else f"is {round(age / 60)} minutes old"
        return Verdict(UNKNOWN, f"the answer {shown}", {}, _AGAIN + "; set the clocks (NTP) of both hosts")
    return None


def names_tell_nothing(tier: Mapping[str, Any], answers: Mapping[str, Any] | None, now: float) -> Verdict | None:
    """KV-10 of the bucket, None where no canary prompt of it is known."""
    if answers is None or why_not(tier, answers, now) is not None:
        return None
    return judge_names.in_bucket(answers[tier["name"]])


def _judged(answer: Mapping[str, Any]) -> Verdict:
    status, kept_by = str(answer.get("status")), str(answer.get("kept_by"))
    findings = [one for one in answer.get("findings") or () if isinstance(one, Mapping)]
    evidence = _evidence(answer, findings)
    if answer["kept"] and kept_by in ("rules", "sweeper"):
        notes = [f"{one.get('code')}: {one.get('message')}" for one in findings]
        how = "its rules keep the retention" if kept_by == "rules" else "the sweeper keeps the retention"
        return Verdict(PASS, "; ".join([f"{how}, and the listing shows nothing overdue", *notes]), evidence)
    open_ = [one for one in findings if one.get("breaks") and not one.get("accepted")]
    message = "; ".join(f"{one.get('code')}: {one.get('message')}" for one in open_)
    remedy = "; ".join(dict.fromkeys(str(one.get("remedy")) for one in open_))
    if status in NOBODY_KNOWS and not open_:
        return Verdict(UNKNOWN, str(answer.get("message")), evidence, _AGAIN + " when that is mended")
    return Verdict(FAIL, message or str(answer.get("message")), evidence, remedy or "run the role kv_bucket")


def _evidence(answer: Mapping[str, Any], findings: list[Mapping[str, Any]]) -> dict[str, Any]:
    proof = answer.get("proof") or {}
    result: dict[str, Any] = {
        name: answer.get(name) for name in ("status", "kept_by", "days", "worst_minutes", "rules")
    }
    result.update(findings=sorted({str(one.get("code")) for one in findings}), asked=answer["asked"])
    result.update(accepted=sorted({str(one.get("code")) for one in findings if one.get("accepted")}))
    result["listing_complete"] = proof.get("complete")
    for kind in ("objects", "versions", "uploads"):
        count = proof.get(kind) or {}
        result[kind] = {name: count.get(name) for name in ("seen", "overdue", "oldest_minutes")}
    return result
