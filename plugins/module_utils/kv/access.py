# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Only the account gets in: prepare units, drop-ins of the writers, and whether running writers obey them yet.

A writer is never restarted here: what it still lacks is said.
"""

from __future__ import annotations

import contextlib
import glob
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from . import containers, datamap, discovery, fsio, host, prepare, system, units, volume, volume_make
from .datamap import Document, Tier, file_tiers
from .stores import CACHEDIR_TAG
from .system import Change, HostError

FILE_MODE = 0o644
UMASK = 0o077
ACCESS_ACL = "system.posix_acl_access"
DEFAULT_ACL = "system.posix_acl_default"


def wanted_files(document: Document) -> dict[str, bytes]:
    """Every unit file and drop-in that the map asks for; vanished tiers keep theirs."""
    tiers = file_tiers(document)
    files = {units.prepare_path(tier): units.prepare_unit(tier).encode() for tier in tiers}
    for service in sorted({service for tier in tiers for service in tier["services"]}):
        files[units.drop_in_path(service)] = units.drop_in(service, tiers).encode()
    return files


def our_files(unit_dir: str = units.UNIT_DIR) -> dict[str, bytes]:
    """Unit files and drop-ins on the host that carry our first line."""
    patterns = (units.PREPARE_PREFIX + "*.service", "*.service.d/" + units.DROP_IN)
    found = {}
    for path in sorted(path for pattern in patterns for path in glob.glob(os.path.join(unit_dir, pattern))):
        data = None if os.path.islink(path) else system.read_file(path)
        if data is not None and data.startswith(units.HEADER.encode()):
            found[path] = data
    return found


def foreign_units(document: Document) -> None:
    """HostError if a file that is not ours stands where one of ours shall be."""
    for path in wanted_files(document):
        data = system.read_file(path)
        if data is not None and not data.startswith(units.HEADER.encode()):
            raise HostError(f"{path} exists and was not written by this collection")


def file_changes(document: Document) -> list[Change]:
    """Files to write and files of ours to remove."""
    foreign_units(document)
    wanted = wanted_files(document)
    changes = [change for path, data in wanted.items() if (change := system.file_change(path, data, FILE_MODE))]
    gone = [Change(path, data, None, FILE_MODE) for path, data in our_files().items() if path not in wanted]
    return changes + gone


def link_changes(document: Document, unit_dir: str = units.UNIT_DIR) -> tuple[list[str], list[str]]:
    """Links that enable prepare units: those to make and those to remove."""
    wanted = {units.wants_link(tier) for tier in file_tiers(document)}
    found = set(glob.glob(os.path.join(unit_dir, "*.wants", units.PREPARE_PREFIX + "*.service")))
    return sorted(wanted - found), sorted(found - wanted)


def _has(fd: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def shortcomings(tier: Tier) -> list[str]:
    """What is wrong with the root of a tier: owner, mode, default ACL, mount; empty if it is closed."""
    path = tier["path"]
    account = system.account_of(tier["owner"])
    if account is None:
        return ["account {} does not exist".format(tier["owner"])]
    try:
        fd, _ancestors = fsio.open_path(path)
    except (OSError, fsio.UnsafePath) as error:
        return [f"{path} cannot be opened: {error}"]
    try:
        wrong = []
        if units.has_own_volume(tier):
            device = system.mapper(datamap.mapper_name(tier))
            mount = system.mount_of(fd, system.mounts())
            if device is None or mount is None or (mount.point, mount.device) != (path, device.device):
                wrong.append(f"{path} is not the mount of its volume")
        info = os.fstat(fd)
        if (info.st_uid, info.st_gid) != account:
            wrong.append("%s belongs to %d:%d, not %d:%d" % (path, info.st_uid, info.st_gid, *account))
        if stat.S_IMODE(info.st_mode) != 0o700:
            wrong.append(f"{path} has mode {stat.S_IMODE(info.st_mode):04o}, not 0700")
        if fsio.xattr(fd, ACCESS_ACL) is not None:
            wrong.append(f"{path} has an access ACL")
        if fsio.xattr(fd, DEFAULT_ACL) != prepare.CLOSED_ACL:
            wrong.append(f"{path} has no closed default ACL")
        if not _has(fd, CACHEDIR_TAG):
            wrong.append(f"{path} has no {CACHEDIR_TAG}")
        return wrong
    finally:
        os.close(fd)


def foreign_mount(tier: Tier) -> bool:
    """True if the tier's path is the mount point of something that is not ours."""
    if units.has_own_volume(tier):
        return False
    try:
        with fsio.opened(tier["path"]) as fd:
            mount = system.mount_of(fd, system.mounts())
            return mount is not None and mount.point == tier["path"]
    except FileNotFoundError:
        return False


