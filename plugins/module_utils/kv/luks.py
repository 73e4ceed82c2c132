# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Persistent volumes: LUKS2 on a device, opened by the TPM or by a key file of root that lies on encrypted storage.

The key goes from /dev/urandom into the file and from the file into cryptsetup: it is in no argument and no log.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Callable

from . import devices, drift, encryption, fsio, luksheader, system, tpm2
from .datamap import Tier, mapper_name
from .devices import Device
from .drift import Table
from .system import HostError

KEY_BYTES = 64
KEY_MODES = (0o400, 0o600)
# Whose key file it is: only what this collection made is ever removed with its tier.
MARK = "trusted.llmhost.key"


@dataclass(frozen=True)
class KeyFile:
    """A key file as it is; encrypted: whether what it lies on is, None if that cannot be told.

    opens: it opens the tier's header, as far as there is one; unfinished: that header has no keyslot.
    """

    exists: bool
    closed: bool
    size: int
    encrypted: bool | None
    why: str
    decoration: str | None = None
    opens: bool = True
    unfinished: bool = False


def persistent(tier: Tier) -> bool:
    """True if the tier's key outlives a boot."""
    return tier["volume"]["key"] in ("keyfile", "tpm2")


def look(tier: Tier) -> KeyFile:
    """The tier's key file (read-only; its content is not read)."""
    path = tier["volume"]["keyfile"]
    below = encryption.describe(path)
    why = "; ".join(below.problems)
    bad = below.key.reason if below.key is not None and below.key.status == encryption.BAD else None
    try:
        info = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return KeyFile(False, True, 0, below.encrypted, why, bad)
    closed = stat.S_ISREG(info.st_mode) and info.st_uid == 0 and stat.S_IMODE(info.st_mode) in KEY_MODES
    return KeyFile(True, closed, info.st_size, below.encrypted, why, bad)


def tried(tier: Tier, found: KeyFile, device: Device | None) -> KeyFile:
    """The key file tried on the tier's header while its volume is closed (read-only)."""
    if device is None or not devices.is_ours(tier, device):
        return found
    text = luksheader.read(device)
    # A format that was cut off, or a purge that was.
    if luksheader.is_making(tier) if text is None else json.loads(text).get("keyslots") == {}:
        return replace(found, unfinished=True)
    if text is None or not found.exists:
        return found
    argv = ["cryptsetup", "open", "--test-passphrase", "--key-file", tier["volume"]["keyfile"], "--", device.real]
    return replace(found, opens=system.run(argv, 120).returncode == 0)


def judge(tier: Tier, found: KeyFile, device: Device | None, wrong: Callable[[str, str, str], None]) -> None:
    """Refuse a key file that protects nothing, and a volume whose key is lost."""
    path, key = tier["volume"]["keyfile"], "volume.keyfile"
    if found.encrypted is not True:
        told = "is not encrypted" if found.encrypted is False else "cannot be told to be encrypted"
        reason = f"what {path} lies on {told} ({found.why})"
        wrong(key, reason, "name a file on encrypted storage, or use key: ephemeral")
    elif found.decoration is not None:
        wrong(
            key,
            f"what {path} lies on is opened by a key that protects nothing: {found.decoration}",
            "use another place",
        )
    if found.exists and not found.closed:
        wrong(key, f"{path} is not a regular file of root with mode 0400", f"chown root {path}; chmod 0400 {path}")
    if found.exists and found.size < 32:
        wrong(key, "%s holds %d bytes" % (path, found.size), "use at least 32 random bytes, or remove the file")
    if not found.opens and device is not None:
        reason = f"{device.path} is the tier's volume, but {path} does not open it"
        wrong(key, reason, drift.rebuild_fix(tier, "bring the right key back", device))
    if not found.exists and not found.unfinished and device is not None and devices.is_ours(tier, device):
        reason = f"{device.path} is the tier's volume, but its key {path} is gone"
        wrong(key, reason, f"bring the file back, or give the volume up: kvtier purge {tier['name']}")


