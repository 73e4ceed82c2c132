# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the audit reads about the host itself: accounts, units, clock, cron, the data map that is in force."""

from __future__ import annotations

import contextlib
import glob
import grp
import os
import pwd
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from . import fsio
from .encryption import Roots
from .mapkeys import within
from .system import is_template
from .units import DROP_IN, template_of

CRON_FILE = "cron.d/llmhost"
_CRON_NAMES = ("cron", "crond")
_DIRECTORIES = {
    "StateDirectory": "/var/lib",
    "CacheDirectory": "/var/cache",
    "RuntimeDirectory": "/run",
    "LogsDirectory": "/var/log",
}


@dataclass
class Account:
    """The account that owns a tier. uid None: there is no such account on this host."""

    name: str
    uid: int | None
    gid: int | None = None
    shell: str | None = None
    sharers: tuple[str, ...] = ()
    sys_uid_max: int = 999
    remove_ipc: bool = True

    def evidence(self) -> dict[str, Any]:
        """The same as plain JSON values."""
        return {
            "name": self.name,
            "uid": self.uid,
            "gid": self.gid,
            "shell": self.shell,
            "others_in_its_group": list(self.sharers[:10]),
            "sys_uid_max": self.sys_uid_max,
            "logind_remove_ipc": self.remove_ipc,
        }


@dataclass
class Unit:
    """One systemd unit. directories: those of its StateDirectory= and the like, with their modes."""

    name: str
    error: str | None = None
    found: bool = False
    active: str = ""
    user: str = ""
    umask: int | None = None
    directories: tuple[tuple[str, str, int], ...] = ()
    drop_in: bool = False
    source: str = ""

    @property
    def quadlet(self) -> bool:
        """Does podman's generator make it? Then the account is in the container and not in User=."""
        return self.source.endswith(".container")


@dataclass
class Cron:
    """Is cron running, and what is wrong with the file it would read for a tier (None: nothing)?"""

    running: bool | None
    file_problem: str | None


def account_of(owner: str | int, roots: Roots | None = None) -> Account:
    """The account behind a tier's `owner`, with who else is in its primary group."""
    roots = roots or Roots()
    try:
        entry = pwd.getpwuid(owner) if isinstance(owner, int) else pwd.getpwnam(owner)
    except KeyError:
        entry = None
    account = Account(str(owner), owner if isinstance(owner, int) else None)
    account.sys_uid_max, account.remove_ipc = sys_uid_max(roots.etc), remove_ipc(roots.etc)
    if entry is None:
        return account
    account.name, account.uid, account.gid, account.shell = entry.pw_name, entry.pw_uid, entry.pw_gid, entry.pw_shell
    sharers = {one.pw_name for one in pwd.getpwall() if one.pw_gid == entry.pw_gid and one.pw_uid != entry.pw_uid}
    with contextlib.suppress(KeyError):
        sharers.update(name for name in grp.getgrgid(entry.pw_gid).gr_mem if name != entry.pw_name)
    account.sharers = tuple(sorted(sharers))
    return account


