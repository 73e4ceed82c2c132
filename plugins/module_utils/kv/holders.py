# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Does anything on the host still hold or use a tier? Asked as root before blocks of a stopped engine are deleted.

A process holds the tier if a file or directory of it is open, mapped, its working directory, its root or its program,
whatever name it has there: files are compared by device and inode, so other mount namespaces and bind mounts count.
What cannot be looked at counts as held: CannotTell. An engine that runs but holds nothing just now counts too.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import signal
import socket
from collections.abc import Iterator
from typing import Callable, NamedTuple

from . import account, discovery, fsio, system
from .datamap import Tier
from .stores import ENGINES, STORES
from .survey import printable

# The kernel's fixed inode number of the first pid namespace: in any other one, not all processes can be seen.
_FIRST_PID_NAMESPACE = 0xEFFFFFFC
_SYS_KCMP = {"x86_64": 312, "aarch64": 272}.get(os.uname().machine)
_KCMP_FILES = 2
_GONE = (errno.ENOENT, errno.ESRCH)
_NAMED = 3


class CannotTell(Exception):
    """Whether something holds the tier cannot be told; the text says why."""


class Holder(NamedTuple):
    """A process that uses the tier, and how."""

    pid: int
    how: str


class _Thing(NamedTuple):
    """Something on the tier's device that a process holds; text: its name there."""

    pid: int
    how: str
    text: str
    inode: int


class Look:
    """One look at all processes. fd: the tier's open root; family: our own process, whose children are left out."""

    def __init__(self, fd: int, path: str, family: int, proc: str = "/proc") -> None:
        self.fd, self.path, self.family, self.proc = fd, path.rstrip("/"), family, proc
        info = os.fstat(fd)
        self.st_dev, self.root_inode = info.st_dev, info.st_ino
        device = _devices("self", "/proc").get(fsio.mount_id(fd))
        if device is None:
            raise CannotTell(f"the mount of {path} is not in /proc/self/mountinfo")
        self.device = device
        self.holders: list[Holder] = []
        self.things: list[_Thing] = []

    def holding(self) -> list[Holder]:
        """The processes that hold the tier. Raises CannotTell."""
        try:
            names = os.listdir(self.proc)
        except OSError as error:
            raise CannotTell(f"{self.proc}: {error.strerror}") from error
        for name in names:
            if name.isdigit() and not self.ours(name):
                self._process(int(name))
        if self.things:
            self._match()
        return sorted(set(self.holders))

    def ours(self, pid: str) -> bool:
        """Is it we, or a child of ours?"""
        for _generation in range(16):
            if int(pid) == self.family:
                return True
            try:
                with open(f"{self.proc}/{pid}/stat", "rb") as file:
                    pid = file.read().rpartition(b")")[2].split()[1].decode("ascii")
            except (OSError, IndexError):
                return False
            if pid in ("0", "1"):
                break
        return int(pid) == self.family

    def _process(self, pid: int) -> None:
        base = f"{self.proc}/{pid}"
        try:
            devices = _devices(str(pid), self.proc)
            mapped = self._maps(pid, base)
            for task in os.listdir(f"{base}/task"):
                self._task(pid, f"{base}/task/{task}", devices)
                if not mapped:
                    # The first thread may have ended: only the others show what the process has.
                    with _unless_gone():
                        self._maps(pid, f"{base}/task/{task}")
        except OSError as error:
            if error.errno not in _GONE:
                raise CannotTell("pid %d cannot be looked at: %s" % (pid, error.strerror)) from error

    def _task(self, pid: int, base: str, devices: dict[int, str]) -> None:
        for link, how in (("cwd", "works in it"), ("root", "has its root in it"), ("exe", "is a program of it")):
            with _unless_gone():
                self._linked(pid, f"{base}/{link}", how)
        if _same_descriptors(pid, int(base.rpartition("/")[2])):
            return
        with _unless_gone():
            for number in os.listdir(f"{base}/fd"):
                with _unless_gone():
                    self._descriptor(pid, base, number, devices)

    def _descriptor(self, pid: int, base: str, number: str, devices: dict[int, str]) -> None:
        path = f"{base}/fd/{number}"
        text = os.readlink(path)
        if not text.startswith(("/", "(")):
            return  # a pipe, a socket, something without a name
        # The mount tells the device without a call into a file system that may hang.
        device = devices.get(_mount_of(f"{base}/fdinfo/{number}"))
        if device is None or device == self.device:
            self._linked(pid, path, "has it open", text)

    def _linked(self, pid: int, path: str, how: str, text: str | None = None) -> None:
        text = os.readlink(path) if text is None else text
        if self._names(text):
            self.holders.append(Holder(pid, f"{how}: {printable(text)}"))
            return
        info = os.stat(path)
        if info.st_dev == self.st_dev:
            self.things.append(_Thing(pid, how, text, info.st_ino))

    def _maps(self, pid: int, base: str) -> bool:
        """Look at the mappings; False if there are none."""
        some, last = False, [b""]
        with open(f"{base}/maps", "rb") as lines:
            for line in lines:
                some = True
                fields = line.rstrip(b"\n").split(None, 5)
                if len(fields) < 6 or fields[4] == b"0" or fields[3:] == last:
                    continue
                last = fields[3:]
                text = os.fsdecode(fields[5])
                major, _colon, minor = fields[3].decode("ascii").partition(":")
                if self._names(text):
                    self.holders.append(Holder(pid, f"maps it: {printable(text)}"))
                elif f"{int(major, 16)}:{int(minor, 16)}" == self.device:
                    self.things.append(_Thing(pid, "maps it", text, int(fields[4])))
        return some

    def _names(self, text: str) -> bool:
        return text == self.path or text.startswith(self.path + "/") or text == self.path + " (deleted)"

    def _match(self) -> None:
        """Which of the things on the tier's device lie in the tier?"""
        wanted: dict[int, list[_Thing]] = {}
        for thing in self.things:
            wanted.setdefault(thing.inode, []).append(thing)

        def hit(inode: int) -> None:
            for thing in wanted.pop(inode, ()):
                self.holders.append(Holder(thing.pid, f"{thing.how}: {printable(thing.text)}"))

        def descend(directory: int) -> None:
            with os.scandir(directory) as entries:
                for entry in entries:
                    hit(entry.inode())
                    if wanted and entry.is_dir(follow_symlinks=False):
                        with contextlib.suppress(FileNotFoundError):
                            try:
                                below = fsio.open_subdir(directory, entry.name)
                            except OSError as error:
                                if error.errno == errno.EXDEV:
                                    continue  # something is mounted there: the tier is not below it
                                raise
                            try:
                                descend(below)
                            finally:
                                os.close(below)

        hit(self.root_inode)
        try:
            descend(self.fd)
        except OSError as error:
            raise CannotTell(f"{self.path} cannot be read: {error.strerror}") from error


