# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The controls by name, and the form of what is said of each."""

from __future__ import annotations

from typing import Any, NamedTuple

from .judge import Verdict, clean

Result = dict[str, Any]


class Control(NamedTuple):
    """What a control is called, and how bad it is if it fails."""

    title: str
    severity: str


CONTROLS: dict[str, Control] = {
    "KV-01": Control("declared", "high"),
    "KV-02": Control("local encrypted volume", "high"),
    "KV-03": Control("owned and closed", "high"),
    "KV-04": Control("no readable block", "high"),
    "KV-05": Control("safe path", "high"),
    "KV-06": Control("in time", "high"),
    "KV-07": Control("expiry is alive", "high"),
    "KV-08": Control("no leftovers", "medium"),
    "KV-09": Control("bucket expires", "high"),
    "KV-10": Control("names tell nothing", "high"),
    "KV-11": Control("no open KV port", "high"),
    "KV-12": Control("no spill", "high"),
    "KV-13": Control("settings are safe", "high"),
    "KV-14": Control("live expiry is safe", "high"),
    "KV-15": Control("room left", "medium"),
    "KV-16": Control("no copies", "medium"),
}
# Not a control of the host: reports a waiver that is void.
WAIVER = Control("waivers are valid", "medium")


def result_of(control: str, tier: str, verdict: Verdict) -> Result:
    """A verdict about a tier in the audit's form."""
    entry = CONTROLS.get(control, WAIVER)
    return {
        "control": control,
        "title": entry.title,
        "severity": entry.severity,
        "tier": tier,
        "status": verdict.status,
        "message": clean(verdict.message),
        "evidence": clean(verdict.evidence),
        "remedy": clean(verdict.remedy),
    }


def memory_name(entry: dict[str, Any]) -> str:
    """What the results of a service's memory are called; `:` stands in no tier's name."""
    return "shm:{}".format(entry["service"])
