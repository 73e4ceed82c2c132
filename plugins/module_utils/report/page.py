# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The report as one HTML page. Every word from a host is escaped, and a policy lets nothing but our script run."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from typing import Any

from .assets import SCRIPT, STYLE
from .document import AUDITED, BAD, by_severity, iso
from .plots import duration, growth, histogram, size

_WORDS = {"pass": "pass", "fail": "FAIL", "unknown": "unknown", "not_applicable": "n/a", "waived": "waived", "": "-"}
_MARKS = {"pass": "✓", "fail": "✗", "unknown": "?", "waived": "w", "not_applicable": "·"}
_MAX_EVIDENCE = 4000
# Above this many hosts the evidence of what passes stands in report.json alone, and paper has only what is unfolded.
_FULL_HOSTS = 100


def _text(value: Any) -> str:
    """Text fit for the page: what would reorder or hide it is shown as an escape."""
    shown = str("" if value is None else value)
    return escape("".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in shown))


def _status(status: str) -> str:
    return f'<span class="s {_text(status)}">{_WORDS.get(status, _text(status))}</span>'


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _cells(values: Iterable[str]) -> str:
    return "".join(f"<td>{value}</td>" for value in values)


def _table(head: Sequence[str], rows: Iterable[str], label: str, kind: str = "") -> str:
    heads = "".join(f'<th scope="col">{_text(one)}</th>' for one in head)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{_text(label)}"><table class="{kind}">'
        f"<thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _states(host: Mapping[str, Any]) -> list[str]:
    states = [status for status, count in host["counts"].items() if count]
    states += ["undeclared"] if host["undeclared"] else []
    return [*states, *(["unreachable"] if host["state"] != AUDITED else []), "host-" + host["verdict"]]


def _row(host: Mapping[str, Any], inside: str, also: str = "", element: str = "tr") -> str:
    words = [host["name"], *(tier["name"] for tier in host["tiers"]), *(t["store"] for t in host["tiers"]), also]
    return (
        f'<{element} data-host="{_text(host["name"])}" data-states="{_text(" ".join(_states(host)))}" '
        f'data-find="{_text(" ".join(words).lower())}">{inside}</{element}>'
    )


class _Ids:
    """Anchors of hosts: a name may hold anything, its number does not."""

    def __init__(self, hosts: Sequence[Mapping[str, Any]]) -> None:
        self._of = {host["name"]: f"h{number}" for number, host in enumerate(hosts)}

    def anchor(self, name: str) -> str:
        return self._of[name]

    def link(self, name: str) -> str:
        return f'<a href="#{self._of[name]}">{_text(name)}</a>'


def _map(report: Mapping[str, Any], ids: _Ids) -> str:
    rows = []
    for host in report["hosts"]:
        for tier in host["tiers"]:
            late = tier["overdue"] or (
                tier["oldest_age_seconds"] is not None
                and tier["limit_seconds"] is not None
                and tier["oldest_age_seconds"] >= tier["limit_seconds"]
            )
            oldest = duration(tier["oldest_age_seconds"])
            minutes = tier["retention_minutes"]
            cells = [
                ids.link(host["name"]),
                _text(tier["name"]),
                _text(tier["where"] or "-"),
                _text(" ".join(one for one in (tier["store"], tier["engine"]) if one)),
                _status(tier["encryption"]),
                duration(None if minutes is None else minutes * 60),
                f'<span class="s fail">{oldest} overdue</span>' if late else oldest,
                size(tier["block_bytes"]),
                _text(" / ".join(one for one in (tier["data_owner"], tier["purpose"]) if one) or "-"),
            ]
            rows.append(_row(host, _cells(cells)))
        for one in host["undeclared"]:
            cells = [
                ids.link(host["name"]),
                '<span class="s fail">not in the data map</span>',
                _text(one["where"]),
                _text(" ".join(item for item in (one["store"], one["engine"]) if item)),
                *["-"] * 4,
                _text(one["sure"]),
            ]
            rows.append(_row(host, _cells(cells)))
    head = (
        "Host",
        "Tier",
        "Where",
        "Store, engine",
        "Encrypted",
        "Retention",
        "Oldest block",
        "Size",
        "Owner, purpose",
    )
    return _table(head, rows, "Data map") if rows else "<p>No tier was declared or found.</p>"


