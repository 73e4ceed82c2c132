# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the roles need of the distribution: where it lies once it is there, and which package brings it."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from . import system
from .system import HostError

# A slow mirror is no failure.
TIMEOUT = 1800


class Need(NamedTuple):
    """It is there if one of the places is; unit: the service that goes with it, Debian's name and the RHEL family's."""

    places: tuple[str, ...]
    apt: str
    dnf: str
    units: tuple[str, str] = ("", "")


NEEDS = {
    "boto3": Need(
        ("/usr/lib/python3/dist-packages/boto3/__init__.py", "/usr/lib/python3.*/site-packages/boto3/__init__.py"),
        "python3-boto3",
        "python3-boto3",
    ),
    "cron": Need(("/usr/sbin/cron", "/usr/sbin/crond"), "cron", "cronie", ("cron.service", "crond.service")),
    "cryptsetup": Need(("/sbin/cryptsetup", "/usr/sbin/cryptsetup"), "cryptsetup-bin", "cryptsetup"),
    # The header in front of an ephemeral volume is made by e2fsprogs too.
    "mkfs.ext4": Need(("/sbin/mkfs.ext4", "/usr/sbin/mkfs.ext4"), "e2fsprogs", "e2fsprogs"),
    "mkfs.xfs": Need(("/sbin/mkfs.xfs", "/usr/sbin/mkfs.xfs"), "xfsprogs", "xfsprogs"),
    "setfacl": Need(("/usr/bin/setfacl", "/bin/setfacl"), "acl", "acl"),
    # Part of the package systemd itself up to Debian 12.
    "systemd-cryptsetup": Need(
        ("/usr/lib/systemd/systemd-cryptsetup", "/lib/systemd/systemd-cryptsetup"), "systemd-cryptsetup", "systemd-udev"
    ),
    # It brings the tss2 libraries that systemd loads.
    "tpm2": Need(("/usr/bin/tpm2",), "tpm2-tools", "tpm2-tools"),
}

_INSTALL = {
    "apt": (
        ("apt-get", "-q", "update"),
        ("env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-qy", "-o", "DPkg::Lock::Timeout=300")
        + ("--no-install-recommends", "install"),
    ),
    "dnf": (("dnf", "-qy", "--setopt=install_weak_deps=False", "install"),),
}


def family(root: str = "/") -> str | None:
    """The package manager of this host, apt or dnf, None if it has neither."""
    for name, program in (("apt", "usr/bin/apt-get"), ("dnf", "usr/bin/dnf")):
        if os.path.exists(os.path.join(root, program)):
            return name
    return None


def missing(needs: Sequence[str], root: str = "/") -> list[str]:
    """Those of the needs that are not there."""
    return [
        name
        for name in needs
        if not any(glob.glob(os.path.join(root, place.lstrip("/"))) for place in NEEDS[name].places)
    ]


def packages(needs: Sequence[str], manager: str) -> list[str]:
    """The packages that bring them."""
    return [str(getattr(NEEDS[name], manager)) for name in needs]


def commands(needs: Sequence[str], manager: str) -> list[list[str]]:
    """What installs them, one command after the other."""
    *first, last = _INSTALL[manager]
    return [*map(list, first), [*last, *packages(needs, manager)]]


def ensure(needs: Sequence[str], act: bool) -> dict[str, Any]:
    """Install what is missing, if act; what a module returns."""
    lacking, manager = missing(needs), family()
    if lacking and manager is None:
        raise HostError(f"not installed: {', '.join(lacking)}, and neither apt-get nor dnf is here. Fix: install them")
    if lacking and manager and act:
        for argv in commands(lacking, manager):
            done = system.run(argv, TIMEOUT)
            if done.returncode:
                last = (done.stderr or done.stdout).strip().splitlines()[-8:]
                raise HostError("\n".join([" ".join(argv) + " failed:", *(f"  {line}" for line in last)]))
        if still := missing(lacking):
            raise HostError(f"{', '.join(packages(still, manager))} installed, but {', '.join(still)} is not there")
    return {
        "changed": bool(lacking),
        "missing": lacking,
        "packages": packages(lacking, manager) if manager else [],
        "units": {name: NEEDS[name].units[manager == "dnf"] for name in needs if NEEDS[name].units[0]},
    }
