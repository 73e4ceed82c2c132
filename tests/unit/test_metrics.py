# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The Prometheus text of an audit: complete, well formed, and every name documented."""

from __future__ import annotations

import pathlib
import re

from ansible_collections.llmhost.hardening.plugins.module_utils.kv import metrics

NOW = 1_800_000_000.0
DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs" / "controls.md"


def result(control, tier="chat", status="pass", **evidence):
    return {"control": control, "severity": "high", "tier": tier, "status": status, "evidence": evidence}


def audit(*results):
    return {"time": NOW - 5, "verdict": "pass", "results": list(results)}


FULL = audit(
    result("KV-04", blocks=3, block_bytes=1 << 40, loose=1, reachable=0),
    result("KV-06", status="fail", oldest_age_seconds=90, overdue=2),
    result("KV-02", status="waived"),
    result("KV-03", status="not_applicable"),
)


def samples(text):
    return dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))


def test_every_number_of_the_audit_is_there():
    found = samples(metrics.render(FULL, {"chat": {"started": NOW - 31, "finished": NOW - 30}}, NOW))
    assert found['llmhost_tier_blocks{tier="chat"}'] == "3"
    assert found['llmhost_tier_block_bytes{tier="chat"}'] == "1099511627776"
    assert found['llmhost_tier_loose_files{tier="chat"}'] == "1"
    assert found['llmhost_tier_reachable_files{tier="chat"}'] == "0"
    assert found['llmhost_tier_oldest_block_age_seconds{tier="chat"}'] == "90"
    assert found['llmhost_tier_overdue_blocks{tier="chat"}'] == "2"
    assert found['llmhost_tier_last_run_age_seconds{tier="chat"}'] == "30"
    assert found["llmhost_audit_timestamp_seconds"] == str(int(NOW - 5))
    assert found["llmhost_audit_pass"] == "1"


def test_a_control_is_1_only_if_it_passes():
    found = samples(metrics.render(FULL, {}, NOW))
    status = 'llmhost_control_status{control="%s",severity="high",tier="chat"}'
    assert found[status % "KV-04"] == "1"
    assert found[status % "KV-06"] == "0"
    assert found[status % "KV-02"] == "0"
    assert status % "KV-03" not in found
    assert found['llmhost_control_waived{control="KV-02",severity="high",tier="chat"}'] == "1"


def test_unknown_numbers_have_no_sample_rather_than_a_zero():
    text = metrics.render(audit(result("KV-04", status="unknown", blocks=None, loose=None)), {"chat": None}, NOW)
    assert "llmhost_tier_blocks" not in text
    assert "llmhost_tier_loose_files" not in text
    assert "llmhost_tier_last_run" not in text


def test_a_run_under_way_counts_from_its_start():
    found = samples(metrics.render(FULL, {"chat": {"started": NOW - 31, "finished": None}}, NOW))
    assert found['llmhost_tier_last_run_age_seconds{tier="chat"}'] == "31"


def test_labels_are_escaped():
    text = metrics.render(audit(result("KV-04", tier='a"b\\c\nd', blocks=1)), {}, NOW)
    assert 'tier="a\\"b\\\\c\\nd"' in text
    line = re.compile(r'(# (HELP|TYPE) \S+ .+|\w+(\{(\w+="([^"\\\n]|\\.)*",?)*\})? -?[0-9.e+]+)')
    assert all(line.fullmatch(one) for one in text.splitlines())


def test_each_metric_has_help_type_and_unique_samples():
    lines = metrics.render(FULL, {"chat": {"started": 1.0, "finished": 2.0}}, NOW).splitlines()
    names = {re.split(r"[{ ]", line)[0] for line in lines if not line.startswith("#")}
    for name in names:
        assert sum(line.startswith(f"# HELP {name} ") for line in lines) == 1
        assert lines.count(f"# TYPE {name} gauge") == 1
    series = [line.rsplit(" ", 1)[0] for line in lines if not line.startswith("#")]
    assert len(series) == len(set(series))


def test_every_name_is_documented_and_no_other():
    known = {*metrics.TIER_METRICS, *metrics.RUN_METRICS, *metrics.CONTROL_METRICS, *metrics.AUDIT_METRICS}
    known |= {*metrics.SPACE_METRICS, *metrics.SHM_METRICS}
    section = DOCS.read_text().split("## Metrics")[1].split("\n## ")[0]
    assert set(re.findall(r"^\| `(llmhost_\w+)`", section, re.MULTILINE)) == known
