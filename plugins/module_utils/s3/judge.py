# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Does this bucket keep this retention? Pure: evidence in, status and findings out.

Rules are judged by what they surely do: only an enabled rule without filters whose prefix the tier's keys begin with
covers the tier. Whatever else there is about the tier's keys is named and counts for nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from . import arithmetic, errors, merge
from .document import Rule
from .evidence import SUSPENDED, Evidence
from .findings import Findings
from .keys import Keys
from .proof import Proof

OK, ABSENT, INSUFFICIENT, NOT_ENFORCEABLE = "ok", "absent", "insufficient", "not_enforceable"
SKEW_SECONDS = 300
# What the sweeper does where rules do not.
SWEPT = {
    *("too_long", "noncurrent_kept", "noncurrent_too_long", "newer_noncurrent_kept", "uploads_kept", "rule_changed"),
    "versioning_suspended",
}
_LOOPBACK = ("http://127.", "http://localhost", "http://[::1]")


class Policy(NamedTuple):
    """What the bucket has to keep, in minutes. grace: what the sweeper may be late."""

    retention: int
    lag: int = arithmetic.DEFAULT_LAG
    grace: int = 0


class Verdict(NamedTuple):
    """status: of the rules and of what lies there; kept_by: rules, sweeper or nothing."""

    status: str
    kept_by: str
    findings: Findings
    days: int | None
    worst_minutes: int | None


def judge(
    found: Evidence,
    keys: Keys,
    policy: Policy,
    sweeper: dict[str, Any] | None = None,
    own: str = "",
    accepted: Sequence[str] = (),
) -> Verdict:
    """sweeper: {"alive": bool, "message": str} where one is to keep the retention; own: how ids of our rules begin."""
    findings = Findings(tuple(accepted))
    best = merge.days_wanted(policy.retention, policy.lag, found.versioned)
    prefix = effective_prefix(found, keys, own)
    rules = found.rules or []
    covering = [rule for rule in rules if covers(rule, prefix)]
    if found.refusal is not None:
        return _without_rules(findings, found, keys, policy, sweeper)
    worst = _expiry(findings, rules, covering, prefix, policy, best)
    # Where no rule can keep the retention, the sweeper keeps old versions and uploads as well.
    _versions(findings, found, covering, policy, best)
    _uploads(findings, covering, policy, best)
    _own(findings, found, rules, prefix, best, own)
    _place(findings, found)
    _lock(findings, found, policy)
    overdue = _overdue(findings, found, keys)
    if best is None:
        span = arithmetic.least_retention(policy.lag, _after(found, policy.lag))
        findings.add(
            "not_enforceable",
            f"no rule of whole days keeps {policy.retention} minutes: the shortest keeps {span}",
        )
        status = NOT_ENFORCEABLE
    elif not findings.breaking():
        return Verdict(OK, "rules", findings, best, worst)
    else:
        about = [rule for rule in rules if _about(rule, prefix) and rule.enabled]
        status = INSUFFICIENT if covering or about or worst is not None else ABSENT
    kept = "nothing"
    if (best is None or sweeper is not None) and _sweeper(findings, sweeper) and not overdue:
        # With a rule as the backstop, the sweeper makes up for what rules lack.
        left = [one for one in findings.breaking() if one.code not in SWEPT]
        kept = "nothing" if left else "sweeper"
    return Verdict(status, kept, findings, best, worst)


def _without_rules(
    findings: Findings, found: Evidence, keys: Keys, policy: Policy, sweeper: dict[str, Any] | None
) -> Verdict:
    """The verdict where the server tells nothing about rules: only what lies there counts."""
    _place(findings, found)
    _lock(findings, found, policy)
    overdue = _overdue(findings, found, keys)
    refusal = found.refusal
    status = refusal.kind if refusal is not None else errors.UNKNOWN
    alive = status == errors.UNSUPPORTED and _sweeper(findings, sweeper)
    kept = "sweeper" if alive and not overdue and not findings.breaking() else "nothing"
    return Verdict(status, kept, findings, None, None)


def effective_prefix(found: Evidence, keys: Keys, own: str) -> str:
    """The prefix that the tier's keys have on this server, which may have folded slashes."""
    return prefix_of(found.proof, found.rules or [], keys, own)


def prefix_of(seen: Proof | None, rules: Sequence[Rule], keys: Keys, own: str) -> str:
    """The same. In a bucket without keys of the tier, our rule tells how they were kept."""
    if seen is not None and (seen.folded or (seen.empty and own and merge.is_there(rules, own, keys.folded))):
        return keys.folded
    return keys.prefix


def covers(rule: Rule, prefix: str) -> bool:
    return rule.enabled and not rule.filtered and prefix.startswith(rule.prefix) and not rule.more


