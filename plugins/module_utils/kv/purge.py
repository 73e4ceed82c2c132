# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The end of one tier, now: by its key where it has a volume of its own, block by block where it has none.

The key goes first, whatever holds the volume open; who holds it is looked for and stopped only afterwards. Each stage
is judged by what is there, so a purge that was killed is finished by running it again.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import os
import signal
from collections.abc import Iterator
from typing import Any

from . import (
    datamap,
    devices,
    discovery,
    encryption,
    fsio,
    holders,
    luks,
    pins,
    prepare,
    receipt,
    system,
    tpm2,
    units,
    walk,
)
from .datamap import Document, Tier, mapper_name
from .pins import Pin
from .stores import STORES
from .system import HostError, Mapper

DROP_CACHES = "/proc/sys/vm/drop_caches"
_FS_IOC_SHUTDOWN = 0x8004587D
_SHUTDOWN_WITHOUT_LOG = 2
_CRYPT, _ERROR = "crypt", "error"
_SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)

DESTROYED, REMAINS = "destroyed", "remains"


class Refused(datamap.Refused):
    """A purge that must not begin; the text says why and what to do."""


# The key


def targets(table: str) -> list[str]:
    """Kinds of the targets in what `dmsetup table` prints of one mapping."""
    return [fields[2] for fields in (line.split() for line in table.splitlines()) if len(fields) > 2]


def cipher(table: str) -> str | None:
    """Cipher of a crypt target; the key field beside it is never looked at."""
    fields = table.split()
    return fields[3] if len(fields) > 3 and fields[2] == _CRYPT else None


def _dmsetup(*arguments: str) -> str:
    done = system.run(["dmsetup", *arguments], 60)
    if done.returncode:
        raise HostError("dmsetup {}: {}".format(" ".join(arguments), done.stderr.strip() or "failed"))
    return done.stdout


def judge_mapping(tier: Tier, found: Mapper, table: str) -> str | None:
    """Why the open mapping of the tier's name must not be destroyed, or None."""
    name = mapper_name(tier)
    if not found.uuid.startswith("CRYPT-") or not found.uuid.endswith("-" + name):
        return f"/dev/mapper/{name} is not dm-crypt of that name ({found.uuid or 'no uuid'})"
    kinds = targets(table)
    if kinds not in ([_CRYPT], [_ERROR]):
        return f"/dev/mapper/{name} is made of {', '.join(kinds) or 'nothing'}, not of one dm-crypt target"
    source = tier["volume"]["source"]
    if kinds == [_ERROR]:
        return None
    if devices.of_device(tier):
        # A disk that was pulled out leaves its mapping, and its key in the kernel.
        device = devices.path(tier)
        if os.path.exists(device) and found.below != (devices.number_of(device),):
            return f"/dev/mapper/{name} does not lie on {device}"
    elif found.files != [source["file"]]:
        return f"/dev/mapper/{name} lies on {', '.join(found.files) or 'something else'}, not on {source['file']}"
    return None


def destroy_key(name: str, table: str) -> str:
    """Wipe the key of an open mapping from the kernel and let every read and write fail. The table it has then.

    Nothing here waits for the file system above: a process that holds it open cannot keep the key alive.
    """
    if targets(table) == [_CRYPT]:
        _dmsetup("suspend", "--noflush", "--nolockfs", name)
        try:
            _dmsetup("message", name, "0", "key", "wipe")
        finally:
            # Ends the suspension; with the crypt target its copy of the key is zeroed, whatever became of the message.
            _dmsetup("wipe_table", name)
    after = _dmsetup("table", name).strip()
    if targets(after) != [_ERROR]:
        raise HostError(f"/dev/mapper/{name} still has a table that is not the error table: run the purge again")
    return after


def mount_points(device: str) -> list[str]:
    """Where a device is mounted in this namespace, the deepest first."""
    found = {mount.point for mount in system.mounts() if mount.device == device}
    return sorted(found, key=len, reverse=True)


