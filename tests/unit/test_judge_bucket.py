# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""KV-09: an answer passes only if it is about this bucket, of now, and says that the retention is kept."""

from __future__ import annotations

import json
import os

import pytest

from ansible_collections.llmhost.hardening.plugins.module_utils.kv import controls, datamap
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.judge_bucket import MAX_AGE, bucket_expires

NOW = 1_800_000_000
MAP = datamap.normalise(
    [{"name": "chat", "store": "vllm_obj", "bucket": "kv-x", "endpoint": "https://s3", "prefix": "qwen"}], "gpu1"
)
TIER = MAP["tiers"][0]
ASKED = {"bucket": "kv-x", "endpoint": "https://s3", "prefix": "qwen", "retention_minutes": 1440, "time": NOW}
BREAKS = {"code": "no_rule", "message": "no rule", "breaks": True, "remedy": "set a rule", "accepted": False}
NOTE = {"code": "proof_incomplete", "message": "cut off", "breaks": False, "remedy": "raise it", "accepted": False}
COUNT = {"seen": 3, "bytes": 1, "overdue": 0, "oldest_minutes": 7, "samples": []}
GOOD = {
    "status": "not_enforceable",
    "kept": True,
    "kept_by": "sweeper",
    "message": "m",
    "asked": ASKED,
    "findings": [],
    "proof": {"complete": True, "objects": COUNT},
}


def judged(now=NOW, **change):
    return bucket_expires(TIER, {"chat": {**GOOD, **change}}, now)


def test_a_kept_retention_passes_by_rules_or_sweeper_and_shows_what_was_noted():
    seen = judged()
    assert seen.status == "pass" and "sweeper" in seen.message
    assert seen.evidence["objects"] == {"seen": 3, "overdue": 0, "oldest_minutes": 7}
    assert judged(kept_by="rules", findings=[NOTE]).status == "pass"
    assert "proof_incomplete" in judged(kept_by="rules", findings=[NOTE]).message


@pytest.mark.parametrize(
    ("change", "status", "says"),
    [
        ({"kept": False, "status": "absent", "findings": [BREAKS, NOTE]}, "fail", "no_rule"),
        ({"kept": False, "status": "no_bucket", "kept_by": "nothing"}, "fail", "m"),
        ({"kept": False, "status": "unsupported", "kept_by": "nothing"}, "fail", "m"),
        ({"kept": False, "status": "denied"}, "unknown", "m"),
        ({"kept": False, "status": "unreachable"}, "unknown", "m"),
        ({"kept": False, "status": "unknown"}, "unknown", "m"),
        # Whatever else cannot be known, what is known to be wrong is wrong.
        ({"kept": False, "status": "denied", "findings": [{**BREAKS, "code": "overdue_objects"}]}, "fail", "overdue"),
        ({"kept": True, "kept_by": "nothing"}, "fail", "m"),
        ({"kept": "yes"}, "unknown", "could not be asked"),
        ({"kept": None, "msg": "boto3 is missing for X on Y"}, "unknown", "boto3 is missing"),
        ({"asked": {**ASKED, "bucket": "kv-y"}}, "unknown", "another bucket"),
        ({"asked": {**ASKED, "prefix": ""}}, "unknown", "another prefix"),
        ({"asked": {**ASKED, "retention_minutes": 10080}}, "unknown", "another retention_minutes"),
        ({"asked": {**ASKED, "time": None}}, "unknown", "has no time"),
        ({"asked": {**ASKED, "time": NOW - MAX_AGE - 60}}, "unknown", "61 minutes old"),
        ({"asked": {**ASKED, "time": NOW + MAX_AGE + 60}}, "unknown", "minutes old"),
    ],
)
def test_anything_less_never_passes(change, status, says):
    seen = judged(**change)
    assert seen.status == status and says in seen.message and seen.remedy


def test_nobody_asked_is_not_applicable_and_an_answer_that_is_missing_is_unknown():
    assert bucket_expires(TIER, None, NOW).status == "not_applicable"
    assert bucket_expires(TIER, {}, NOW).status == "unknown"
    assert bucket_expires(TIER, {"chat": "x"}, NOW).status == "unknown"


def audited(tmp_path, **more):
    found = controls.audit(MAP, NOW, map_path=str(tmp_path / "none.json"), **more)
    return {result["control"]: result for result in found["results"]}, found["verdict"]


def test_the_audit_has_the_control_for_bucket_tiers_alone(tmp_path):
    results, verdict = audited(tmp_path)
    assert verdict == "pass" and results["KV-09"]["status"] == "not_applicable"
    results, verdict = audited(tmp_path, buckets={"chat": GOOD})
    assert verdict == "pass" and results["KV-09"]["status"] == "pass" and results["KV-02"]["status"] == "not_applicable"
    results, verdict = audited(tmp_path, buckets={"chat": {**GOOD, "kept": False, "findings": [BREAKS]}})
    assert verdict == "fail" and results["KV-09"]["remedy"] == "set a rule"
    waiver = {"control": "KV-09", "tier": "chat", "reason": "ticket 1", "until": "2999-12-31"}
    results, verdict = audited(tmp_path, buckets={}, waivers=[waiver])
    assert verdict == "pass" and results["KV-09"]["status"] == "waived"
    tier = {"name": "f", "store": "vllm_fs", "path": "/srv/none-x", "owner": "vllm", "services": ["v.service"]}
    files = datamap.normalise([tier], "gpu1")
    found = controls.audit(files, NOW, map_path=str(tmp_path / "none.json"), buckets={})
    assert "KV-09" not in {result["control"] for result in found["results"]}


@pytest.mark.skipif(os.geteuid() != 0, reason="the installed map is root's")
def test_a_bucket_that_left_the_map_fails_kv01_and_is_judged_on(tmp_path):
    known = tmp_path / "tiers.json"
    known.write_text(json.dumps(MAP))
    results = {}
    for answers in ({"chat": GOOD}, {}, None):
        found = controls.audit(datamap.normalise([], "gpu1"), NOW, map_path=str(known), buckets=answers)
        results = {result["control"]: result for result in found["results"]}
        assert found["verdict"] == "fail" and results["KV-01"]["status"] == "fail"
        assert "left the data map" in results["KV-01"]["message"] and "bucket kv-x" in results["KV-01"]["message"]
        assert results["KV-09"]["status"] == ("pass" if answers else "not_applicable" if answers is None else "unknown")
    assert "state absent" in results["KV-01"]["remedy"]
