# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Processes in mount namespaces of their own that have a tier mounted: which of them, as whom, and what they see of it.

Read from /proc/PID/mountinfo, so it holds for podman, docker and namespaces made by hand. A process that sees the whole
host (its monitoring, a service with a private /tmp) has nothing of a tier mounted for itself and is not meant.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from . import discovery, system
from .datamap import Tier
from .survey import printable
from .system import Mount


class View(NamedTuple):
    """A process with a tier in its own namespace. at: where; bare: it sees the directory below the tier's mount."""

    pid: int
    uid: int
    comm: str
    unit: str | None
    container: str | None
    at: str
    bare: bool
    writable: bool

    def named(self) -> str:
        """Who it is, in a few words."""
        where = f"container {self.container}" if self.container else self.unit or "no unit"
        return f"pid {self.pid} ({printable(self.comm)}, {where})"


class Place(NamedTuple):
    """Where a tier lies. device and root: of the directory itself or below its mount; volume: device of that mount."""

    path: str
    device: str
    root: str
    volume: str | None


def place_of(path: str, mounts: Sequence[Mount]) -> Place | None:
    """The place of a tier in the host's mount table; None if nothing is there."""
    above = _covering(os.path.dirname(path), mounts)
    if above is None:
        return None
    root = os.path.normpath(above.root + "/" + path[len(above.point.rstrip("/")) :])
    volume = next((one.device for one in reversed(mounts) if one.point == path), None)
    return Place(path, above.device, root.replace("//", "/"), volume)


def _covering(path: str, mounts: Sequence[Mount]) -> Mount | None:
    found = [one for one in mounts if _within(path, one.point)]
    return max(found, key=lambda one: (len(one.point), one.id), default=None)


def _within(path: str, above: str) -> bool:
    return path == above or path.startswith(above.rstrip("/") + "/")


def seen_in(place: Place, inside: Sequence[Mount]) -> list[tuple[Mount, bool]]:
    """The mounts of a namespace that are the tier or a part of it, each with whether it lies below the tier's mount."""
    found = []
    for mount in inside:
        below = mount.device == place.device and _within(mount.root, place.root)
        if place.volume is not None and mount.device == place.volume and place.volume != place.device:
            if not _is_of_the_host(place, mount, inside):
                found.append((mount, False))
        elif below and not _is_of_the_host(place, mount, inside):
            found.append((mount, place.volume is not None and not _is_over(mount, place, inside)))
    return found


def _is_over(mount: Mount, place: Place, inside: Sequence[Mount]) -> bool:
    """Does the tier's volume lie over this mount?"""
    return any(one.point == mount.point and one.device == place.volume and one.id > mount.id for one in inside)


def _is_of_the_host(place: Place, mount: Mount, inside: Sequence[Mount]) -> bool:
    """Is the mount where it is because the namespace has the tree above the tier as the host has it?"""
    above = _covering(os.path.dirname(mount.point), [one for one in inside if one.id != mount.id])
    if above is None or above.device != place.device:
        return False
    there = os.path.normpath(above.root + "/" + mount.point[len(above.point.rstrip("/")) :])
    return there.replace("//", "/") == place.root


def find(tier: Tier, processes: Sequence[discovery.Process] | None = None, proc: str = "/proc") -> list[View]:
    """Every process in a namespace of its own that has the tier, as far as they can be looked at."""
    place = place_of(tier["path"], _table(f"{proc}/self/mountinfo") or [])
    if place is None:
        return []
    here = os.readlink(f"{proc}/self/ns/mnt")
    known: dict[str, list[tuple[Mount, bool]]] = {}
    views = []
    for process in discovery.processes(proc) if processes is None else processes:
        try:
            namespace = os.readlink(f"{proc}/{process.pid}/ns/mnt")
        except OSError:
            continue
        if namespace == here or discovery.is_runtime(process):
            continue
        if namespace not in known:
            inside = _table(f"{proc}/{process.pid}/mountinfo")
            if inside is None:
                continue
            known[namespace] = seen_in(place, inside)
        for mount, bare in sorted(known[namespace], key=lambda one: not one[1])[:1]:
            who = (process.pid, process.uid, process.comm, process.unit, process.container)
            views.append(View(*who, mount.point, bare, "ro" not in mount.options.split(",")))
    return views


def _table(path: str) -> list[Mount] | None:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return system.parse_mounts(file.read(1 << 22))
    except OSError:
        return None


def wrong_user(tier: Tier, view: View, uid: int | None, gid: int | None) -> tuple[str, str] | None:
    """Why a container must not have the tier as the account that it runs as, and what to write; None if it may.

    uid, gid: of the tier's account, None if there is none.
    """
    if not view.writable or view.uid == uid:
        return None
    who = "root" if view.uid == 0 else f"uid {view.uid}"
    reason = (
        f"{view.named()} runs as {who} and has the tier at {printable(view.at)}: "
        f"what it writes, {tier['owner']} can neither read nor expire"
    )
    user, group = ("UID", "GID") if uid is None else (uid, uid if gid is None else gid)
    fix = (
        f'give it user: "{user}:{group}" (compose), User={user} and Group={group} (quadlet) or --user {user}:{group}, '
    )
    return reason, fix + "or mount the tier read-only there"


def restart_of(view: View) -> str:
    """The command that makes a container see the tier's mount."""
    if view.unit and view.unit.endswith(".service"):
        return f"systemctl restart {view.unit}"
    return (
        f"docker restart {view.container} (podman restart)" if view.container else f"end pid {view.pid}, start it again"
    )


def bare(tier: Tier, processes: Sequence[discovery.Process] | None = None, proc: str = "/proc") -> list[View]:
    """One view for each container that still has the directory below the tier's mount."""
    found: dict[str, View] = {}
    for view in find(tier, processes, proc):
        if view.bare:
            found.setdefault(view.container or view.unit or str(view.pid), view)
    return list(found.values())
