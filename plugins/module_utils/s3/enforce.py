# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Sets our rules in a bucket's lifecycle document without touching anybody else's.

A document is replaced as a whole and carries no version, so: read it with a root that proves it, merge, put, read until
it stays the same, compare in meaning. Where the server made something else of it, the former document goes back. The
call that deletes a document is never made: some servers delete the bucket by it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from . import document, errors, evidence, merge
from .document import Rule
from .errors import S3Error

STABLE_SECONDS = 60.0
STABLE_READS = 2
MAX_RACES = 6


class Refused(Exception):
    """What must not be written, why, and what to do."""


@dataclass
class State:
    """One valid read of the bucket, which a write needs."""

    rules: list[Rule] | None
    size_default: str | None
    body: bytes

    @property
    def current(self) -> list[Rule]:
        return self.rules or []


def read(bucket: Any) -> State:
    """The document and proof that the bucket is there; S3Error otherwise. Nothing may be put without it."""
    rules, answer = evidence.rules_of(bucket)
    bucket.head()
    size = answer.headers.get("x-amz-transition-default-minimum-object-size") if answer is not None else None
    return State(rules, size, answer.body if answer is not None else b"")


def check_writable(state: State, start: str) -> None:
    """Refuse documents that cannot be written back as they are."""
    for rule in state.current:
        if rule.more and not merge.is_own(rule, start):
            raise Refused(
                f"rule {rule.id or '(no id)'} holds {', '.join(rule.more)}, which a write would lose. "
                "Fix: set our rule with the provider's own tool."
            )
    ids = [rule.id for rule in state.current if rule.id is not None]
    if len(ids) != len(set(ids)):
        raise Refused("two rules have one id, so a write cannot be checked. Fix: give each rule an id of its own.")


Plan = Callable[[Sequence[Rule]], list[Rule]]


def enforce(
    bucket: Any,
    state: State,
    plan: Plan,
    start: str,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
    chance: Callable[[], float] = random.random,
) -> list[Rule]:
    """Bring the document to plan(current) and return what the server has then.

    state: read() of this very run; start: how the ids of our rules begin.
    """
    for attempt in range(MAX_RACES):
        target = plan(state.current)
        if merge.same(target, state.current):
            return state.current
        if not target:
            raise Refused("the document would become empty. Fix: remove the last rule with the provider's own tool.")
        failed = _put(bucket, target, state)
        got = _stable(bucket, sleep, clock)
        result = merge.outcome(target, got, start)
        if result.kept:
            return got
        if failed is not None and merge.same(got, state.current):
            raise failed
        if not result.raced:
            raise _restored(bucket, state, target, result, lambda: _stable(bucket, sleep, clock))
        # Another writer came between; its document is the one to add ours to.
        sleep((0.2 + chance()) * (attempt + 1))
        state = read(bucket)
    raise Refused(f"other writers replaced the document {MAX_RACES} times. Fix: let one play at a time set its rules.")


def _put(bucket: Any, rules: Sequence[Rule], state: State) -> S3Error | None:
    """Put a document; gives the error that leaves it open whether the server got it."""
    try:
        bucket.put_lifecycle([document.render(rule) for rule in rules], state.size_default)
    except S3Error as error:
        if error.kind != errors.UNREACHABLE:
            raise
        # What is read back decides.
        return error
    return None


def _stable(bucket: Any, sleep: Callable[[float], None], clock: Callable[[], float]) -> list[Rule]:
    """The document, once two reads in a row agree: after a write some servers show old and new by turns."""
    deadline = clock() + STABLE_SECONDS
    last: list[Rule] | None = None
    equal = 0
    while True:
        try:
            rules, _answer = evidence.rules_of(bucket)
        except S3Error as error:
            raise S3Error(
                error.kind,
                f"the rules were sent, but reading them back failed: {error.reason}",
                f"run again, which finds out and mends it; {error.fix}",
                error.code,
            ) from None
        now = rules or []
        equal = equal + 1 if last is not None and merge.same(now, last) else 1
        last = now
        if equal >= STABLE_READS or clock() > deadline:
            return now
        sleep(0.05)


def _restored(
    bucket: Any,
    state: State,
    target: Sequence[Rule],
    result: merge.Outcome,
    read_back: Callable[[], list[Rule]],
) -> Refused:
    """Put the former document back and say what happened."""
    lost = "; ".join(document.describe(rule) for rule in result.lost[:3])
    became = "; ".join(document.describe(rule) for rule in result.added[:3]) or "nothing"
    what = f"rule_dropped: the server made of ({lost}): {became}"
    # There was none: ours are switched off instead, for a document is never deleted.
    former = list(state.current) or [replace(rule, enabled=False) for rule in target]
    try:
        _put(bucket, former, state)
        back = not merge.missing(former, read_back())
    except (S3Error, ValueError) as error:
        return Refused(f"{what}. Putting the former document back failed: {error} Fix: write it back by hand, now.")
    if not back:
        return Refused(f"{what}. The former document does not come back as it was. Fix: look at it by hand, now.")
    done = "The former document is back" if state.current else "Our rules are disabled"
    return Refused(f"{what}. {done}. Fix: let kvsweep keep the retention on this server.")


def check_keys(
    prefix: str, strangers: int, samples: Sequence[str], allow_whole_bucket: bool, allow_strangers: bool
) -> None:
    """Refuse a rule that would take more than the tier's keys."""
    if not prefix and not allow_whole_bucket:
        raise Refused(
            "the rule would take the whole bucket. Fix: give the tier a prefix, or allow_whole_bucket if nothing else "
            "will ever lie in it."
        )
    if strangers and not allow_strangers:
        raise Refused(
            f"the rule would take {strangers} names under {prefix!r} that are not the tier's: {', '.join(samples)}. "
            "Fix: give the tier a prefix of its own, or move these objects."
        )
