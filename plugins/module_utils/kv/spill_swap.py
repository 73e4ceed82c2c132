# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Swap of a host: off, or on a file behind a key that no one ever sees and that dies with the boot."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from . import evidence_spill, fsio, system, tables, units
from .encryption import Roots
from .mapkeys import LIB_ROOT
from .system import Change, HostError

LEAVE, OFF, ENCRYPTED = "leave", "off", "encrypted"
CHOICES = (LEAVE, OFF, ENCRYPTED)
# A tier's name holds no underscore, so no tier is called like this.
NAME = "llmhost__swap"
FILE = LIB_ROOT + "/swap.img"
DEVICE = "/dev/mapper/" + NAME
CRYPT_UNIT = f"systemd-cryptsetup@{NAME}.service"
SWAP_UNIT = rf"dev-mapper-{NAME}.swap"
CRYPTTAB_LINE = f"{NAME} {FILE} /dev/urandom plain,cipher=aes-xts-plain64,size=512,swap,nofail"
FSTAB_LINE = f"{DEVICE} none swap sw,nofail,x-systemd.requires={CRYPT_UNIT} 0 0"
# Before an entry of fstab that this role took out.
TAKEN = b"#llmhost-spill# "
# Left free when swap goes back to memory, in per cent of what is available.
_SPARE = 10
# Left free on the file system of the file.
SPARE_BYTES = 1 << 30


@dataclass
class Plan:
    """What differs. off: areas to turn off; mask, free: units; make: bytes of the file to be allocated."""

    changes: list[Change] = field(default_factory=list)
    off: list[str] = field(default_factory=list)
    mask: list[str] = field(default_factory=list)
    free: list[str] = field(default_factory=list)
    masked: list[str] = field(default_factory=list)
    make: int = 0
    start: bool = False
    end: bool = False

    @property
    def steps(self) -> list[str]:
        """What apply() does, in words."""
        said = ["{} {}".format("remove" if one.after is None else "write", one.path) for one in self.changes]
        said += [f"turn off swap on {name}" for name in self.off]
        said += [f"mask {name}" for name in self.mask] + [f"unmask {name}" for name in self.free]
        said += [f"allocate {FILE}"] if self.make else []
        said += [f"turn on swap on {DEVICE}"] if self.start else []
        return said + ([f"turn off swap on {DEVICE} and remove {FILE}"] if self.end else [])


def _is_swap(entry: tuple[str, ...]) -> bool:
    return len(entry) > 2 and entry[2] == "swap"


def fstab_after(data: bytes, mode: str) -> bytes:
    """fstab with the other swap areas taken out, or put back; and with our entry where it is wanted."""
    lines = []
    for raw in data.split(b"\n"):
        entry = (tables.rows(raw) or [()])[0]
        if raw.startswith(TAKEN) and mode == LEAVE:
            lines.append(raw[len(TAKEN) :])
        elif entry[:1] == (DEVICE,):
            continue
        elif _is_swap(entry) and mode != LEAVE:
            lines.append(TAKEN + raw)
        else:
            lines.append(raw)
    text = b"\n".join(lines)
    return tables.with_line(text, lambda entry: entry[0] == DEVICE, FSTAB_LINE) if mode == ENCRYPTED else text


def crypttab_after(data: bytes, mode: str) -> bytes:
    """crypttab with or without our entry."""
    if mode == ENCRYPTED:
        return tables.with_line(data, lambda entry: entry[0] == NAME, CRYPTTAB_LINE)
    kept = [raw for raw in data.split(b"\n") if (tables.rows(raw) or [()])[0][:1] != (NAME,)]
    return b"\n".join(kept)


def _bytes_of(roots: Roots, name: str) -> int:
    """A figure of /proc/meminfo in bytes, 0 if it is not there."""
    text = evidence_spill.text_of(os.path.join(roots.proc, "meminfo")) or ""
    match = re.search(rf"^{name}:\s+(\d+) kB$", text, re.MULTILINE)
    return int(match.group(1)) << 10 if match else 0


def _used(roots: Roots, names: Sequence[str]) -> int:
    """Bytes in these swap areas."""
    text = evidence_spill.text_of(os.path.join(roots.proc, "swaps")) or ""
    rows = [line.split() for line in text.splitlines()[1:]]
    return sum(int(row[3]) << 10 for row in rows if len(row) > 3 and row[0].replace("\\040", " ") in names)


