# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What keeps a block device with a file system in use: processes in any mount namespace, and how they are stopped.

Compared are device numbers, so a lazy unmount, a bind mount and a container's private copy of the mount count too.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Sequence
from typing import Callable, NamedTuple

from . import discovery, fsio, holders
from .holders import Holder
from .units import CONTAINER_DAEMONS

# What an unmount elsewhere reaches: members of its peer group, and those that only listen to it.
_FOLLOWS = ("shared:", "master:")
PATIENCE = 10.0
_POLL = 0.1


class Pin(NamedTuple):
    """A process that keeps the device in use. start: clock ticks since boot; container: its id, if it is in one."""

    pid: int
    start: int
    comm: str
    unit: str | None
    container: str | None
    how: str
    spared: str | None


class OnDevice(holders.Look):
    """One look at all processes for anything they have on a device, whatever file or directory it is."""

    def __init__(self, device: str, family: int, proc: str = "/proc") -> None:
        major, minor = (int(part) for part in device.split(":"))
        self.st_dev, self.device = os.makedev(major, minor), device
        self.fd, self.path, self.root_inode = -1, "", 0
        self.family, self.proc = family, proc
        self.holders = []
        self.things = []

    def _names(self, text: str) -> bool:
        # A name proves nothing here: below an old mount the same name is on another device.
        return False

    def _match(self) -> None:
        self.holders += [Holder(thing.pid, f"{thing.how}: {holders.printable(thing.text)}") for thing in self.things]


def ancestors(pid: int, proc: str = "/proc") -> set[int]:
    """A process and those that started it, up to PID 1."""
    found = {1}
    while pid > 1 and pid not in found:
        found.add(pid)
        fields = _stat(pid, proc)
        if fields is None:
            break
        pid = int(fields[1])
    return found


def _stat(pid: int, proc: str) -> list[str] | None:
    """Fields of /proc/PID/stat from the state on."""
    try:
        with open(f"{proc}/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].decode("ascii").split()
    except OSError:
        return None


def _text(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return file.read(1 << 22).decode("utf-8", "replace")
    except OSError:
        return ""


def private_points(mountinfo: str, device: str, peers: set[str]) -> list[str]:
    """Where a namespace has the device mounted for good: an unmount in the namespaces of these peer groups stays there.

    Many services have a mount namespace of their own that follows the host's: they hold nothing.
    """
    found = []
    for fields in (line.split(" ") for line in mountinfo.splitlines()):
        if fields[2:3] != [device]:
            continue
        groups = {tag.partition(":")[2] for tag in fields[6 : fields.index("-", 6)] if tag.startswith(_FOLLOWS)}
        if not groups & peers:
            found.append(fields[4])
    return found


def peer_groups(mountinfo: str, device: str) -> set[str]:
    """The peer groups that the mounts of the device in a namespace share with others."""
    lines = [line.split(" ") for line in mountinfo.splitlines()]
    tags = [tag for fields in lines if fields[2:3] == [device] for tag in fields[6 : fields.index("-", 6)]]
    return {tag.partition(":")[2] for tag in tags if tag.startswith("shared:")}


def _in_namespaces(device: str, family: int, proc: str) -> list[Holder]:
    """Processes in other mount namespaces in which the device stays mounted when it is unmounted here."""
    found = []
    here = os.readlink(f"{proc}/self/ns/mnt")
    peers = peer_groups(_text(f"{proc}/self/mountinfo"), device)
    for name in os.listdir(proc):
        if not name.isdigit() or int(name) == family:
            continue
        try:
            if os.readlink(f"{proc}/{name}/ns/mnt") == here:
                continue
            with open(f"{proc}/{name}/mountinfo", encoding="utf-8", errors="replace") as lines:
                points = private_points(lines.read(), device, peers)
        except OSError:
            continue
        if points:
            found.append(Holder(int(name), f"has it mounted for itself: {holders.printable(points[0])}"))
    return found


def find(device: str, proc: str = "/proc") -> list[Pin]:
    """Every process that keeps the device in use. device: MAJOR:MINOR. Raises holders.CannotTell."""
    family = os.getpid()
    return _named(OnDevice(device, family, proc).holding() + _in_namespaces(device, family, proc), family, proc)


def find_in(path: str) -> list[Pin]:
    """Every process that has something of a directory that shares its device with others. Raises holders.CannotTell."""
    family = os.getpid()
    with fsio.opened(path) as fd:
        return _named(holders.Look(fd, path, family).holding(), family, "/proc")


def _named(held: Sequence[Holder], family: int, proc: str) -> list[Pin]:
    found: dict[int, list[str]] = {}
    for holder in held:
        found.setdefault(holder.pid, []).append(holder.how)
    above = ancestors(family, proc)
    pins = []
    for pid, ways in sorted(found.items()):
        fields = _stat(pid, proc)
        if fields is None:
            continue
        cgroup = _text(f"{proc}/{pid}/cgroup")
        unit, container = discovery.unit_of(cgroup), discovery.container_of(cgroup)
        comm = holders.printable(_text(f"{proc}/{pid}/comm").strip())
        more = "" if len(ways) == 1 else " and %d more" % (len(ways) - 1)
        spared = None
        if pid in above:
            spared = "this command runs below it"
        elif container is None and unit is not None and (unit in CONTAINER_DAEMONS or unit.startswith("systemd-")):
            spared = f"others depend on {unit}"
        pins.append(Pin(pid, int(fields[19]), comm, unit, container, ways[0] + more, spared))
    return pins


def describe(pin: Pin) -> str:
    """A pin in one line."""
    where = f"container {pin.container}" if pin.container else pin.unit or "no unit"
    return "pid %d (%s, %s) %s" % (pin.pid, pin.comm, where, pin.how)


def _signal(pin: Pin, number: int, proc: str) -> int | None:
    """Send a signal to exactly that process; its pidfd, or None if it has ended or cannot be told from another one."""
    try:
        fd = os.pidfd_open(pin.pid)
    except OSError:
        return None
    fields = _stat(pin.pid, proc)
    if fields is None or int(fields[19]) != pin.start:
        os.close(fd)
        return None
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(fd, number)
    return fd


def _wait(fds: Sequence[int], seconds: float) -> None:
    """Until all these processes have ended, or time is up."""
    waiting = select.poll()
    for fd in fds:
        waiting.register(fd, select.POLLIN)
    left, until = set(fds), time.monotonic() + seconds
    while left and time.monotonic() < until:
        for fd, _event in waiting.poll(int(_POLL * 1000)):
            waiting.unregister(fd)
            left.discard(fd)


def stop(look: Callable[[], list[Pin]], patience: float = PATIENCE, proc: str = "/proc") -> tuple[list[Pin], list[Pin]]:
    """End what look() finds, first by SIGTERM, then by SIGKILL. Returns who was signalled and who is still there."""
    told: dict[tuple[int, int], Pin] = {}
    for number in (signal.SIGTERM, signal.SIGKILL, signal.SIGKILL):
        now = look()
        targets = [pin for pin in now if pin.spared is None]
        if not targets:
            return list(told.values()), now
        told.update({(pin.pid, pin.start): pin for pin in targets})
        fds = [fd for fd in (_signal(pin, number, proc) for pin in targets) if fd is not None]
        try:
            _wait(fds, patience)
        finally:
            for fd in fds:
                os.close(fd)
    return list(told.values()), look()