def make_key(tier: Tier) -> bool:
    """Make the key file if it is missing; it appears whole or not at all. True if it was made."""
    path = tier["volume"]["keyfile"]
    if os.path.lexists(path):
        return False
    # Once more at the last moment: what was mounted there may be gone, and the directory below it is in the clear.
    below = look(tier)
    if below.encrypted is not True or below.decoration is not None:
        raise HostError(f"{path} would not lie on encrypted storage; no key was made")
    directory, name = os.path.split(path)
    if not os.path.isdir(directory):
        system.make_dirs(directory)
        os.chmod(directory, 0o700)
    with fsio.opened(directory) as parent:
        fd = os.open(".", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o400, dir_fd=parent)
        try:
            os.fchown(fd, 0, 0)
            os.fchmod(fd, 0o400)
            os.write(fd, os.urandom(KEY_BYTES))
            os.setxattr(fd, MARK, tier["name"].encode())
            os.fsync(fd)
            os.link("/proc/self/fd/%d" % fd, name, dst_dir_fd=parent, follow_symlinks=True)
            os.fsync(parent)
        finally:
            os.close(fd)
    return True


def format_command(tier: Tier, key: str | None = None) -> list[str]:
    """The command that makes the LUKS header; {} is the device. key: another key file than the map's."""
    return [
        "cryptsetup",
        "luksFormat",
        "--batch-mode",
        "--type",
        "luks2",
        "--cipher",
        "aes-xts-plain64",
        "--key-size",
        "512",
        *tpm2.QUICK,
        "--sector-size",
        "4096",
        "--uuid",
        devices.header_uuid(tier),
        *(["--label", tpm2.UNFINISHED] if tpm2.of(tier) else []),
        "--key-file",
        key or tier["volume"]["keyfile"],
        "{}",
    ]


def make_filesystem(tier: Tier) -> bool:
    """The file system inside a persistent volume, made once and only on a mapping that is empty. True if made."""
    mapping = "/dev/mapper/" + mapper_name(tier)
    done = system.run(["wipefs", "--no-act", "--json", mapping], 60)
    if done.returncode:
        raise HostError(f"wipefs cannot look at {mapping}: {done.stderr.strip()}")
    signatures = devices.parse_signatures(done.stdout)
    with open(mapping, "rb") as file:
        cut_off = xfs_cut_off(file.read(512))
    if signatures and not cut_off:
        kinds = sorted({one.type for one in signatures})
        if tier["volume"]["fstype"] not in kinds:
            raise HostError(
                "{} carries {}, the map says {}; kvtier purge {} makes it anew".format(
                    mapping, ", ".join(kinds), tier["volume"]["fstype"], tier["name"]
                )
            )
        return False
    system.do("mkfs." + tier["volume"]["fstype"], "-q", *(["-f"] if cut_off else []), mapping)
    return True


def xfs_cut_off(head: bytes) -> bool:
    """True if a mkfs.xfs did not end: nothing was ever stored there. head: the first 512 bytes."""
    return head[:4] == b"XFSB" and head[126:127] == b"\1"


def backup_differs(tier: Tier) -> bool:
    """True if the header is not kept a second time, or not for root alone."""
    if luksheader.is_making(tier):
        return True
    try:
        info = os.lstat(luksheader.backup_path(tier))
    except FileNotFoundError:
        return True
    return (info.st_uid, stat.S_IMODE(info.st_mode)) != (0, 0o600)


def back_up_header(tier: Tier, device: Device) -> bool:
    """Keep the header a second time, root's and 0600. True if it was not so."""
    path = luksheader.backup_path(tier)
    if not backup_differs(tier):
        return False
    if os.path.lexists(path) and not luksheader.is_making(tier):
        os.chown(path, 0, 0, follow_symlinks=False)
        os.chmod(path, 0o600)
    else:
        luksheader.keep(tier, device)
    return True


def flags(tier: Tier) -> list[str]:
    """Options that LUKS2 keeps in its header once they were given with --persistent."""
    wanted = ["--allow-discards"] if tier["volume"]["discard"] else []
    if tier["volume"]["no_workqueue"]:
        wanted += ["--perf-no_read_workqueue", "--perf-no_write_workqueue"]
    return wanted


def flags_differ(tier: Tier, table: Table, device: Device | None) -> bool:
    """True if an open volume, or its header, does not have the flags of the map."""
    wanted = drift.wanted_flags(tier)
    if table.flags != wanted:
        return True
    if device is None or not devices.is_ours(tier, device):
        return False
    dump = json.loads(luksheader.read(device) or "{}")
    kept = frozenset(one.replace("-", "_") for one in dump.get("config", {}).get("flags", []))
    return bool(dump) and kept != wanted


def set_flags(tier: Tier) -> bool:
    """Make an open volume and its header have the flags of the map, without closing it. True if they differed."""
    table = drift.parse(system.run(["dmsetup", "table", mapper_name(tier)], 60).stdout)
    if table is None or not flags_differ(tier, table, devices.look(tier)):
        return False
    opener = ["--token-only"] if tpm2.of(tier) else ["--key-file", tier["volume"]["keyfile"]]
    system.do("cryptsetup", "refresh", "--persistent", *flags(tier), *opener, mapper_name(tier))
    return True


