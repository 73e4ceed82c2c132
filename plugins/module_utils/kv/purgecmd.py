# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""`kvtier purge`: its arguments, its question, its output."""

from __future__ import annotations

import argparse
import json
import sys
import syslog
from typing import Any

from . import datamap
from .datamap import Document

_DONE, _REMAINS = 0, 1


def add(commands: Any) -> None:
    """Add the command to kvtier's parser."""
    command = commands.add_parser(
        "purge",
        help="destroy one tier now, by its key where it has one (root)",
        epilog="Exit codes: 0 destroyed, in service again; 1 something remains, run it again; 2 wrong use; 3 refused.",
    )
    command.add_argument("tier")
    command.add_argument("--confirm", metavar="NAME", help="the tier's name once more; asked for at a terminal")
    command.add_argument("--dry-run", action="store_true", help="say what would be destroyed and stopped")
    command.add_argument("--who", metavar="TEXT", help="who ordered it, for the receipt")
    command.add_argument("--json", action="store_true")
    command.set_defaults(run=run)


def run(document: Document, options: argparse.Namespace) -> int:
    """Purge one tier."""
    from . import purge, receipt

    tier = datamap.tier_named(document, options.tier)
    if options.dry_run:
        _show(purge.plan(tier))
        return _DONE
    confirm = options.confirm
    if confirm is None and sys.stdin.isatty() and not options.json:
        sys.stderr.write(f"This destroys every block of tier {tier['name']} and stops what uses it. Its name: ")
        sys.stderr.flush()
        confirm = sys.stdin.readline().strip()
    if confirm != tier["name"]:
        raise KeyError(f"nothing was touched: confirm with --confirm {tier['name']}")
    made = purge.purge(tier, document, receipt.who(options.who))
    content = {**made.content, "receipt": made.path}
    good = content["result"] == purge.DESTROYED
    syslog.syslog(
        syslog.LOG_NOTICE if good else syslog.LOG_ERR,
        "purge {tier}: {result}, receipt {receipt}".format(**content),
    )
    if options.json:
        _show(content)
    else:
        sys.stdout.write("\n".join([*purge.lines(content), "receipt: " + made.path]) + "\n")
    return _DONE if good else _REMAINS


def _show(value: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(value, indent=2, sort_keys=True) + "\n")
