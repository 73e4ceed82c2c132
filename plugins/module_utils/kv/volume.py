# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Encrypted volumes of tiers: dm-crypt on a file or device, with a key in kernel memory only or in a key file.

look() reads what a host has, judge() refuses what is not ours, steps() says what is left to do; volume_make does it.
Each step is judged by what is there, so a run that was killed is finished by the next one.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Callable

from . import devices, drift, fsio, grow, luks, luksheader, lvm, system, tables, tpm2, units, walk
from .datamap import Document, Problem, Tier, file_tiers, mapper_name
from .mapkeys import LIB_ROOT
from .stores import STORES
from .system import HostError, Mapper, Mount

MARK = "trusted.llmhost.tier"

# Where an allocated file stays where it is: no copy-on-write, no network, no memory.
IMAGE_FILESYSTEMS = ("ext2", "ext3", "ext4", "xfs")
FREE_PERCENT = 10
FREE_BYTES = 5 << 30
FOREIGN_SHOWN = 10


@dataclass(frozen=True)
class Image:
    """The file at an image's path; mark is the name of the tier it was made for, None if it is not ours."""

    regular: bool
    mark: str | None
    size: int
    allocated: int
    uid: int
    mode: int


@dataclass(frozen=True)
class Place:
    """The file system that an image lies on or would lie on. missing: its directory, if that does not exist."""

    fstype: str
    device: int
    total: int
    available: int
    missing: str | None = None


@dataclass(frozen=True)
class Bare:
    """The directory below a mount."""

    names: int
    foreign: tuple[str, ...]
    uid: int
    gid: int
    mode: int
    immutable: bool | None

    @property
    def done(self) -> bool:
        """True if nothing can be there or get there."""
        return not self.names and (self.uid, self.gid, self.mode) == (0, 0, 0) and self.immutable is not False


@dataclass(frozen=True)
class Seen:
    """What a host has of one tier's volume."""

    image: Image | None = None
    place: Place | None = None
    crypttab: tuple[tuple[str, ...], ...] = ()
    fstab: tuple[tuple[str, ...], ...] = ()
    crypttab_same: bool = False
    fstab_same: bool = False
    mapper: Mapper | None = None
    unit_active: bool = False
    exists: bool = False
    unsafe: str | None = None
    foreign: tuple[str, ...] = ()
    mounted: Mount | None = None
    below: tuple[str, ...] = ()
    bare: Bare | None = None
    tables_unsafe: str | None = None
    device: devices.Device | None = None
    key: luks.KeyFile | None = None
    tpm: tpm2.Tpm | None = None
    flags_differ: bool = False
    group: lvm.Group | None = None
    table: drift.Table | None = None
    sizes: grow.Sizes | None = None
    backup_differs: bool = False
    header: tuple[str, str] | None = None

    def is_ours(self) -> bool:
        """True if what is mounted at the path is the tier's own volume."""
        return (
            self.mounted is not None
            and self.mapper is not None
            and self.mounted.device == self.mapper.device
            and self.mounted.root == "/"
        )

    def options_differ(self) -> bool:
        """True if the tier's own mount has other options than it should."""
        if self.mounted is None or not self.is_ours():
            return False
        return drift.options_missing(self.mounted.options) or not self.fstab_same


# Looking


def own_tiers(document: Document) -> list[Tier]:
    """Tiers whose volume this collection makes."""
    return [tier for tier in file_tiers(document, ("present",)) if units.has_own_volume(tier)]


def _image(path: str) -> Image | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENXIO):
            raise
        return Image(False, None, 0, 0, -1, 0)
    try:
        info = os.fstat(fd)
        mark: str | None = None
        with contextlib.suppress(OSError):
            mark = os.getxattr(fd, MARK).decode("ascii", "replace")
        allocated = info.st_blocks * 512
        return Image(stat.S_ISREG(info.st_mode), mark, info.st_size, allocated, info.st_uid, stat.S_IMODE(info.st_mode))
    finally:
        os.close(fd)


