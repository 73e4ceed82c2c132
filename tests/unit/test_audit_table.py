# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The audit as a person reads it."""

from __future__ import annotations

import pytest
from ansible.errors import AnsibleFilterError

from ansible_collections.llmhost.hardening.plugins.filter.audit_table import WIDTH, FilterModule, audit_table


def result(control="KV-03", tier="chat", status="fail", message="it is 0755", remedy="kvtier prepare chat"):
    keys = {"control": control, "title": "owned and closed", "severity": "high", "tier": tier}
    return {**keys, "status": status, "message": message, "remedy": remedy, "evidence": {}}


def audit(*results):
    return {"host": "gpu1", "verdict": "fail", "results": list(results)}


def test_the_first_line_is_the_verdict():
    assert audit_table(audit(result()))[0].startswith("gpu1: FAIL  1 results, 1 fail")
    assert audit_table(audit(result(status="unknown")))[0].startswith("gpu1: FAIL")
    assert audit_table(audit(result(status="pass"), result(status="waived")))[0].startswith("gpu1: PASS")


def test_findings_show_reason_and_remedy_and_passes_do_not():
    text = "\n".join(audit_table(audit(result(), result("KV-05", status="pass", message="all fine", remedy=""))))
    assert "it is 0755" in text and "fix: kvtier prepare chat" in text
    assert "KV-05" in text and "all fine" not in text


def test_each_tier_has_its_heading():
    lines = audit_table(audit(result(), result("KV-05"), result(tier="slots")))
    assert [line for line in lines if line.startswith("tier ")] == ["tier chat", "tier slots"]


def test_before_and_after_stand_side_by_side():
    lines = audit_table(audit(result(status="pass"), result("KV-05", status="fail")), audit(result(status="unknown")))
    assert "unknown -> pass" in lines[3]
    assert "- -> fail" in "\n".join(lines)
    assert "before: 1 fail or unknown" in lines[0]


def test_a_tier_that_is_not_judged_takes_one_line():
    many = [result(f"KV-0{i}", status="not_applicable", message="the tier is planned") for i in range(9)]
    assert len(audit_table(audit(*many))) == 4


def test_lines_are_never_wider_than_a_page():
    long = "x" * 300 + " " + "word " * 100
    before = audit(result(status="not_applicable"))
    for line in audit_table(audit(result(message=long, remedy=long, tier="t" * 300)), before):
        assert len(line) <= WIDTH


def test_hostile_names_cannot_drive_the_terminal():
    evil = "a\x1b[2J\r\n\x9b31m\u202eb"
    lines = audit_table(audit(result(message=evil, remedy=evil, tier=evil, control=evil)), audit(result(tier=evil)))
    assert all(line.isprintable() for line in lines)
    assert "\\x1b[2J" in "\n".join(lines)


@pytest.mark.parametrize("wrong", [None, [], {}, {"results": 1}, "text"])
def test_what_is_no_audit_is_refused(wrong):
    with pytest.raises(AnsibleFilterError):
        audit_table(wrong)


def test_the_filter_is_registered():
    assert FilterModule().filters() == {"audit_table": audit_table}
