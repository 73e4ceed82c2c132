# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""File access that cannot be led astray: by descriptors, never through a symlink, never across a mount."""

from __future__ import annotations

import array
import contextlib
import ctypes
import errno
import fcntl
import json
import os
import signal
import stat
from collections.abc import Iterator
from typing import Any

OPEN_DIR = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK

# The numbers are the same on every architecture (system calls above 424 share one table).
_SYS_OPEN_TREE = 428
_SYS_OPENAT2 = 437
_RESOLVE_NO_XDEV = 0x01
_RESOLVE_NO_SYMLINKS = 0x04
_OPEN_TREE_CLONE = 1
_OPEN_TREE_CLOEXEC = os.O_CLOEXEC
_FS_IOC_GETFLAGS = 0x80086601
_FS_IOC_SETFLAGS = 0x40086602
_FS_IMMUTABLE_FL = 0x10
_PR_SET_PDEATHSIG = 1

_libc = ctypes.CDLL(None, use_errno=True)
_syscall = _libc.syscall


class UnsafePath(Exception):
    """A path that must not be used as it is; the text says which part and why."""


class _OpenHow(ctypes.Structure):
    _fields_ = [("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64)]


_HOW_DIR = _OpenHow(OPEN_DIR, 0, _RESOLVE_NO_XDEV | _RESOLVE_NO_SYMLINKS)
_AS_DIR = ctypes.byref(_HOW_DIR)
_HOW_SIZE = ctypes.sizeof(_HOW_DIR)


def end_with(parent: int) -> None:
    """Let the kernel kill this process, a fork of parent's, as soon as parent has ended."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def mount_id(fd: int) -> int:
    """Id of the mount that an open descriptor belongs to, as in /proc/self/mountinfo."""
    with open("/proc/self/fdinfo/%d" % fd, encoding="ascii") as lines:
        for line in lines:
            if line.startswith("mnt_id:"):
                return int(line[7:])
    raise OSError(errno.ENODATA, "no mnt_id in fdinfo")


def _openat2_works() -> bool:
    fd = _libc.syscall(_SYS_OPENAT2, -100, b"/", _AS_DIR, _HOW_SIZE)
    if fd < 0:
        return False
    os.close(fd)
    return True


HAVE_OPENAT2 = _openat2_works()


def open_subdir(parent: int, name: str) -> int:
    """Open directory name in parent for reading; OSError with ELOOP, ENOTDIR or EXDEV for a symlink, a file, a mount.

    A bind mount of the same file system is a mount too: comparing st_dev alone would walk into it.
    """
    if HAVE_OPENAT2:
        while True:
            fd: int = _syscall(_SYS_OPENAT2, parent, name.encode("utf-8", "surrogateescape"), _AS_DIR, _HOW_SIZE)
            if fd >= 0:
                return fd
            number = ctypes.get_errno()
            if number not in (errno.EINTR, errno.EAGAIN):
                raise OSError(number, os.strerror(number), name)
    fd = os.open(name, OPEN_DIR, dir_fd=parent)
    try:
        if mount_id(fd) != mount_id(parent):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), name)
    except BaseException:
        os.close(fd)
        raise
    return fd


def open_path(path: str) -> tuple[int, list[tuple[str, os.stat_result]]]:
    """Open an absolute directory component by component.

    Returns the descriptor and, from / down to the parent, each ancestor's path and stat. Raises UnsafePath if a part
    is a symlink or not a directory, FileNotFoundError or PermissionError as the kernel says.
    """
    ancestors: list[tuple[str, os.stat_result]] = []
    here = "/"
    fd = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    parts = [part for part in path.split("/") if part]
    try:
        for position, part in enumerate(parts):
            ancestors.append((here, os.fstat(fd)))
            here = os.path.join(here, part)
            last = position == len(parts) - 1
            flags = OPEN_DIR if last else os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            try:
                below = os.open(part, flags, dir_fd=fd)
            except OSError as error:
                if error.errno in (errno.ELOOP, errno.ENOTDIR):
                    raise UnsafePath(f"{here} is a symlink or not a directory") from error
                raise OSError(error.errno, error.strerror, here) from error
            os.close(fd)
            fd = below
    except BaseException:
        os.close(fd)
        raise
    return fd, ancestors


@contextlib.contextmanager
def opened(path: str) -> Iterator[int]:
    """open_path() as a context manager, the descriptor alone."""
    fd, _ancestors = open_path(path)
    try:
        yield fd
    finally:
        os.close(fd)


@contextlib.contextmanager
def covered(path: str) -> Iterator[int]:
    """Descriptor of the directory that lies at path below whatever is mounted there (root only).

    A detached clone of the parent's mount (open_tree(2)) shows it. It is in no mount table, so nothing has to be
    undone, whenever the process dies. Raises OSError; UnsafePath for a symlink.
    """
    parent, name = os.path.split(path.rstrip("/"))
    with opened(parent) as parent_fd:
        tree = _libc.syscall(
            _SYS_OPEN_TREE, -100, os.fsencode("/proc/self/fd/%d" % parent_fd), _OPEN_TREE_CLONE | _OPEN_TREE_CLOEXEC
        )
    if tree < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), parent)
    try:
        try:
            fd = os.open(name, OPEN_DIR, dir_fd=tree)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR):
                raise UnsafePath(f"{path} is a symlink or not a directory") from error
            raise
        try:
            yield fd
        finally:
            os.close(fd)
    finally:
        os.close(tree)


def xattr(fd: int, name: str) -> bytes | None:
    """An extended attribute of an open file, None if it has none or the file system knows none."""
    try:
        return os.getxattr(fd, name)
    except OSError as error:
        if error.errno in (errno.ENODATA, errno.EOPNOTSUPP):
            return None
        raise


def is_immutable(fd: int) -> bool | None:
    """True or False for the immutable flag of an open directory, None where the file system has no such flag."""
    flags = array.array("l", [0])
    try:
        fcntl.ioctl(fd, _FS_IOC_GETFLAGS, flags, True)
    except OSError:
        return None
    return bool(flags[0] & _FS_IMMUTABLE_FL)


def set_immutable(fd: int, wanted: bool) -> bool:
    """Set or clear the immutable flag; False where the file system has no such flag."""
    flags = array.array("l", [0])
    try:
        fcntl.ioctl(fd, _FS_IOC_GETFLAGS, flags, True)
        flags[0] = flags[0] | _FS_IMMUTABLE_FL if wanted else flags[0] & ~_FS_IMMUTABLE_FL
        fcntl.ioctl(fd, _FS_IOC_SETFLAGS, flags)
    except OSError as error:
        if error.errno in (errno.ENOTTY, errno.EOPNOTSUPP, errno.ENOSYS):
            return False
        raise
    return True


def read_small(name: str, dir_fd: int | None = None, owner: int | None = None, limit: int = 1 << 20) -> bytes:
    """Bytes of a regular file of at most limit bytes, not through a symlink.

    owner: uid that the file must have. Raises UnsafePath if it is something else, OSError as the kernel says.
    """
    fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY, dir_fd=dir_fd)
    try:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            raise UnsafePath(f"{name} is not a regular file")
        if owner is not None and info.st_uid != owner:
            raise UnsafePath("%s belongs to uid %d, not %d" % (name, info.st_uid, owner))
        with os.fdopen(os.dup(fd), "rb") as file:
            data = file.read(limit + 1)
    finally:
        os.close(fd)
    if len(data) > limit:
        raise UnsafePath("%s is larger than %d bytes" % (name, limit))
    return data


def line_of(path: str) -> str:
    """The one line of a file of the kernel's, empty if it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read().rstrip("\n")
    except OSError:
        return ""


def begins_with(fd: int, name: str, magic: bytes) -> bool:
    """True if the file called name in the open directory can be read and has these first bytes."""
    try:
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY, dir_fd=fd)
    except OSError:
        return False
    try:
        return os.read(file, len(magic)) == magic
    except OSError:
        return False
    finally:
        os.close(file)


def replace(dir_fd: int, name: str, data: bytes) -> None:
    """Replace a file of our own (0600) in an open directory. What a killed run left in the way goes first."""
    temporary = f".{name}.tmp"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary, dir_fd=dir_fd)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(temporary, flags, 0o600, dir_fd=dir_fd), "wb") as file:
        file.write(data)
    os.rename(temporary, name, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)


def write_atomic(path: str, data: bytes, mode: int) -> None:
    """Replace path by a file with these bytes and this mode: readers see the old file or the new one, never a part."""
    import tempfile  # dear to import, and a pass does not need it

    directory, name = os.path.split(path)
    fd, temporary = tempfile.mkstemp(prefix=f".{name}.", dir=directory)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(fd, mode)
            os.fsync(fd)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def read_json(name: str, dir_fd: int | None = None, owner: int | None = None, limit: int = 1 << 20) -> Any:
    """JSON value of a small file; UnsafePath also where it is no JSON."""
    data = read_small(name, dir_fd, owner, limit)
    try:
        return json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise UnsafePath(f"{name} is not JSON: {error}") from error