def keys(tier: Tier) -> list[str]:
    """What erase() would destroy beside the keyslots, and what it would find."""
    if not persistent(tier):
        return []
    kept = [tier["volume"]["keyfile"]] if tier["volume"]["keyfile"] else ["TPM2 slot"]
    return ["LUKS2 keyslots of {}".format(tier["volume"]["source"]["device"]), luksheader.backup_path(tier), *kept]


def erase(tier: Tier, device: Device | None) -> tuple[list[dict[str, Any]], list[str]]:
    """Destroy all keyslots of the tier's device, our copy of its header, the TPM's slots or the key file that we made.

    Returns what was destroyed, for the receipt, and what somebody else must destroy.
    """
    destroyed: list[dict[str, Any]] = []
    elsewhere: list[str] = []
    # First: a copy that outlived the keyslots would bring them back.
    if luksheader.forget_backup(tier):
        destroyed.append({"mapping": luksheader.backup_path(tier), "cipher": None, "kind": "header backup"})
    if device is not None and devices.is_ours(tier, device):
        luksheader.erase(device)
        destroyed.append({"mapping": device.path, "cipher": None, "kind": "LUKS2 keyslots"})
        if tpm2.of(tier) and luksheader.read(device) is not None:
            destroyed += tpm2.forget(device, tpm2.read(device))
    if tpm2.of(tier):
        elsewhere.append("copies of the header that were made by others: this host's TPM opens them")
        return destroyed, elsewhere
    path = tier["volume"]["keyfile"]
    try:
        ours = os.getxattr(path, MARK, follow_symlinks=False) == tier["name"].encode()
    except OSError:
        ours = False
    if not os.path.lexists(path):
        elsewhere.append(f"key file {path}, which is not there now")
    elif ours:
        os.unlink(path)
        destroyed.append({"mapping": path, "cipher": None, "kind": "key file"})
    else:
        elsewhere.append(f"key file {path}, which this collection did not make")
    elsewhere.append("copies of the header or of the key file that were made by others")
    return destroyed, elsewhere


def make_again(tier: Tier) -> None:
    """A new key and a new header on the tier's own device, whose keyslots are erased. HostError if it is not ours."""
    device = devices.look(tier)
    if device is None or not devices.is_ours(tier, device):
        raise HostError(
            f"{devices.path(tier)} is not there or does not carry the tier's header; run the harden playbook"
        )
    if tpm2.of(tier):
        devices.claim(device)
        luksheader.begin(tier)
        _format_sealed(tier, device, lambda command: devices.run_on(device, command))
    else:
        make_key(tier)
        devices.claim(device)
        luksheader.begin(tier)
        devices.run_on(device, format_command(tier))
    back_up_header(tier, device)
    devices.show(device)


def _format_sealed(tier: Tier, device: Device, do: Callable[[list[str]], None]) -> None:
    with tpm2.passing_key() as key:
        do(format_command(tier, key))
        tpm2.seal(tier, device, key, ["0"])
    tpm2.settle(tier, device)


def make(tier: Tier, device: Device, wipes: Sequence[dict[str, Any]]) -> list[str]:
    """Key and LUKS header, what is missing of them; said in lines."""
    if tpm2.of(tier):
        return _make_sealed(tier, device, wipes)
    done = []
    if make_key(tier):
        done.append("made key file {}".format(tier["volume"]["keyfile"]))
    if not devices.is_ours(tier, device):
        devices.take(tier, device, wipes, format_command(tier), partial(luksheader.begin, tier))
        done.append(f"formatted {device.path} as LUKS2")
    return done


def _make_sealed(tier: Tier, device: Device, wipes: Sequence[dict[str, Any]]) -> list[str]:
    found = tpm2.look(tier, device)
    step = tpm2.step(tier, found)
    if found.header is None:
        begin = partial(luksheader.begin, tier)
        _format_sealed(tier, device, lambda command: devices.take(tier, device, wipes, command, begin))
        return [f"formatted {device.path} as LUKS2, sealed by the TPM"]
    if step is None:
        return []
    if found.header.finished:
        tpm2.seal_again(tier, device)
        # It holds the seal of before.
        luksheader.forget_backup(tier)
        tpm2.settle(tier, device)
    else:
        make_again(tier)
    return [step]
