# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The commands of kvtier that judge, tell and prepare, apart from expire: it starts most often and needs none of it."""

from __future__ import annotations

import argparse
import json
import os
import sys
import syslog
import time
from typing import Any

from . import (
    controls,
    datamap,
    expiry,
    fsio,
    history,
    metrics,
    mounts,
    orphans,
    prepare,
    standing,
    state,
    tiers_found,
)
from .datamap import Document
from .survey import printable

_FAILED_CONTROLS = 1


def say(line: str) -> None:
    """One line to whoever called."""
    sys.stdout.write(line + "\n")


def audit(document: Document, options: argparse.Namespace) -> int:
    now = time.time()
    # A map that is not this host's own is judged alone: it leaves no trace in the host's history.
    own = options.map == datamap.PATH
    past = history.read() if own else None
    found = tiers_found.look() if own else None
    waivers = _waivers(options.waivers)
    given = {"past": past, "found": found, "full": options.full}
    result = controls.audit(document, now, waivers, options.max_seconds, options.map, **given)
    if own:
        _remember(document, result)
    if options.metrics:
        runs = {tier["name"]: state.read_run(tier) for tier in datamap.file_tiers(document)}
        try:
            fsio.write_atomic(
                options.metrics, metrics.render(result, runs, now, _space(document), _orphaned()).encode("utf-8"), 0o644
            )
        except OSError as error:
            # Without node_exporter there is no directory for it; the audit itself must not be lost with that.
            syslog.syslog(syslog.LOG_NOTICE, f"metrics not written to {options.metrics}: {error.strerror}")
    syslog.syslog(
        syslog.LOG_INFO if result["verdict"] == "pass" else syslog.LOG_WARNING,
        "audit: {} ({})".format(
            result["verdict"], ", ".join(f"{n} {k}" for k, n in sorted(result["counts"].items()) if n)
        ),
    )
    if options.json:
        say(json.dumps(result, indent=2, sort_keys=True))
    else:
        for entry in result["results"]:
            if entry["status"] not in ("pass", "not_applicable"):
                say(f"{entry['status']:8} {entry['control']} {entry['tier']}: {entry['message']}. {entry['remedy']}")
        say(f"verdict: {result['verdict']}")
    return expiry.OK if result["verdict"] == "pass" else _FAILED_CONTROLS


def _space(document: Document) -> dict[str, tuple[int, int]]:
    """Free bytes and size of the file system of each tier that is there."""
    found = {}
    for tier in datamap.file_tiers(document):
        try:
            with fsio.opened(tier["path"]) as fd:
                if mounts.problem(tier, fd) is None:
                    space = os.fstatvfs(fd)
                    found[tier["name"]] = (space.f_bavail * space.f_frsize, space.f_blocks * space.f_frsize)
        except (OSError, fsio.UnsafePath):
            continue
    return found


def _orphaned() -> tuple[int, int] | None:
    """How many files and bytes of shared memory nobody maps."""
    found = orphans.find()
    return None if found is None else (len(found), sum(one.size for one in found))


def _waivers(path: str) -> list[Any]:
    """The waivers of the host's file. One that cannot be read is a void waiver, which is a finding."""
    try:
        waivers = fsio.read_json(path, owner=0 if path == datamap.WAIVERS else None)
    except FileNotFoundError:
        return []
    except (OSError, fsio.UnsafePath) as error:
        return [{"reason": str(error)}]
    return waivers if isinstance(waivers, list) else [{"reason": f"{path} is no list"}]


def _remember(document: Document, result: dict[str, Any]) -> None:
    """Append the audit to the host's history. An audit whose line cannot be written is told of, not lost."""
    runs = {tier["name"]: state.read_run(tier) for tier in datamap.file_tiers(document)}
    deleted = {name: run["expired"] for name, run in runs.items() if run is not None}
    try:
        history.append(history.line_of(result, deleted))
    except (OSError, fsio.UnsafePath) as error:
        syslog.syslog(syslog.LOG_ERR, f"the audit is not in the history: {error}")
        sys.stderr.write(f"kvtier: the audit is not in the history: {error}\n")


def tell_history(document: Document, options: argparse.Namespace) -> int:
    past = history.read(options.directory, owner=0 if options.directory == history.DIRECTORY else None)
    day = options.on or time.strftime("%Y-%m-%d", time.gmtime())
    try:
        lines, good = history.told(past, day)
        chosen = history.on(past.lines, day)
    except ValueError:
        raise KeyError(f"--on takes a day like 2027-03-03, not {printable(day)}") from None
    if options.json:
        say(json.dumps({"day": day, "audits": chosen, "problems": past.problems, "good": good}, sort_keys=True))
    else:
        for line in lines:
            say(line)
    return expiry.OK if good else _FAILED_CONTROLS


def prepare_tier(document: Document, options: argparse.Namespace) -> int:
    tier = datamap.tier_named(document, options.tier)
    if not tier["path"]:
        raise prepare.Refused(f"tier {tier['name']} has no directory")
    for line in prepare.prepare(tier) or ["nothing to do"]:
        syslog.syslog(syslog.LOG_INFO, f"prepare {tier['name']}: {line}")
        say(line)
    return expiry.OK


def status(document: Document, options: argparse.Namespace) -> int:
    found = standing.of_host(document, time.time())
    for line in standing.render(document["host"], found):
        say(line)
    return expiry.OK if all(one.good for one in found) else _FAILED_CONTROLS
