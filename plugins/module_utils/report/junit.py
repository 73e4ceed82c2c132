# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A report as JUnit XML for a CI server: a suite per host, a case per control and tier."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from xml.sax.saxutils import escape, quoteattr

from ..kv.judge_found import PREFIX
from .document import AUDITED, by_severity

# What XML 1.0 cannot hold, even escaped.
_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def _clean(text: Any) -> str:
    return _FORBIDDEN.sub("\ufffd", str(text))


def _attr(text: Any) -> str:
    return quoteattr(_clean(text))


def _case(name: str, classname: str, kind: str, message: str = "", body: str = "") -> str:
    head = f"    <testcase name={_attr(name)} classname={_attr(classname)}"
    if not kind:
        return head + "/>"
    inside = f"<skipped message={_attr(message)}/>"
    if kind != "skipped":
        inside = f"<{kind} message={_attr(message)}>{escape(_clean(body))}</{kind}>"
    return f"{head}>{inside}</testcase>"


def render(report: Mapping[str, Any]) -> str:
    """The text of report.junit.xml. Unknown is an error, a waived or not applicable control is skipped."""
    suites = []
    kinds = {"fail": "failure", "unknown": "error", "waived": "skipped", "not_applicable": "skipped", "pass": ""}
    for host in report["hosts"]:
        cases = []
        if host["state"] != AUDITED:
            cases.append(("error", _case("audit", host["name"], "error", f"{host['state']}: {host['reason']}")))
        judged = {one["tier"] for one in host["results"]}
        for one in host["undeclared"]:
            if PREFIX + one["where"] in judged:
                continue
            text = f"{one['store']} at {one['where']} is in no data map"
            cases.append(("failure", _case("undeclared", host["name"], "failure", text, "; ".join(one["found_in"]))))
        for one in by_severity(host["results"]):
            kind = kinds[one["status"]]
            name = f"{one['control']} {one['title']} [{one['tier']}]"
            cases.append((kind, _case(name, f"{host['name']}.{one['tier']}", kind, one["message"], one["remedy"])))
        tally = {kind: sum(one == kind for one, _text in cases) for kind in ("failure", "error", "skipped")}
        suites.append(
            f'  <testsuite name={_attr(host["name"])} tests="{len(cases)}" failures="{tally["failure"]}" '
            f'errors="{tally["error"]}" skipped="{tally["skipped"]}">'
        )
        suites += [text for _kind, text in cases] + ["  </testsuite>"]
    return "\n".join(['<?xml version="1.0" encoding="UTF-8"?>', "<testsuites>", *suites, "</testsuites>"]) + "\n"