def _about(rule: Rule, prefix: str) -> bool:
    """True if the rule could concern some key of the tier, or was meant to."""
    first, meant = (text.strip("/*").lower().partition("/")[0] for text in (prefix, rule.prefix))
    near = bool(first) and first == meant
    return prefix.startswith(rule.prefix) or rule.prefix.startswith(prefix) or near


def _after(found: Evidence, lag: int) -> int:
    return arithmetic.worst_minutes(1, lag) if found.versioned else 0


def _name(rule: Rule) -> str:
    return f"rule {rule.id or '(no id)'}"


def _expiry(
    findings: Findings, rules: Sequence[Rule], covering: Sequence[Rule], prefix: str, policy: Policy, best: int | None
) -> int | None:
    """Findings about expiry of current objects; the longest life in minutes, None without any rule that surely acts."""
    days = [rule.days for rule in covering if rule.days is not None and rule.days >= 1]
    held = bool(days)
    for rule in rules:
        if _about(rule, prefix) and (rule.days is not None or rule.date or rule.transitions):
            _holes(findings, rule, prefix, held)
        if rule.more:
            findings.add("rule_unknown_parts", f"{_name(rule)} holds {', '.join(rule.more)}")
        if covers(rule, prefix) and rule.days is not None and rule.prefix != prefix:
            where = f"everything under {rule.prefix!r}" if rule.prefix else "the whole bucket"
            findings.add("rule_wider", f"{_name(rule)} expires {where}, not the tier's keys alone")
    if not days:
        breaking = {one.code for one in findings.all if one.breaks}
        if not breaking:
            findings.add("no_rule", f"no rule expires keys under {prefix!r}")
        return None
    worst = arithmetic.worst_minutes(min(days), policy.lag)
    if best is not None and worst > policy.retention:
        findings.add(
            "too_long",
            f"{min(days)} days let an object live up to {worst} minutes, the retention is {policy.retention}; "
            f"the longest rule that keeps it has {best} days",
        )
    return worst


def _holes(findings: Findings, rule: Rule, prefix: str, held: bool) -> None:
    """Why a rule about the tier's keys does not surely expire them; no hole matters where another rule does."""
    breaks = False if held else None
    parts = bool(rule.tags) + (rule.above is not None) + (rule.below is not None)
    if not rule.enabled:
        findings.add("rule_disabled", f"{_name(rule)} is disabled", breaks)
        return
    if not prefix.startswith(rule.prefix):
        if held:
            return
        findings.add("prefix_not_covered", f"{_name(rule)} has {rule.prefix!r}, keys begin with {prefix!r}", breaks)
        return
    if parts > 1:
        findings.add("filter_and", f"{_name(rule)} asks for several things at once", breaks)
    if rule.tags:
        findings.add("filter_tag", f"{_name(rule)} takes only objects with a tag", breaks)
    if rule.above is not None or rule.below is not None:
        findings.add("filter_size", f"{_name(rule)} takes only objects of some sizes", breaks)
    if rule.date:
        findings.add("date_rule", f"{_name(rule)} expires on {rule.date}", breaks)
    if rule.days is not None and rule.days < 1:
        findings.add("days_zero", f"{_name(rule)} says {rule.days} days", breaks)
    if rule.days is None and not rule.date and rule.transitions:
        findings.add("transition_only", f"{_name(rule)} only moves objects to another class", breaks)


def _versions(findings: Findings, found: Evidence, covering: Sequence[Rule], policy: Policy, best: int | None) -> None:
    if not found.versioned:
        return
    if found.versioning == SUSPENDED:
        fatal = found.server == "Ceph RGW"
        text = "versioning is suspended" + (": this server (Ceph) expires nothing then" if fatal else "")
        findings.add("versioning_suspended", text, fatal)
    state = "is not known, so old versions may be kept" if found.versioning is None else "is or was on"
    breaks = best is not None
    clean = [rule for rule in covering if rule.noncurrent_days is not None and not rule.noncurrent_keep]
    for rule in covering:
        if rule.noncurrent_keep:
            keep = not clean and breaks
            findings.add("newer_noncurrent_kept", f"{_name(rule)} keeps {rule.noncurrent_keep} old versions", keep)
    if not clean:
        findings.add("noncurrent_kept", f"versioning {state}, and no rule expires noncurrent versions", breaks)
    elif best is not None:
        after = min(rule.noncurrent_days or 0 for rule in clean)
        days = [rule.days for rule in covering if rule.days is not None and rule.days >= 1]
        if days:
            total = arithmetic.worst_minutes(min(days), policy.lag) + arithmetic.worst_minutes(after, policy.lag)
            if total > policy.retention:
                findings.add(
                    "noncurrent_too_long",
                    f"{min(days)} and then {after} noncurrent days let data live up to {total} minutes, "
                    f"the retention is {policy.retention}",
                )
    if not any(rule.markers for rule in covering):
        findings.add("delete_markers_kept", f"versioning {state}, and no rule removes expired delete markers")


