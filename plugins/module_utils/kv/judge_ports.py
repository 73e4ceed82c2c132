# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""KV-11: nobody but named peers reaches a port over which blocks or their names travel. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from . import firewall
from .evidence_ports import Ports
from .evidence_tier import Evidence
from .judge import Parts, Verdict


def no_open_port(evidence: Evidence) -> Verdict:
    """KV-11 of a tier with files."""
    seen = evidence.host.processes is not None
    return judge(evidence.ports, evidence.tier["peers"] or [], seen, bool(evidence.processes))


def judge(ports: Ports, peers: Sequence[str], seen: bool, runs: bool) -> Verdict:
    """KV-11. seen: processes can be seen; runs: an engine of the tier runs."""
    parts = Parts()
    facts = {
        "listeners": [
            {**one.listener._asdict(), "kv": one.kv, "reach": one.reach._asdict() if one.reach else None}
            for one in ports.found
        ]
    }
    if not seen or ports.unread:
        parts.unknown("the sockets of its engines cannot be seen", "run the audit as root")
    for one in ports.found:
        if one.reach is None:
            continue
        label = "port %d on %s (%s, pid %s)" % (one.listener.port, one.listener.address, one.kv, one.listener.pid)
        if one.reach.who == firewall.OPEN:
            rules = firewall.snippet([one.listener.port], peers)
            parts.fail(
                f"everybody reaches {label}: {one.reach.why}",
                f"bind it to 127.0.0.1 or one address, or let in its peers alone, for example: {rules}",
            )
        elif one.reach.who == firewall.UNKNOWN:
            remedy = "look by hand, and waive it for a time"
            parts.unknown(f"who reaches {label} cannot be told: {one.reach.why}", remedy)
        else:
            parts.note(f"{label}: {one.reach.why}")
    if seen and not runs:
        parts.note("no engine of it runs")
    return parts.verdict("no port for blocks is open to strangers", facts)