def plan(mode: str, size: int | None, masked: Sequence[str], roots: Roots | None = None) -> Plan:
    """What differs between the host's swap and what is asked for (read-only); HostError if memory would not hold it.

    masked: units that an earlier run masked.
    """
    roots = roots or Roots()
    todo = Plan()
    for path, make in ((tables.CRYPTTAB, crypttab_after), (tables.FSTAB, fstab_after)):
        before = system.read_file(path)
        after = make(before or b"", mode)
        if after != (before or b""):
            todo.changes.append(Change(path, before, tables.what_is_left(path, after), 0o644))
    areas = evidence_spill.swaps(roots)
    if areas is None:
        if mode == LEAVE:
            return todo
        raise HostError("which swap is on cannot be read. Fix: run as root with /proc mounted")
    ours = os.path.realpath(DEVICE)
    on = any(os.path.realpath(one.name) == ours for one in areas)
    if mode == LEAVE:
        todo.free = list(masked)
        todo.end = on or os.path.exists(FILE)
        return todo
    todo.off = [one.name for one in areas if not one.safe and os.path.realpath(one.name) != ours]
    # What a generator makes of the partition table is in no fstab.
    names = [units.escape_path(name) + ".swap" for name in todo.off if name.startswith("/dev/")]
    todo.mask = [name for name in names if name not in masked]
    todo.masked = sorted({*masked, *names})
    used, available = _used(roots, todo.off), _bytes_of(roots, "MemAvailable")
    if used > available * (100 - _SPARE) // 100:
        raise HostError(
            f"swap holds {used} bytes and memory has room for {available}: turning it off would kill processes. "
            "Nothing was changed. Fix: stop what fills the memory, or leave host_spill_swap at leave"
        )
    if mode == OFF:
        todo.end = on or os.path.exists(FILE)
        return todo
    if size is None:
        raise HostError("encrypted swap needs a size. Fix: set host_spill_swap_size, e.g. 4G")
    _plan_file(size, todo)
    todo.start = not on
    return todo


def _plan_file(size: int, todo: Plan) -> None:
    try:
        info = os.lstat(FILE)
    except FileNotFoundError:
        room = os.statvfs(LIB_ROOT if os.path.isdir(LIB_ROOT) else os.path.dirname(LIB_ROOT))
        lacks = size + SPARE_BYTES - room.f_bavail * room.f_frsize
        if lacks > 0:
            fix = "make it smaller"
            raise HostError(f"{FILE} of {size} bytes does not fit, {lacks} bytes are missing. Fix: {fix}") from None
        todo.make = size
        return
    if info.st_size != size:
        raise HostError(
            f"{FILE} has {info.st_size} bytes, not {size}. Fix: run once with host_spill_swap: off, then again"
        )


def apply(todo: Plan) -> None:
    """Do what plan() found; HostError where the host does not follow."""
    if todo.end:
        _remove()
    if todo.make:
        _allocate(todo.make)
    for change in todo.changes:
        change.make()
    if todo.free:
        system.do("systemctl", "unmask", "--", *todo.free)
    if todo.changes or todo.free:
        system.daemon_reload()
    if todo.start:
        system.start(CRYPT_UNIT)
        system.start(SWAP_UNIT, also=[CRYPT_UNIT])
    for name in todo.off:
        system.do("swapoff", name)
    if todo.mask:
        system.do("systemctl", "mask", "--", *todo.mask)


def _allocate(size: int) -> None:
    system.make_dirs(LIB_ROOT)
    with fsio.opened(LIB_ROOT) as parent:
        fd = os.open(".", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600, dir_fd=parent)
        try:
            os.fchmod(fd, 0o600)
            os.posix_fallocate(fd, 0, size)
            os.fsync(fd)
            os.link("/proc/self/fd/%d" % fd, os.path.basename(FILE), dst_dir_fd=parent, follow_symlinks=True)
        finally:
            os.close(fd)


def _remove() -> None:
    """Our own swap: off, closed, its file removed."""
    if os.path.exists(DEVICE):
        system.run(["systemctl", "stop", "--", SWAP_UNIT])
        system.do("systemctl", "stop", "--", CRYPT_UNIT)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(FILE)
