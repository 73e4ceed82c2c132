# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tiers that the map declares absent: what of ours a host still has of them, and taking it away.

The blocks go with the key of a volume of ours, else by the names that the store registry knows. Whatever else lies
there makes it a refusal, or stays. Each step is judged by what is there, so a run that was killed is finished by the
next one. Receipts and the history of audits stay: they are evidence.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from . import (
    access,
    datamap,
    devices,
    fsio,
    holders,
    leftover,
    luks,
    lvm,
    pins,
    prepare,
    purge,
    receipt,
    system,
    tables,
    units,
    volume,
    walk,
)
from .datamap import Document, MapError, Problem, Tier, file_tiers, mapper_name
from .stores import CACHEDIR_TAG, STORES
from .system import HostError
from .tables import CRYPTTAB, FSTAB
from .volume import Seen

WHO = "harden: state absent"
_SHOWN = 5


@dataclass(frozen=True)
class Left:
    """What a host has of one absent tier. tier: as the host knew it; seen: its volume; open: with a key in the kernel.

    plain: the directory of a tier without a volume of ours carries our tag; bare: what is left below a mount.
    """

    tier: Tier
    seen: Seen | None = None
    open: bool = False
    plain: bool = False
    bare: bool = False
    keys: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()
    held: tuple[str, ...] = ()
    untold: str | None = None


def known(document: Document) -> list[Tier]:
    """The absent tiers with files, with the place and the volume that the host knows them by."""
    try:
        old = {tier["path"]: tier for tier in file_tiers(datamap.load())}
    except MapError:
        old = {}
    # Whoever the operator names in the absent entry is who may still write it.
    return [
        dict(old.get(tier["path"], tier), state="absent", services=tier["services"])
        for tier in file_tiers(document, ("absent",))
    ]


# Looking


def _is_bare(tier: Tier) -> bool:
    """Is what lies at the path below all mounts the empty directory that we closed?"""
    try:
        found = volume.look_bare(tier)
    except (OSError, fsio.UnsafePath):
        return False
    return not found.names and (found.uid, found.gid, found.mode) == (0, 0, 0)


def _foreign(tier: Tier) -> tuple[str, ...]:
    with fsio.opened(tier["path"]) as fd:
        return tuple(walk.foreign(fd, STORES[tier["store"]], volume.FOREIGN_SHOWN))


def _holders(tier: Tier, device: str | None) -> tuple[str, ...]:
    """Who still uses a tier, one line each. Raises holders.CannotTell."""
    services = [name for name in tier["services"] if name not in units.CONTAINER_DAEMONS]
    if active := holders.active_units(services):
        return tuple(active)
    found = [pins.describe(pin) for pin in pins.find(device)] if device else []
    with fsio.opened(tier["path"]) as fd:
        look = holders.Look(fd, tier["path"], os.getpid())
        for holder in look.holding() or holders.engines(tier, look):
            if not any(line.startswith("pid %d " % holder.pid) for line in found):
                found.append("pid %d %s" % holder)
    return tuple(found)


def look(tier: Tier, table: Sequence[system.Mount]) -> Left:
    """What the host has of one absent tier (read-only)."""
    if not units.has_own_volume(tier):
        left = Left(tier, plain=leftover.is_tagged(tier["path"]), bare=access.foreign_mount(tier) and _is_bare(tier))
        device = None
    else:
        seen = volume.look(tier, table)
        left = Left(tier, seen, bare=_is_bare(tier), keys=leftover.keys(tier))
        if seen.mapper is not None:
            table_now = system.run(["dmsetup", "table", mapper_name(tier)], 60)
            if purge.targets(table_now.stdout) not in (["crypt"], ["error"]):
                return replace(left, untold=f"the table of {mapper_name(tier)} is not one of dm-crypt")
            left = replace(left, open=purge.targets(table_now.stdout) == ["crypt"])
        device = seen.mapper.device if seen.mapper and left.open else None
        if left.open and seen.is_ours():
            left = replace(left, foreign=_foreign(tier))
    if not (left.plain or (left.seen and left.open and left.seen.is_ours())):
        return left
    try:
        return replace(left, held=_holders(tier, device))
    except (holders.CannotTell, HostError) as error:
        return replace(left, untold=str(error))