def _place(path: str, table: Sequence[Mount]) -> Place:
    directory = os.path.dirname(path)
    missing = None
    while True:
        try:
            fd, _ancestors = fsio.open_path(directory)
            break
        except FileNotFoundError:
            missing = missing or os.path.dirname(path)
            directory = os.path.dirname(directory)
    try:
        room = os.fstatvfs(fd)
        mount = system.mount_of(fd, table)
        return Place(
            mount.fstype if mount else "unknown",
            os.fstat(fd).st_dev,
            room.f_blocks * room.f_frsize,
            room.f_bavail * room.f_frsize,
            None if missing == LIB_ROOT else missing,
        )
    finally:
        os.close(fd)


def look_bare(tier: Tier) -> Bare:
    """The directory that lies below the mount at the tier's path."""
    with fsio.covered(tier["path"]) as fd:
        info = os.fstat(fd)
        names = len(os.listdir(fd))
        foreign = tuple(walk.foreign(fd, STORES[tier["store"]], FOREIGN_SHOWN)) if names else ()
        immutable = fsio.is_immutable(fd)
        return Bare(names, foreign, info.st_uid, info.st_gid, stat.S_IMODE(info.st_mode), immutable)


def look_path(tier: Tier, table: Sequence[Mount], content: bool = True) -> dict[str, Any]:
    """What lies at the tier's path, as fields of Seen. content: look for files of strangers, too."""
    path = tier["path"]
    found: dict[str, Any] = {
        "below": tuple(sorted({mount.point for mount in table if mount.point.startswith(path + "/")}))
    }
    try:
        with fsio.opened(path) as fd:
            found["exists"] = True
            mount = system.mount_of(fd, table)
            if mount is not None and mount.point == path:
                found["mounted"] = mount
                found["bare"] = look_bare(tier)
            elif content:
                found["foreign"] = tuple(walk.foreign(fd, STORES[tier["store"]], FOREIGN_SHOWN))
    except FileNotFoundError:
        pass
    except fsio.UnsafePath as error:
        found["unsafe"] = str(error)
    return found


def look(tier: Tier, table: Sequence[Mount]) -> Seen:
    """What the host has of one tier's volume (read-only)."""
    found = look_path(tier, table)
    source = tier["volume"]["source"].get("file")
    try:
        if source:
            found["place"] = _place(source, table)
            found["image"] = _image(source)
    except fsio.UnsafePath as error:
        found["unsafe"] = found.get("unsafe") or str(error)
    name, spec = mapper_name(tier), devices.spec(tier)
    try:
        crypttab, fstab = system.read_file(tables.CRYPTTAB) or b"", system.read_file(tables.FSTAB) or b""
    except HostError as error:
        found["tables_unsafe"] = str(error)
        return Seen(**found)
    found["crypttab"] = tuple(row for row in tables.rows(crypttab) if row[0] == name or spec in row[1:2])
    device = "/dev/mapper/" + name
    found["mapper"] = system.mapper(name)
    if lvm.of(tier):
        found["group"] = lvm.look(tier)
    if not source:
        others = [(row[1], tables.CRYPTTAB) for row in tables.rows(crypttab) if len(row) > 1 and row[0] != name]
        found["device"] = devices.look(tier, others + [(row[0], tables.FSTAB) for row in tables.rows(fstab)])
    if found["mapper"] is not None:
        found["table"] = drift.parse(system.run(["dmsetup", "table", name], 60).stdout)
        found["sizes"] = grow.look(tier, found["mapper"], found["table"])
    if luks.persistent(tier):
        if tpm2.of(tier):
            found["tpm"] = tpm2.look(tier, found["device"])
        else:
            found["key"] = luks.look(tier)
            if found["mapper"] is None:
                found["key"] = luks.tried(tier, found["key"], found["device"])
        found["backup_differs"] = luks.backup_differs(tier)
        if (seen := found.get("device")) is not None:
            found["header"] = luksheader.problem(tier, seen, devices.is_ours(tier, seen))
        if found.get("table") is not None:
            found["flags_differ"] = luks.flags_differ(tier, found["table"], found.get("device"))
    found["fstab"] = tuple(row for row in tables.rows(fstab) if row[0] == device or tier["path"] in row[1:2])
    found["crypttab_same"] = (
        tables.with_line(crypttab, tables.own_crypttab(tier), units.crypttab_line(tier)) == crypttab
    )
    found["fstab_same"] = tables.with_line(fstab, tables.own_fstab(tier), units.fstab_line(tier)) == fstab
    unit = units.cryptsetup_unit(tier)
    found["unit_active"] = system.show([unit], ("ActiveState",))[unit].get("ActiveState") == "active"
    return Seen(**found)