def _same_descriptors(pid: int, task: int) -> bool:
    """Does this thread share the descriptors of its process, as nearly all do? False where the kernel does not say."""
    if pid == task or _SYS_KCMP is None:
        return False
    return bool(ctypes.CDLL(None).syscall(_SYS_KCMP, pid, task, _KCMP_FILES, 0, 0) == 0)


@contextlib.contextmanager
def _unless_gone() -> Iterator[None]:
    """What has ended meanwhile holds nothing."""
    try:
        yield
    except OSError as error:
        if error.errno not in _GONE:
            raise


def _devices(pid: str, proc: str) -> dict[int, str]:
    """Mount id to MAJOR:MINOR, as a process sees its mounts; nothing for one whose first thread has ended."""
    try:
        with open(f"{proc}/{pid}/mountinfo", "rb") as lines:
            fields = [line.split(b" ", 3) for line in lines]
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return {}
    return {int(field[0]): field[2].decode("ascii") for field in fields if len(field) > 3}


def _mount_of(fdinfo: str) -> int:
    with open(fdinfo, "rb") as lines:
        for line in lines:
            if line.startswith(b"mnt_id:"):
                return int(line[7:])
    return -1


def sees_all(proc: str = "/proc") -> str | None:
    """Why not every process of the host can be looked at, or None."""
    if os.geteuid() != 0:
        return "only root can look at all processes"
    try:
        first = os.stat(f"{proc}/self/ns/pid").st_ino == _FIRST_PID_NAMESPACE
    except OSError as error:
        return f"{proc}/self/ns/pid: {error.strerror}"
    return None if first else "this is a container: the host's processes cannot be seen from here"


