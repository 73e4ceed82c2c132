# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the record of the expiry's passes can say where the audit's own walk did not get to the end of a tier."""

from __future__ import annotations

from typing import Any

from .evidence_tier import Evidence
from .expiry import ERRORS, MAX_SECONDS


def last_pass(evidence: Evidence) -> dict[str, Any] | None:
    """The record of complete passes that can stand in for a walk: the last full one is no older than declared.

    The passes since then read what changed; a chmod, which changes no directory, is seen by a full one alone.
    """
    record, tier = evidence.record, evidence.tier
    if evidence.tree.complete or evidence.tree.error:
        return None
    if not record or record["measured"] is None or record["last_full"] is None or record["exit"] == ERRORS:
        return None
    age = evidence.host.now - record["last_full"]
    # It is due after so many hours, begins with the next run and takes its time.
    limit = tier["full_pass_hours"] * 3600 + tier["expire_every_minutes"] * 60 + MAX_SECONDS
    return record if 0 <= age <= limit else None


def seen_whole(evidence: Evidence) -> bool:
    """True if the walk, or else the passes on record, saw every directory of the tier."""
    return evidence.tree.complete or last_pass(evidence) is not None


def counted(evidence: Evidence, name: str) -> int | None:
    """A count of the walk, or of the passes on record where that is higher; None without any."""
    survey, record = evidence.tree.survey, last_pass(evidence)
    numbers = [int(getattr(survey, name))] if survey else []
    numbers += [int(record[name])] if record else []
    return max(numbers, default=None)