# Judging


def is_on_source(tier: Tier, seen: Seen) -> bool:
    """True if what is open under the tier's name is its kind of volume on its source."""
    kind = "CRYPT-LUKS2-" if luks.persistent(tier) else "CRYPT-PLAIN-"
    if seen.mapper is None or not seen.mapper.uuid.startswith(kind):
        return False
    if devices.of_device(tier):
        return seen.device is not None and seen.mapper.below == (seen.device.number,)
    return seen.mapper.files == [tier["volume"]["source"]["file"]]


def judge(tier: Tier, seen: Seen, host: str, wipes: Sequence[dict[str, Any]] = ()) -> list[Problem]:
    """Why this volume must not be made here; empty if it may. wipes: devices given up by path and serial."""
    problems: list[Problem] = []
    name, path, source = mapper_name(tier), tier["path"], devices.spec(tier)

    def wrong(key: str, reason: str, fix: str) -> None:
        problems.append(Problem(host, tier["name"], key, reason, fix))

    problems += judge_path(tier, seen, host)
    if seen.tables_unsafe:
        wrong("volume", seen.tables_unsafe, "make it a plain file")
        return problems
    if devices.of_device(tier):
        ours = seen.device is not None and devices.is_ours(tier, seen.device)
        given_up = seen.device is not None and devices.allowed(seen.device, wipes)
        if not lvm.of(tier) or lvm.judge(tier, seen.group, ours, wrong):
            # All else that differs follows from it.
            if not given_up and drift.judge_other_key(tier, seen.device, wrong):
                return problems
            devices.judge(tier, seen.device, wipes, wrong)
        if seen.header is not None and (ours or not given_up):
            wrong("volume.source.device", *seen.header)
    else:
        _judge_image(tier, seen, wrong)
    if seen.key is not None:
        luks.judge(tier, seen.key, seen.device, wrong)
    if seen.tpm is not None:
        tpm2.judge(tier, seen.tpm, seen.device, wrong)

    if seen.mapper is not None and not is_on_source(tier, seen):
        kind = "LUKS2" if luks.persistent(tier) else "plain dm-crypt"
        fix = f"close or rename {name}; if a purge was not finished, run kvtier purge {tier['name']} again"
        wrong("volume", f"/dev/mapper/{name} is open and is not {kind} on {source}", fix)
    elif seen.mapper is not None:
        drift.judge_table(tier, seen.table, seen.crypttab_same, seen.device, wrong)
    if seen.mapper is None and seen.unit_active:
        unit = units.cryptsetup_unit(tier)
        fix = f"there is no volume left to lose: run systemctl restart {unit}"
        wrong("volume", f"{unit} is active but /dev/mapper/{name} was closed by hand", fix)
    for row in seen.crypttab:
        if row[:2] != (name, source):
            reason = "{} has an entry {} on {}".format(tables.CRYPTTAB, row[0], row[1] if len(row) > 1 else "nothing")
            fix = f"remove that entry, or use another source than {source} for this tier"
            if row[0] == name:
                fix = drift.rebuild_fix(tier, "write the old source", seen.device)
            wrong("volume.source", reason, fix)
    for row in seen.fstab:
        if row[:2] != ("/dev/mapper/" + name, path):
            reason = "{} mounts {} at {}".format(tables.FSTAB, row[0], row[1] if len(row) > 1 else "nothing")
            wrong("path", reason, "remove that entry, or declare the tier with `volume: {backend: existing}`")
    for table, entries in ((tables.CRYPTTAB, seen.crypttab), (tables.FSTAB, seen.fstab)):
        if len(entries) > 1 and len(set(entries)) == 1:
            wrong("volume", f"{table} has the entry of {name} {len(entries)} times", "leave one of them")
    if seen.mounted is not None and not seen.is_ours():
        reason = f"{seen.mounted.source} ({seen.mounted.fstype}) is mounted at {path}"
        wrong("path", reason, "unmount it, or declare the tier with `volume: {backend: existing}`")
    if seen.is_ours() and luks.persistent(tier) and seen.mounted and seen.mounted.fstype != tier["volume"]["fstype"]:
        reason = "{} is {}, the map says {}".format(path, seen.mounted.fstype, tier["volume"]["fstype"])
        wrong("volume.fstype", reason, drift.rebuild_fix(tier, f"write fstype: {seen.mounted.fstype}", seen.device))
    if seen.below and not seen.is_ours():
        wrong("path", "{} would be hidden by the mount".format(", ".join(seen.below)), "unmount it or use another path")
    return problems