def look_all(document: Document, own: bool | None = None) -> list[Left]:
    """What the host has of all absent tiers. own: only those with (True) or without (False) a volume of ours."""
    table = system.mounts()
    tiers = [tier for tier in known(document) if own in (None, units.has_own_volume(tier))]
    return [look(tier, table) for tier in tiers]


# Judging


def judge(left: Left, host: str) -> list[Problem]:
    """Why a tier must not be taken away now; empty if it may."""
    problems: list[Problem] = []
    tier, seen = left.tier, left.seen
    name, path = tier["name"], tier["path"]

    def wrong(key: str, reason: str, fix: str) -> None:
        problems.append(Problem(host, name, key, reason, fix))

    if left.untold:
        wrong("state", f"whether anything still uses {path} cannot be told: {left.untold}", "run it as the host's root")
    if left.held:
        more = "" if len(left.held) <= _SHOWN else f" and {len(left.held) - _SHOWN} more"
        reason = f"the tier is still used: {'; '.join(left.held[:_SHOWN])}{more}"
        wrong("state", reason, f"stop that, or take {path} out of its settings and its unit out of services; run again")
    if left.foreign:
        reason = f"names that store {tier['store']} does not know lie in {path}: {', '.join(left.foreign)}"
        wrong("state", reason, "move them away: they would go with the volume; nothing was touched")
    if seen is None:
        return problems
    mapper, unseen = mapper_name(tier), f"or destroy it unseen: kvtier purge {name}"
    if seen.tables_unsafe:
        wrong("volume", seen.tables_unsafe, "make it a plain file")
    if seen.device is not None and devices.is_ours(tier, seen.device) and (seen.device.in_use or seen.device.twins):
        used = "; ".join([*seen.device.in_use, *(f"{one} carries the tier's header too" for one in seen.device.twins)])
        wrong("volume.source.device", f"{seen.device.path}: {used}", "free it, or unplug the disk that is not meant")
    # Without a key it lies on nothing any more; the purge looks at its name.
    if left.open and not volume.is_on_source(tier, seen):
        wrong("volume", f"/dev/mapper/{mapper} is not the tier's volume", "close it, or rename it")
    elif left.open and not seen.is_ours():
        reason = f"{mapper} is open but not mounted at {path}, so what lies in it cannot be seen"
        wrong("volume", reason, f"systemctl start {units.mount_unit(path)}, {unseen}")
    elif seen.mapper is None and luks.persistent(tier):
        if seen.device is None and left.keys:
            wrong("volume", f"{devices.path(tier)} is not there", f"plug it in, {unseen}")
        elif seen.device is not None and devices.is_ours(tier, seen.device):
            reason = f"{mapper} is closed, so what lies in it cannot be seen"
            wrong("volume", reason, f"systemctl start {units.mount_unit(path)}, {unseen}")
    return problems


def refuse(found: Sequence[Left], host: str) -> None:
    """MapError if one of them must not be taken away now."""
    problems = [problem for left in found for problem in judge(left, host)]
    if problems:
        raise MapError(problems)


# Planning


def _own_rows(left: Left) -> list[str]:
    """The tables that have the tier's own entry."""
    if left.seen is None:
        return []
    mine = (mapper_name(left.tier), devices.spec(left.tier))
    crypt = [CRYPTTAB] if any(row[:2] == mine for row in left.seen.crypttab) else []
    mount = ("/dev/mapper/" + mapper_name(left.tier), left.tier["path"])
    return crypt + ([FSTAB] if any(row[:2] == mount for row in left.seen.fstab) else [])


def _our_image(left: Left) -> str | None:
    image = left.seen.image if left.seen else None
    if image is None or not image.regular or image.mark != left.tier["name"]:
        return None
    return str(left.tier["volume"]["source"]["file"])


def _our_device(left: Left) -> devices.Device | None:
    device = left.seen.device if left.seen else None
    return device if device is not None and devices.is_ours(left.tier, device) else None