@dataclass
class Plan:
    """What kv_access has to do. `document` holds vanished tiers too."""

    document: Document
    changes: list[Change] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    stale_links: list[str] = field(default_factory=list)
    missing: list[Tier] = field(default_factory=list)
    covered: list[Tier] = field(default_factory=list)
    inactive: list[Tier] = field(default_factory=list)
    open: dict[str, list[str]] = field(default_factory=dict)

    @property
    def changed(self) -> bool:
        """True if anything differs."""
        return any((self.changes, self.links, self.stale_links, self.missing, self.covered, self.inactive, self.open))

    def diffs(self) -> list[dict[str, str]]:
        """Files, links and the state of each tier's root."""
        result = [change.diff() for change in self.changes]
        result += [system.text_diff(path, "", f"link to {units.UNIT_DIR}\n") for path in self.links]
        result += [system.text_diff(path, f"link to {units.UNIT_DIR}\n", "") for path in self.stale_links]
        for name, wrong in self.open.items():
            result.append(system.text_diff(f"tier {name}", "".join(line + "\n" for line in wrong), "closed\n"))
        return result


def plan(new: Document) -> Plan:
    """What differs between the host and the new map (read-only)."""
    document = datamap.merge(host.old_map(new)[0], new)
    todo = Plan(document, file_changes(document), *link_changes(document))
    present = file_tiers(document, ("present",))
    active = system.show([units.prepare_name(tier) for tier in present], ("ActiveState",))
    for tier in present:
        if not units.has_own_volume(tier) and not os.path.lexists(tier["path"]):
            todo.missing.append(tier)
        if foreign_mount(tier) and not volume.look_bare(tier).done:
            todo.covered.append(tier)
        if active[units.prepare_name(tier)].get("ActiveState") != "active":
            todo.inactive.append(tier)
        if wrong := shortcomings(tier):
            todo.open[tier["name"]] = wrong
    return todo


def apply(todo: Plan) -> list[str]:
    """Do what plan() found and verify it; HostError where the host does not follow. Says what was done."""
    done: list[str] = []
    if not os.path.exists(units.KVTIER):
        raise HostError(f"{units.KVTIER} is missing: kv_host installs it and has to run before")
    for tier in todo.missing:
        system.make_dirs(tier["path"])
        done.append("created {}".format(tier["path"]))
    for tier in todo.covered:
        cleaned = volume_make.clean(tier)
        done.append("below the mount at {}: {} files destroyed".format(tier["path"], cleaned.files))
    # Links before files: a unit file that systemd has not read yet shows on the next run, a link does not.
    for path in todo.stale_links:
        os.unlink(path)
        remove_empty(os.path.dirname(path))
    for path in todo.links:
        system.make_dirs(os.path.dirname(path))
        os.symlink(os.path.join(units.UNIT_DIR, os.path.basename(path)), path)
    for change in todo.changes:
        change.make()
        if change.after is None:
            remove_empty(os.path.dirname(change.path))
        done.append(("removed " if change.after is None else "wrote ") + change.path)
    if todo.changes or todo.links or todo.stale_links or _unread(todo.document):
        system.daemon_reload()
    present = file_tiers(todo.document, ("present",))
    for tier in todo.inactive:
        system.start(units.prepare_name(tier), also=[units.wanted_by(tier)] if units.has_own_volume(tier) else ())
        done.append("started " + units.prepare_name(tier))
    for tier in present:
        # A unit that is active does not run again, and restarting it would stop the writers.
        try:
            done += prepare.prepare(tier)
        except prepare.Refused as error:
            raise HostError(str(error)) from error
        if wrong := shortcomings(tier):
            raise HostError("tier {} is still open: {}".format(tier["name"], "; ".join(wrong)))
    return done


def remove_empty(directory: str) -> None:
    """Remove a directory if there is nothing in it."""
    with contextlib.suppress(OSError):
        os.rmdir(directory)


def _unread(document: Document) -> bool:
    """True if systemd does not know our files as they are: a run was killed before daemon-reload."""
    tiers = file_tiers(document)
    wanted_by = {units.prepare_name(tier): units.wanted_by(tier) for tier in tiers}
    return system.reload_needed([*wanted_by, *sorted({name for tier in tiers for name in tier["services"]})], wanted_by)


