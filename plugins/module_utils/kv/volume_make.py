# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Making volumes what the data map says: the steps that volume.steps() plans.

Nothing here stops or restarts a cryptsetup unit: that would destroy a live volume.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from . import (
    devices,
    drift,
    fsio,
    grow,
    luks,
    luksheader,
    lvm,
    packages,
    prepare,
    system,
    tables,
    tpm2,
    units,
    volume,
    walk,
)
from .datamap import Document, MapError, Problem, Tier, mapper_name
from .devices import Device
from .mapkeys import LIB_ROOT
from .stores import COMMON_DIRS, STORES
from .system import HostError
from .volume import Seen


def allocate(tier: Tier) -> None:
    """Make the image: all its blocks, root's, 0600, marked as this tier's; it appears whole or not at all."""
    source = tier["volume"]["source"]
    directory, name = os.path.split(source["file"])
    if directory == LIB_ROOT:
        system.make_dirs(directory)
    with fsio.opened(directory) as parent:
        # Without a name until it is complete: nothing is left behind by a kill, nothing is ever replaced.
        fd = os.open(".", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600, dir_fd=parent)
        try:
            os.fchmod(fd, 0o600)
            os.fchown(fd, 0, 0)
            os.setxattr(fd, volume.MARK, tier["name"].encode())
            os.posix_fallocate(fd, 0, source["size"])
            os.fsync(fd)
            os.link("/proc/self/fd/%d" % fd, name, dst_dir_fd=parent, follow_symlinks=True)
            os.fsync(parent)
        finally:
            os.close(fd)


def missing_packages(tiers: Sequence[Tier]) -> list[str]:
    """What makes volumes and opens them at boot, and is not there."""
    wants_xfs = any(tier["volume"]["fstype"] == "xfs" for tier in tiers)
    needs = ["systemd-cryptsetup", "mkfs.ext4"] + (["mkfs.xfs"] if wants_xfs else [])
    return packages.missing(needs) + (tpm2.missing_packages() if any(map(tpm2.of, tiers)) else [])


@dataclass(frozen=True)
class Cleaned:
    """What clean() did below a mount."""

    files: int
    bytes: int
    changed: bool
    immutable: bool


def clean(tier: Tier) -> Cleaned:
    """Destroy the blocks that lay at the path before the mount; leave an empty directory that nobody can write to.

    Only names that the registry knows are removed. HostError, and nothing touched, if there are others. Writers go on:
    they are on the mount by now.
    """
    bare = volume.look_bare(tier)
    if bare.done:
        return Cleaned(0, 0, False, bare.immutable is True)
    path = tier["path"]
    if bare.foreign:
        names = ", ".join(bare.foreign)
        raise HostError(f"below the mount at {path} lie names that the store does not know, left alone: {names}")
    files = freed = 0
    with fsio.covered(path) as fd:
        if bare.immutable:
            fsio.set_immutable(fd, False)
        # Closed first: a container that still sees this directory gets no further through it.
        os.fchown(fd, 0, 0)
        os.fchmod(fd, 0)
        if bare.names:
            files, freed, _left = walk.destroy(fd, STORES[tier["store"]])
        for name in COMMON_DIRS:
            with contextlib.suppress(OSError):
                os.rmdir(name, dir_fd=fd)
        left = ", ".join(walk.printable(name) for name in sorted(os.listdir(fd))[: volume.FOREIGN_SHOWN])
        if left:
            raise HostError(f"below the mount at {path} something remains or came back, who writes there? {left}")
        immutable = fsio.set_immutable(fd, True)
        os.fsync(fd)
    return Cleaned(files, freed, True, immutable)


def _take(tier: Tier, device: Device, wipes: Sequence[dict[str, Any]], unfinished: bool) -> list[str]:
    done = _with_header(tier, device, wipes, unfinished)
    devices.shown(tier, device)
    return done


