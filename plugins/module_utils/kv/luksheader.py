# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The LUKS2 header on a tier's device, whole or not, and the copy of it that this host keeps."""

from __future__ import annotations

import contextlib
import os

from . import system
from .datamap import Tier
from .devices import Device
from .mapkeys import LIB_ROOT
from .system import HostError

HEADERS = os.path.join(LIB_ROOT, "headers")
# Of what cryptsetup 2.1 and later make: two copies of the header proper, then key material up to where data begin.
_KEYS_FROM, _KEYS_TO = 32 << 10, 16 << 20


def backup_path(tier: Tier) -> str:
    """Where the header of the tier's volume is kept a second time."""
    return os.path.join(HEADERS, tier["name"] + ".luks2")


def forget_backup(tier: Tier) -> bool:
    """Remove the copy of a header that is no more. True if there was one."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(backup_path(tier))
        return True
    return False


def read(device: Device) -> str | None:
    """What the header says as JSON, no secrets among it; None if none is whole. HostError if that cannot be told."""
    done = system.run(["cryptsetup", "luksDump", "--dump-json-metadata", "--", device.real], 60)
    if done.returncode == 0:
        return done.stdout
    if "is not a valid LUKS device" in done.stderr:
        return None
    raise HostError(f"cryptsetup cannot read the header of {device.path}: {done.stderr.strip()}")


def cut_off(tier: Tier, device: Device) -> bool:
    """True if a device with the tier's signature never had a whole header. HostError if it had one.

    The copy is made right after the header, so without one nothing was ever stored behind it.
    """
    if read(device) is not None:
        return False
    backup = backup_path(tier)
    if os.path.lexists(backup):
        raise HostError(
            f"the LUKS header of {device.path} is damaged; bring it back (cryptsetup luksHeaderRestore "
            f"--header-backup-file {backup} {device.path}), or give the volume up: kvtier purge {tier['name']}"
        )
    return True


def erase(device: Device) -> None:
    """Destroy all key material; the signature stays, by which the device is known as the tier's."""
    if read(device) is not None:
        system.do("cryptsetup", "erase", "--batch-mode", "--", device.real)
        return
    # cryptsetup does not touch a header that it cannot read.
    with open(device.real, "r+b", buffering=0) as file:
        file.seek(_KEYS_FROM)
        file.write(bytes(min(_KEYS_TO, device.size) - _KEYS_FROM))
        os.fsync(file.fileno())