def _worst(results: Iterable[Mapping[str, Any]]) -> str:
    found = {one["status"] for one in results}
    return next((one for one in ("fail", "unknown", "waived", "pass", "not_applicable") if one in found), "")


def _matrix(report: Mapping[str, Any], ids: _Ids) -> str:
    controls = report["controls"]
    rows = []
    for host in report["hosts"]:
        by: dict[str, list[Mapping[str, Any]]] = {}
        for one in host["results"]:
            by.setdefault(one["control"], []).append(one)
        cells = [f'<th scope="row">{ids.link(host["name"])}</th>']
        if host["state"] != AUDITED:
            cells.append(f'<td colspan="{len(controls) + 1}">{_not_audited(host)}</td>')
        else:
            cells.append(f"<td>{_status(host['verdict'])}</td>")
            for control in controls:
                worst = _worst(by.get(control["control"], ()))
                name = f"{control['control']} {_WORDS.get(worst, '')}"
                mark = _MARKS.get(worst, "")
                cells.append(
                    f'<td><span class="s {worst}" role="img" aria-label="{_text(name)}" title="{_text(name)}">{mark}'
                    "</span></td>"
                    if mark
                    else "<td></td>"
                )
        rows.append(_row(host, "".join(cells)))
    return _table(["Host", "Verdict", *(one["control"] for one in controls)], rows, "Hosts and controls", "matrix")


def _not_audited(host: Mapping[str, Any]) -> str:
    return f'<span class="s unknown">{_text(host["state"])}</span> {_text(host["reason"])}'


def _evidence(one: Mapping[str, Any]) -> str:
    text = json.dumps(one["evidence"], indent=1, sort_keys=True, default=str)
    if len(text) > _MAX_EVIDENCE:
        text = text[:_MAX_EVIDENCE] + "\n... (the whole of it is in report.json)"
    # Lines stay lines; everything else that does not print is escaped.
    return "\n".join(_text(line) for line in text.splitlines())


def _results(host: Mapping[str, Any], full: bool) -> str:
    rows = []
    for one in by_severity(host["results"]):
        bad = one["status"] in (*BAD, "waived")
        why = _text(one["message"])
        if one["remedy"] and one["status"] in BAD:
            why += f"<br><strong>Fix:</strong> {_text(one['remedy'])}"
        if one["evidence"] and (bad or full):
            why += f"<details><summary>Evidence</summary><div><pre>{_evidence(one)}</pre></div></details>"
        control = f"{_text(one['control'])} {_text(one['title'])}"
        rows.append("<tr>" + _cells([_status(one["status"]), control, _text(one["severity"]), _text(one["tier"]), why]))
    return _table(("Status", "Control", "Severity", "Tier", "Why"), rows, f"Results of {host['name']}") if rows else ""


def _plots(host: Mapping[str, Any]) -> str:
    parts = []
    for tier in host["tiers"]:
        drawn = histogram(tier["ages"], tier["limit_seconds"])
        if drawn:
            looked, known = sum(count for _bound, count in tier["ages"]), tier["blocks"] or 0
            share = f", {looked} of {known} looked at" if looked < known else ""
            parts.append(f"<div><h3>Age of blocks in {_text(tier['name'])}{share}</h3>{drawn}</div>")
    drawn = growth(host["history"], host["gaps"])
    if drawn:
        parts.append(f"<div><h3>Growth over {len(host['history'])} audits</h3>{drawn}</div>")
    return f'<div class="plots">{"".join(parts)}</div>' if parts else ""


