# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""kvtier: what cron, systemd and a person call on the host. The same code as the modules."""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
import syslog
import time
from collections.abc import Sequence
from typing import Any, Callable

from . import (
    account,
    controls,
    datamap,
    expiry,
    fsio,
    history,
    holders,
    metrics,
    mounts,
    namespaces,
    orphans,
    prepare,
    progress,
    purge,
    purgecmd,
    standing,
    state,
    walk,
)
from .datamap import Document, MapError, Tier
from .workers import default_workers

VERSION = "0.1.0"
_FAILED_CONTROLS = 1
MAX_LISTED = 1000
WAIVERS = "/etc/llmhost/waivers.json"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Exit codes: expiry.EXIT_CODES; of the others 0 done, 1 findings, 2 wrong use, 3 refused."""
    os.umask(0o077)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    options = _parser().parse_args(argv)
    syslog.openlog("kvtier", syslog.LOG_PID, syslog.LOG_DAEMON)
    try:
        document = datamap.load(options.map)
        return int(options.run(document, options))
    except MapError as error:
        return _fail(str(error), expiry.USAGE)
    except KeyError as error:
        return _fail(str(error.args[0]), expiry.USAGE)
    except (prepare.Refused, purge.Refused) as error:
        return _fail(str(error), expiry.REFUSED)
    except (OSError, RuntimeError, fsio.UnsafePath) as error:
        return _fail(f"{options.command}: {error}", expiry.ERRORS)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="kvtier", description="Closes, expires and audits KV cache tiers of this host."
    )
    parser.add_argument("--version", action="version", version=f"kvtier {VERSION}")
    parser.add_argument("--map", default=datamap.PATH, help="data map to read (default %(default)s)")
    commands = parser.add_subparsers(dest="command", required=True)

    command = commands.add_parser("prepare", help="put owner, mode and ACL of a mounted tier's root right")
    command.add_argument("tier")
    command.set_defaults(run=_prepare)

    codes = "; ".join(f"{code} {meaning}" for code, meaning in expiry.EXIT_CODES.items())
    command = commands.add_parser(
        "expire", help="delete the blocks whose retention has ended", epilog=f"Exit codes: {codes}."
    )
    command.add_argument("tier", nargs="*", help="tiers (default: all)")
    command.add_argument("--dry-run", action="store_true", help="list what would go, delete and record nothing")
    command.add_argument(
        "--trust-clock", action="store_true", help="expire although the clock jumped; the time is right now"
    )
    command.add_argument("--max-seconds", type=float, default=expiry.MAX_SECONDS, metavar="N")
    command.add_argument("--full", action="store_true", help="read every directory, also those that did not change")
    command.add_argument(
        "--workers", type=int, choices=range(1, 65), metavar="N", help="processes (default: half the cores, 2 to 8)"
    )
    command.add_argument("--json", action="store_true")
    special = command.add_mutually_exclusive_group()
    special.add_argument(
        "--stopped",
        action="store_true",
        help="for stores whose engine must be stopped: make sure that nothing holds the named tier, then expire (root)",
    )
    special.add_argument(
        "--dead-namespaces",
        action="store_true",
        help="instead: delete what no configuration of the running engine can read any more",
    )
    command.set_defaults(run=_expire)

    command = commands.add_parser("audit", help="judge all tiers against their controls (root)")
    command.add_argument("--json", action="store_true")
    command.add_argument("--metrics", metavar="FILE", help="also write Prometheus text there")
    command.add_argument("--max-seconds", type=float, default=60, metavar="N", help="bound of all walks together")
    command.add_argument("--waivers", default=WAIVERS, metavar="FILE", help="accepted findings (default %(default)s)")
    command.set_defaults(run=_audit)

    purgecmd.add(commands)
    orphans.add(commands)

    command = commands.add_parser("history", help="what earlier audits of this host found (root)")
    command.add_argument("--on", metavar="YYYY-MM-DD", help="what was so on that day (UTC); default: today")
    command.add_argument("--directory", default=history.DIRECTORY, help="where it is kept (default %(default)s)")
    command.add_argument("--json", action="store_true")
    command.set_defaults(run=_history)

    command = commands.add_parser("status", help="how each tier stands")
    command.set_defaults(run=_status)
    return parser


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")


def _fail(message: str, code: int) -> int:
    for line in map(walk.printable, message.splitlines()):
        syslog.syslog(syslog.LOG_ERR, line)
        sys.stderr.write(f"kvtier: {line}\n")
    return code


def _prepare(document: Document, options: argparse.Namespace) -> int:
    tier = datamap.tier_named(document, options.tier)
    if not tier["path"]:
        raise prepare.Refused(f"tier {tier['name']} has no directory")
    for line in prepare.prepare(tier) or ["nothing to do"]:
        syslog.syslog(syslog.LOG_INFO, f"prepare {tier['name']}: {line}")
        _say(line)
    return expiry.OK


def _expire(document: Document, options: argparse.Namespace) -> int:
    known = datamap.file_tiers(document)
    if (options.stopped or options.dead_namespaces) and not options.tier:
        raise KeyError("name the tier that --stopped or --dead-namespaces is for")
    tiers = [datamap.tier_named(document, name) for name in options.tier] or known
    for tier in tiers:
        if tier not in known:
            raise KeyError(f"tier {tier['name']} has nothing to expire (state {tier['state']})")
    worst = expiry.OK
    results = []
    tell = purge_summary if options.dead_namespaces else summary
    for tier in tiers:
        result = _expire_one(tier, options)
        results.append(result)
        level = syslog.LOG_INFO if result["exit"] == expiry.OK else syslog.LOG_WARNING
        syslog.syslog(level, tell(result))
        if not options.json:
            for path in result.get("would_delete", ()):
                _say(path)
            _say(tell(result))
        worst = max(worst, result["exit"])
    if options.json:
        _say(json.dumps(results, indent=2, sort_keys=True))
    return worst


def _expire_one(tier: Tier, options: argparse.Namespace) -> dict[str, Any]:
    shown = progress.at_terminal(tier["name"], sys.stderr)

    def work(stopped: Callable[[], str | None] | None = None) -> dict[str, Any]:
        if options.dead_namespaces:
            return namespaces.purge(tier, delete=not options.dry_run)
        listed: list[str] = []
        due = 0

        def note(path: str, kind: str) -> None:
            nonlocal due
            due += 1
            if due <= MAX_LISTED:
                listed.append(path)

        result = expiry.expire(
            tier,
            delete=not options.dry_run,
            trust_clock=options.trust_clock,
            max_seconds=options.max_seconds,
            on_delete=note if options.dry_run else None,
            stopped=stopped,
            progress=shown.directory if shown else None,
            workers=options.workers or (None if options.dry_run else default_workers()),
            full=options.full,
        )
        return {**result, "would_delete": listed, "would_delete_count": due} if options.dry_run else result

    # One tier that cannot be worked on must not keep the others from being expired.
    try:
        account.uid_of(tier["owner"])
    except KeyError:
        return expiry.failed(tier, expiry.REFUSED, f"there is no account {tier['owner']}; run the harden playbook")
    try:
        if not options.stopped:
            result: dict[str, Any] = account.as_owner(tier["owner"], work)
        else:
            # Only root sees all processes, and the pass is not root: one process of ours stays root and looks for it.
            with holders.sentinel(tier) as stopped:
                result = account.as_owner(tier["owner"], lambda: work(stopped))
    except (OSError, RuntimeError) as error:
        return expiry.failed(tier, expiry.ERRORS, f"{tier['name']}: {error}")
    finally:
        if shown:
            shown.end()
    return result


def summary(result: dict[str, Any]) -> str:
    """One line about one pass."""
    line = (
        f"expire {result['tier']}: exit {result['exit']}, expired {result['expired']} blocks "
        f"({result['expired_bytes']} bytes), left {result['blocks']} ({result['block_bytes']} bytes), "
        f"overdue {result['overdue']}, loose {result['loose']}, {result['seconds']:.2f} s"
    )
    if "would_delete_count" in result:
        line += f"; would delete {result['would_delete_count']} entries (dry run, at most {MAX_LISTED} listed)"
    return "; ".join([line, *result["messages"][:3]])


def purge_summary(result: dict[str, Any]) -> str:
    """One line about the dead namespaces of one tier."""
    dead = result.get("dead", [])
    line = "dead namespaces of %s: exit %d, %d dead, %d removed (%d blocks, %d bytes)" % (
        result["tier"],
        result["exit"],
        len(dead),
        len(result.get("removed", [])),
        result.get("blocks", 0),
        result.get("bytes", 0),
    )
    each = ("{name} ({blocks} blocks, {bytes} bytes)".format(**one) for one in dead)
    return "; ".join([line, *each, *result["messages"][:3]])


def _audit(document: Document, options: argparse.Namespace) -> int:
    now = time.time()
    # A map that is not this host's own is judged alone: it leaves no trace in the host's history.
    own = options.map == datamap.PATH
    past = history.read() if own else None
    result = controls.audit(document, now, _waivers(options.waivers), options.max_seconds, options.map, past=past)
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
        _say(json.dumps(result, indent=2, sort_keys=True))
    else:
        for entry in result["results"]:
            if entry["status"] not in ("pass", "not_applicable"):
                _say(f"{entry['status']:8} {entry['control']} {entry['tier']}: {entry['message']}. {entry['remedy']}")
        _say(f"verdict: {result['verdict']}")
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
        waivers = fsio.read_json(path, owner=0 if path == WAIVERS else None)
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


def _history(document: Document, options: argparse.Namespace) -> int:
    past = history.read(options.directory, owner=0 if options.directory == history.DIRECTORY else None)
    day = options.on or time.strftime("%Y-%m-%d", time.gmtime())
    try:
        lines, good = history.told(past, day)
        chosen = history.on(past.lines, day)
    except ValueError:
        raise KeyError(f"--on takes a day like 2027-03-03, not {walk.printable(day)}") from None
    if options.json:
        _say(json.dumps({"day": day, "audits": chosen, "problems": past.problems, "good": good}, sort_keys=True))
    else:
        for line in lines:
            _say(line)
    return expiry.OK if good else _FAILED_CONTROLS


def _status(document: Document, options: argparse.Namespace) -> int:
    found = standing.of_host(document, time.time())
    for line in standing.render(document["host"], found):
        _say(line)
    return expiry.OK if all(one.good for one in found) else _FAILED_CONTROLS
