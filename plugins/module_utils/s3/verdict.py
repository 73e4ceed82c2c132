# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The whole verdict about a bucket, from a module's options to its result."""

from __future__ import annotations

import os
import time
from typing import Any

from . import document, errors, evidence, findings, judge, merge, options, probe, sweep_state
from .client import Bucket
from .errors import S3Error
from .judge import Verdict
from .keys import Keys


def look(params: dict[str, Any]) -> dict[str, Any]:
    """Ask the bucket and judge it. S3Error only for what is wrong with the call itself."""
    options.check(params)
    unknown = sorted(set(params["accept"]) - set(findings.FINDINGS))
    if unknown:
        raise options.BadOption("accept", f"no finding is called {unknown[0]}", "use codes of docs/buckets.md")
    keys, policy = options.keys(params), options.policy(params)
    bucket = Bucket(options.settings(params))
    start = merge.own_start(keys.prefix, params["id_prefix"])
    sweeper = _sweeper(params, bucket, keys)
    # Without a sweeper nothing may be late.
    allowed = policy.retention + (policy.grace if sweeper is not None else 0)
    limits = {"max_entries": params["max_entries"], "max_seconds": params["max_seconds"]}
    try:
        found = evidence.gather(bucket, keys, allowed, limits)
    except S3Error as error:
        if error.kind == errors.USAGE:
            raise
        return _nothing_known(params, error)
    verdict = judge.judge(found, keys, policy, sweeper, start, params["accept"])
    return {
        **_head(params, verdict, str(found.refusal) if found.refusal is not None else ""),
        "days": verdict.days,
        "worst_minutes": verdict.worst_minutes,
        "key_prefix": judge.effective_prefix(found, keys, start),
        "rules": [document.describe(rule) for rule in found.rules or []],
        "bucket": {
            name: getattr(found, name)
            for name in ("versioning", "lock_days", "destinations", "public", "encrypted", "server")
        },
        "proof": found.proof.result() if found.proof is not None else {},
        "canaries": _canaries(params, bucket, keys),
    }


def _canaries(params: dict[str, Any], bucket: Bucket, keys: Keys) -> list[dict[str, Any]]:
    """What the bucket shows of canary prompts."""
    if params["canaries_file"] is None or keys.shape is None:
        return []
    named = params["tier"] or ""
    tiers = tuple({named, named.rpartition("/")[2]})
    return probe.canaries(bucket, keys, tiers, params["canaries_file"], params["max_seconds"])


def _sweeper(params: dict[str, Any], bucket: Bucket, keys: Keys) -> dict[str, Any] | None:
    """Whether a sweeper is at work here, None if none left a record."""
    if params["sweep_state_dir"] is None:
        return None
    job = sweep_state.job_id(params["endpoint"], params["bucket"], keys.prefix)
    path = sweep_state.record_path(job, params["sweep_state_dir"])
    if not os.path.lexists(path):
        return None
    interval = 60 * params["sweep_interval_minutes"]
    return sweep_state.alive(sweep_state.read(path), time.time(), interval, bucket.settings, keys)


def _asked(params: dict[str, Any]) -> dict[str, Any]:
    """What the answer is about, and when it was given."""
    names = ("bucket", "endpoint", "prefix", "retention_minutes")
    return {**{name: params[name] for name in names}, "time": int(time.time())}


def _head(params: dict[str, Any], verdict: Verdict, refusal: str) -> dict[str, Any]:
    kept = verdict.kept_by != "nothing"
    open_ = verdict.findings.breaking()
    parts = [refusal] if refusal else []
    parts += [f"{one.code}: {one.message}. Fix: {one.remedy}." for one in open_[:3]]
    text = " ".join(parts) if parts else f"kept by {'its ' if verdict.kept_by == 'rules' else 'the '}{verdict.kept_by}"
    return {
        "asked": _asked(params),
        "status": verdict.status,
        "kept": kept,
        "kept_by": verdict.kept_by,
        "message": f"{options.where(params)}: {verdict.status}: {text}",
        "findings": [one.result() for one in verdict.findings.all],
    }


def _nothing_known(params: dict[str, Any], error: S3Error) -> dict[str, Any]:
    return {
        "asked": _asked(params),
        "status": error.kind if error.kind != errors.ABSENT else errors.UNKNOWN,
        "kept": False,
        "kept_by": "nothing",
        "message": f"{options.where(params)}: {error.kind}: {error}",
        "findings": [],
        "days": None,
        "worst_minutes": None,
        "key_prefix": options.keys(params).prefix,
        "rules": [],
        "bucket": {},
        "proof": {},
        "canaries": [],
    }