def _list(title: str, lines: Sequence[str]) -> str:
    return f"<h3>{title}</h3><ul>{''.join(f'<li>{line}</li>' for line in lines)}</ul>" if lines else ""


def _host(host: Mapping[str, Any], ids: _Ids, full: bool) -> str:
    audited = host["state"] == AUDITED
    late = f"<p>{_not_audited(host)}</p>" if audited and host["reason"] else ""
    body = late + _plots(host) + _results(host, full) if audited else f"<p>{_not_audited(host)}</p>"
    body += _list(
        "Not in the data map",
        [
            _text(f"{one['store']} at {one['where']} ({one['sure']}): {', '.join(one['found_in'])}")
            for one in host["undeclared"]
        ],
    )
    opened = [one for one in host["listeners"] if not one.get("loopback")]
    body += _list(
        "Listening for other hosts",
        [
            _text(f"{one.get('address')}:{one.get('port')} {one.get('kind') or ''} pid {one.get('pid')}")
            for one in opened
        ],
    )
    body += _list("Could not be read", [_text(one) for one in host["unread"][:50]])
    tally = ", ".join(f"{count} {_WORDS[status]}" for status, count in host["counts"].items() if count)
    label = _status(host["verdict"]) if host["state"] == AUDITED else _not_audited(host)
    summary = f"<summary><strong>{_text(host['name'])}</strong> {label} <span class=dim>{_text(tally)}</span></summary>"
    opened_now = " open" if host["verdict"] != "pass" and full else ""
    inner = f'<details id="{ids.anchor(host["name"])}"{opened_now}>{summary}<div>{body}</div></details>'
    return _row(host, inner, element="div")


def _history(report: Mapping[str, Any], ids: _Ids) -> str:
    rows = []
    for host in report["hosts"]:
        history = host["history"]
        missing = [f"{iso(gap['from'])} to {iso(gap['to'])}" for gap in host["gaps"]]
        wrong = host["history_problems"]
        if not history and not wrong:
            rows.append(_row(host, _cells([ids.link(host["name"]), "none kept on the host", "-", "-", "-"])))
            continue
        fails = sum(line["verdict"] != "pass" for line in history)
        span = f"{iso(history[0]['time'])} to {iso(history[-1]['time'])}" if history else "-"
        chain = f'<span class="s fail">{_text("; ".join(wrong[:3]))}</span>' if wrong else _status("pass")
        lost = _text("; ".join(missing[:5]) + (f"; {len(missing) - 5} more" if len(missing) > 5 else "")) or "none"
        cells = [ids.link(host["name"]), span, f"{len(history)} audits, {fails} not passed", lost, chain]
        rows.append(_row(host, _cells(cells)))
    return _table(("Host", "Time", "Audits", "Gaps", "Chain"), rows, "History")


def _fleet_ages(report: Mapping[str, Any]) -> str:
    """All tiers of one retention together, where the fleet has just one; several retentions make no one line."""
    tiers = [tier for host in report["hosts"] for tier in host["tiers"] if tier["ages"]]
    limits = sorted({tier["limit_seconds"] for tier in tiers if tier["limit_seconds"] is not None})
    parts = []
    for limit in limits[:4]:
        sums: dict[Any, float] = {}
        for tier in tiers:
            if tier["limit_seconds"] == limit:
                for bound, count in tier["ages"]:
                    sums[bound] = sums.get(bound, 0) + count
        ages = sorted(sums.items(), key=lambda pair: (pair[0] is None, pair[0] or 0))
        drawn = histogram(ages, limit)
        if drawn:
            parts.append(f"<div><h3>Age of blocks, retention {duration(limit)}</h3>{drawn}</div>")
    return f'<h2>Ages in the fleet</h2><div class="plots">{"".join(parts)}</div>' if parts else ""


def _section(title: str, body: str, note: str = "") -> str:
    return f"<h2>{title}</h2>{f'<p class=dim>{note}</p>' if note else ''}{body}"


