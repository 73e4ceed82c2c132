# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""One run of bucket_lifecycle: from its options to its result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import arithmetic, document, enforce, errors, evidence, judge, merge, options, proof
from .client import Bucket
from .document import Rule
from .enforce import Refused, State
from .errors import S3Error


class Setting:
    """Sets or removes the rules of one tier."""

    def __init__(self, params: dict[str, Any]) -> None:
        self.params = params
        self.former = ""
        self.warnings: list[str] = []
        self.days: int | None = None
        self.versioned = False
        self.prefix = ""

    def apply(self, check: bool) -> dict[str, Any]:
        """Bring the bucket to the wanted state, or in check mode say what would change."""
        params = self.params
        options.check(params)
        keys = options.keys(params)
        if not keys.prefix and not params["allow_whole_bucket"]:
            enforce.check_keys("", 0, [], allow_whole_bucket=False, allow_strangers=True)
        bucket = Bucket(options.settings(params))
        start = merge.own_start(keys.prefix, params["id_prefix"])
        try:
            state = enforce.read(bucket)
        except S3Error as error:
            if not self._nothing_to_do(error):
                raise
            self.warnings.append(f"{options.where(params)}: {error.kind}: {error}")
            return {"changed": False, "supported": False, "enforceable": False, "rules": [], "former": ""}
        self.former = state.body.decode(errors="replace")
        enforce.check_writable(state, start)
        self.prefix = keys.prefix
        present = params["state"] == "present"
        if present:
            self._look(bucket, state, start)

        def plan(current: Sequence[Rule]) -> list[Rule]:
            if not present:
                return merge.without(current, start)
            return merge.merge(current, merge.wanted(start, self.prefix, self.days or 1, self.versioned), start)

        target = plan(state.current)
        changed = not merge.same(target, state.current)
        after = target
        if changed and not check:
            after = enforce.enforce(bucket, state, plan, start)
        return {**self._result(state, after, present), "changed": changed}

    def _nothing_to_do(self, error: S3Error) -> bool:
        """True if no rule can be set, and that is no failure: the caller asked for that, or nothing is to be there."""
        gone = error.kind == errors.NO_BUCKET and self.params["state"] == "absent"
        return gone or (error.kind == errors.UNSUPPORTED and self.params["allow_unsupported"])

    def _look(self, bucket: Bucket, state: State, start: str) -> None:
        """What the rule has to be, and whether it would take what is not the tier's."""
        params = self.params
        keys = options.keys(params)
        try:
            versioning, mfa = evidence.versioning_of(bucket)
        except S3Error as error:
            # A rule for old versions does no harm where there are none, but not every server takes it.
            versioning, mfa = ("", False) if error.kind != errors.UNSUPPORTED else (evidence.OFF, False)
        if mfa:
            raise Refused("deletions need MFA in this bucket, so rules do not work. Fix: use another bucket.")
        self.versioned = versioning != evidence.OFF
        retention, lag = params["retention_minutes"], params["lag_minutes"]
        self.days = merge.days_wanted(retention, lag, self.versioned)
        if self.days is None:
            least = arithmetic.least_retention(lag, arithmetic.worst_minutes(1, lag) if self.versioned else 0)
            self.warnings.append(
                f"{options.where(params)}: not_enforceable: no rule of whole days keeps {retention} minutes "
                f"(the shortest keeps {least}); one day is set as a backstop, and kvsweep has to keep the rest"
            )
        seen = proof.prove(bucket, keys, retention, self.versioned, params["max_entries"], params["max_seconds"])
        self.prefix = judge.prefix_of(seen, state.current, keys, start)
        if not seen.complete:
            proof.look_at_folders(bucket, keys, seen)
        enforce.check_keys(
            self.prefix,
            seen.strangers,
            [proof.printable(key) for key in seen.stranger_samples],
            params["allow_whole_bucket"],
            params["allow_foreign_keys"],
        )
        if not seen.complete:
            self.warnings.append(
                f"{options.where(params)}: not every key was looked at before the rule was set "
                f"({'; '.join(seen.unread.values()) or 'max_entries or max_seconds reached'})"
            )

    def _result(self, state: State, after: Sequence[Rule], present: bool) -> dict[str, Any]:
        header = options.where(self.params)
        result: dict[str, Any] = {
            "key_prefix": self.prefix,
            "rules": [document.describe(rule) for rule in after],
            "former": self.former,
            "supported": True,
            "diff": {
                "before_header": header,
                "after_header": header,
                "before": document.show(state.current),
                "after": document.show(list(after)),
            },
        }
        if present:
            days, lag = self.days or 1, self.params["lag_minutes"]
            worst = arithmetic.worst_minutes(days, lag) + (arithmetic.worst_minutes(1, lag) if self.versioned else 0)
            result.update(days=days, enforceable=self.days is not None, worst_minutes=worst)
        return result