def _is_our_volume(left: Left) -> bool:
    """Is the logical volume one that we made?"""
    return left.seen is not None and left.seen.group is not None and left.seen.group.ours


def steps(left: Left) -> list[str]:
    """What is left to do for one tier, in order; empty if nothing of ours is there."""
    tier, todo = left.tier, []
    if left.seen is not None and left.seen.mapper is not None:
        todo.append(f"destroy the key of {mapper_name(tier)} and close it")
    todo += [f"destroy {path}" for path in left.keys]
    todo += [f"remove {mapper_name(tier)} from {path}" for path in _own_rows(left)]
    if image := _our_image(left):
        todo.append(f"remove {image}")
    if device := _our_device(left):
        todo.append(f"remove the header of {device.path}")
    if _is_our_volume(left):
        todo.append(f"remove the logical volume {lvm.path(tier)}")
    if left.plain:
        todo.append(f"destroy the blocks in {tier['path']} and give the directory up")
    if left.bare:
        todo.append(f"give up the directory below the mount at {tier['path']}")
    return todo


# Taking away


def _detach(tier: Tier) -> list[str]:
    """Free the writers of the tier before its mount goes, or they would be stopped with it."""
    name = units.prepare_name(tier)
    try:
        others = [one for one in file_tiers(datamap.load()) if one["name"] != tier["name"]]
    except MapError:
        others = []
    wanted = access.wanted_files({"tiers": others})
    done = []
    for path, data in access.our_files().items():
        if path == units.prepare_path(tier) or name in data.decode("utf-8", "replace"):
            system.Change(path, data, wanted.get(path), access.FILE_MODE).make()
            access.remove_empty(os.path.dirname(path))
            done.append(("wrote " if path in wanted else "removed ") + path)
    link = units.wants_link(tier)
    if os.path.islink(link):
        os.unlink(link)
        access.remove_empty(os.path.dirname(link))
        done.append(f"removed {link}")
    if done:
        system.daemon_reload()
    system.run(["systemctl", "stop", "--", name], 300)
    return done


def _tables(tier: Tier) -> list[str]:
    """Take the tier's own entries out of crypttab and fstab, every other byte as it was."""
    done = []
    for path, mine in (
        (CRYPTTAB, (mapper_name(tier), devices.spec(tier))),
        (FSTAB, ("/dev/mapper/" + mapper_name(tier), tier["path"])),
    ):
        before = system.read_file(path)
        after = tables.without_line(before or b"", mine)
        if before is not None and after != before:
            left = tables.what_is_left(path, after)
            system.Change(path, before, left, stat.S_IMODE(os.stat(path).st_mode)).make()
            done.append(f"removed {mapper_name(tier)} from {path}")
    if done:
        system.daemon_reload()
    return done


def _remove_image(path: str, tier: Tier) -> None:
    """Unlink the image; HostError if it is not ours any more."""
    directory, name = os.path.split(path)
    with fsio.opened(directory) as parent:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=parent)
        try:
            if os.getxattr(fd, volume.MARK) != str(tier["name"]).encode():
                raise HostError(f"{path} is not the tier's image any more; nothing was touched")
        except OSError as error:
            raise HostError(f"{path} is not the tier's image any more; nothing was touched") from error
        finally:
            os.close(fd)
        os.unlink(name, dir_fd=parent)


def _give_up(path: str) -> None:
    """Open the empty directory that was below the mount, and take it away unless something else is mounted there."""
    with fsio.covered(path) as fd:
        fsio.set_immutable(fd, False)
        os.fchmod(fd, 0o755)
    with contextlib.suppress(OSError):
        os.rmdir(path)


def _clear_plain(tier: Tier) -> list[str]:
    """Blocks of the tier's store, our tag and our ACL go; strangers' files stay, and the directory with them."""
    path = tier["path"]
    with fsio.opened(path) as fd:
        files, _freed, strangers = walk.destroy(fd, STORES[tier["store"]])
        with contextlib.suppress(OSError):
            if os.getxattr(fd, access.DEFAULT_ACL) == prepare.CLOSED_ACL:
                os.removexattr(fd, access.DEFAULT_ACL)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(CACHEDIR_TAG, dir_fd=fd)
        empty = not os.listdir(fd)
    done = [f"destroyed {files} files in {path}"]
    if empty:
        try:
            os.rmdir(path)
            done.append(f"removed {path}")
        except OSError as error:
            if error.errno not in (errno.EBUSY, errno.ENOTEMPTY):
                raise
    elif strangers:
        done.append(f"left alone in {path}: {strangers} entries that the store does not know")
    return done