def _lines(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().splitlines()
    except OSError:
        return []


def sys_uid_max(etc: str = "/etc") -> int:
    """The highest uid of system accounts; 999 where login.defs does not say."""
    for line in _lines(os.path.join(etc, "login.defs")):
        fields = line.split()
        if len(fields) >= 2 and fields[0] == "SYS_UID_MAX" and fields[1].isdigit():
            return int(fields[1])
    return 999


def remove_ipc(etc: str = "/etc") -> bool:
    """Does logind remove the shared memory of an account that has logged out? (its default: yes)"""
    places = ("/usr/lib", "/run", etc)
    drop_ins = {
        os.path.basename(path): path
        for top in places
        for path in glob.glob(os.path.join(glob.escape(top), "systemd", "logind.conf.d", "*.conf"))
    }
    main = [os.path.join(top, "systemd", "logind.conf") for top in reversed(places)]
    first = next((path for path in main if os.path.exists(path)), None)
    value = "yes"
    for path in ([first] if first else []) + [drop_ins[name] for name in sorted(drop_ins)]:
        for line in _lines(path):
            key, separator, text = line.partition("=")
            if separator and key.strip() == "RemoveIPC":
                value = text.strip().lower() or "yes"
    return value not in ("no", "false", "off", "0", "n", "f")


def parse_units(names: Sequence[str], text: str) -> dict[str, Unit]:
    """Units from the output of `systemctl show` for these names, in their order."""
    found = {}
    for name, block in zip(names, text.strip("\n").split("\n\n")):
        values = dict(line.partition("=")[::2] for line in block.splitlines())
        umask = values.get("UMask", "")
        unit = Unit(name, found=values.get("LoadState") == "loaded", active=values.get("ActiveState", ""))
        unit.user, unit.source = values.get("User", ""), values.get("SourcePath", "")
        unit.umask = int(umask, 8) if re.fullmatch(r"[0-7]{1,4}", umask) else None
        unit.directories = tuple(
            (key, os.path.join(top, entry.partition(":")[0]), int(mode, 8))
            for key, top in _DIRECTORIES.items()
            for entry in values.get(key, "").split()
            for mode in [values.get(key + "Mode", "")]
            if re.fullmatch(r"[0-7]{1,4}", mode)
        )
        found[name] = unit
    return found


def units_of(names: Sequence[str], roots: Roots | None = None, systemd: bool | None = None) -> dict[str, Unit]:
    """The systemd units of these names; a unit that could not be read carries its error."""
    roots = roots or Roots()
    names = [name for name in dict.fromkeys(names) if not is_template(name)]
    if not names:
        return {}
    if systemd is None:
        systemd = os.path.isdir("/run/systemd/system")
    if not systemd:
        return {name: Unit(name, active="no systemd") for name in names}
    keys = ["LoadState", "ActiveState", "User", "UMask", "SourcePath"]
    keys += [key + suffix for key in _DIRECTORIES for suffix in ("", "Mode")]
    text = roots.run(["systemctl", "show", "--no-pager", "-p", ",".join(keys), "--", *names])
    found = parse_units(names, text or "")
    for name in names:
        unit = found.setdefault(name, Unit(name, error="systemctl show told nothing"))
        if not unit.found and not unit.active:
            unit.error = unit.error or "systemctl show told nothing"
        unit.drop_in = has_drop_in(name, roots.etc)
    return found


def has_drop_in(unit: str, etc: str = "/etc") -> bool:
    """Does the collection's drop-in lie there for a unit or its template?"""
    template = template_of(unit)
    top = os.path.join(etc, "systemd", "system")
    return any(os.path.isfile(os.path.join(top, name + ".d", DROP_IN)) for name in (unit, template))


def reopens(unit: Unit, path: str) -> list[str]:
    """The directories of a unit that set the mode of path, or of one above it, to more than 0700 at every start."""
    return [
        "%s=%s sets %s to %04o" % (key, os.path.basename(directory), directory, mode)
        for key, directory, mode in unit.directories
        if within(path, directory) and mode & 0o077
    ]


def cron_file_problem(tier: str, etc: str = "/etc", owner: int = 0) -> str | None:
    """Why cron would not expire that tier by its file, or None."""
    path = os.path.join(etc, CRON_FILE)
    try:
        info = os.lstat(path)
        text = fsio.read_small(path, owner=owner).decode("utf-8", "replace")
    except FileNotFoundError:
        return f"{path} does not exist"
    except OSError as error:
        return f"{path}: {error.strerror}"
    except fsio.UnsafePath as error:
        return str(error)
    if stat.S_IMODE(info.st_mode) & 0o022:
        return f"{path} is writable for others, so cron ignores it"
    if not text.endswith("\n"):
        return f"{path} has no final newline, so cron ignores it"
    for line in text.splitlines():
        words = line.split()
        if words and not line.lstrip().startswith("#") and "expire" in words and tier in words:
            return None
    return f"{path} has no job for tier {tier}"


def cron(tier: str, processes: Sequence[Any] | None, roots: Roots | None = None) -> Cron:
    """Cron as it concerns a tier. processes: those of discovery.processes(), None if they cannot be seen."""
    running = any(one.comm in _CRON_NAMES and one.uid == 0 for one in processes) if processes is not None else None
    return Cron(running, cron_file_problem(tier, (roots or Roots()).etc))
