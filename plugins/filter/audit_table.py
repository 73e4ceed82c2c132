# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""An audit as lines that a person can read, alone or against an earlier one."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping
from typing import Any

from ansible.errors import AnsibleFilterError

from ansible_collections.llmhost.hardening.plugins.module_utils.kv.judge import plain
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.judge_found import HOST

WIDTH = 110
_INDENT = " " * 8


def _text(value: Any, width: int = WIDTH) -> str:
    text = plain(str(value))
    return text if len(text) <= width else text[: width - 3] + "..."


def _results(audit: Any) -> list[Mapping[str, Any]]:
    if not isinstance(audit, Mapping) or not isinstance(audit.get("results"), (list, tuple)):
        raise AnsibleFilterError("audit_table needs the `audit` that kv_audit returned")
    return list(audit["results"])


def _wrapped(label: str, value: Any) -> list[str]:
    return textwrap.wrap(
        label + plain(str(value)), WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT + " " * len(label)
    )


def _same_reason(one: Mapping[str, Any], previous: Mapping[str, Any]) -> bool:
    keys = ("tier", "status", "message")
    return one["status"] == "not_applicable" and all(one.get(key) == previous.get(key) for key in keys)


def audit_table(after: Any, before: Any = None) -> list[str]:
    results = _results(after)
    earlier = {(one["control"], one["tier"]): str(one["status"]) for one in _results(before)} if before else {}
    statuses = [one["status"] for one in results]
    failed, unknown, waived = (statuses.count(status) for status in ("fail", "unknown", "waived"))
    verdict = "PASS" if not failed + unknown else "FAIL"
    tally = f"{len(results)} results, {failed} fail, {unknown} unknown, {waived} waived"
    if earlier:
        was = sum(status in ("fail", "unknown") for status in earlier.values())
        tally += f" (before: {was} fail or unknown)"
    lines = [_text("{}: {}  {}".format(plain(str(after.get("host"))), verdict, tally))]
    tier = None
    for number, one in enumerate(results):
        if one["tier"] != tier:
            tier = one["tier"]
            lines += ["", _text("host" if tier == HOST else f"tier {tier}")]
        previous = results[number - 1] if number else {}
        # A tier that is not judged at all takes one line, not one for each control.
        if _same_reason(one, previous):
            continue
        if one["status"] == "not_applicable":
            lines += _wrapped("not applicable: ", one["message"])
            continue
        status = str(one["status"])
        if earlier:
            status = "{} -> {}".format(earlier.get((one["control"], one["tier"]), "-"), status)
        names = [plain(str(one[key])) for key in ("control", "severity", "title")]
        lines.append(_text("  {:<6} {:<7} {:<25} {}".format(*names, status)))
        if one["status"] != "pass":
            lines += _wrapped("", one["message"])
        if one["status"] in ("fail", "unknown") and one.get("remedy"):
            lines += _wrapped("fix: ", one["remedy"])
    return lines


class FilterModule:
    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"audit_table": audit_table}
