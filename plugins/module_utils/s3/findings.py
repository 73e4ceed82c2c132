# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The findings about a bucket: one code each, what it means, and what to do. docs/buckets.md lists them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

# Code -> whether data may outlive its retention because of it, and the remedy.
FINDINGS: dict[str, tuple[bool, str]] = {
    "no_rule": (True, "set a rule with bucket_lifecycle"),
    "rule_disabled": (True, "enable the rule, or set one with bucket_lifecycle"),
    "prefix_not_covered": (True, "give the rule the tier's key prefix, with every slash"),
    "filter_tag": (True, "use a rule without tags: the engine sets none"),
    "filter_size": (True, "use a rule without sizes: it keeps the others for ever"),
    "filter_and": (True, "use a rule that asks for the prefix alone"),
    "too_long": (True, "shorten the rule; docs/buckets.md has the arithmetic"),
    "not_enforceable": (False, "leave the one-day rule as a backstop and let kvsweep keep the retention"),
    "days_zero": (True, "write one day or more: servers that take 0 never expire by it"),
    "date_rule": (True, "use days: before its date the rule does nothing, after it the cache is emptied every day"),
    "transition_only": (True, "add an expiration: moving data deletes nothing"),
    "rule_wider": (False, "narrow the rule to the tier's key prefix, or give the tier a bucket of its own"),
    "rule_changed": (True, "run bucket_lifecycle again: our rule is not what we wrote"),
    "rule_unknown_parts": (False, "look at the rule with the provider's own tool"),
    "noncurrent_kept": (True, "expire noncurrent versions too"),
    "noncurrent_too_long": (True, "shorten the rule: old versions live on after the day they were replaced"),
    "newer_noncurrent_kept": (True, "keep no newer noncurrent versions: they stay for ever"),
    "delete_markers_kept": (False, "remove expired delete markers: their keys are hashes of prompts"),
    "versioning_suspended": (
        False,
        "enable it, or never use it: some servers expire nothing then",
    ),
    "uploads_kept": (True, "abort unfinished uploads after one day: expiration never touches them"),
    "object_lock": (True, "use a bucket without a default retention that is longer than the tier's"),
    "object_held": (True, "lift the retention or legal hold of these objects"),
    "mfa_delete": (True, "use a bucket without MFA delete: lifecycle does not work there"),
    "replicated": (True, "judge each destination by itself and accept this finding, or end the replication"),
    "http_endpoint": (False, "use https: blocks and signatures travel in clear"),
    "public_access": (False, "close the bucket: remove public grants and policies"),
    "no_encryption": (False, "set default encryption of the bucket"),
    "clock_skew": (False, "set the clocks of this host and the server (NTP)"),
    "overdue_objects": (True, "find out why nothing deletes them (worker, lag, lock), and run kvsweep"),
    "overdue_versions": (True, "expire noncurrent versions, and run kvsweep"),
    "overdue_uploads": (True, "abort unfinished uploads, and run kvsweep"),
    "proof_incomplete": (False, "raise max_entries or max_seconds, or look at kvsweep's last pass, which is complete"),
    "slashes_folded": (False, "nothing: the rule is written for the keys as the server keeps them"),
    "strangers": (False, "give the tier a prefix of its own: other keys lie under it"),
    "not_checked": (False, "grant the right to read it (docs/buckets.md lists the rights)"),
    "sweeper_missing": (True, "install kvsweep with the role kv_bucket"),
    "sweeper_stale": (True, "look at cron and at `kvsweep status` where it runs"),
}


class Finding(NamedTuple):
    """One thing that is wrong or worth knowing."""

    code: str
    message: str
    breaks: bool
    remedy: str
    accepted: bool = False

    def result(self) -> dict[str, Any]:
        return dict(self._asdict())


Add = Callable[..., None]


class Findings:
    """Collects findings, each code and message once."""

    def __init__(self, accepted: tuple[str, ...] = ()) -> None:
        self.accepted = accepted
        self.all: list[Finding] = []

    def add(self, code: str, message: str, breaks: bool | None = None) -> None:
        default, remedy = FINDINGS[code]
        finding = Finding(code, message, default if breaks is None else breaks, remedy, code in self.accepted)
        if finding not in self.all:
            self.all.append(finding)

    def breaking(self) -> list[Finding]:
        return [one for one in self.all if one.breaks and not one.accepted]