def _uploads(findings: Findings, covering: Sequence[Rule], policy: Policy, best: int | None) -> None:
    aborts = [rule.abort_days for rule in covering if rule.abort_days is not None and rule.abort_days >= 1]
    if not aborts:
        findings.add("uploads_kept", "no rule aborts unfinished uploads", best is not None)
    elif best is not None and arithmetic.worst_minutes(min(aborts), policy.lag) > policy.retention:
        worst = arithmetic.worst_minutes(min(aborts), policy.lag)
        findings.add("uploads_kept", f"unfinished uploads live up to {worst} minutes of {policy.retention}")


def _own(
    findings: Findings,
    found: Evidence,
    rules: Sequence[Rule],
    prefix: str,
    best: int | None,
    start: str,
) -> None:
    """Our own rules, if there are any, against what they should be."""
    mine = [rule for rule in rules if start and merge.is_own(rule, start)]
    if not mine or not any(rule.enabled for rule in mine):
        return
    target = merge.wanted(start, prefix, best or 1, found.versioned)
    lost = merge.missing([rule for rule in target if rule.id in {one.id for one in mine}], mine)
    # Another limit is judged by what it does, not by who wrote it.
    for rule in lost:
        now = next(one for one in mine if one.id == rule.id)
        if (now.prefix, now.filtered, bool(now.days), now.more) != (rule.prefix, False, bool(rule.days), ()):
            findings.add("rule_changed", f"{_name(rule)} was changed, by the server or by somebody else")


def _place(findings: Findings, found: Evidence) -> None:
    if found.endpoint.startswith("http://") and not found.endpoint.startswith(_LOOPBACK):
        findings.add("http_endpoint", "the endpoint is http")
    if found.public:
        findings.add("public_access", "a policy or grant opens the bucket to everybody")
    if found.encrypted is False:
        findings.add("no_encryption", "the bucket has no default encryption")
    if found.skew_seconds is not None and abs(found.skew_seconds) > SKEW_SECONDS:
        findings.add("clock_skew", f"the server's clock is {round(found.skew_seconds)} s off this host's")
    for name in found.destinations or []:
        findings.add("replicated", f"copies go to {name[:100]}, where these rules do not count")
    for question, why in sorted(found.unread.items()):
        findings.add("not_checked", f"{question}: {why}")


def _lock(findings: Findings, found: Evidence, policy: Policy) -> None:
    if found.lock_days is not None and found.lock_days * arithmetic.DAY > policy.retention:
        findings.add("object_lock", f"new objects are locked for {found.lock_days} days")
    elif found.lock_enabled:
        findings.add("object_lock", "the bucket lets writers lock objects", False)
    if found.held:
        findings.add("object_held", f"locked or held: {', '.join(found.held[:3])}")
    if found.mfa_delete:
        findings.add("mfa_delete", "deletions need MFA")


def _overdue(findings: Findings, found: Evidence, keys: Keys) -> bool:
    """Findings of the listing; True if something is older than allowed or nobody knows."""
    seen = found.proof
    if seen is None:
        return False
    result = seen.result()
    for kind in ("objects", "versions", "uploads"):
        one = result[kind]
        if one["overdue"]:
            text = (
                f"{one['overdue']} of {one['seen']} {kind} are overdue, the oldest has {one['oldest_minutes']} minutes"
            )
            findings.add("overdue_" + kind, f"{text}, for example {one['samples'][0]}")
    if not seen.complete:
        why = "; ".join(f"{name}: {text}" for name, text in seen.unread.items())
        findings.add("proof_incomplete", why or "the listing was cut off at its bound", seen.blind)
    if seen.folded:
        findings.add("slashes_folded", f"the server keeps keys under {keys.folded!r}, not {keys.prefix!r}")
    if seen.strangers:
        names = ", ".join(result["stranger_samples"][:3])
        findings.add("strangers", f"{seen.strangers} keys under the prefix are not the tier's: {names}")
    return bool(seen.blind or seen.objects.overdue or seen.versions.overdue or seen.uploads.overdue)


def _sweeper(findings: Findings, sweeper: dict[str, Any] | None) -> bool:
    if sweeper is None:
        findings.add("sweeper_missing", "nothing keeps the retention between two days")
        return False
    if not sweeper["alive"]:
        findings.add("sweeper_stale", sweeper["message"])
    return bool(sweeper["alive"])