def _with_header(tier: Tier, device: Device, wipes: Sequence[dict[str, Any]], unfinished: bool) -> list[str]:
    if luks.persistent(tier):
        done = luks.make(tier, device, wipes)
        if unfinished:
            luks.make_again(tier)
            done.append(f"finished the LUKS header of {device.path}")
        if luks.back_up_header(tier, device):
            done.append(f"kept the LUKS header in {luksheader.backup_path(tier)}")
        return done
    if devices.is_ours(tier, device):
        return []
    devices.take(tier, device, wipes, devices.make_header(tier))
    return [f"took {device.path}"]


def apply(tiers: Sequence[Tier], seen: Sequence[Seen], wipes: Sequence[dict[str, Any]] = ()) -> list[str]:
    """Make all volumes as declared; HostError where the host does not follow. Says what was done."""
    done: list[str] = []
    for tier, found in zip(tiers, seen):
        device = found.device
        if found.group is not None and found.group.size is None:
            lvm.make(tier)
            done.append(f"made logical volume {devices.path(tier)}")
            device = devices.look(tier)
        if devices.of_device(tier):
            if device is None:
                raise HostError(f"{devices.path(tier)} did not appear")
            done += _take(tier, device, wipes, found.key is not None and found.key.unfinished)
            continue
        source = tier["volume"]["source"]["file"]
        if found.image is None:
            allocate(tier)
            done.append(f"allocated {source}")
        elif (found.image.uid, found.image.mode) != (0, 0o600):
            os.chown(source, 0, 0, follow_symlinks=False)
            os.chmod(source, 0o600)
            done.append(f"closed {source}")
    for tier, found in zip(tiers, seen):
        if volume.source_short(tier, found):
            grow.source(tier, volume.MARK)
            done.append(f"grew {grow.source_path(tier)}")
    # fstab last: a kill in between leaves an entry that opens nothing, never a mount without its device.
    changes = tables.changes(tiers)
    for change in changes:
        change.make()
        done.append(f"wrote {change.path}")
    names = [units.cryptsetup_unit(tier) for tier in tiers] + [units.mount_unit(tier["path"]) for tier in tiers]
    if changes or system.reload_needed(names):
        system.daemon_reload()
    for tier, found in zip(tiers, seen):
        done += _open_and_mount(tier, found)
    return done


def _grow(tier: Tier, now: Seen) -> list[str]:
    """Mapping and file system of a mounted volume brought to the size of its source."""
    name, done = mapper_name(tier), []
    if not grow.grows(tier) or now.mapper is None or now.mounted is None:
        return []

    def sizes() -> grow.Sizes | None:
        return grow.look(tier, now.mapper, drift.parse(system.run(["dmsetup", "table", name], 60).stdout))

    if (found := sizes()) is not None and found.mapping_short:
        grow.mapping(tier)
        done.append(f"grew {name}")
    if (found := sizes()) is not None and found.filesystem_short:
        grow.filesystem(tier, now.mounted.fstype)
        done.append("grew the file system at {}".format(tier["path"]))
    return done


def remount(tier: Tier) -> None:
    """Give a live mount the options of fstab; who works on it goes on. HostError if it cannot have what all have."""
    path, always = tier["path"], units.mount_options(tier, declared=False)
    for options in (units.mount_options(tier), always):
        # With its source it is not looked up in fstab.
        argv = ["mount", "-o", ",".join(["remount", *options]), "--", "/dev/mapper/" + mapper_name(tier), path]
        result = system.run(argv, 60)
        if result.returncode == 0:
            break
    now = Seen(**volume.look_path(tier, system.mounts(), content=False)).mounted
    if now is None or drift.options_missing(now.options):
        why = result.stderr.strip() or f"the kernel left them as {now.options if now else 'not mounted'}"
        raise HostError(f"{path} cannot be remounted with {','.join(always)}: {why}")


