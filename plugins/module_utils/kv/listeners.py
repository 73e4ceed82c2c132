# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Listening TCP sockets and the processes that hold them, read from /proc."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterable
from typing import NamedTuple

from .stores_settings import PORTS

_LISTEN = "0A"
_MAX_BYTES = 1 << 22


class Listener(NamedTuple):
    """A listening socket. loopback: only this host (or container) reaches it; kind: what usually speaks there."""

    address: str
    port: int
    loopback: bool
    kind: str
    pid: int | None


def kind_of(port: int) -> str:
    """What an engine usually opens there for its own kind, "" for any other port."""
    return next((text for first, last, text in PORTS if first <= port <= last), "")


def _address(text: str) -> str:
    """An address of /proc/net/tcp: words of 32 bits in the byte order of the host, little-endian where GPUs are."""
    raw = bytes.fromhex(text)
    packed = b"".join(raw[at : at + 4][::-1] for at in range(0, len(raw), 4))
    return str(ipaddress.ip_address(packed))


def parse(text: str) -> list[tuple[str, int, int]]:
    """Address, port and inode of the listening sockets in a /proc/net/tcp or tcp6."""
    found = []
    for line in text.splitlines()[1:]:
        fields = line.split()
        if len(fields) < 10 or fields[3] != _LISTEN:
            continue
        host, _colon, port = fields[1].partition(":")
        try:
            found.append((_address(host), int(port, 16), int(fields[9])))
        except ValueError:
            continue
    return found


def _sockets(pid: int, proc: str) -> set[int]:
    """Inodes of the sockets that a process holds; none where it cannot be looked at or is gone."""
    found: set[int] = set()
    try:
        names = os.listdir(f"{proc}/{pid}/fd")
    except OSError:
        return found
    for name in names:
        try:
            target = os.readlink(f"{proc}/{pid}/fd/{name}")
        except OSError:
            continue
        if target.startswith("socket:[") and target[8:-1].isdigit():
            found.add(int(target[8:-1]))
    return found


def _table(base: str) -> list[tuple[str, int, int]]:
    found = []
    for name in ("tcp", "tcp6"):
        try:
            with open(f"{base}/net/{name}", encoding="ascii", errors="replace") as file:
                found += parse(file.read(_MAX_BYTES))
        except OSError:
            continue
    return found


def of_processes(pids: Iterable[int], proc: str = "/proc") -> list[Listener]:
    """The listeners of these processes, and those on well-known KV ports that nobody of them holds."""
    found: dict[tuple[str, int, int], Listener] = {}
    for pid in pids:
        held = _sockets(pid, proc)
        for address, port, inode in _table(f"{proc}/{pid}"):
            if inode in held:
                found[address, port, inode] = _listener(address, port, pid)
    for address, port, inode in _table(proc) or _table(f"{proc}/self"):
        if kind_of(port) and (address, port, inode) not in found:
            found[address, port, inode] = _listener(address, port, None)
    return sorted(found.values(), key=lambda one: (one.port, one.address, one.pid or 0))


def _listener(address: str, port: int, pid: int | None) -> Listener:
    parsed = ipaddress.ip_address(address)
    mapped = getattr(parsed, "ipv4_mapped", None)
    return Listener(address, port, (mapped or parsed).is_loopback, kind_of(port), pid)