def engines(tier: Tier, look: Look, proc: str = "/proc") -> list[Holder]:
    """Engines that may be using the tier although they hold nothing of it just now.

    In its units, run by its owner on its path or not, or in a mount namespace of their own that has its volume.
    """
    engine = ENGINES[STORES[tier["store"]].engine]
    try:
        uid: int | None = account.uid_of(tier["owner"])
    except KeyError:
        uid = None
    found = [Holder(one.pid, f"runs in {one.unit}") for one in discovery.of_services(tier["services"], proc)]
    known = {one.pid for one in found}
    here = os.readlink("/proc/self/ns/mnt")
    for process in discovery.processes(proc):
        if process.pid in known or not engine.programs.search("\0".join(process.cmdline)):
            continue
        if look.ours(str(process.pid)):
            continue  # our own arguments may hold the engine's name
        try:
            elsewhere = os.readlink(f"{proc}/{process.pid}/ns/mnt") != here
            if process.uid == uid:
                found.append(Holder(process.pid, f"is {engine.name}, run by {tier['owner']}"))
            elif elsewhere and look.device in _devices(str(process.pid), proc).values():
                found.append(Holder(process.pid, f"is {engine.name} in a container that has the volume"))
        except OSError as error:
            if error.errno not in _GONE:
                raise CannotTell("pid %d cannot be looked at: %s" % (process.pid, error.strerror)) from error
    return found


def active_units(services: list[str], systemd: str = "/run/systemd/system") -> list[str]:
    """The tier's units, instances of templates too, that run or are about to. Raises CannotTell."""
    if not services or not os.path.isdir(systemd):
        return []
    patterns = [re.sub(r"@\.service$", "@*.service", name) for name in services]
    try:
        done = system.run(
            ["systemctl", "list-units", "--all", "--plain", "--no-legend", "--full", "--no-pager", "--", *patterns], 60
        )
    except system.HostError as error:
        raise CannotTell(str(error)) from error
    if done.returncode:
        raise CannotTell(f"systemctl list-units failed: {done.stderr.strip()}")
    lines = [line.split() for line in done.stdout.splitlines()]
    return [fields[0] for fields in lines if len(fields) > 3 and fields[2] not in ("inactive", "failed")]


def in_use(tier: Tier, family: int) -> str | None:
    """Why the engine of the tier does not count as stopped, in one line with what to do; None if it is stopped."""
    again = f"then run kvtier expire --stopped {tier['name']} again"
    try:
        why = sees_all()
        if why is not None:
            raise CannotTell(why)
        active = active_units(tier["services"])
        if active:
            return f"not stopped: {', '.join(active)}; run systemctl stop {' '.join(active)}, {again}"
        with fsio.opened(tier["path"]) as fd:
            look = Look(fd, tier["path"], family)
            held = look.holding() or engines(tier, look)
    except (CannotTell, OSError, fsio.UnsafePath) as error:
        return f"whether anything holds {tier['path']} cannot be told ({error}): nothing is deleted"
    if not held:
        return None
    more = "" if len(held) <= _NAMED else " and %d more" % (len(held) - _NAMED)
    named = "; ".join("pid %d %s" % holder for holder in held[:_NAMED])
    return f"not stopped: {named}{more}; stop what holds {tier['path']}, {again}"


@contextlib.contextmanager
def sentinel(tier: Tier) -> Iterator[Callable[[], str | None]]:
    """A question that a pass can ask after it gave up root: is the tier in use now? Answered like in_use().

    A process that stays root looks for it, each time anew. If that process dies the answer is that nobody can tell.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    family = os.getpid()
    child = os.fork()
    if child == 0:
        try:
            ours.close()
            while theirs.recv(1):
                theirs.send((in_use(tier, family) or "free").encode("utf-8", "replace")[:60000])
        finally:
            os._exit(0)
    theirs.close()

    def ask() -> str | None:
        try:
            ours.send(b"?")
            answer = ours.recv(1 << 16).decode("utf-8", "replace")
        except OSError:
            answer = ""
        if answer == "free":
            return None
        return answer or f"the process that watches over {tier['path']} died: nothing more is deleted"

    try:
        yield ask
    finally:
        ours.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGTERM)
        os.waitpid(child, 0)