def _shut_down(device: str) -> bool:
    """Let the file system on a device refuse even what is cached; True if it did."""
    done = False
    for point in mount_points(device):
        try:
            fd = os.open(point, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            number = os.fstat(fd).st_dev
            # Never another file system: what is mounted there may have changed since the table was read.
            if f"{os.major(number)}:{os.minor(number)}" == device:
                fcntl.ioctl(fd, _FS_IOC_SHUTDOWN, array.array("I", [_SHUTDOWN_WITHOUT_LOG]))
                done = True
        except OSError:
            pass
        finally:
            os.close(fd)
    return done


def _drop_caches() -> None:
    with open(DROP_CACHES, "w", encoding="ascii") as file:
        file.write("3")


def filesystem_uuid(device: str) -> str | None:
    """UUID of the file system on a device, None if it has none that can be read."""
    try:
        done = system.run(["blkid", "-p", "-s", "UUID", "-o", "value", device], 60)
    except HostError:
        # A device that does not answer must not keep its key.
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None


def suspended(device: str, sys_root: str = "/sys") -> bool:
    """Is a mapping suspended, as a purge that was killed leaves it? Then it never answers a read."""
    return fsio.line_of(os.path.join(sys_root, "dev/block", device, "dm/suspended")) == "1"


# Who holds it


def _stop(*names: str) -> None:
    """Stop units; what that did not end is seen and dealt with by what comes after it."""
    system.run(["systemctl", "stop", "--", *names], 300)


def writers_of(tier: Tier) -> list[str]:
    """Units of the tier that run and are stopped with it; daemons that run other people's containers are not."""
    try:
        active = holders.active_units(tier["services"])
    except holders.CannotTell as error:
        raise HostError(str(error)) from error
    return [unit for unit in active if unit not in units.CONTAINER_DAEMONS]


def _as_record(pin: Pin) -> dict[str, Any]:
    return {
        "pid": pin.pid,
        "command": pin.comm,
        "unit": pin.unit,
        "container": pin.container,
        "how": pin.how,
        "spared": pin.spared,
    }


def _note_holders(made: receipt.Receipt, found: list[Pin]) -> None:
    made.content["held_by"] = [_as_record(pin) for pin in found]


def _release(tier: Tier, found: Mapper, made: receipt.Receipt) -> None:
    """Stop who holds the dead volume, unmount and close it. HostError with their names if somebody stays."""
    name = mapper_name(tier)
    with contextlib.suppress(holders.CannotTell):
        _note_holders(made, pins.find(found.device))
        made.write()
    if made.content["writers"]:
        _stop(*made.content["writers"])
        made.stage("writers stopped")
    _stop(units.mount_unit(tier["path"]))
    told: list[Pin] = []
    # The second time only what has the volume mounted for itself is left: an unmount here did not reach it.
    for _again in range(2):
        try:
            told += pins.stop(lambda: pins.find(found.device))[0]
        except holders.CannotTell as error:
            raise HostError(f"who holds /dev/mapper/{name} cannot be told: {error}") from error
        for point in mount_points(found.device):
            if system.run(["umount", "--", point], 60).returncode:
                # What still works there works on a file system that is shut down over a device that has no key.
                system.run(["umount", "--lazy", "--", point], 60)
    made.content["stopped"] = [_as_record(pin) for pin in told]
    made.stage("holders stopped")
    _stop(units.cryptsetup_unit(tier))
    if system.mapper(name) is not None:
        system.run(["dmsetup", "remove", "--retry", name], 60)
    if system.mapper(name) is not None:
        left = pins.find(found.device)
        _note_holders(made, left)
        named = "; ".join(map(pins.describe, left[:10])) or "nothing that has a pid: see lsblk and losetup"
        raise HostError(
            f"the key is destroyed, but /dev/mapper/{name} is still held by {named}; end that and run the purge again"
        )
    made.stage("mapping removed")


# The whole


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """A lost connection or Ctrl-C must not stop a purge half way."""
    before = {number: signal.signal(number, lambda *_: None) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def plan(tier: Tier) -> dict[str, Any]:
    """What a purge of the tier would destroy and stop, read-only. Raises Refused and HostError."""
    found, table = _look(tier)
    held: list[Pin] = []
    with contextlib.suppress(holders.CannotTell, FileNotFoundError):
        if found is not None:
            held = pins.find(found.device)
        elif not units.has_own_volume(tier):
            held = pins.find_in(tier["path"])
    return {
        "tier": tier["name"],
        "method": _method(tier),
        "mapping": mapper_name(tier) if units.has_own_volume(tier) else None,
        "open": found is not None,
        "cipher": cipher(table),
        "keys": luks.keys(tier) if units.has_own_volume(tier) else [],
        "writers": writers_of(tier),
        "held_by": [_as_record(pin) for pin in held],
    }


def _method(tier: Tier) -> str:
    return "key" if units.has_own_volume(tier) else "blocks"


def _look(tier: Tier) -> tuple[Mapper | None, str]:
    if not tier["path"]:
        raise Refused(f"tier {tier['name']} has no directory; objects of a bucket are deleted with kvsweep")
    why = holders.sees_all()
    if why is not None:
        raise Refused(f"tier {tier['name']}: {why}")
    if not units.has_own_volume(tier):
        return None, ""
    found = system.mapper(mapper_name(tier))
    if found is None:
        return None, ""
    table = _dmsetup("table", mapper_name(tier))
    wrong = judge_mapping(tier, found, table)
    if wrong is not None:
        raise Refused(f"tier {tier['name']}: {wrong}; nothing was touched")
    return found, table


def purge(tier: Tier, document: Document, by: dict[str, Any], directory: str = receipt.DIRECTORY) -> receipt.Receipt:
    """Destroy the tier, start its writers again, leave a receipt. Raises Refused before anything is touched.

    The receipt's result says how far it came: `destroyed`, or `remains` with the reason in its messages.
    """
    with system.exclusive():
        return purge_unlocked(tier, document, by, directory)


def purge_unlocked(
    tier: Tier, document: Document, by: dict[str, Any], directory: str = receipt.DIRECTORY
) -> receipt.Receipt:
    """purge() for a caller that keeps others off the host itself."""
    found, table = _look(tier)
    made = receipt.Receipt(tier["name"], document["host"], by, _method(tier), directory)
    earlier = receipt.unfinished_writers(tier["name"], directory)
    made.content["writers"] = sorted(
        {*writers_of(tier), *(one for one in earlier if discovery.is_of(one, tier["services"]))}
    )
    made.write()
    with _undisturbed():
        try:
            if units.has_own_volume(tier):
                _by_key(tier, found, table, made)
            else:
                _by_block(tier, made)
            _start_writers(made)
            result = REMAINS if made.content["messages"] else DESTROYED
        except (HostError, OSError) as error:
            made.content["messages"].append(str(error))
            result = REMAINS
        made.end(result)
    return made


def _by_key(tier: Tier, found: Mapper | None, table: str, made: receipt.Receipt) -> None:
    name, proof = mapper_name(tier), made.content["proof"]
    if found is not None:
        if targets(table) == [_CRYPT] and not suspended(found.device):
            proof["filesystem_before"] = filesystem_uuid("/dev/mapper/" + name)
        proof["table_after"] = destroy_key(name, table)
        made.content["keys_destroyed"].append({"mapping": name, "cipher": cipher(table), "kind": "memory"})
        made.stage("key destroyed")
        proof["filesystem_shut_down"] = _shut_down(found.device)
        _drop_caches()
        made.stage("caches dropped")
    else:
        made.stage("no key in the kernel")
    if luks.persistent(tier):
        _erase(tier, made)
    if found is not None:
        _release(tier, found, made)
    _make_again(tier, made)
    proof["filesystem_after"] = filesystem_uuid("/dev/mapper/" + name)


def _erase(tier: Tier, made: receipt.Receipt) -> None:
    """The keys that outlive a boot: keyslots, our copy of the header, the TPM's slots, the key file that we made."""
    device = devices.look(tier)
    if device is None:
        opener = "this host's TPM" if tpm2.of(tier) else "the key file"
        path = devices.path(tier)
        made.content["keys_elsewhere"].append(f"{path}, which is not there: its keyslots open with {opener}")
    destroyed, elsewhere = luks.erase(tier, device)
    made.content["keys_destroyed"] += destroyed
    made.content["keys_elsewhere"] += elsewhere
    made.stage("keyslots erased")


def _make_again(tier: Tier, made: receipt.Receipt) -> None:
    """A new key, a new file system, mounted and closed: by systemd, as at boot."""
    crypt, mount = units.cryptsetup_unit(tier), units.mount_unit(tier["path"])
    # I/O errors may have used up a writer's allowance of restarts.
    system.run(["systemctl", "reset-failed", "--", *made.content["writers"], crypt, mount], 60)
    if tier["state"] == "absent":
        return
    if system.mapper(mapper_name(tier)) is None:
        # A mapping that was closed by hand leaves its unit active, and starting it again would do nothing.
        _stop(crypt)
        if luks.persistent(tier):
            luks.make_again(tier)
        system.start(crypt)
        if luks.persistent(tier):
            luks.set_flags(tier)
            luks.make_filesystem(tier)
    system.start(mount, also=[crypt])
    system.start(units.prepare_name(tier), also=[mount])
    made.stage("volume made anew")


def _by_block(tier: Tier, made: receipt.Receipt) -> None:
    """Without a key of its own: the writers stop, every block goes, the bytes stay on the disk until written over."""
    storage = encryption.describe(tier["path"])
    made.content["proof"]["encrypted"] = storage.encrypted
    if made.content["writers"]:
        _stop(*made.content["writers"])
        made.stage("writers stopped")
    try:
        told, _left = pins.stop(lambda: pins.find_in(tier["path"]))
    except holders.CannotTell as error:
        raise HostError(f"who holds {tier['path']} cannot be told: {error}") from error
    made.content["stopped"] = [_as_record(pin) for pin in told]
    made.stage("holders stopped")
    wrong = holders.in_use(tier, os.getpid())
    if wrong is not None:
        raise HostError(wrong.replace("kvtier expire --stopped", "kvtier purge"))
    with fsio.opened(tier["path"]) as fd:
        files, freed, left = walk.destroy(fd, STORES[tier["store"]])
    made.content["files_deleted"], made.content["bytes_deleted"] = files, freed
    made.stage("blocks deleted")
    if left:
        made.content["messages"].append(f"{left} entries that the store does not know, or that stayed, are left alone")
    with contextlib.suppress(prepare.Refused):
        prepare.prepare(tier)


def _start_writers(made: receipt.Receipt) -> None:
    for unit in made.content["writers"]:
        try:
            system.start(unit)
        except HostError as error:
            made.content["messages"].append(str(error))
    if made.content["writers"]:
        made.stage("writers started")


def lines(content: dict[str, Any]) -> list[str]:
    """A receipt for people."""
    out = ["purge of tier {tier} on {host}: {result}".format(**content)]
    for key in content["keys_destroyed"]:
        out.append("key destroyed: {mapping} ({cipher}, {kind})".format(**key))
    if content["method"] == "blocks":
        out.append(
            "no key of its own: {files_deleted} files deleted ({bytes_deleted} bytes), which stay on the disk "
            "until they are written over".format(**content)
        )
    for one in content["keys_elsewhere"]:
        out.append(f"also destroy: {one}")
    for title, key in (("was held by", "held_by"), ("stopped", "stopped")):
        for one in content[key]:
            where = f"container {one['container']}" if one["container"] else one["unit"] or "no unit"
            out.append(f"{title}: pid {one['pid']} ({one['command']}, {where}) {one['how']}")
    out += [f"{one['seconds']:8.3f} s  {one['stage']}" for one in content["stages"]]
    return out + list(content["messages"])
