# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""How long a lifecycle rule really lets an object live, and the longest rule that keeps a retention.

A rule of N days acts at the first midnight UTC after N full days, and the server comes by some time later: its lag.
"""

from __future__ import annotations

DAY = 1440
DEFAULT_LAG = 1440
# A month: whoever is later than that does not expire.
MAX_LAG = 43200
# Larger numbers are refused by servers; no retention of the map comes near.
MAX_DAYS = 2**31 - 1


def worst_minutes(days: int, lag: int = DEFAULT_LAG) -> int:
    """The longest that an object lives under a rule of so many days, in minutes."""
    return (days + 1) * DAY + lag


def days_for(retention: int, lag: int = DEFAULT_LAG, after: int = 0) -> int | None:
    """The most whole days whose rule keeps the retention (all in minutes); None if not even one day does.

    after: minutes that the data lives on after the rule acted, as in a versioned bucket.
    """
    days = (retention - lag - after) // DAY - 1
    return min(days, MAX_DAYS) if days >= 1 else None


def least_retention(lag: int = DEFAULT_LAG, after: int = 0) -> int:
    """The shortest retention in minutes that a rule can keep."""
    return worst_minutes(1, lag) + after
