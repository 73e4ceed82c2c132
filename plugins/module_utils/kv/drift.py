# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""How an open volume differs from the map.

Refused is what only a new volume can have; the refusal carries the commands that give the old one up. Noted is what an
ephemeral volume gets at its next opening, which each boot is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Callable

from . import devices, lvm, units
from .datamap import Tier, mapper_name

CIPHER = "aes-xts-plain64"
KEY_BITS = 512
_FLAGS = ("allow_discards", "no_read_workqueue", "no_write_workqueue")
# Shown in a mount's own options, whatever the file system.
_PER_MOUNT = ("nodev", "nosuid", "noexec", "noatime", "nosymfollow")


@dataclass(frozen=True)
class Table:
    """A dm-crypt table. sectors: its length, offset: where it begins below, both of 512 bytes."""

    cipher: str
    key_bits: int
    sectors: int
    offset: int
    sector_size: int = 512
    flags: frozenset[str] = frozenset()


def parse(text: str) -> Table | None:
    """The only target in what `dmsetup table` prints without --showkeys, None if it is not dm-crypt."""
    lines = [line.split() for line in text.splitlines() if line.strip()]
    if len(lines) != 1 or len(lines[0]) < 8 or lines[0][2] != "crypt":
        return None
    _start, sectors, _crypt, cipher, key, _iv, _device, offset, *more = lines[0]
    # :SIZE:TYPE:NAME in the kernel's keyring, or as many zeros as the key has digits.
    bits = int(key.split(":")[1]) * 8 if key.startswith(":") else len(key.replace("-", "")) * 4
    size = next((int(word.partition(":")[2]) for word in more if word.startswith("sector_size:")), 512)
    return Table(cipher, bits, int(sectors), int(offset), size, frozenset(more) & frozenset(_FLAGS))


def wanted_flags(tier: Tier) -> frozenset[str]:
    """Flags of dm-crypt that the map asks for."""
    volume = tier["volume"]
    return frozenset((_FLAGS[:1] if volume["discard"] else ()) + (_FLAGS[1:] if volume["no_workqueue"] else ()))


def rebuild(tier: Tier, device: devices.Device | None) -> str:
    """The commands that give the tier's old volume up, so that the next run makes it as the map says."""
    name, path = mapper_name(tier), tier["path"]
    commands = [
        "systemctl stop {}".format(" ".join(tier["services"])),
        f"(! mountpoint -q {path} || umount {path})",
        f"systemctl stop {units.cryptsetup_unit(tier)}",
        f"sed -i '/^{name} /d' /etc/crypttab",
        f"sed -i '/^.dev.mapper.{name} /d' /etc/fstab",
        "systemctl daemon-reload",
    ]
    if not devices.of_device(tier):
        commands.append("rm -f {}".format(tier["volume"]["source"]["file"]))
    elif lvm.of(tier):
        commands.append("lvremove --yes {vg}/{lv}".format(**tier["volume"]["source"]))
    again = "run harden again"
    if devices.of_device(tier) and not lvm.of(tier):
        leave = devices.leave(device) if device is not None else None
        again += f" with {leave}" if leave else f" once {devices.path(tier)} is zeroed at both ends"
    return f"{' && '.join(commands)}; {again}"


def rebuild_fix(tier: Tier, instead: str, device: devices.Device | None) -> str:
    """The remedy of a refusal: what to write instead, or how to give the volume up and have a new one."""
    purge = f"kvtier purge {tier['name']} --confirm {tier['name']}"
    return f"{instead}, or give up what is in it: {purge}; {rebuild(tier, device)}"


def judge_table(
    tier: Tier,
    table: Table | None,
    crypttab_same: bool,
    device: devices.Device | None,
    wrong: Callable[[str, str, str], None],
) -> None:
    """Refuse an open volume that is encrypted in another way. crypttab_same: its line says what the map says."""
    name = mapper_name(tier)
    if table is None:
        wrong("volume", f"/dev/mapper/{name} is not one dm-crypt target", rebuild_fix(tier, "close it", device))
        return
    differs = []
    if (table.cipher, table.key_bits) != (CIPHER, KEY_BITS):
        differs.append(f"cipher {table.cipher} with a key of {table.key_bits} bits, not {CIPHER} with {KEY_BITS}")
    if table.sector_size != devices.SECTOR:
        differs.append(f"sectors of {table.sector_size} bytes, not {devices.SECTOR}")
    behind = devices.HEADER_SECTORS if devices.of_device(tier) else 0
    if tier["volume"]["key"] == "ephemeral" and table.offset != behind:
        differs.append(f"begins at sector {table.offset}, not {behind}")
    if differs:
        fix = f"its next opening, at boot or by kvtier purge {tier['name']}, makes it right"
        if tier["volume"]["key"] != "ephemeral" or not crypttab_same:
            fix = rebuild_fix(tier, "keep it as another tier", device)
        wrong("volume", f"/dev/mapper/{name} has {'; '.join(differs)}", fix)


def judge_other_key(tier: Tier, device: devices.Device | None, wrong: Callable[[str, str, str], None]) -> bool:
    """Refuse the tier's own device with a volume for another kind of key; True if it is that."""
    kind = devices.other_key(tier, device)
    if kind is None or device is None:
        return False
    reason = "{} holds the tier's volume for key: {}, the map says {}".format(device.path, kind, tier["volume"]["key"])
    wrong("volume.key", reason, rebuild_fix(tier, f"write key: {kind}", device))
    return True


def options_missing(options: str) -> bool:
    """True if a live mount lacks an option that every tier has. options: of mountinfo, empty if unknown."""
    return bool(options) and not set(_PER_MOUNT) <= set(options.split(","))


def contradicted(declared: Sequence[str], options: str) -> list[str]:
    """Declared options whose opposite a live mount shows; one that no kernel shows is not taken for missing."""
    live = options.split(",")
    found = []
    for one in declared:
        key, equals, _value = one.partition("=")
        opposite = one[2:] if one.startswith("no") else "no" + one
        if (equals and one not in live and any(have.startswith(key + "=") for have in live)) or opposite in live:
            found.append(one)
    return found


def notes(tier: Tier, table: Table | None, fstype: str, options: str) -> list[str]:
    """What a mounted volume gets at its next opening only: an ephemeral key is nowhere to open it again with."""
    waits = [
        f"the kernel does not have mount option {one}" for one in contradicted(tier["volume"]["mount_options"], options)
    ]
    ephemeral = tier["volume"]["key"] == "ephemeral" and table is not None
    if ephemeral and table is not None and table.flags != wanted_flags(tier):
        have, want = ("+".join(sorted(some)) or "none" for some in (table.flags, wanted_flags(tier)))
        waits.append(f"its flags are {have}, not {want}")
    if ephemeral and fstype != tier["volume"]["fstype"]:
        waits.append("its file system is {}, not {}".format(fstype, tier["volume"]["fstype"]))
    return [f"tier {tier['name']}: {one}, until the next boot or kvtier purge {tier['name']}" for one in waits]