def _judge_image(tier: Tier, seen: Seen, wrong: Callable[[str, str, str], None]) -> None:
    source, size = tier["volume"]["source"]["file"], tier["volume"]["source"]["size"]
    image, place = seen.image, seen.place
    key = "volume.source.file"
    if image is not None:
        if not image.regular:
            wrong(key, f"{source} is not a regular file", "name a file that does not exist yet")
        elif image.mark != tier["name"]:
            whose = f"belongs to tier {image.mark}" if image.mark else "was not made by this collection"
            wrong(key, f"{source} exists and {whose}", "name a file that does not exist yet, or remove that one")
        elif image.size > size:
            key = "volume.source.size"
            reason = "%s has %d bytes, the map says %d; it is never shrunk" % (source, image.size, size)
            wrong(key, reason, drift.rebuild_fix(tier, f"write {_human(image.size)}", None))
    if place is None:
        return
    if place.missing:
        wrong(key, f"the directory {place.missing} does not exist", "create it, root's and 0755, or use " + LIB_ROOT)
    if place.fstype not in IMAGE_FILESYSTEMS:
        wrong(
            key,
            f"{source} would lie on {place.fstype}: blocks of the image would move, be copied or live in memory",
            "use a directory on one of {}".format(", ".join(IMAGE_FILESYSTEMS)),
        )


def _human(size: int) -> str:
    for unit, shift in (("G", 30), ("M", 20)):
        if size % (1 << shift) == 0:
            return "%d%s" % (size >> shift, unit)
    return "%d bytes" % size


def judge_path(tier: Tier, seen: Seen, host: str) -> list[Problem]:
    """Why the path cannot be a tier: what stands in the way and who else has files there."""
    problems: list[Problem] = []
    path = tier["path"]
    if seen.unsafe:
        fix = "write the real path (readlink -f shows it) or put a directory there"
        problems.append(Problem(host, tier["name"], "path", seen.unsafe, fix))
    covered = seen.bare.foreign if seen.bare else ()
    for names, where in ((seen.foreign, "in " + path), (covered, f"below the mount at {path}")):
        if names:
            reason = "names that store {} does not know lie {}: {}".format(tier["store"], where, ", ".join(names))
            fix = "move them away or use a directory of the tier's own; nothing there was touched"
            problems.append(Problem(host, tier["name"], "path", reason, fix))
    return problems


