# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the record of the expiry's passes can say where the audit's own walk did not get to the end of a tier."""

from __future__ import annotations

from typing import Any

from .evidence_tier import Evidence, full_pass


def last_pass(evidence: Evidence) -> dict[str, Any] | None:
    """The record of complete passes, where it can stand in for a walk and has to."""
    if evidence.tree.complete or evidence.tree.error:
        return None
    return evidence.record if full_pass(evidence.record, evidence.tier, evidence.host.now) else None


def seen_whole(evidence: Evidence) -> bool:
    """True if the walk, or else the passes on record, saw every directory of the tier."""
    return evidence.tree.complete or last_pass(evidence) is not None


def counted(evidence: Evidence, name: str) -> int | None:
    """A count of the walk, or of the passes on record where that is higher; None without any."""
    survey, record = evidence.tree.survey, last_pass(evidence)
    numbers = [int(getattr(survey, name))] if survey else []
    numbers += [int(record[name])] if record else []
    return max(numbers, default=None)