def _tools() -> str:
    options = (
        ("", "all hosts"),
        ("host-fail", "failing hosts"),
        ("fail", "with a failed control"),
        ("unknown", "with an unknown control"),
        ("waived", "with a waiver"),
        ("undeclared", "with undeclared state"),
        ("unreachable", "not audited"),
        ("host-pass", "passing hosts"),
    )
    choice = "".join(f'<option value="{value}">{text}</option>' for value, text in options)
    return (
        '<div class="tools"><div><label for="q">Filter by host, tier or store</label><input id="q" type="search"></div>'
        f'<div><label for="st">Show</label><select id="st">{choice}</select></div><p id="n" role="status"></p></div>'
    )


def render(report: Mapping[str, Any]) -> str:
    """The text of report.html."""
    hosts, counts = report["hosts"], report["counts"]
    ids = _Ids(hosts)
    full = len(hosts) <= _FULL_HOSTS
    lines = [
        f"{counts['hosts']} hosts, {counts['hosts_failing']} do not pass, {counts['hosts_not_audited']} not audited",
        f"{counts['fail']} failed and {counts['unknown']} unknown results, {counts['waived']} waived",
        f"{counts['undeclared']} places with KV state that no data map names",
    ]
    by_name = {host["name"]: host for host in hosts}
    waivers = [
        _row(
            by_name[one["host"]],
            _cells(
                [
                    _text(one["until"]),
                    ids.link(one["host"]),
                    *(_text(one[key]) for key in ("control", "tier", "reason")),
                ]
            ),
        )
        for one in report["waivers"]
    ]
    lost = [
        _row(host, f"{ids.link(host['name'])}: {_not_audited(host)}", element="li")
        for host in hosts
        if host["state"] != AUDITED
    ]
    legend = "; ".join(f"{_text(one['control'])} {_text(one['title'])}" for one in report["controls"])
    paper = f"On paper hosts are unfolded once the filter shows {_FULL_HOSTS} or fewer."
    note = "" if full else f"The evidence of what passes is in report.json. {paper}"
    policy = f"default-src 'none'; style-src '{_hash(STYLE)}'; script-src '{_hash(SCRIPT)}'; base-uri 'none'"
    sections: list[tuple[str, Callable[[], str], str]] = [
        ("Data map", lambda: _map(report, ids), "Where KV state is, and how old the oldest of it."),
        ("Hosts and controls", lambda: _matrix(report, ids), legend),
    ]
    body = "".join(_section(title, make(), text) for title, make, text in sections) + _fleet_ages(report)
    if lost:
        body += _section("Could not be audited", f"<ul>{''.join(lost)}</ul>")
    head = ("Until", "Host", "Control", "Tier", "Reason")
    body += _section("Waivers", _table(head, waivers, "Waivers") if waivers else "<p>None.</p>")
    body += _section("History", _history(report, ids), "A gap is two hours or more without an audit.")
    body += _section("Evidence and remedies", "".join(_host(host, ids, full) for host in hosts), note)
    return (
        f'<!DOCTYPE html>\n<html lang="en"{"" if full else " class=many"}><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="referrer" content="no-referrer">'
        f"<title>{_text(report['title'])}</title><style>{STYLE}</style></head><body>"
        '<a class="skip" href="#main">Skip to the data map</a>'
        f'<header><h1>{_text(report["title"])}</h1><p class="dim">Made {iso(report["generated"])}</p>'
        f'<p><span class="verdict {_text(report["verdict"])}">{_WORDS[report["verdict"]]}</span></p>'
        f"<p>{'<br>'.join(lines)}</p>{_tools()}</header>"
        f'<main id="main">{body}</main><footer><p class="dim">llmhost.hardening, report schema {report["schema"]}</p>'
        f"</footer><script>{SCRIPT}</script></body></html>\n"
    )
