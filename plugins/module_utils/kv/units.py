# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Everything that systemd, crypttab and fstab read from us, as text: pure functions of the data map."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any

from .datamap import Tier, mapper_name

# First line of every unit file and drop-in of ours: only files that begin with it are ever changed or removed.
HEADER = "# Written by llmhost.hardening from /etc/llmhost/tiers.json; changes here are lost."
UNIT_DIR = "/etc/systemd/system"
DROP_IN = "50-llmhost.conf"
PREPARE_PREFIX = "llmhost-tier@"
KVTIER = "/usr/local/sbin/kvtier"
BOOT_TARGET = "multi-user.target"

CRYPT_OPTIONS = "plain,cipher=aes-xts-plain64,size=512,sector-size=4096"
MOUNT_OPTIONS = ("nodev", "nosuid", "noexec", "noatime", "nosymfollow", "nofail")
DEVICE_TIMEOUT = "60s"

# Section [Service] of a writer's drop-in: directive, value, why.
WRITER_SETTINGS = (
    ("UMask", "0077", "Blocks and directories are born closed, whatever mode the engine asks for."),
    ("LimitCORE", "0", "A core file of the engine holds prompts and blocks."),
    ("CoredumpFilter", "", "Masks of several lines are ORed: drop what the unit set before ours."),
    ("CoredumpFilter", "0x0", "A piped core handler gets the memory whatever LimitCORE says."),
    ("MemorySwapMax", "0", "Swap would carry blocks to a disk that is not the tier's volume."),
    ("StateDirectoryMode", "0700", "StateDirectory= sets its mode again at every start: 0755 by default."),
    ("CacheDirectoryMode", "0700", "As StateDirectoryMode, for CacheDirectory=."),
    ("RuntimeDirectoryMode", "0700", "As StateDirectoryMode, for RuntimeDirectory=."),
    ("LogsDirectoryMode", "0700", "As StateDirectoryMode, for LogsDirectory=; engines log prompts."),
)

# They run other people's containers too: ordered after the tier, never stopped with it, none of the settings above.
CONTAINER_DAEMONS = (
    "docker.service",
    "containerd.service",
    "podman.service",
    "podman-restart.service",
    "crio.service",
)


def has_own_volume(tier: Tier) -> bool:
    """True if the tier lies on a volume that this collection makes."""
    return bool(tier["volume"]) and tier["volume"]["backend"] == "dmcrypt"


def escape_path(path: str) -> str:
    """A path as a unit name has it (systemd-escape --path)."""
    text = "/".join(part for part in path.split("/") if part)
    if not text:
        return "-"
    escaped = []
    for position, byte in enumerate(text.encode()):
        char = chr(byte)
        if char == "/":
            escaped.append("-")
        elif (char.isascii() and char.isalnum()) or char in ":_" or (char == "." and position):
            escaped.append(char)
        else:
            escaped.append(f"\\x{byte:02x}")
    return "".join(escaped)


def mount_unit(path: str) -> str:
    """Name of the mount unit of a path."""
    return escape_path(path) + ".mount"


def cryptsetup_unit(tier: Tier) -> str:
    """Name of the unit that opens a tier's volume."""
    return f"systemd-cryptsetup@{mapper_name(tier)}.service"


def prepare_name(tier: Tier) -> str:
    """Name of a tier's prepare unit."""
    return "{}{}.service".format(PREPARE_PREFIX, tier["name"])


def prepare_path(tier: Tier) -> str:
    """File of a tier's prepare unit."""
    return os.path.join(UNIT_DIR, prepare_name(tier))


def drop_in_path(service: str) -> str:
    """File of the drop-in of a writer's unit."""
    return os.path.join(UNIT_DIR, service + ".d", DROP_IN)


def template_of(service: str) -> str:
    """The template that an instance (vllm@a.service) is made from; any other unit itself."""
    return re.sub(r"@[^@]*\.service$", "@.service", service)


def wanted_by(tier: Tier) -> str:
    """The unit that starts the prepare unit: the mount, at each time it appears, or the boot."""
    return mount_unit(tier["path"]) if has_own_volume(tier) else BOOT_TARGET


def wants_link(tier: Tier) -> str:
    """The link that `systemctl enable` makes for the prepare unit."""
    return os.path.join(UNIT_DIR, wanted_by(tier) + ".wants", prepare_name(tier))