def apart(document: Document) -> dict[str, list[str]]:
    """Containers without a unit of their own that must be restarted to see a tier's mount: who -> reasons."""
    reasons: dict[str, list[str]] = {}
    for tier in file_tiers(document, ("present",)):
        for view in containers.bare(tier):
            if not _has_service(view):
                why = f"it still has the directory below the mount at {tier['path']}: {containers.restart_of(view)}"
                reasons.setdefault(view.named(), []).append(why)
    return reasons


def _has_service(view: containers.View) -> bool:
    return view.unit is not None and view.unit.endswith(".service") and view.unit not in units.CONTAINER_DAEMONS


def _ended(tier: Tier, services: Sequence[str]) -> list[str]:
    """Writers that began before the tier's volume was mounted and failed since: their directory was closed to them."""
    named = [service for service in services if not system.is_template(service)]
    if not named or not units.has_own_volume(tier):
        return []
    began, ended, up = (
        one + "Monotonic" for one in ("ExecMainStartTimestamp", "ExecMainExitTimestamp", "ActiveEnterTimestamp")
    )
    mount = units.mount_unit(tier["path"])
    seen = system.show([mount, *named], ("ActiveState", began, ended, up))

    def when(unit: str, name: str) -> int:
        return int(seen[unit].get(name) or 0)

    return [
        one
        for one in named
        if (seen[mount].get("ActiveState"), seen[one].get("ActiveState")) == ("active", "failed")
        and 0 < when(one, began) < when(mount, up) < when(one, ended)
    ]


def restarts(document: Document) -> dict[str, list[str]]:
    """Writers whose running processes do not have their drop-in's effect yet, or ended over it: unit -> reasons."""
    reasons: dict[str, list[str]] = {}
    for tier in file_tiers(document, ("present",)):
        services = [service for service in tier["services"] if service not in units.CONTAINER_DAEMONS]
        for process in discovery.of_services(services):
            # conmon has podman's umask, whatever the unit says, and writes no block.
            if discovery.is_runtime(process):
                continue
            known = reasons.setdefault(process.unit or "?", [])
            known += [reason for reason in _lacks(process, tier) if reason not in known]
        for unit in _ended(tier, services):
            reasons.setdefault(unit, []).append(
                f"it failed when the directory below the mount at {tier['path']} was closed"
            )
        for view in containers.bare(tier):
            why = f"it still has the directory below the mount at {tier['path']}"
            if _has_service(view) and why not in reasons.setdefault(str(view.unit), []):
                reasons[str(view.unit)].append(why)
    return {unit: found for unit, found in sorted(reasons.items()) if found}


def _lacks(process: discovery.Process, tier: Tier) -> list[str]:
    """What one process does not have."""
    lacking = []
    root = f"/proc/{process.pid}/root"
    with contextlib.suppress(OSError):
        theirs, ours = os.stat(root + tier["path"]), os.stat(tier["path"])
        if theirs.st_dev != ours.st_dev:
            lacking.append("it sees another file system at {}".format(tier["path"]))
    with contextlib.suppress(OSError):
        # In a container the runtime sets these, not the unit: a restart would change nothing.
        if not os.path.samefile(root, "/"):
            return lacking
    if process.umask is not None and process.umask & UMASK != UMASK:
        lacking.append(f"umask is {process.umask:04o}, not 0077")
    if process.core_limit not in ("0", None):
        lacking.append("core files are allowed")
    if process.coredump_filter not in (0, None):
        lacking.append(f"coredump filter is {process.coredump_filter:#x}, not 0x0")
    return lacking


def run(document: Document, act: bool) -> dict[str, Any]:
    """The module kv_access: plan, and do it if act; HostError for a failure."""
    todo = plan(document)
    if act:
        steps = apply(todo)
        changed = todo.changed or bool(steps)
    else:
        steps = planned(todo)
        changed = todo.changed
    pending = restarts(todo.document)
    return {
        "changed": changed,
        "steps": steps,
        "restart_pending": list(pending),
        "restart_reasons": pending,
        "containers_pending": [f"{who}: {'; '.join(why)}" for who, why in apart(todo.document).items()],
        "diff": todo.diffs(),
    }


def planned(todo: Plan) -> list[str]:
    """What apply() would do."""
    steps = ["create {}".format(tier["path"]) for tier in todo.missing]
    steps += ["empty and close the directory below the mount at {}".format(tier["path"]) for tier in todo.covered]
    steps += [f"remove link {path}" for path in todo.stale_links] + [f"enable {path}" for path in todo.links]
    steps += [("remove " if change.after is None else "write ") + change.path for change in todo.changes]
    steps += [f"start {units.prepare_name(tier)}" for tier in todo.inactive]
    return steps + [f"close tier {name}: {', '.join(wrong)}" for name, wrong in todo.open.items()]
