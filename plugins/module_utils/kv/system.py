# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The running host, seen and changed by root: commands, systemd, mounts, accounts, directories and small files."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import stat
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from . import account, command, fsio

PATH = command.PATH
COMMAND_TIMEOUT = 600
# A directory that every host has: a refusal must leave nothing behind, not even a lock file.
LOCK = "/var/lib"
LOCK_WAIT = 60
LOG_LINES = 8


class HostError(Exception):
    """Something on the host that stops a change; the text is for the operator."""


# Commands and systemd


def run(argv: Sequence[str], timeout: float = COMMAND_TIMEOUT) -> subprocess.CompletedProcess[str]:
    """Run a program with a fixed PATH and locale; HostError if it is missing or does not end."""
    try:
        return command.run(argv, timeout)
    except FileNotFoundError as error:
        raise HostError(f"{argv[0]} is not installed") from error
    except subprocess.TimeoutExpired as error:
        raise HostError("{} did not end within {:.0f} s".format(" ".join(argv), timeout)) from error


def do(*argv: str) -> str:
    """What a program wrote; HostError with its last line if it failed."""
    result = run(argv)
    if result.returncode:
        said = next(reversed(result.stderr.strip().splitlines()), "exit code %d" % result.returncode)
        raise HostError("{} failed: {}".format(" ".join(argv), said))
    return result.stdout


def show(units: Sequence[str], properties: Sequence[str]) -> dict[str, dict[str, str]]:
    """Properties of units as systemd has them now; one call for all."""
    if not units:
        return {}
    result = run(["systemctl", "show", "--property=" + ",".join(properties), "--", *units])
    if result.returncode:
        raise HostError("systemctl show failed: " + result.stderr.strip())
    found: dict[str, dict[str, str]] = {}
    blocks = [block for block in result.stdout.split("\n\n") if block.strip()]
    if len(blocks) != len(units):
        raise HostError("systemctl show answered %d of %d units" % (len(blocks), len(units)))
    for unit, block in zip(units, blocks):
        pairs = (line.partition("=") for line in block.splitlines() if "=" in line)
        found[unit] = {name: value for name, _equals, value in pairs}
    return found


def is_template(unit: str) -> bool:
    """True for a unit name like vllm@.service, which systemd cannot show or start."""
    return "@." in unit


def reload_needed(units: Sequence[str], wanted_by: Mapping[str, str] | None = None) -> bool:
    """True if systemd has not read what the files of these units say now, or knows no link of those in wanted_by.

    wanted_by: unit -> the unit that has to want it.
    """
    asked = [unit for unit in units if not is_template(unit)]
    found = show(asked, ("LoadState", "NeedDaemonReload", "WantedBy"))
    if any(unit.get("LoadState") == "not-found" or unit.get("NeedDaemonReload") == "yes" for unit in found.values()):
        return True
    return any(wanting not in found[unit].get("WantedBy", "").split() for unit, wanting in (wanted_by or {}).items())


def daemon_reload() -> None:
    """Make systemd read its files and run its generators."""
    result = run(["systemctl", "daemon-reload"])
    if result.returncode:
        raise HostError("systemctl daemon-reload failed: " + result.stderr.strip())


def start(unit: str, also: Sequence[str] = ()) -> None:
    """Start a unit; HostError with its last log lines, and those of the units it leans on, if that fails."""
    result = run(["systemctl", "start", "--", unit])
    if result.returncode == 0:
        return
    logs = []
    for name in (unit, *also):
        log = run(["journalctl", "--no-pager", "--output=cat", "--lines=%d" % LOG_LINES, "--unit=" + name], 60)
        logs += [f"  {name}: {line}" for line in log.stdout.splitlines()[-LOG_LINES:] if line.strip()]
    first = next(iter(result.stderr.strip().splitlines()), "exit code %d" % result.returncode)
    raise HostError("\n".join([f"{unit} did not start: {first}", *(logs or ["  (its journal is empty)"])]))


# Mounts and block devices


class Mount(NamedTuple):
    """One line of /proc/self/mountinfo. options: of the mount and of its file system."""

    id: int
    parent: int
    device: str
    root: str
    point: str
    fstype: str
    source: str
    options: str = ""


def _octal(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), text)


def parse_mounts(text: str) -> list[Mount]:
    """Mounts in a mountinfo text, in its order."""
    mounts = []
    for line in text.splitlines():
        fields = line.split(" ")
        if len(fields) < 10 or "-" not in fields[6:]:
            continue
        dash = fields.index("-", 6)
        mounts.append(
            Mount(
                int(fields[0]),
                int(fields[1]),
                fields[2],
                _octal(fields[3]),
                _octal(fields[4]),
                fields[dash + 1],
                _octal(fields[dash + 2]),
                ",".join([fields[5], *fields[dash + 3 : dash + 4]]),
            )
        )
    return mounts


