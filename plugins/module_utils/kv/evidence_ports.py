# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the audit reads about the ports that a tier's engines listen on, and who reaches them. Reads only."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from . import firewall, listeners
from .evidence_engine import Running


@dataclass(frozen=True)
class Port:
    """A listening socket of a tier's engine. kv: why it is one for blocks, "" if nothing says so."""

    listener: listeners.Listener
    kv: str
    reach: firewall.Reach | None = None


@dataclass(frozen=True)
class Ports:
    """All of them. unread: processes whose sockets could not be seen; rules are those of the host."""

    found: tuple[Port, ...] = ()
    unread: tuple[int, ...] = ()


def _named(port: int, running: Running) -> bool:
    """Do the engine's settings name the port, other than as that of its HTTP API?"""
    words = list(running.words)
    for number, word in enumerate(words):
        if word == "--port" and number + 1 < len(words):
            words[number + 1] = ""
        elif word.startswith("--port="):
            words[number] = ""
    text = "\0".join(words) + "\0" + re.sub(r"(?m)^\s*port:.*$", "", running.config or "")
    return re.search(r"(?<!\d)%d(?!\d)" % port, text) is not None


def _own_network(pid: int, proc: str) -> bool | None:
    """Does the process live in a network namespace of its own, where the host's rules say nothing?"""
    try:
        return os.readlink(f"{proc}/{pid}/ns/net") != os.readlink(f"{proc}/self/ns/net")
    except OSError:
        return None


def _reach(listener: listeners.Listener, rules: list[dict[str, Any]] | None, own: bool | None) -> firewall.Reach:
    if own is not False:
        return firewall.Reach(firewall.UNKNOWN, "it is in a network of its own, whose way in is not judged")
    families = (False, True) if listener.address == "::" else (":" in listener.address,)
    order = (firewall.OPEN, firewall.UNKNOWN, firewall.NAMED, firewall.CLOSED)
    return min((firewall.reach(rules, listener.port, v6) for v6 in families), key=lambda one: order.index(one.who))


def look(engines: Sequence[Running], proc: str = "/proc") -> Ports:
    """The listeners of these processes; the firewall is read only if one of them is for blocks and not local."""
    by_pid = {one.pid: one for one in engines}
    unread = tuple(
        pid for pid in by_pid if os.path.isdir(f"{proc}/{pid}") and not os.access(f"{proc}/{pid}/fd", os.R_OK)
    )
    rules: list[dict[str, Any]] | None = None
    asked = False
    found = []
    for listener in listeners.of_processes(by_pid, proc):
        if listener.pid is None:
            continue
        kv = listener.kind or ("named in its settings" if _named(listener.port, by_pid[listener.pid]) else "")
        if not kv or listener.loopback:
            found.append(Port(listener, kv))
            continue
        if not asked:
            rules, asked = firewall.read(proc), True
        found.append(Port(listener, kv, _reach(listener, rules, _own_network(listener.pid, proc))))
    return Ports(tuple(found), unread)