def crypttab_line(tier: Tier) -> str:
    """The volume in /etc/crypttab.

    Ephemeral: a key of /dev/urandom that no one ever sees and a new file system at each boot; on a device behind its
    header.
    """
    # Not what a host without a volume of ours, and its audit, should have to read.
    from . import devices

    volume = tier["volume"]
    if volume["key"] == "ephemeral":
        key, options = "/dev/urandom", [CRYPT_OPTIONS, "tmp=" + volume["fstype"]]
        if devices.of_device(tier):
            options.insert(1, "offset=%d" % devices.HEADER_SECTORS)
        options += ["discard"] if volume["discard"] else []
        options += ["no-read-workqueue", "no-write-workqueue"] if volume["no_workqueue"] else []
    else:
        # The other settings are flags in the LUKS header.
        # Without its key a boot must not ask at the console.
        key, options = volume["keyfile"] or "none", ["luks", "headless=true"]
        options += ["tpm2-device=auto"] if volume["key"] == "tpm2" else []
    if devices.of_device(tier):
        options.append("x-systemd.device-timeout=" + DEVICE_TIMEOUT)
    return "{} {} {} {},nofail".format(mapper_name(tier), devices.spec(tier), key, ",".join(options))


def mount_options(tier: Tier, declared: bool = True) -> list[str]:
    """What the kernel gets to see of a tier's options. declared: those of the map, too."""
    always = [one for one in MOUNT_OPTIONS if one != "nofail"]
    return always + (tier["volume"]["mount_options"] if declared else [])


def fstab_line(tier: Tier) -> str:
    """The volume in /etc/fstab."""
    options = (
        *mount_options(tier),
        "nofail",
        "x-systemd.requires=" + cryptsetup_unit(tier),
        "x-systemd.device-timeout=" + DEVICE_TIMEOUT,
    )
    return "/dev/mapper/{} {} {} {} 0 0".format(
        mapper_name(tier), tier["path"], tier["volume"]["fstype"], ",".join(options)
    )


def prepare_unit(tier: Tier) -> str:
    """The unit that closes the tier's root to all but its account, after each mount and before any writer."""
    lines = [
        HEADER,
        "[Unit]",
        "Description=Owner, mode and default ACL of KV tier {}".format(tier["name"]),
        "RequiresMountsFor={}".format(tier["path"]),
    ]
    if has_own_volume(tier):
        mount = mount_unit(tier["path"])
        lines += [
            "# Stops with the mount, so that the next mount runs it again; the writers stop with it.",
            "BindsTo=" + mount,
            "After=" + mount,
        ]
    lines += [
        "",
        "[Service]",
        "Type=oneshot",
        "RemainAfterExit=yes",
        "ExecStart={} prepare {}".format(KVTIER, tier["name"]),
        "TimeoutStartSec=120",
        "",
        "[Install]",
        "WantedBy=" + wanted_by(tier),
    ]
    return "\n".join(lines) + "\n"


def drop_in(service: str, tiers: Sequence[dict[str, Any]]) -> str:
    """The drop-in of one writer's unit, for all tiers that it writes."""
    # An instance's drop-in hides its template's of the same name, so it has to say all of it.
    names = {service, template_of(service)}
    mine = sorted(
        (tier for tier in tiers if names & set(tier["services"]) and tier["path"]), key=lambda tier: tier["name"]
    )
    prepare = " ".join(prepare_name(tier) for tier in mine)
    if service in CONTAINER_DAEMONS:
        return "\n".join(
            [
                HEADER,
                "[Unit]",
                "# A container that starts before the mount keeps the bare directory until it is restarted.",
                "Wants=" + prepare,
                "After=" + prepare,
                "",
            ]
        )
    lines = [
        HEADER,
        "[Unit]",
        "# No start before the tier is mounted, owned and closed; no run without it.",
        "Requires=" + prepare,
        "After=" + prepare,
        "# No write to the directory that the mount covers.",
        "RequiresMountsFor=" + " ".join(sorted({tier["path"] for tier in mine})),
        "",
        "[Service]",
    ]
    for name, value, why in WRITER_SETTINGS:
        lines += ["# " + why, f"{name}={value}"]
    return "\n".join(lines) + "\n"
