# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the audit reads about ways out of a tier: swap, core dumps, crash kernel, hibernation, copies. Reads only."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from . import discovery, fsio, orphans
from .encryption import Roots, layer_key
from .stores import CACHEDIR_TAG

# Configuration of backup programs, below /etc; each says what it copies.
BACKUP_CONFIGS = (
    "borgmatic/*.yaml",
    "borgmatic.d/*.yaml",
    "rsnapshot.conf",
    "backup.d/*",
    "bacula/bacula-fd.conf",
    "bareos/bareos-dir.d/fileset/*.conf",
    "duplicity/*",
    "restic/*",
    "default/restic*",
)
# By which systemd writes memory to disk.
HIBERNATION = ("hibernate.target", "hybrid-sleep.target", "suspend-then-hibernate.target")
# A list of the tiers' paths for backup programs, kept by the role host_spill.
EXCLUDES = "/etc/llmhost/backup-exclude"
_TAG_HONOURED = re.compile(r"exclude[-_ ]?caches|CACHEDIR\.TAG", re.IGNORECASE)


@dataclass(frozen=True)
class Swap:
    """One swap area. safe: nothing of it can be read after the power is off; why: what makes it so, or not."""

    name: str
    safe: bool
    why: str


@dataclass(frozen=True)
class Spill:
    """What the host does with memory and files. None: it could not be read."""

    swaps: tuple[Swap, ...] | None = ()
    core_pattern: str | None = "core"
    crash_kernel: bool = False
    hibernates: bool = False
    orphans: tuple[tuple[str, int], ...] | None = ()
    no_swap: dict[int, bool] = field(default_factory=dict)
    tagged: bool = False
    updatedb: str | None = None
    backups: tuple[tuple[str, bool], ...] = ()
    free_bytes: int = 0
    total_bytes: int = 0
    free_files: int = 0
    total_files: int = 0


def text_of(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(1 << 16).strip()
    except OSError:
        return None


def swaps(roots: Roots) -> tuple[Swap, ...] | None:
    """The swap areas in use; None if they cannot be read."""
    text = text_of(os.path.join(roots.proc, "swaps"))
    if text is None:
        return None
    found = []
    for line in text.splitlines()[1:]:
        name = line.split()[0].replace("\\040", " ")
        device = os.path.basename(os.path.realpath(name))
        uuid = text_of(f"{roots.sys}/class/block/{device}/dm/uuid") or ""
        if not name.startswith("/dev/"):
            found.append(Swap(name, False, "a file"))
        elif device.startswith("zram"):
            behind = text_of(f"{roots.sys}/class/block/{device}/backing_dev") or "none"
            found.append(Swap(name, behind == "none", "in memory" if behind == "none" else f"writes back to {behind}"))
        elif uuid.startswith("CRYPT-PLAIN-"):
            # Plain dm-crypt may have a key file: then the swap can be read after the power is off.
            key = layer_key(text_of(f"{roots.sys}/class/block/{device}/dm/name") or "", "PLAIN", roots)
            found.append(Swap(name, key.kind == "memory", f"plain dm-crypt, {key.reason}"))
        else:
            found.append(
                Swap(name, False, "dm-crypt whose key outlives a boot" if "CRYPT-" in uuid else "in the clear")
            )
    return tuple(found)


def hibernates(swaps: Sequence[Swap] | None, roots: Roots) -> bool:
    """Can the host write its memory, keys included, to disk? systemd finds a swap for that by itself."""
    states = text_of(os.path.join(roots.sys, "power/state"))
    if states is not None and "disk" not in states.split():
        return False
    targets = [os.path.join(roots.etc, "systemd/system", name) for name in HIBERNATION]
    if all(os.path.islink(target) and os.path.realpath(target) == "/dev/null" for target in targets):
        return False
    resume = (text_of(os.path.join(roots.sys, "power/resume")) or "0:0") != "0:0"
    return resume or any(not swap.safe for swap in swaps or ())


def no_swap(process: discovery.Process, roots: Roots) -> bool:
    """May the running process never be swapped? Read from its cgroup and those above: a setting is no proof."""
    text = text_of(f"{roots.proc}/{process.pid}/cgroup") or ""
    path = next((line[3:] for line in text.splitlines() if line.startswith("0::")), "")
    while path and path != "/":
        if text_of(f"{roots.sys}/fs/cgroup{path}/memory.swap.max") == "0":
            return True
        path = os.path.dirname(path)
    return False


def _orphaned(proc: str) -> tuple[tuple[str, int], ...] | None:
    found = orphans.find(proc=proc)
    return None if found is None else tuple((f"{orphans.DIRECTORY}/{one.name}", one.size) for one in found)


def backups(path: str, etc: str) -> tuple[tuple[str, bool], ...]:
    """Configurations of backup programs, and whether each leaves the tier out for sure."""
    found = []
    for pattern in BACKUP_CONFIGS:
        for name in sorted(glob.glob(os.path.join(glob.escape(etc), pattern))):
            text = text_of(name) if os.path.isfile(name) else None
            if text is not None:
                found.append((name, _leaves_out(text, path)))
    return tuple(found)


def _leaves_out(text: str, path: str) -> bool:
    return bool(_TAG_HONOURED.search(text)) or EXCLUDES in text or _excludes(text, path)


def _excludes(text: str, path: str) -> bool:
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    named = [line for line in lines if re.search(re.escape(path) + r"/?(?=$|[\s\"',])", line)]
    return bool(named) and all(re.search(r"exclude|\s-\s*/", line, re.IGNORECASE) for line in named)


def look(path: str, processes: Sequence[discovery.Process], roots: Roots | None = None) -> Spill:
    """Everything for one tier. processes: those of its services."""
    roots = roots or Roots()
    tagged, room, areas = False, None, swaps(roots)
    try:
        with fsio.opened(path) as fd:
            room = os.fstatvfs(fd)
            tagged = fsio.read_small(CACHEDIR_TAG, dir_fd=fd).startswith(b"Signature: 8a477f597d28d172789f06886806bc55")
    except (OSError, fsio.UnsafePath):
        pass
    return Spill(
        swaps=areas,
        core_pattern=text_of(os.path.join(roots.proc, "sys/kernel/core_pattern")),
        crash_kernel=text_of(os.path.join(roots.sys, "kernel/kexec_crash_loaded")) == "1",
        hibernates=hibernates(areas, roots),
        orphans=_orphaned(roots.proc),
        no_swap={one.pid: no_swap(one, roots) for one in processes},
        tagged=tagged,
        updatedb=text_of(os.path.join(roots.etc, "updatedb.conf")),
        backups=backups(path, roots.etc),
        free_bytes=room.f_bavail * room.f_frsize if room else 0,
        total_bytes=room.f_blocks * room.f_frsize if room else 0,
        free_files=room.f_favail if room else 0,
        total_files=room.f_files if room else 0,
    )
