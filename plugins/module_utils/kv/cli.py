# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""kvtier: what cron, systemd and a person call on the host. The same code as the modules.

cron starts it every few minutes for each tier: what only other commands need is imported where they begin.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
import syslog
from collections.abc import Sequence
from typing import Any, Callable

from . import account, datamap, expiry, fsio, progress, purgecmd
from .datamap import Document, MapError, Refused, Tier
from .survey import printable
from .workers import default_workers

VERSION = "0.1.0"
MAX_LISTED = 1000


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
    except Refused as error:
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
    command.add_argument("--full", action="store_true", help="walk through large tiers too, whatever is on record")
    command.add_argument(
        "--waivers", default=datamap.WAIVERS, metavar="FILE", help="accepted findings (default %(default)s)"
    )
    command.set_defaults(run=_audit)

    purgecmd.add(commands)

    command = commands.add_parser(
        "orphans",
        help="memory tiers in /dev/shm that no process maps any more (root)",
        epilog="Exit codes: 0 none is left; 1 some are there; 2 wrong use; 3 it could not be told.",
    )
    command.add_argument("--remove", action="store_true", help="remove them")
    command.set_defaults(run=_orphans)

    command = commands.add_parser("history", help="what earlier audits of this host found (root)")
    command.add_argument("--on", metavar="YYYY-MM-DD", help="what was so on that day (UTC); default: today")
    command.add_argument("--directory", default=datamap.AUDIT_ROOT, help="where it is kept (default %(default)s)")
    command.add_argument("--json", action="store_true")
    command.set_defaults(run=_history)

    command = commands.add_parser("status", help="how each tier stands")
    command.set_defaults(run=_status)
    return parser


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")


def _fail(message: str, code: int) -> int:
    for line in map(printable, message.splitlines()):
        syslog.syslog(syslog.LOG_ERR, line)
        sys.stderr.write(f"kvtier: {line}\n")
    return code


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
    tell = dead_summary if options.dead_namespaces else summary
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
            from . import namespaces

            return namespaces.delete_dead(tier, delete=not options.dry_run)
        due = expiry.Listed(MAX_LISTED)
        result = expiry.expire(
            tier,
            delete=not options.dry_run,
            trust_clock=options.trust_clock,
            max_seconds=options.max_seconds,
            on_delete=due if options.dry_run else None,
            stopped=stopped,
            progress=shown.directory if shown else None,
            workers=options.workers or (None if options.dry_run else default_workers()),
            full=options.full,
        )
        return {**result, "would_delete": due.paths, "would_delete_count": due.count} if options.dry_run else result

    # One tier that cannot be worked on must not keep the others from being expired.
    try:
        account.uid_of(tier["owner"])
    except KeyError:
        return expiry.failed(tier, expiry.REFUSED, f"there is no account {tier['owner']}; run the harden playbook")
    try:
        if not options.stopped:
            result: dict[str, Any] = account.as_owner(tier["owner"], work)
        else:
            from . import holders

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


def dead_summary(result: dict[str, Any]) -> str:
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


def _prepare(document: Document, options: argparse.Namespace) -> int:
    from . import cli_audit

    return cli_audit.prepare_tier(document, options)


def _orphans(document: Document, options: argparse.Namespace) -> int:
    from . import orphans

    return orphans.run(document, options)


def _audit(document: Document, options: argparse.Namespace) -> int:
    from . import cli_audit

    return cli_audit.audit(document, options)


def _history(document: Document, options: argparse.Namespace) -> int:
    from . import cli_audit

    return cli_audit.tell_history(document, options)


def _status(document: Document, options: argparse.Namespace) -> int:
    from . import cli_audit

    return cli_audit.status(document, options)
