# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The whole verdict about a bucket, from a module's options to its result."""

from __future__ import annotations

import time
from typing import Any

from . import document, errors, evidence, findings, judge, merge, options, sweep_state
from .client import Bucket
from .errors import S3Error
from .judge import Verdict


def look(params: dict[str, Any]) -> dict[str, Any]:
    """Ask the bucket and judge it. S3Error only for what is wrong with the call itself."""
    options.check(params)
    unknown = sorted(set(params["accept"]) - set(findings.FINDINGS))
    if unknown:
        raise options.BadOption("accept", f"no finding is called {unknown[0]}", "use codes of docs/buckets.md")
    keys, policy = options.keys(params), options.policy(params)
    bucket = Bucket(options.settings(params))
    start = merge.own_start(keys.prefix, params["id_prefix"])
    allowed = policy.retention + policy.grace
    limits = {"max_entries": params["max_entries"], "max_seconds": params["max_seconds"]}
    try:
        found = evidence.gather(bucket, keys, allowed, limits)
    except S3Error as error:
        if error.kind == errors.USAGE:
            raise
        return _nothing_known(params, error)
    sweeper = None
    if params["sweep_record"] is not None:
        record = sweep_state.read(params["sweep_record"])
        interval = 60 * params["sweep_interval_minutes"]
        sweeper = sweep_state.alive(record, time.time(), interval, bucket.settings, keys)
    verdict = judge.judge(found, keys, policy, sweeper, start, params["accept"])
    return {
        **_head(params, verdict, str(found.refusal) if found.refusal is not None else ""),
        "days": verdict.days,
        "worst_minutes": verdict.worst_minutes,
        "key_prefix": judge.effective_prefix(found, keys),
        "rules": [document.describe(rule) for rule in found.rules or []],
        "bucket": {
            name: getattr(found, name)
            for name in ("versioning", "lock_days", "destinations", "public", "encrypted", "server")
        },
        "proof": found.proof.result() if found.proof is not None else {},
    }


def _head(params: dict[str, Any], verdict: Verdict, refusal: str) -> dict[str, Any]:
    kept = verdict.kept_by != "nothing"
    open_ = verdict.findings.breaking()
    parts = [refusal] if refusal else []
    parts += [f"{one.code}: {one.message}. Fix: {one.remedy}." for one in open_[:3]]
    text = " ".join(parts) if parts else f"kept by {'its ' if verdict.kept_by == 'rules' else 'the '}{verdict.kept_by}"
    return {
        "status": verdict.status,
        "kept": kept,
        "kept_by": verdict.kept_by,
        "message": f"{options.where(params)}: {verdict.status}: {text}",
        "findings": [one.result() for one in verdict.findings.all],
    }


def _nothing_known(params: dict[str, Any], error: S3Error) -> dict[str, Any]:
    return {
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
    }
