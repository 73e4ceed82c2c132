# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The audit of a large tier: what its last full pass counted stands in for a walk that would take too long."""

from __future__ import annotations

import time

import pytest
from test_controls import _document, of_chat, record, tier_path

from ansible_collections.llmhost.hardening.plugins.module_utils.kv import controls, evidence_tier, state

__all__ = ["tier_path"]


@pytest.fixture
def walked(monkeypatch):
    """How many seconds each walk was given; None of them gets to its end."""
    given = []

    def survey_tier(tier, owner, now, deadline):
        given.append(deadline - time.monotonic())
        return evidence_tier.Tree(evidence_tier.walk.Survey(complete=False, blocks=7))

    monkeypatch.setattr(evidence_tier, "survey_tier", survey_tier)
    return given


def audit(monkeypatch, path, full=False, **record_says):
    now = time.time()
    says = {"last_full": now - 7200, "measured": now - 60, "finished": now - 60, "blocks": 1_000_000, **record_says}
    monkeypatch.setattr(state, "read_run", lambda tier: record(tier, **says))
    found = controls.audit(_document(path), map_path="/none", full=full)
    return {result["control"]: result for result in of_chat(found)}


def test_of_a_large_tier_with_a_young_full_pass_only_a_look_is_taken(monkeypatch, tier_path, walked):
    tier_path.chmod(0o700)
    results = audit(monkeypatch, tier_path)
    assert walked[0] <= evidence_tier.LOOK_SECONDS
    facts = results["KV-04"]["evidence"]
    assert (facts["reachable"], facts["loose"], facts["blocks"]) == (0, 0, 1_000_000)
    assert (
        facts["pass_age_seconds"] in (7200, 7201) and "by the full pass of 120 min ago" in results["KV-04"]["message"]
    )


@pytest.mark.parametrize(
    ("full", "says"),
    [
        (True, {}),
        (False, {"blocks": 50_000}),
        (False, {"last_full": 0}),
        (False, {"measured": None}),
        (False, {"exit": 1}),
    ],
)
def test_any_other_is_walked_whole(monkeypatch, tier_path, walked, full, says):
    audit(monkeypatch, tier_path, full, **says)
    assert walked[0] > 30


def test_what_lies_open_now_is_found_although_the_record_says_nothing_of_it(monkeypatch, tier_path):
    results = audit(monkeypatch, tier_path)
    assert (results["KV-04"]["status"], results["KV-04"]["evidence"]["loose"]) == ("fail", 1)
