# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""KV-04, KV-06, KV-07, KV-08, KV-13 and KV-14: a tier's blocks, their age, and what deletes them. Pure."""

from __future__ import annotations

from typing import Any

from . import discovery, judge_engine, offload_table, posture
from .evidence_tier import Evidence, policy_of
from .expiry import EXIT_CODES, MAX_SECONDS
from .judge import Parts, Verdict
from .judge_record import counted, last_pass, seen_whole
from .stores import STORES

_HARDEN = "run the harden playbook"
_MORE_TIME = "give the audit more time (max_seconds), as root"
# Minutes by which cron may be late, and a run may take, without being dead.
_SLACK = 60.0


def no_readable_block(evidence: Evidence) -> Verdict:
    """KV-04."""
    parts, tree, survey, tier = Parts(), evidence.tree, evidence.tree.survey, evidence.tier
    record = last_pass(evidence)
    open_root = evidence.place.exists and posture.reachable(evidence.place, evidence.owner)
    facts: dict[str, Any] = {
        "reachable": None,
        "loose": None,
        "blocks": None,
        "block_bytes": None,
        "temps": survey.temps if survey else None,
        "configs": survey.configs if survey else None,
        "dirs": survey.dirs if survey else None,
        "loose_dirs": survey.loose_dirs if survey else None,
        "readable": None if survey is None else survey.readable if open_root else 0,
        "root_reachable": open_root,
        "first": survey.loose_first if survey else [],
        "source": "walk",
        "complete": tree.complete,
        "pass_age_seconds": 0 if tree.complete else None,
        "seconds": round(survey.seconds, 3) if survey else None,
    }
    if survey is not None:
        facts.update(blocks=survey.blocks, block_bytes=survey.block_bytes, loose=survey.loose)
    if record is not None and not tree.error:
        facts.update(
            source="record of the last full pass",
            pass_age_seconds=int(evidence.host.now - record["last_full"]),
            blocks=record["blocks"],
            block_bytes=record["block_bytes"],
            loose=max(record["loose"], survey.loose if survey else 0),
        )
        parts.note("by the full pass of %d min ago" % (facts["pass_age_seconds"] // 60))
    judged = seen_whole(evidence)
    files = sum(facts[key] or 0 for key in ("blocks", "temps", "configs"))
    if judged or survey is not None:
        facts["reachable"] = files if open_root else 0
    prepare = "kvtier prepare {}".format(tier["name"])
    if facts["reachable"] or (open_root and facts["loose"]):
        parts.fail("%d reachable: other accounts can get to them" % (facts["reachable"] or facts["loose"]), prepare)
    if facts["loose"]:
        parts.fail(
            "%d loose: their modes or ACLs open them to others" % facts["loose"],
            "chmod -R go= {}, then run the service with UMask=0077 ({})".format(tier["path"], _HARDEN),
        )
    if survey is not None and survey.loose_dirs:
        parts.note("%d directories are open, behind a closed root" % survey.loose_dirs)
    if not judged:
        why = tree.gap if record is None or tree.error else ""
        parts.unknown(f"{why}, and no full pass of the last {tier['full_pass_hours']} h is on record", _MORE_TIME)
        if not facts["loose"]:
            facts["loose"] = None
        if not facts["reachable"]:
            facts["reachable"] = None
    return parts.verdict("0 reachable, 0 loose of %d files" % files, facts)


def in_time(evidence: Evidence) -> Verdict:
    """KV-06."""
    parts, tree, survey, tier, now = Parts(), evidence.tree, evidence.tree.survey, evidence.tier, evidence.host.now
    limit = policy_of(tier).retention
    record = last_pass(evidence)
    facts: dict[str, Any] = {
        "limit_seconds": limit,
        "retention_minutes": tier["retention_minutes"],
        "prompt_log_retention_minutes": evidence.host.prompt_log_minutes,
        "retention_reason": tier["retention_reason"],
        "oldest_age_seconds": None,
        "overdue": survey.overdue if survey else None,
        "overdue_first": survey.overdue_first if survey else [],
        "future": survey.future if survey else None,
        "ages": survey.ages if survey else [],
        "clock_synchronised": evidence.host.clock,
        "source": "walk" if tree.complete else "walk that did not end",
    }
    oldest = survey.oldest_mtime if survey else None
    if record is not None and not tree.error:
        facts["source"] = "record of the last full pass"
        marks = [mtime for mtime in (oldest, record["oldest_mtime"]) if mtime is not None]
        oldest = min(marks) if marks else None
        facts["future"] = max(record["future"], survey.future if survey else 0)
        facts["overdue"] = survey.overdue if survey else 0
    if oldest is not None:
        facts["oldest_age_seconds"] = max(0, int(now - oldest))
        if now - oldest >= limit and not facts["overdue"]:
            facts["overdue"] = 1
    if facts["overdue"]:
        parts.fail(
            "%d blocks older than %d min, the oldest %d min"
            % (facts["overdue"], limit // 60, (facts["oldest_age_seconds"] or 0) // 60),
            "kvtier expire {}, and see KV-07".format(tier["name"]),
        )
    if facts["future"]:
        parts.fail(
            "%d files from the future: their age cannot be told" % facts["future"], "set the clock, then touch them"
        )
    if tier["retention_minutes"] > evidence.host.prompt_log_minutes:
        text = "%d min outlive the prompt log's %d" % (tier["retention_minutes"], evidence.host.prompt_log_minutes)
        if tier["retention_reason"]:
            parts.note("{} (declared: {})".format(text, tier["retention_reason"]))
        else:
            parts.fail(text, "lower retention_minutes or give a retention_reason")
    if evidence.host.clock is False:
        parts.fail("the clock is not synchronised", "run a time service (chrony, systemd-timesyncd)")
    elif evidence.host.clock is None:
        parts.unknown("whether the clock is synchronised cannot be told")
    if not tree.complete and (record is None or tree.error):
        parts.unknown(tree.gap, _MORE_TIME)
    age = facts["oldest_age_seconds"]
    passed = "no blocks" if age is None else "oldest block %d min of at most %d" % (age // 60, limit // 60)
    return parts.verdict(passed, facts)


def expiry_alive(evidence: Evidence) -> Verdict:
    """KV-07."""
    parts, tier, record, now = Parts(), evidence.tier, evidence.record, evidence.host.now
    facts: dict[str, Any] = {
        "job": "kvtier expire {}".format(tier["name"]),
        "every_minutes": tier["expire_every_minutes"],
        "cron_running": evidence.cron.running,
        "cron_file_problem": evidence.cron.file_problem,
        "last_run": None,
        "map_problem": evidence.host.installed_problem,
        "map_differs": [],
    }
    if record is not None:
        keys = ("started", "finished", "exit", "full", "seconds", "expired", "expired_bytes", "overdue", "messages")
        facts["last_run"] = {key: record[key] for key in keys}
        facts["last_run"]["last_success"] = record["last_success"]
    _judge_run(evidence, parts)
    if evidence.cron.running is False:
        parts.fail("cron is not running", "systemctl enable --now cron")
    elif evidence.cron.running is None:
        parts.unknown("whether cron runs cannot be seen", "run the audit as root")
    if evidence.cron.file_problem:
        parts.fail(evidence.cron.file_problem, _HARDEN)
    installed = evidence.installed_tier()
    if evidence.host.installed is None:
        parts.fail(f"the host's data map: {evidence.host.installed_problem}", _HARDEN)
    elif installed is None:
        parts.fail("the host's data map does not have this tier", _HARDEN)
    else:
        facts["map_differs"] = sorted(key for key in tier if tier[key] != installed.get(key))
        if facts["map_differs"]:
            parts.fail("the host's data map differs in {}".format(", ".join(facts["map_differs"])), _HARDEN)
    if record is None or record["finished"] is None:
        return parts.verdict("a run is under way", facts)
    age = max(0, int(now - record["finished"]))
    passed = "last run %d s ago took %.1f s, deleted %d" % (age, record["seconds"], record["expired"])
    return parts.verdict(passed, facts)


def _judge_run(evidence: Evidence, parts: Parts) -> None:
    """The last run's record: recent, ended, and ended well."""
    tier, record, now, log = evidence.tier, evidence.record, evidence.host.now, "see journalctl -t kvtier"
    window = 2 * tier["expire_every_minutes"] * 60 + _SLACK
    if record is None:
        parts.fail("no run of its expiry is on record", f"{_HARDEN}, then {log}")
        return
    running = record["finished"] is None
    last = record["started"] if running else record["finished"]
    age = now - last
    if age < -_SLACK:
        parts.fail("the last run is recorded in the future", "set the clock")
    elif running and age > MAX_SECONDS + window:
        parts.fail("the last run began %d min ago and was killed" % (age // 60), log)
    elif running and record["last_success"] is None:
        parts.unknown("its first run has not ended yet", "audit again later")
    elif running and now - record["last_success"] > window + age + MAX_SECONDS:
        parts.fail("no run has ended well for %d min" % ((now - record["last_success"]) // 60), log)
    elif not running and age > window:
        parts.fail("the last run was %d min ago, its interval is %d" % (age // 60, tier["expire_every_minutes"]), log)
    elif record["exit"]:
        text = "; ".join(record["messages"][:2]) or EXIT_CODES.get(record["exit"], "no message")
        parts.fail("the last run ended with %d: %s" % (record["exit"], text), log)


def no_leftovers(evidence: Evidence) -> Verdict:
    """KV-08. Which namespaces nobody reads any more is only known while the engine runs; else it says why not."""
    parts, tree, survey, dead = Parts(), evidence.tree, evidence.tree.survey, evidence.dead
    stale_temps, strangers = counted(evidence, "stale_temps"), counted(evidence, "strangers")
    facts: dict[str, Any] = {
        "stale_temps": stale_temps,
        "stale_temp_bytes": survey.stale_temp_bytes if survey else None,
        "strangers": strangers,
        "names": tree.foreign,
        "dead_namespaces": dead.evidence() if dead else "not judged",
        "complete": tree.complete,
    }
    if stale_temps:
        parts.fail(
            "%d stale temporaries" % stale_temps, "kvtier expire {}, and see KV-07".format(evidence.tier["name"])
        )
    if strangers:
        names = ", ".join(tree.foreign[:3])
        parts.fail(
            "%d unknown entries%s" % (strangers, f": {names}" if names else ""),
            "move away what does not belong to the store; it is never deleted by us",
        )
    if dead is not None and dead.dead:
        parts.fail(
            "%d dead namespaces with %d bytes: %s"
            % (len(dead.dead), sum(one.size for one in dead.dead), ", ".join(one.name for one in dead.dead[:3])),
            "kvtier expire {} --dead-namespaces".format(evidence.tier["name"]),
        )
    if not seen_whole(evidence):
        parts.unknown(tree.gap, _MORE_TIME)
    return parts.verdict("no stale temporaries, no unknown files", facts)


def settings_safe(evidence: Evidence) -> Verdict:
    """KV-13."""
    tiers = evidence.host.tiers or [evidence.tier]
    return judge_engine.settings_safe(evidence.tier, tiers, evidence.running, evidence.host.declared)


def live_expiry_safe(evidence: Evidence) -> Verdict:
    """KV-14."""
    parts, store = Parts(), STORES[evidence.tier["store"]]
    found = [
        {"pid": one.pid, "unit": one.unit, "version": one.version, "source": one.source} for one in evidence.engines
    ]
    wanted = ".".join(map(str, store.live_from)) if store.live_from else ("any" if store.live else "none")
    facts: dict[str, Any] = {"engines": found, "safe_from": wanted, "running": bool(found), "version": None}
    if evidence.host.processes is None:
        parts.unknown("processes cannot be seen", "run the audit as root")
        return parts.verdict("", facts)
    if not found:
        if evidence.processes:
            parts.unknown(f"processes of its services run, but none is recognised as {store.engine}")
        elif not evidence.host.root:
            parts.unknown("no engine is seen, but only root sees all processes", "run the audit as root")
        return parts.verdict("engine stopped", facts)
    gate = discovery.live_gate(evidence.tier, evidence.engines)
    facts["version"], facts["source"] = gate.version, gate.source
    if gate.allowed is None:
        parts.unknown(gate.reason, "run the audit as root")
    elif not gate.allowed:
        parts.fail(gate.reason, "upgrade the engine, or stop it while blocks expire")
    elif store.engine == "vllm" and offload_table.is_newer(gate.version):
        # Expiry goes on: a block that outlives its retention is worse than a miss in an engine nobody read yet.
        parts.unknown(offload_table.why_unknown(gate.version), "update this collection, then audit again")
    return parts.verdict(f"{gate.reason} ({store.engine} {gate.version or 'of any version'})", facts)
