# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""KV-01, of the host: what was found on it and no tier of the data map names."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Callable

from .datamap import Document
from .judge import Parts, Verdict
from .mapkeys import within

# Results that are about the host, and the beginning of the names of those about a place outside the map.
HOST = "-"
PREFIX = "undeclared:"
_IN_USE = ("present", "vanished")
_DECLARE = "declare it in llmhost_tiers, or stop what writes it and remove it"


def named_by(one: Mapping[str, Any], tiers: Sequence[Mapping[str, Any]], real: Callable[[str], str]) -> Any:
    """The tier that a place which was found belongs to, None if there is none. real: a path without symlinks."""
    path, bucket = one.get("path"), one.get("bucket")
    for tier in tiers:
        if path and tier["path"]:
            if within(path, tier["path"]) or within(real(path), real(tier["path"])):
                return tier
        elif bucket and tier["bucket"]:
            if (bucket, one.get("prefix") or "") == (tier["bucket"], tier["prefix"] or ""):
                return tier
        # Peers have no place to compare.
        elif not (path or bucket or one.get("inside")) and one.get("store") == tier["store"]:
            return tier
    return None


def _where(one: Mapping[str, Any]) -> str:
    if one.get("bucket"):
        return f"{one['bucket']}/{one.get('prefix') or ''}"
    return str(one.get("path") or one.get("inside") or one.get("store"))


def _how(one: Mapping[str, Any]) -> str:
    """Who names or uses a place, the first three."""
    ways = []
    for way in one.get("found", ())[:3]:
        by = f"pid {way['pid']}" if way.get("pid") else way.get("file") or way.get("kind")
        ways.append(" ".join(str(part) for part in (by, way.get("unit"), way.get("container")) if part))
    return f"{one.get('sure')}: {', '.join(ways)}"


def judge(
    document: Document, found: Mapping[str, Any], root: bool, real: Callable[[str], str] = os.path.realpath
) -> list[tuple[str, Verdict]]:
    """A failed result for each place outside the map, and one for the host. found: what tiers_found.find() gave."""
    tiers = document["tiers"]
    results: dict[str, Verdict] = {}
    # What is configured says only where a container sees it; what runs says where that lies on the host.
    resolved = {
        (one["store"], one["inside"])
        for one in found.get("tiers", ())
        if one.get("path") and one.get("inside") and named_by(one, tiers, real)
    }
    for one in found.get("tiers", ()):
        tier = named_by(one, tiers, real)
        if tier is not None and tier["state"] in _IN_USE:
            continue
        if tier is None and not one.get("path") and (one["store"], one.get("inside")) in resolved:
            continue
        where, parts = _where(one), Parts()
        inside = "" if one.get("path") or one.get("bucket") or not one.get("inside") else " inside a container"
        what = f"{one['store']} at {where}{inside} ({_how(one)})"
        if tier is None:
            parts.fail(f"{what} is no tier of the data map", _DECLARE)
        else:
            parts.fail(f"{what}, but tier {tier['name']} is {tier['state']}", f"set tier {tier['name']} to present")
        results[PREFIX + where] = parts.verdict("", {"place": dict(one, found=list(one.get("found", ()))[:10])})
    return [*results.items(), (HOST, _looked(found, len(results), root))]


def _looked(found: Mapping[str, Any], extra: int, root: bool) -> Verdict:
    """Could everything be looked at?"""
    parts, unread, scan = Parts(), list(found.get("unread", ())), found.get("scan") or {}
    facts = {
        "places": len(found.get("tiers", ())),
        "undeclared": extra,
        "processes": found.get("processes"),
        "engines": found.get("engines"),
        "unread": unread[:20],
        "scan": scan,
    }
    if found.get("error"):
        parts.unknown(f"the host cannot be looked at: {found['error']}", "run the audit as root")
    elif not root:
        parts.unknown("only root sees what every process uses", "run the audit as root")
    if unread:
        more = "" if len(unread) == 1 else f" and {len(unread) - 1} more"
        parts.unknown(f"what an engine uses could not all be read: {unread[0]}{more}", "make it readable, or waive it")
    if scan.get("complete") is False:
        parts.note("the scan for trees that nothing names ended early")
    passed = "no other store runs, is configured or lies in a default directory"
    return parts.verdict(f"{extra} places besides the map, each told of by itself" if extra else passed, facts)
