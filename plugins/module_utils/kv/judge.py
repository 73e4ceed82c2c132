# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""How a control's parts add up: any failed part fails it, then any part that could not be judged makes it unknown."""

from __future__ import annotations

from typing import Any, NamedTuple

PASS, FAIL, UNKNOWN, NOT_APPLICABLE, WAIVED = "pass", "fail", "unknown", "not_applicable", "waived"
STATUSES = (PASS, FAIL, UNKNOWN, NOT_APPLICABLE, WAIVED)


class Verdict(NamedTuple):
    """The judgement of one control over one tier."""

    status: str
    message: str
    evidence: dict[str, Any]
    remedy: str = ""


def plain(text: str) -> str:
    """text on one line and without anything a terminal would obey: file names are written by others."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)


def clean(value: Any) -> Any:
    """A JSON value with plain() applied to every string in it."""
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, dict):
        return {plain(str(key)): clean(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [clean(one) for one in value]
    return value


class Parts:
    """Collects what failed and what could not be judged, each with its remedy."""

    def __init__(self) -> None:
        self._failed: list[str] = []
        self._unknown: list[str] = []
        self._remedies: list[str] = []
        self._notes: list[str] = []

    def fail(self, text: str, remedy: str = "") -> None:
        """A part that is not as it must be."""
        self._failed.append(text)
        self._remedies.append(remedy)

    def unknown(self, text: str, remedy: str = "") -> None:
        """A part that could not be judged."""
        self._unknown.append(text)
        self._remedies.append(remedy)

    def note(self, text: str) -> None:
        """Something a reader of a passed control should see."""
        self._notes.append(text)

    def verdict(self, passed: str, evidence: dict[str, Any]) -> Verdict:
        """What it all adds up to. passed: the message if nothing is wrong."""
        remedy = "; ".join(dict.fromkeys(text for text in self._remedies if text))
        if self._failed:
            return Verdict(FAIL, "; ".join(self._failed), evidence, remedy)
        if self._unknown:
            return Verdict(UNKNOWN, "; ".join(self._unknown), evidence, remedy)
        return Verdict(PASS, "; ".join([passed, *self._notes]), evidence)
