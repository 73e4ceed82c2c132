# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who reaches a TCP port of this host past nftables: judged from `nft -j list ruleset`, strictly. Reads only.

What is not understood (jumps, maps, matches of other kinds) is never taken for closed.
"""

from __future__ import annotations

import ipaddress
import json
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from . import system

CLOSED, NAMED, OPEN, UNKNOWN = "closed", "named", "open", "unknown"
# Expressions of a rule that neither match nor decide.
_NEUTRAL = ("counter", "log", "comment")
_LIMIT = 30


class Reach(NamedTuple):
    """Who reaches a port: nobody, named sources, everybody, or it cannot be told; and why."""

    who: str
    why: str


def read(proc: str = "/proc") -> list[dict[str, Any]] | None:
    """The rules of this network namespace, empty if there are none; None if they are not nftables' or unreadable."""
    for name in ("ip_tables_names", "ip6_tables_names"):
        try:
            with open(os.path.join(proc, "net", name), encoding="ascii", errors="replace") as file:
                if file.read(1024).strip():
                    return None
        except FileNotFoundError:
            continue
        except OSError:
            return None
    try:
        answer = system.run(["nft", "-j", "list", "ruleset"], _LIMIT)
    except system.HostError as error:
        return [] if "not installed" in str(error) else None
    if answer.returncode:
        return None
    try:
        found = json.loads(answer.stdout or "{}").get("nftables", [])
    except (ValueError, AttributeError):
        return None
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else None


def reach(rules: Sequence[dict[str, Any]] | None, port: int, v6: bool) -> Reach:
    """Who reaches a TCP port over IPv4, or over IPv6. Several input chains: the strictest one decides."""
    if rules is None:
        return Reach(UNKNOWN, "the firewall cannot be read")
    family = ("ip6", "inet") if v6 else ("ip", "inet")
    chains = [
        one["chain"]
        for one in rules
        if "chain" in one and one["chain"].get("hook") == "input" and one["chain"].get("family") in family
    ]
    found = [_through(rules, chain, port, v6) for chain in chains]
    for who in (CLOSED, NAMED, UNKNOWN):
        best = next((one for one in found if one.who == who), None)
        if best is not None:
            return best
    return found[0] if found else Reach(OPEN, "no chain of the firewall has the input hook")


def _through(rules: Sequence[dict[str, Any]], chain: dict[str, Any], port: int, v6: bool) -> Reach:
    """What one base chain lets through to the port."""
    label = "{} {}".format(chain.get("table"), chain.get("name"))
    names: list[str] = []
    doubt = ""
    keys = ("family", "table", "chain")
    wanted = (chain.get("family"), chain.get("table"), chain.get("name"))
    for rule in (one["rule"] for one in rules if "rule" in one):
        if tuple(rule.get(key) for key in keys) != wanted:
            continue
        verdict, applies, sources = _rule(rule.get("expr") or [], port, v6)
        if applies is False:
            continue
        if verdict == "accept" and applies and sources is None:
            return Reach(UNKNOWN if doubt else OPEN, doubt or f"a rule of {label} lets everybody in")
        if verdict == "accept" and applies:
            names += sources or []
        elif verdict == "drop" and applies and sources is None:
            return _closed(label, names, doubt)
        elif verdict is not None and (applies is None or verdict not in ("accept", "drop")):
            doubt = doubt or f"a rule of {label} is of a kind that is not judged"
    if chain.get("policy") == "drop":
        return _closed(label, names, doubt)
    return Reach(UNKNOWN if doubt else OPEN, doubt or f"the policy of {label} is accept")


def _closed(label: str, names: Sequence[str], doubt: str) -> Reach:
    if doubt:
        return Reach(UNKNOWN, doubt)
    if names:
        return Reach(NAMED, f"{label} lets in {', '.join(names[:10])}")
    return Reach(CLOSED, f"{label} lets nobody in")


