# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The longest lifecycle rule that keeps a retention, as bucket_lifecycle would set it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ansible.errors import AnsibleFilterError

from ansible_collections.llmhost.hardening.plugins.module_utils.kv.mapkeys import MAX_MINUTES, Mistakes, whole
from ansible_collections.llmhost.hardening.plugins.module_utils.s3 import arithmetic, merge


def _minutes(name: str, value: Any, low: int, high: int) -> int:
    try:
        return whole(low, high, "minutes")(value)
    except Mistakes as mistakes:
        mistake = mistakes.found[0]
        raise AnsibleFilterError(f"lifecycle_days: {name}: {mistake.reason}. Fix: {mistake.fix}.") from None


def lifecycle_days(
    retention_minutes: Any, lag_minutes: Any = arithmetic.DEFAULT_LAG, versioned: Any = False
) -> int | None:
    """Days of the rule, None where no rule of whole days keeps the retention."""
    if not isinstance(versioned, bool):
        raise AnsibleFilterError("lifecycle_days: versioned: not true or false. Fix: write one of them.")
    retention = _minutes("retention_minutes", retention_minutes, 1, MAX_MINUTES)
    return merge.days_wanted(retention, _minutes("lag_minutes", lag_minutes, 0, arithmetic.MAX_LAG), versioned)


class FilterModule:
    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"lifecycle_days": lifecycle_days}
