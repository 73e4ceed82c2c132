# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Disks and partitions as sources of volumes: what is on one, who uses it, and whether it may be taken.

A device is ours if it carries the UUID that belongs to the tier: of a 1 MiB file system in front of an ephemeral
volume, of the LUKS header of a persistent one. Whatever else is on it is refused, and so is a device without a known
signature that is not empty: plain dm-crypt, Ceph and databases leave none.
"""

from __future__ import annotations

import glob
import json
import os
import stat
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Callable

from . import lvm, system
from .datamap import Tier, mapper_name
from .system import HostError

# A tier has the same UUID on every host, so that the line of crypttab follows from the map alone.
_NAMESPACE = uuid.UUID("6f0c6c1e-3f5b-5d0a-9a55-6c6c6d686f73")
HEADER_BYTES = 1 << 20
HEADER_SECTORS = HEADER_BYTES // 512
SECTOR = 4096
KEYS = ("ephemeral", "keyfile", "tpm2")
_SAMPLE = 1 << 20
_TABLES = ("dos", "gpt", "PMBR", "mac", "sun", "bsd", "sgi")


@dataclass(frozen=True)
class Signature:
    """Something that wipefs knows on a device."""

    type: str
    offset: int
    uuid: str | None


@dataclass(frozen=True)
class Device:
    """A block device that the map names. number: MAJOR:MINOR; in_use: by what, other than the tier's own mapping."""

    path: str
    real: str
    number: str
    size: int
    serials: tuple[str, ...] = ()
    in_use: tuple[str, ...] = ()
    signatures: tuple[Signature, ...] = ()
    blank: bool = True
    twins: tuple[str, ...] = ()
    readonly: bool = False


def of_device(tier: Tier) -> bool:
    """True if the tier's volume lies on a device, not in a file."""
    return not tier["volume"]["source"].get("file")


def path(tier: Tier) -> str:
    """The stable name of the tier's device."""
    return lvm.path(tier) if lvm.of(tier) else str(tier["volume"]["source"]["device"])


def header_uuid(tier: Tier, key: str | None = None) -> str:
    """The UUID by which crypttab, boot and we know the tier's device. key: another kind than the map's."""
    return str(uuid.uuid5(_NAMESPACE, f"{tier['name']}/{key or tier['volume']['key']}"))


def spec(tier: Tier) -> str:
    """The tier's source as crypttab names it."""
    return "UUID=" + header_uuid(tier) if of_device(tier) else str(tier["volume"]["source"]["file"])


def signature_type(key: str) -> str:
    """What kind of signature a header for that kind of key is, as wipefs calls it."""
    return "ext2" if key == "ephemeral" else "crypto_LUKS"


def is_ours(tier: Tier, device: Device, key: str | None = None) -> bool:
    """True if the device carries the tier's own header. key: for another kind of key than the map's."""
    kind = key or tier["volume"]["key"]
    return any(
        one.type == signature_type(kind) and one.uuid == header_uuid(tier, kind) and one.offset < HEADER_BYTES
        for one in device.signatures
    )


def other_key(tier: Tier, device: Device | None) -> str | None:
    """The kind of key, other than the map's, for which the device carries the tier's header, or None."""
    kinds = [kind for kind in KEYS if kind != tier["volume"]["key"]]
    return next((kind for kind in kinds if device is not None and is_ours(tier, device, kind)), None)


# Looking


def parse_signatures(text: str) -> tuple[Signature, ...]:
    """Signatures in what `wipefs --no-act --json` prints; it prints nothing for none."""
    if not text.strip():
        return ()
    found = json.loads(text).get("signatures") or []
    return tuple(Signature(one["type"], int(one["offset"], 0), one.get("uuid") or None) for one in found)