def mounts() -> list[Mount]:
    """What is mounted in this process's namespace."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        return parse_mounts(file.read())


def mount_of(fd: int, table: Iterable[Mount]) -> Mount | None:
    """The mount that an open descriptor belongs to."""
    wanted = fsio.mount_id(fd)
    return next((mount for mount in table if mount.id == wanted), None)


class Mapper(NamedTuple):
    """An open device-mapper device: number, dm uuid, files behind its loop devices, numbers and names of those below.

    size: in bytes, 0 if it is not known.
    """

    device: str
    uuid: str
    files: list[str]
    below: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    size: int = 0


def mapper(name: str, sys_root: str = "/sys") -> Mapper | None:
    """The device-mapper device of that name, None if there is none."""
    for entry in _listing(os.path.join(sys_root, "block")):
        base = os.path.join(sys_root, "block", entry)
        if not entry.startswith("dm-") or fsio.line_of(os.path.join(base, "dm", "name")) != name:
            continue
        behind = [fsio.line_of(os.path.join(base, "slaves", slave, "loop", "backing_file")) for slave in _slaves(base)]
        below = tuple(fsio.line_of(os.path.join(base, "slaves", slave, "dev")) for slave in _slaves(base))
        size = int(fsio.line_of(os.path.join(base, "size")) or 0) * 512
        uuid = fsio.line_of(os.path.join(base, "dm", "uuid"))
        return Mapper(fsio.line_of(os.path.join(base, "dev")), uuid, behind, below, tuple(_slaves(base)), size)
    return None


def _slaves(base: str) -> list[str]:
    return sorted(_listing(os.path.join(base, "slaves")))


def _listing(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except FileNotFoundError:
        return []


# Accounts


class Account(NamedTuple):
    """Uid and primary gid of a tier's owner."""

    uid: int
    gid: int


def account_of(owner: str | int) -> Account | None:
    """The account of an owner, None if there is none of that name."""
    try:
        return Account(account.uid_of(owner), account.gid_of(owner))
    except KeyError:
        return None


# Directories and files


def make_dirs(path: str) -> None:
    """Create what is missing of a directory path, root's and 0755, never through a symlink."""
    here = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    umask = os.umask(0o022)
    try:
        for part in path.split("/"):
            if not part:
                continue
            with contextlib.suppress(FileExistsError):
                os.mkdir(part, 0o755, dir_fd=here)
            try:
                below = os.open(part, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=here)
            except OSError as error:
                if error.errno in (errno.ELOOP, errno.ENOTDIR):
                    raise HostError(f"{path}: {part} is a symlink or not a directory") from error
                raise
            os.close(here)
            here = below
    finally:
        os.umask(umask)
        os.close(here)


class Directory(NamedTuple):
    """A directory as it shall be; an account of None is not created yet."""

    path: str
    mode: int
    account: Account | None

    def differs(self) -> bool:
        """True if it is missing or has another owner or mode; HostError for a symlink or file in its place."""
        try:
            info = os.lstat(self.path)
        except FileNotFoundError:
            return True
        if not stat.S_ISDIR(info.st_mode):
            raise HostError(f"{self.path} is a symlink or not a directory")
        if self.account is None:
            return True
        return (stat.S_IMODE(info.st_mode), info.st_uid, info.st_gid) != (self.mode, *self.account)

    def make(self) -> None:
        """Create it or set its owner and mode."""
        if self.account is None:
            raise HostError(f"{self.path}: its account does not exist")
        make_dirs(self.path)
        with fsio.opened(self.path) as fd:
            os.fchown(fd, self.account.uid, self.account.gid)
            os.fchmod(fd, self.mode)


class Change(NamedTuple):
    """A file before and after; None is no file. `mode` is what it shall have."""

    path: str
    before: bytes | None
    after: bytes | None
    mode: int

    def make(self) -> None:
        """Bring the file to its after."""
        if self.after is None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path)
            return
        make_dirs(os.path.dirname(self.path))
        fsio.write_atomic(self.path, self.after, self.mode)

    def diff(self) -> dict[str, str]:
        """The change as Ansible's --diff shows it."""
        return text_diff(self.path, (self.before or b"").decode(errors="replace"), (self.after or b"").decode())


def text_diff(path: str, before: str, after: str) -> dict[str, str]:
    """A before and an after in the form that Ansible prints."""
    return {"before_header": path, "after_header": path, "before": before, "after": after}


def read_file(path: str, limit: int = 1 << 22) -> bytes | None:
    """Bytes of a small regular file, None if it is missing; HostError for a symlink or anything else."""
    try:
        return fsio.read_small(path, limit=limit)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, fsio.UnsafePath) as error:
        reason = "is a symlink" if isinstance(error, OSError) and error.errno == errno.ELOOP else str(error)
        raise HostError(f"{path} cannot be read: {reason}") from error


def file_change(path: str, wanted: bytes, mode: int) -> Change | None:
    """What has to happen to a root-owned file, None if nothing."""
    before = read_file(path)
    if before == wanted:
        info = os.lstat(path)
        if (stat.S_IMODE(info.st_mode), info.st_uid, info.st_gid) == (mode, 0, 0):
            return None
    return Change(path, before, wanted, mode)


@contextlib.contextmanager
def exclusive(wait: float = LOCK_WAIT) -> Iterator[None]:
    """Only one play at a time changes this host; HostError if another one does not end."""
    with fsio.opened(LOCK) as fd:
        deadline = time.monotonic() + wait
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() > deadline:
                    raise HostError(f"another play is changing this host (lock on {LOCK}); wait for it") from error
                time.sleep(0.5)
        yield