def judge_room(tiers: Sequence[Tier], seen: Sequence[Seen], host: str) -> list[Problem]:
    """Do all the images that are still to be allocated fit, with room left for the system?"""
    problems: list[Problem] = []
    in_groups = [(tier, found.group) for tier, found in zip(tiers, seen) if lvm.of(tier)]
    lvm.judge_room(
        [tier for tier, _group in in_groups],
        [group for _tier, group in in_groups],
        lambda *problem: problems.append(Problem(host, *problem)),
    )
    needed: dict[int, int] = {}
    for tier, found in zip(tiers, seen):
        if found.place is None or devices.of_device(tier):
            continue
        size = tier["volume"]["source"]["size"]
        missing = max(0, size - (found.image.allocated if found.image else 0))
        if not missing:
            continue
        place = found.place
        needed[place.device] = needed.get(place.device, 0) + missing
        reserve = max(place.total * FREE_PERCENT // 100, FREE_BYTES)
        most = place.available - reserve - needed[place.device] + missing
        if missing > most:
            reason = "%d MiB would leave less than the larger of %d %% and %d GiB free (%d MiB are available)" % (
                missing >> 20,
                FREE_PERCENT,
                FREE_BYTES >> 30,
                place.available >> 20,
            )
            largest = most + (found.image.allocated if found.image else 0)
            fix = "lower it to at most %dM, or use another file system" % (largest >> 20)
            if largest >> 20 < 64:
                fix = "use another file system: no volume fits here"
            problems.append(Problem(host, tier["name"], "volume.source.size", reason, fix))
    return problems


# Planning


def source_short(tier: Tier, seen: Seen) -> bool:
    """True if the map asks for a larger file or logical volume than there is."""
    size = tier["volume"]["source"]["size"]
    if lvm.of(tier):
        group = seen.group
        return group is not None and group.size is not None and group.size < group.rounded(size)
    return not devices.of_device(tier) and seen.image is not None and seen.image.size < size


def steps(tier: Tier, seen: Seen) -> list[str]:
    """What is left to do for one volume, in order; empty if it is as declared."""
    path, source = tier["path"], tier["volume"]["source"]
    todo = []
    if devices.of_device(tier):
        if seen.group is not None and seen.group.size is None:
            todo.append("make logical volume {} ({})".format(devices.path(tier), _human(source["size"])))
        todo += [step] if (step := devices.step(tier, seen.device)) else []
        todo += ["make key file {}".format(tier["volume"]["keyfile"])] if seen.key and not seen.key.exists else []
        todo += [f"finish the LUKS header of {devices.path(tier)}"] if seen.key and seen.key.unfinished else []
        todo += [step] if (step := tpm2.step(tier, seen.tpm)) else []
    elif seen.image is None:
        todo.append("allocate {} ({})".format(source["file"], _human(source["size"])))
    elif (seen.image.uid, seen.image.mode) != (0, 0o600):
        todo.append("close {} to everybody but root".format(source["file"]))
    if seen.backup_differs:
        todo.append(f"keep the LUKS header in {luksheader.backup_path(tier)}")
    if not seen.crypttab_same:
        todo.append(f"write {mapper_name(tier)} to {tables.CRYPTTAB}")
    if not seen.fstab_same:
        todo.append(f"write {path} to {tables.FSTAB}")
    if not seen.exists:
        todo.append(f"create {path}")
    if seen.mapper is None:
        todo.append("open {}{}".format(mapper_name(tier), "" if luks.persistent(tier) else " with a new key"))
    elif seen.flags_differ:
        todo.append(f"set the flags of {mapper_name(tier)}")
    todo += grow.steps(tier, seen.sizes, source_short(tier, seen))
    if seen.options_differ():
        todo.append(f"remount {path} with its options")
    if not seen.is_ours():
        todo.append(f"mount {mapper_name(tier)} at {path}")
    if seen.bare is None or not seen.is_ours():
        todo.append(f"empty and close the directory below the mount at {path}")
    elif not seen.bare.done:
        todo.append(f"{'empty and close' if seen.bare.names else 'close'} the directory below the mount at {path}")
    return todo