def parse_properties(text: str) -> dict[str, str]:
    """KEY=value lines of udevadm."""
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def resolve(field: str) -> str | None:
    """The device node that a first field of fstab or a second of crypttab means, None if there is none."""
    kind, equals, value = field.partition("=")
    value = value.strip('"')
    if equals and kind in ("UUID", "LABEL", "PARTUUID", "PARTLABEL", "ID"):
        value = value.lower() if kind in ("UUID", "PARTUUID") else value
        field = f"/dev/disk/by-{kind.lower()}/{value}"
    real = os.path.realpath(field)
    return real if field.startswith("/dev/") and os.path.exists(real) else None


def number_of(path: str) -> str:
    """MAJOR:MINOR of a block device."""
    info = os.stat(path)
    if not stat.S_ISBLK(info.st_mode):
        raise HostError(f"{path} is not a block device")
    return "%d:%d" % (os.major(info.st_rdev), os.minor(info.st_rdev))


def family(directory: str) -> list[str]:
    """Sysfs directories of a device: itself, its partitions, and the disk that it is a partition of."""
    found = [directory]
    found += [os.path.dirname(path) for path in sorted(glob.glob(os.path.join(directory, "*", "partition")))]
    if os.path.exists(os.path.join(directory, "partition")):
        found.append(os.path.dirname(directory))
    return found