def _rule(expressions: Sequence[Any], port: int, v6: bool) -> tuple[str | None, bool | None, list[str] | None]:
    """Verdict of a rule, whether it applies to new connections to the port (None: not judged), sources (None: all)."""
    verdict: str | None = None
    applies: bool | None = True
    sources: list[str] | None = None
    for one in expressions:
        kind, value = next(iter(one.items())) if isinstance(one, dict) and one else ("", None)
        if kind == "match" and isinstance(value, dict):
            matched, named = _match(value, port, v6)
            if matched is False:
                return None, False, None
            if matched is None:
                applies = None
            sources = named if named is not None else sources
        elif kind in ("accept", "drop", "reject"):
            verdict = "accept" if kind == "accept" else "drop"
        elif kind not in _NEUTRAL:
            verdict, applies = kind or "?", None
    return verdict, applies, sources


def _match(match: dict[str, Any], port: int, v6: bool) -> tuple[bool | None, list[str] | None]:
    """Does a match hold for a new TCP connection from elsewhere? None: it may. And the sources that it names."""
    left, right, negated = match.get("left"), match.get("right"), match.get("op") == "!="
    if not isinstance(left, dict) or match.get("op") not in ("==", "in", "!="):
        return None, None
    key = next(iter(left), "")
    inner = left[key] if isinstance(left.get(key), dict) else {}
    field = "{}.{}".format(
        key, ".".join(str(inner.get(part)) for part in ("protocol", "field", "key") if part in inner)
    )
    values = _values(right)
    if field == "payload.tcp.dport":
        inside = [_holds(one, port) for one in values]
        if True not in inside and None in inside:
            return None, None
        return (True in inside) is not negated, None
    if field.startswith(("payload.udp.", "payload.icmp.", "payload.icmpv6.", "payload.sctp.")):
        return False, None
    if field in ("meta.l4proto", "payload.ip.protocol", "payload.ip6.nexthdr"):
        return (("tcp" in values or 6 in values) is not negated), None
    if field == "meta.nfproto":
        return (("ipv6" if v6 else "ipv4") in values) is not negated, None
    if field == "ct.state":
        return ("new" in values) is not negated, None
    if field in ("meta.iif", "meta.iifname"):
        # From elsewhere never over the loopback; other interfaces are not judged.
        return (negated if set(map(str, values)) == {"lo"} else None), None
    if field in ("payload.ip.saddr", "payload.ip6.saddr"):
        if (field == "payload.ip6.saddr") is not v6:
            return False, None
        if negated:
            return None, None
        sources = [_source(one) for one in values]
        if any(one is None for one in sources):
            return None, None
        if any(one in ("0.0.0.0/0", "::/0") for one in sources):
            return True, None
        return True, [one for one in sources if one]
    return None, None


def _values(right: Any) -> list[Any]:
    if isinstance(right, dict) and isinstance(right.get("set"), list):
        return list(right["set"])
    return list(right) if isinstance(right, list) else [right]


def _holds(value: Any, port: int) -> bool | None:
    """Is the port the value or in it? None: the value is not understood."""
    if isinstance(value, int):
        return value == port
    bounds = value.get("range") if isinstance(value, dict) else None
    if isinstance(bounds, list) and len(bounds) == 2 and all(isinstance(one, int) for one in bounds):
        return bool(bounds[0] <= port <= bounds[1])
    return None


def _source(value: Any) -> str | None:
    """An address or network as text, None for a named set or anything else."""
    if isinstance(value, dict) and isinstance(value.get("prefix"), dict):
        value = "{}/{}".format(value["prefix"].get("addr"), value["prefix"].get("len"))
    elif isinstance(value, dict) and isinstance(value.get("range"), list):
        value = "-".join(str(one) for one in value["range"])
        return str(value)
    try:
        network = ipaddress.ip_network(str(value), strict=False)
    except ValueError:
        return None
    return str(network) if network.num_addresses > 1 else str(network.network_address)


def snippet(ports: Sequence[int], peers: Sequence[str] = ()) -> str:
    """Rules for nftables that let only the peers in; for an operator to read and load, nobody here does."""
    numbers = ", ".join(str(port) for port in sorted(set(ports)))
    named = ", ".join(peers) or "PEERS"
    rules = [
        "add table inet llmhost",
        "add chain inet llmhost kv { type filter hook input priority -10; policy accept; }",
        "add rule inet llmhost kv iif lo accept",
        f"add rule inet llmhost kv ip saddr {{ {named} }} tcp dport {{ {numbers} }} accept",
        f"add rule inet llmhost kv tcp dport {{ {numbers} }} drop",
    ]
    return "nft '{}'".format("; ".join(rules))