def _open_and_mount(tier: Tier, found: Seen) -> list[str]:
    done = []
    path, crypt, mount = tier["path"], units.cryptsetup_unit(tier), units.mount_unit(tier["path"])
    if not found.exists:
        system.make_dirs(path)
        done.append(f"created {path}")
    if found.mapper is None:
        system.start(crypt)
        done.append(f"opened {mapper_name(tier)}")
    if luks.persistent(tier) and luks.set_flags(tier):
        done.append(f"set the flags of {mapper_name(tier)}")
    if luks.persistent(tier) and not found.is_ours() and luks.make_filesystem(tier):
        done.append("made {} in {}".format(tier["volume"]["fstype"], mapper_name(tier)))
    if not found.is_ours():
        # Files may have come since the first look; once covered they would be out of everybody's sight.
        again = volume.look_path(tier, system.mounts())
        if again.get("foreign"):
            raise HostError(
                "names that the store does not know came to {}: {}".format(path, ", ".join(again["foreign"]))
            )
        system.start(mount, also=[crypt])
        done.append(f"mounted {path}")
    elif found.options_differ():
        remount(tier)
        done.append(f"remounted {path} with its options")
    now = Seen(**volume.look_path(tier, system.mounts()), mapper=system.mapper(mapper_name(tier)))
    if not now.is_ours():
        what = now.mounted.source if now.mounted else "nothing"
        raise HostError(f"{path} is not the mount of {mapper_name(tier)} but of {what}, though {mount} started")
    done += _grow(tier, now)
    # At once: a writer that was running all the time gets no permission while the fresh file system is root's.
    if os.stat(path).st_uid == 0 and system.account_of(tier["owner"]) is not None:
        try:
            done += prepare.prepare(tier)
        except prepare.Refused as error:
            raise HostError(str(error)) from error
    return done


def run(document: Document, act: bool, wipes: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    """The module kv_volume: plan, and do it if act; MapError for a refusal, HostError for a failure."""
    tiers = volume.own_tiers(document)
    table = system.mounts()
    seen = [volume.look(tier, table) for tier in tiers]
    problems: list[Problem] = []
    for tier, found in zip(tiers, seen):
        problems += volume.judge(tier, found, document["host"], wipes)
    problems += volume.judge_room(tiers, seen, document["host"])
    if problems:
        raise MapError(problems)
    todo = {mapper_name(tier): volume.steps(tier, found) for tier, found in zip(tiers, seen)}
    diffs = [tables.diff(change, tiers) for change in tables.changes(tiers)]
    diffs += [system.text_diff(name, "", "".join(step + "\n" for step in left)) for name, left in todo.items() if left]
    done = [step for left in todo.values() for step in left]
    destroyed = {"files": 0, "bytes": 0}
    notes: list[str] = []
    for tier, found in zip(tiers, seen):
        if found.mounted is not None and found.is_ours():
            notes += drift.notes(tier, found.table, found.mounted.fstype, found.mounted.options)
    changed = bool(done)
    if act and tiers:
        if missing := missing_packages(tiers):
            raise HostError("not installed: {}".format(", ".join(missing)))
        done = apply(tiers, seen, wipes)
        for tier in tiers:
            cleaned = clean(tier)
            destroyed["files"] += cleaned.files
            destroyed["bytes"] += cleaned.bytes
            if cleaned.changed:
                done.append("emptied and closed the directory below the mount at {}".format(tier["path"]))
            if not cleaned.immutable:
                notes.append("{}: the file system below has no immutable flag; mode 0000 only".format(tier["path"]))
        if destroyed["files"]:
            notes.append("freed sectors keep old bytes until they are written again; fstrim helps on flash")
        changed = bool(done)
    volumes = [
        {
            "tier": tier["name"],
            "mapper": mapper_name(tier),
            "image": tier["volume"]["source"].get("file"),
            "device": devices.path(tier) if devices.of_device(tier) else None,
            "mounted": act or found.is_ours(),
        }
        for tier, found in zip(tiers, seen)
    ]
    return {
        "changed": changed,
        "volumes": volumes,
        "steps": done,
        "destroyed": destroyed,
        "diff": diffs,
        "notes": notes,
    }
