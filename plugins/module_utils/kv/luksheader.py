# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The LUKS2 header on a tier's device, whole or not, and the copy of it that this host keeps.

Without its header a volume is lost, so a header is only made anew where a mark says that it was being made: that
nothing is readable, or that no copy is kept, proves nothing.
"""

from __future__ import annotations

import contextlib
import json
import os

from . import devices, fsio, system
from .datamap import Tier
from .devices import Device
from .mapkeys import LIB_ROOT
from .system import HostError

HEADERS = os.path.join(LIB_ROOT, "headers")
# Of what cryptsetup 2.1 and later make: two binary headers of 4 KiB, each before its JSON, then key material up to the
# data. All but the binary headers is erased: they hold no key, and by them the device is known as the tier's.
_SECRETS = ((4 << 10, 16 << 10), (20 << 10, 16 << 20))


def backup_path(tier: Tier) -> str:
    """Where the header of the tier's volume is kept a second time."""
    return os.path.join(HEADERS, tier["name"] + ".luks2")


def making_path(tier: Tier) -> str:
    """What is there from before the tier's header is written until it is kept a second time."""
    return os.path.join(HEADERS, tier["name"] + ".making")


def begin(tier: Tier) -> None:
    """To be called when the device is claimed and its header is about to be written."""
    system.make_dirs(HEADERS)
    os.chmod(HEADERS, 0o700)
    name = os.path.basename(making_path(tier))
    with fsio.opened(HEADERS) as parent:
        os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600, dir_fd=parent))
        os.fsync(parent)
    forget_backup(tier)


def keep(tier: Tier, device: Device) -> None:
    """Keep the whole header a second time, root's and 0600: all of it or none."""
    system.make_dirs(HEADERS)
    os.chmod(HEADERS, 0o700)
    path, umask = backup_path(tier), os.umask(0o077)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path + ".new")
        system.do("cryptsetup", "luksHeaderBackup", "--header-backup-file", path + ".new", "--", device.real)
        with open(path + ".new", "rb") as file:
            os.fchmod(file.fileno(), 0o600)
            os.fsync(file.fileno())
        os.replace(path + ".new", path)
    finally:
        os.umask(umask)
    _unlink(making_path(tier))


def forget_backup(tier: Tier) -> bool:
    """Remove the copy of a header that is no more. True if there was one."""
    return _unlink(backup_path(tier))


def _unlink(path: str) -> bool:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return False
    with fsio.opened(os.path.dirname(path)) as parent:
        os.fsync(parent)
    return True


def read(device: Device) -> str | None:
    """What the header says as JSON, no secrets among it; None if none is whole. HostError if that cannot be told."""
    done = system.run(["cryptsetup", "luksDump", "--dump-json-metadata", "--", device.real], 60)
    if done.returncode == 0:
        return done.stdout
    said = done.stderr.strip()
    # cryptsetup says the same of a disk that cannot be read, and with one line more of a lock that it did not get.
    if done.returncode == 1 and said == f"Device {device.real} is not a valid LUKS device.":
        try:
            with open(device.real, "rb", buffering=0) as file:
                file.read(_SECRETS[-1][0])
        except OSError as error:
            said = str(error)
        else:
            return None
    raise HostError(f"cryptsetup cannot read the header of {device.path}: {said}")


def is_making(tier: Tier) -> bool:
    """True if nobody came to the end of writing the tier's header and keeping it."""
    return os.path.lexists(making_path(tier))


def problem(tier: Tier, device: Device, ours: bool) -> tuple[str, str] | None:
    """What is wrong with the header, and what to do. ours: the device carries the tier's signature."""
    if is_making(tier):
        return None
    backup = backup_path(tier)
    kept = os.path.lexists(backup)
    back = (
        f"cryptsetup luksHeaderRestore --header-backup-file {backup} {device.path}" if kept else "from a copy of yours"
    )
    given_up = (None if ours else devices.leave(device)) or f"kvtier purge {tier['name']}"
    fix = f"bring it back ({back}), or give the volume up: {given_up}"
    if not ours:
        return (f"the LUKS header of {device.path} is gone, its copy is not", fix) if kept else None
    text = read(device)
    if text is None:
        return f"the LUKS header of {device.path} is damaged", fix
    if kept and json.loads(text).get("keyslots") == {}:
        return f"the LUKS header of {device.path} has no keyslot, its copy may have", fix
    return None


def erase(device: Device) -> None:
    """Destroy all key material; the signature stays, by which the device is known as the tier's."""
    if read(device) is not None:
        system.do("cryptsetup", "erase", "--batch-mode", "--", device.real)
        return
    # cryptsetup does not touch a header that it cannot read.
    with open(device.real, "r+b", buffering=0) as file:
        for begin_, end in _SECRETS:
            file.seek(begin_)
            file.write(bytes(min(end, device.size) - begin_))
        os.fsync(file.fileno())