def _volume(left: Left, seen: Seen, document: Document) -> list[str]:
    tier = left.tier
    done = _detach(tier)
    if seen.mapper is not None:
        # Time has passed since it was judged, and what has come meanwhile would go with the key.
        problems = judge(look(tier, system.mounts()), document["host"])
        if problems:
            raise HostError("\n".join(map(str, problems)))
        try:
            made = purge.purge_unlocked(tier, document, receipt.who(WHO))
        except purge.Refused as error:
            raise HostError(str(error)) from error
        if made.content["result"] != purge.DESTROYED:
            raise HostError("tier {}: {}".format(tier["name"], "; ".join(made.content["messages"])))
        done.append(f"destroyed the key of {mapper_name(tier)} and closed it, receipt {made.path}")
    elif left.keys:
        destroyed, _elsewhere = luks.erase(tier, None)
        done += ["destroyed {mapping}".format(**one) for one in destroyed]
    system.run(["systemctl", "stop", "--", units.mount_unit(tier["path"]), units.cryptsetup_unit(tier)], 300)
    done += _tables(tier)
    if image := _our_image(left):
        _remove_image(image, tier)
        done.append(f"removed {image}")
    if device := _our_device(left):
        devices.give_up(tier, device)
        done.append(f"removed the header of {device.path}")
    if _is_our_volume(left):
        lvm.remove(tier)
        done.append(f"removed the logical volume {lvm.path(tier)}")
    return done


def apply(found: Sequence[Left], document: Document) -> list[str]:
    """Take away what refuse() did not stop. Says what was done; HostError where the host does not follow."""
    done: list[str] = []
    for left in found:
        if not steps(left):
            continue
        if left.seen is not None:
            done += _volume(left, left.seen, document)
        if left.plain:
            done += _clear_plain(left.tier)
        if left.bare:
            _give_up(left.tier["path"])
            done.append("gave up the directory below the mount at {}".format(left.tier["path"]))
    return done


def finish(found: Sequence[Left], document: Document, act: bool, result: dict[str, Any]) -> dict[str, Any]:
    """A module's result with what is taken away in it; done now if act."""
    todo = [step for left in found for step in steps(left)]
    shown = diffs(found)
    done = apply(found, document) if act else todo
    return {
        **result,
        "changed": result["changed"] or bool(todo),
        "steps": result["steps"] + done,
        "diff": result["diff"] + shown,
    }


def end_prepared(act: bool, result: dict[str, Any]) -> dict[str, Any]:
    """End the prepare units that have no file any more, of a tier that is gone or has another name now.

    No drop-in requires them, or stopping them would stop the writers. In check mode their files are still there.
    """
    listed = system.run(
        ["systemctl", "list-units", "--all", "--plain", "--no-legend", "--full", "--no-pager", "--"]
        + [units.PREPARE_PREFIX + "*.service"],
        60,
    )
    rows = [line.split() for line in listed.stdout.splitlines()]
    names = [row[0] for row in rows if len(row) > 2 and row[1] == "not-found" and row[2] == "active"]
    if act and names:
        system.run(["systemctl", "stop", "--", *names], 300)
    steps_done = [f"{'ended' if act else 'end'} {name}" for name in names]
    return {**result, "changed": result["changed"] or bool(names), "steps": result["steps"] + steps_done}


def diffs(found: Sequence[Left]) -> list[dict[str, str]]:
    """What is taken away, as Ansible's --diff shows it."""
    return [
        system.text_diff("tier {}".format(left.tier["name"]), "".join(step + "\n" for step in todo), "absent\n")
        for left in found
        if (todo := steps(left))
    ]
