# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which rules are ours, what they should be, and how they go into a document that others write too."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from . import arithmetic
from .document import Rule

ID_PREFIX = "llmhost"


def own_start(tier_prefix: str, id_prefix: str = ID_PREFIX) -> str:
    """What the ids of the rules for these keys begin with; the rules of another tier begin otherwise."""
    return f"{id_prefix}-{hashlib.sha256(tier_prefix.encode()).hexdigest()[:12]}-"


def wanted(start: str, key_prefix: str, days: int, versioned: bool, markers: bool = True) -> list[Rule]:
    """Our rules: expiry and unfinished uploads; in a versioned bucket also old versions and delete markers."""
    rule = Rule(id=start + "expire", prefix=key_prefix, days=days, abort_days=1)
    if not versioned:
        return [rule]
    rules = [replace(rule, noncurrent_days=1)]
    if markers:
        # Days and the removal of markers exclude each other in one rule.
        rules.append(Rule(id=start + "markers", prefix=key_prefix, markers=True))
    return rules


def days_wanted(retention: int, lag: int, versioned: bool) -> int | None:
    """Days of our rule; None if lifecycle cannot keep the retention. Old versions live a rule of one day longer."""
    return arithmetic.days_for(retention, lag, arithmetic.worst_minutes(1, lag) if versioned else 0)


def is_own(rule: Rule, start: str) -> bool:
    return rule.id is not None and rule.id.startswith(start)


def is_there(rules: Sequence[Rule], start: str, prefix: str) -> bool:
    """True if one of our rules is for this prefix."""
    return any(is_own(rule, start) and rule.prefix == prefix for rule in rules)


def merge(current: Sequence[Rule], ours: Sequence[Rule], start: str) -> list[Rule]:
    """The document with our rules in it and everybody else's as they are.

    A rule of another name that means the same (some servers name rules anew) stands for ours.
    """
    others = [rule for rule in current if not is_own(rule, start)]
    there = {rule.meaning() for rule in others}
    return others + [rule for rule in ours if rule.meaning() not in there]


def without(current: Sequence[Rule], start: str) -> list[Rule]:
    """The document without our rules.

    No document may become empty: that takes the call that deletes it, and some servers delete the bucket instead. So
    the last rule stays, disabled.
    """
    others = [rule for rule in current if not is_own(rule, start)]
    own = [rule for rule in current if is_own(rule, start)]
    return others or [replace(rule, enabled=False) for rule in own[:1]]


def same(one: Sequence[Rule], other: Sequence[Rule]) -> bool:
    """True if both mean the same, whatever their order; a rule that has a name must keep it."""
    return not missing(one, other) and not missing(other, one)


def missing(first: Sequence[Rule], second: Sequence[Rule]) -> list[Rule]:
    """Rules of the first document that the second does not have. A nameless one may have been given a name."""
    left = list(second)
    lost = []
    for rule in sorted(first, key=lambda one: one.id is None):
        match = next((one for one in left if one == rule), None)
        if match is None:
            match = next(
                (one for one in left if one.meaning() == rule.meaning() and (rule.id is None or one.id is None)), None
            )
        if match is None:
            lost.append(rule)
        else:
            left.remove(match)
    return lost


class Outcome(NamedTuple):
    """What the server made of a document: rules it lost or changed, rules that are new to it, whether it was a race.

    raced: another writer's document took the place of ours. Then all rules but ours are as they were, ours are gone,
    and none of the new ones looks like what the server might have made of ours.
    """

    lost: list[Rule]
    added: list[Rule]
    raced: bool

    @property
    def kept(self) -> bool:
        return not self.lost


def outcome(put: Sequence[Rule], got: Sequence[Rule], start: str) -> Outcome:
    """Compare what was put with what is read. Servers that name rules anew are believed if the meaning is there."""
    added = missing(got, put)
    lost = []
    for rule in missing(put, got):
        renamed = next((one for one in added if one.meaning() == rule.meaning()), None)
        if renamed is None:
            lost.append(rule)
        else:
            added.remove(renamed)
    prefixes = {rule.prefix for rule in lost}
    only_ours = bool(lost) and all(is_own(rule, start) for rule in lost)
    raced = only_ours and bool(added) and not any(rule.prefix in prefixes for rule in added)
    return Outcome(lost, added, raced)