def _line(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""


def users(
    directory: str, own: str, mounted: dict[str, str], swaps: Sequence[str], tables: Sequence[tuple[str, str]]
) -> list[str]:
    """What uses a device or a partition of it, and what will at the next boot.

    own: name of the mapping that may; mounted: MAJOR:MINOR -> mount point; swaps: device nodes; tables: pairs of a
    node and the table that names it.
    """
    found = []
    for one in family(directory):
        node = "/dev/" + os.path.basename(one)
        number = _line(os.path.join(one, "dev"))
        if number in mounted:
            found.append(f"{node} is mounted at {mounted[number]}")
        if node in swaps:
            found.append(f"{node} is swap")
        found += [f"{table} names {node}" for named, table in tables if named == node]
        for holder in sorted(_listing(os.path.join(one, "holders"))):
            name = _line(os.path.join(one, "holders", holder, "dm", "name")) or holder
            if name != own:
                found.append(f"{node} is part of {name}")
    return found


def _listing(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except OSError:
        return []


def _blank(real: str, size: int) -> bool:
    with open(real, "rb") as file:
        for offset in (0, max(0, size - _SAMPLE)):
            file.seek(offset)
            if file.read(_SAMPLE).strip(b"\0"):
                return False
    return True


def _twins(real: str, ident: str) -> tuple[str, ...]:
    """Other devices that carry the same UUID: which one the boot would open is anybody's guess."""
    done = system.run(["blkid", "-c", "/dev/null", "-t", "UUID=" + ident, "-o", "device"], 60)
    return tuple(one for one in done.stdout.split() if os.path.realpath(one) != real)


def look(tier: Tier, tables: Sequence[tuple[str, str]] = ()) -> Device | None:
    """The tier's device, None if it is not there (read-only). tables: (first field, table) of fstab and crypttab."""
    name = path(tier)
    if not os.path.exists(name):
        return None
    real = os.path.realpath(name)
    number = number_of(real)
    directory = os.path.realpath(f"/sys/dev/block/{number}")
    size = int(_line(os.path.join(directory, "size")) or 0) * 512
    listed = system.run(["wipefs", "--no-act", "--json", real], 60)
    if listed.returncode:
        raise HostError(f"wipefs cannot look at {name}: {listed.stderr.strip()}")
    known = parse_properties(system.run(["udevadm", "info", "--query=property", "--name=" + real], 60).stdout)
    serials = tuple(known[key] for key in ("ID_SERIAL_SHORT", "ID_SERIAL") if known.get(key))
    mounted = {mount.device: mount.point for mount in system.mounts()}
    swaps = [line.split()[0] for line in _line("/proc/swaps").splitlines()[1:] if line.split()]
    named = [(node, table) for field, table in tables if (node := resolve(field)) is not None]
    # In a logical volume that we made, unknown bytes are what its extents held before.
    fresh = lvm.of(tier) and (group := lvm.look(tier)) is not None and group.ours
    return Device(
        name,
        real,
        number,
        size,
        serials,
        tuple(users(directory, mapper_name(tier), mounted, [os.path.realpath(one) for one in swaps], named)),
        parse_signatures(listed.stdout),
        fresh or _blank(real, size),
        _twins(real, header_uuid(tier)),
        _line(os.path.join(directory, "ro")) == "1",
    )


# Judging


def allowed(device: Device, wipes: Sequence[dict[str, Any]]) -> bool:
    """True if the operator named exactly this device, by its path and its serial, to be wiped."""
    return any(one["device"] == device.path and one["serial"] in device.serials for one in wipes)


def leave(device: Device) -> str | None:
    """The argument that gives up what is on the device, None if it has no serial to name it by."""
    if not device.serials:
        return None
    return "-e '%s'" % json.dumps({"kv_volume_wipe": [{"device": device.path, "serial": device.serials[0]}]})


def judge(
    tier: Tier, device: Device | None, wipes: Sequence[dict[str, Any]], wrong: Callable[[str, str, str], None]
) -> None:
    """Refuse a device that must not be taken."""
    name, wanted, key = path(tier), tier["volume"]["source"]["size"], "volume.source.device"
    if device is None:
        wrong(key, f"{name} is not there", "plug the disk in, or correct the name (ls -l /dev/disk/by-id)")
        return
    if device.readonly:
        wrong(key, f"{name} is read-only", "make it writable, or use another device")
    if device.in_use:
        wrong(key, "{} is in use: {}".format(name, "; ".join(device.in_use)), "free it first; nothing was touched")
    if wanted and device.size < wanted and not lvm.of(tier):
        reason = "%s has %d MiB, %d MiB less than wanted" % (name, device.size >> 20, (wanted - device.size) >> 20)
        wrong("volume.source.size", reason, "write at most %dM, or use a larger device" % (device.size >> 20))
    if device.size % SECTOR:
        reason = "%s has %d bytes, no multiple of the %d of an encryption sector" % (name, device.size, SECTOR)
        wrong(key, reason, "make the partition end at a whole MiB")
    if device.twins:
        reason = "{} carries the tier's header too".format(", ".join(device.twins))
        wrong(key, reason, "unplug or wipe the disk that is not meant")
    if is_ours(tier, device) or (device.blank and not device.signatures):
        return
    if allowed(device, wipes):
        return
    kinds = sorted({one.type for one in device.signatures})
    reason = f"{name} carries {', '.join(kinds)}" if kinds else f"{name} is not empty, though nothing known is on it"
    permission = leave(device)
    fix = "use an empty device; it has no serial by which it could be named to be wiped"
    if lvm.of(tier):
        fix = "somebody wrote to it after it was made; if that is not needed: lvremove {vg}/{lv}".format(
            **tier["volume"]["source"]
        )
    elif permission:
        fix = f"use an empty device, or give up what is on it: {permission}"
    wrong(key, reason, fix)


def step(tier: Tier, device: Device | None) -> str | None:
    """What is left to do on the device, None if nothing."""
    if device is None or is_ours(tier, device):
        return None
    return ("wipe and take {}" if device.signatures or not device.blank else "take {}").format(device.path)


# Making


def openers(numbers: set[str], proc: str = "/proc") -> list[str]:
    """Processes that have one of these block devices open: a virtual machine or a database claims nothing."""
    found = []
    for pid in (name for name in os.listdir(proc) if name.isdigit() and int(name) != os.getpid()):
        try:
            descriptors = os.listdir(f"{proc}/{pid}/fd")
        except OSError:
            continue
        for number in descriptors:
            try:
                info = os.stat(f"{proc}/{pid}/fd/{number}")
            except OSError:
                continue
            if stat.S_ISBLK(info.st_mode) and f"{os.major(info.st_rdev)}:{os.minor(info.st_rdev)}" in numbers:
                found.append("pid {} ({})".format(pid, _line(f"{proc}/{pid}/comm")))
                break
    return found


def claim(device: Device) -> None:
    """HostError unless the device is still the one that was judged and nobody has it, mounted or as a part."""
    if os.path.realpath(device.path) != device.real or number_of(device.real) != device.number:
        raise HostError(f"{device.path} is another device now than when it was judged; nothing was touched")
    system.run(["udevadm", "settle", "--timeout=60"], 90)
    numbers = {_line(os.path.join(one, "dev")) for one in family(os.path.realpath(f"/sys/dev/block/{device.number}"))}
    if held := openers({number for number in numbers if number}):
        raise HostError("{} is open in {}; nothing was touched".format(device.path, ", ".join(held[:5])))
    try:
        os.close(os.open(device.real, os.O_RDWR | os.O_EXCL | os.O_CLOEXEC))
    except OSError as error:
        raise HostError(f"{device.path} is in use: {error.strerror}; nothing was touched") from error


def make_header(tier: Tier) -> list[str]:
    """The 1 MiB file system that names an ephemeral volume; the volume begins behind it."""
    label = ("llmhost-" + tier["name"])[:16]
    options = ["-q", "-F", "-t", "ext2", "-b", "1024", "-O", "none", "-L", label, "-U", header_uuid(tier)]
    return ["mke2fs", *options, "{}", str(HEADER_BYTES // 1024)]


def show(device: Device) -> None:
    """Have udev read what was just written: it watches no device that it reads, and claim() made it read this one."""
    system.run(["udevadm", "trigger", "--action=change", device.real], 90)
    system.run(["udevadm", "settle", "--timeout=60"], 90)


def run_on(device: Device, command: Sequence[str]) -> None:
    """Run a command, {} in it for the device."""
    system.do(*(device.real if word == "{}" else word for word in command))


def give_up(tier: Tier, device: Device) -> None:
    """Take the tier's own header off its device, which nobody uses any more; what lies behind it has no key."""
    again = look(tier)
    if again is None or again.real != device.real or not is_ours(tier, again):
        raise HostError(f"{device.path} is another device now than when it was judged; nothing was touched")
    claim(again)
    system.do("wipefs", "--all", "--quiet", again.real)
    # As it was found: the first and last MiB of a device that may be taken again are zero.
    with open(again.real, "r+b", buffering=0) as file:
        for offset in (0, max(0, again.size - HEADER_BYTES)):
            file.seek(offset)
            file.write(bytes(HEADER_BYTES))
        os.fsync(file.fileno())
    show(again)


def take(
    tier: Tier,
    device: Device,
    wipes: Sequence[dict[str, Any]],
    make: Sequence[str],
    begin: Callable[[], None] = lambda: None,
) -> None:
    """Give a device its header. All is judged once more first.

    make: the command that writes it, {} for the device; begin: called when nothing but that is left to do.
    """
    again = look(tier)
    if again is None or (again.real, again.number, again.serials) != (device.real, device.number, device.serials):
        raise HostError(f"{device.path} is another device now than when it was judged; nothing was touched")
    if is_ours(tier, again):
        return
    claim(again)
    if again.signatures or not again.blank:
        if not allowed(again, wipes):
            raise HostError(f"{device.path} is not empty any more; nothing was touched")
        # A table's partitions would keep their own signatures, and udev would go on showing them.
        system.do("wipefs", "--all", "--quiet", again.real)
        if any(one.type in _TABLES for one in again.signatures):
            system.run(["partx", "--delete", again.real], 60)
        claim(again)
    begin()
    run_on(again, make)
    show(again)


def shown(tier: Tier, device: Device) -> None:
    """HostError unless the device is found by the header's UUID, as in crypttab; a run may have been killed before."""
    if resolve("UUID=" + header_uuid(tier)) != device.real:
        show(device)
    if resolve("UUID=" + header_uuid(tier)) != device.real:
        raise HostError(f"{device.path} has its header, but udev does not show its UUID {header_uuid(tier)}")
