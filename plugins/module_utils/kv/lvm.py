# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Logical volumes as sources: made in a volume group that the operator has, known by a tag, never shrunk."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Callable

from . import system
from .datamap import Tier
from .system import HostError

_FIELDS = "lv_name,lv_size,lv_tags,lv_active"


@dataclass(frozen=True)
class Group:
    """A volume group and the tier's logical volume in it; sizes in bytes, size None: there is no such volume."""

    free: int
    extent: int
    size: int | None = None
    ours: bool = False
    active: bool = False

    def rounded(self, size: int) -> int:
        """What LVM makes of a size: whole extents."""
        return -(-size // self.extent) * self.extent


def of(tier: Tier) -> bool:
    """True if the tier's volume lies on a logical volume that is made here."""
    return bool(tier["volume"]["source"].get("vg"))


def path(tier: Tier) -> str:
    """The stable name of the tier's logical volume."""
    source = tier["volume"]["source"]
    return f"/dev/{source['vg']}/{source['lv']}"


def tag(tier: Tier) -> str:
    """By which a logical volume is known to be made for this tier."""
    return f"llmhost.tier.{tier['name']}"


def parse(groups: str, volumes: str, tier: Tier) -> Group | None:
    """A group in what vgs and lvs report as JSON, None if there is none."""
    found = json.loads(groups)["report"][0]["vg"]
    if not found:
        return None
    free, extent = int(found[0]["vg_free"]), int(found[0]["vg_extent_size"])
    for one in json.loads(volumes)["report"][0]["lv"]:
        if one["lv_name"] == tier["volume"]["source"]["lv"]:
            ours = tag(tier) in one["lv_tags"].split(",")
            return Group(free, extent, int(one["lv_size"]), ours, one["lv_active"] == "active")
    return Group(free, extent)


def look(tier: Tier) -> Group | None:
    """The tier's volume group, None if the host has no such group, or no LVM (read-only)."""
    name = tier["volume"]["source"]["vg"]
    options = ["--reportformat", "json", "--units", "b", "--nosuffix"]
    try:
        groups = system.run(["vgs", *options, "--options", "vg_free,vg_extent_size", "--select", f"vg_name={name}"], 60)
        volumes = system.run(["lvs", *options, "--options", _FIELDS, "--select", f"vg_name={name}"], 60)
    except HostError as error:
        if "not installed" in str(error):
            return None
        raise
    if groups.returncode or volumes.returncode:
        raise HostError("LVM cannot be asked: " + (groups.stderr or volumes.stderr).strip())
    return parse(groups.stdout, volumes.stdout, tier)


def judge(tier: Tier, group: Group | None, header: bool, wrong: Callable[[str, str, str], None]) -> bool:
    """Refuse a group or a volume that is not for this tier; True if its device is worth a look. header: it is ours."""
    source = tier["volume"]["source"]
    full, key = "{vg}/{lv}".format(**source), "volume.source.lv"
    if group is None:
        fix = "make it (pvcreate, vgcreate), or correct the name (vgs)"
        wrong("volume.source.vg", "this host has no volume group {}".format(source["vg"]), fix)
        return False
    if group.size is None:
        return False
    if not group.ours and not header:
        fix = "name one that does not exist yet, or use what is there: source: {device: /dev/disk/by-id/dm-name-...}"
        wrong(key, f"the logical volume {full} exists and was not made by this collection", fix)
        return False
    if not group.active:
        wrong(key, f"the logical volume {full} is not active", f"lvchange --activate y {full}")
        return False
    if group.size > group.rounded(source["size"]):
        reason = "%s has %d MiB, the map says %d; it is never shrunk" % (full, group.size >> 20, source["size"] >> 20)
        wrong("volume.source.size", reason, "write %dM" % (group.size >> 20))
    return True


def judge_room(
    tiers: Sequence[Tier], groups: Sequence[Group | None], wrong: Callable[[str, str, str, str], None]
) -> None:
    """Does all fit that is still to be made or grown?"""
    needed: dict[str, int] = {}
    for tier, group in zip(tiers, groups):
        if group is None:
            continue
        source = tier["volume"]["source"]
        missing = max(0, group.rounded(source["size"]) - (group.size or 0))
        left = group.free - needed.get(source["vg"], 0)
        needed[source["vg"]] = needed.get(source["vg"], 0) + missing
        if missing > left:
            most = max(0, left) + (group.size or 0)
            reason = "%s has %d MiB free for it, %d MiB less than wanted" % (
                source["vg"],
                max(0, left) >> 20,
                (missing - max(0, left)) >> 20,
            )
            fix = "write at most %dM, or add a disk to the group (vgextend)" % (most >> 20)
            wrong(tier["name"], "volume.source.size", reason, fix)


def make(tier: Tier) -> None:
    """Make the logical volume, tagged from its first moment on; LVM wipes the signatures that its extents had."""
    source: dict[str, Any] = tier["volume"]["source"]
    size = ["--size", "%db" % source["size"], "--wipesignatures", "y", "--zero", "y", "--yes"]
    system.do(
        "lvcreate", "--quiet", "--type", "linear", *size, "--addtag", tag(tier), "--name", source["lv"], source["vg"]
    )
    system.run(["udevadm", "settle", "--timeout=60"], 90)


def extend(tier: Tier) -> None:
    """Give it the size of the map."""
    source = tier["volume"]["source"]
    system.do("lvextend", "--quiet", "--size", "%db" % source["size"], "{vg}/{lv}".format(**source))


def remove(tier: Tier) -> None:
    """Remove it, if it carries the tier's tag at this moment."""
    source = tier["volume"]["source"]
    mine = f"vg_name={source['vg']} && lv_name={source['lv']} && lv_tags={{{tag(tier)}}}"
    system.do("lvremove", "--quiet", "--yes", "--select", mine)
