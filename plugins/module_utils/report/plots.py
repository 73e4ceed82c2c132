# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The two plots of the report as SVG: ages of blocks against the retention, and growth over past audits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

_W, _H, _LEFT, _BOTTOM = 520, 150, 46, 26


def duration(seconds: float | None) -> str:
    """A time span for people, "-" for none."""
    if seconds is None:
        return "-"
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def size(number: float | None) -> str:
    """Bytes for people, "-" for none."""
    if number is None:
        return "-"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024:
            return f"{number:.0f} {unit}"
        number /= 1024
    return f"{number:.1f} TiB"


def _svg(title: str, parts: Sequence[str]) -> str:
    return (
        f'<svg class="plot" viewBox="0 0 {_W} {_H}" role="img" aria-label="{escape(title)}">'
        f"<title>{escape(title)}</title>{''.join(parts)}</svg>"
    )


def histogram(ages: Sequence[Sequence[Any]], limit: float | None) -> str:
    """Bars of how many blocks have which age; a line where the retention ends. "" without blocks."""
    if not sum(count for _bound, count in ages):
        return ""
    top = max(count for _bound, count in ages)
    step = (_W - _LEFT) / len(ages)
    parts, low, line = [], 0.0, None
    for number, (bound, count) in enumerate(ages):
        left = _LEFT + number * step
        high = (_H - _BOTTOM - 14) * count / top
        late = limit is not None and low >= limit
        label = f"up to {duration(bound)}" if bound is not None else f"over {duration(low)}"
        parts.append(
            f'<rect class="{"late" if late else "bar"}" x="{left + 2:.1f}" y="{_H - _BOTTOM - high:.1f}" '
            f'width="{step - 4:.1f}" height="{high:.1f}"><title>{label}: {count:.0f} blocks</title></rect>'
        )
        parts.append(
            f'<text x="{left + step / 2:.1f}" y="{_H - 10}" text-anchor="middle">'
            f"{duration(bound) if bound is not None else 'more'}</text>"
        )
        if limit is not None and line is None and (bound is None or limit <= bound):
            share = 1.0 if bound is None else (limit - low) / (bound - low) if bound > low else 1.0
            line = left + step * min(1.0, max(0.0, share))
        low = bound or low
    if line is not None:
        parts.append(f'<line class="limit" x1="{line:.1f}" x2="{line:.1f}" y1="2" y2="{_H - _BOTTOM}"/>')
        anchor = "end" if line > _W * 0.6 else "start"
        shift = -4 if anchor == "end" else 4
        parts.append(f'<text x="{line + shift:.1f}" y="11" text-anchor="{anchor}">retention {duration(limit)}</text>')
    parts.append(f'<text x="0" y="18">{top:.0f}</text>')
    return _svg("Number of blocks by age", parts)


def growth(history: Sequence[Mapping[str, Any]], gaps: Sequence[Mapping[str, float]]) -> str:
    """Bytes in blocks at each past audit, broken where audits are missing. "" for fewer than two."""
    points = [(one["time"], one["bytes"] or 0) for one in history if one["time"] is not None]
    if len(points) < 2 or points[-1][0] <= points[0][0]:
        return ""
    first, last = points[0][0], points[-1][0]
    top = max(1, max(value for _time, value in points))

    def across(time: float) -> float:
        return _LEFT + (_W - _LEFT - 4) * (time - first) / (last - first)

    parts = [
        f'<rect class="gap" x="{across(gap["from"]):.1f}" y="4" width="{across(gap["to"]) - across(gap["from"]):.1f}" '
        f'height="{_H - _BOTTOM - 4}"><title>no audit for {duration(gap["to"] - gap["from"])}</title></rect>'
        for gap in gaps
    ]
    breaks = {gap["to"] for gap in gaps}
    runs: list[list[str]] = [[]]
    for time, value in points:
        if time in breaks:
            runs.append([])
        runs[-1].append(f"{across(time):.1f},{_H - _BOTTOM - (_H - _BOTTOM - 14) * value / top:.1f}")
    parts += [f'<polyline class="growth" points="{" ".join(run)}"/>' for run in runs if run]
    parts.append(
        f'<text x="0" y="14">{size(top)}</text><text x="{_LEFT}" y="{_H - 8}">{duration(last - first)} ago</text>'
    )
    parts.append(f'<text x="{_W - 4}" y="{_H - 8}" text-anchor="end">now</text>')
    return _svg("Bytes in blocks over past audits", parts)
