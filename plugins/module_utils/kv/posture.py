# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Owner, mode, ACLs and ancestors of one directory, and what other accounts can do with them.

Group bits count as everybody's: who is in a group can change any day. A named ACL entry shows in the group bits of
the mode (they are its mask then), so a mode without group and other bits is closed whatever the ACL says.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from . import fsio

USER_OBJ, USER, GROUP_OBJ, GROUP, MASK, OTHER = 0x01, 0x02, 0x04, 0x08, 0x10, 0x20
_TAGS = {USER_OBJ: "u:", USER: "u:%d", GROUP_OBJ: "g:", GROUP: "g:%d", MASK: "m:", OTHER: "o:"}
_ACL_VERSION = 2


class AclEntry(NamedTuple):
    """One entry of a POSIX ACL. ident: uid or gid of a named entry, else None. perms: rwx as 4, 2, 1."""

    tag: int
    ident: int | None
    perms: int

    def __str__(self) -> str:
        name = _TAGS[self.tag] % self.ident if self.ident is not None else _TAGS[self.tag]
        bits = "".join(letter if self.perms & bit else "-" for letter, bit in (("r", 4), ("w", 2), ("x", 1)))
        return f"{name}:{bits}"


Acl = list[AclEntry]


def parse_acl(data: bytes) -> Acl:
    """The entries of a system.posix_acl_* attribute; ValueError if it is not one."""
    if len(data) < 4 or (len(data) - 4) % 8 or struct.unpack_from("<I", data)[0] != _ACL_VERSION:
        raise ValueError("not a POSIX ACL of version 2")
    entries = []
    for tag, perms, ident in struct.iter_unpack("<HHI", data[4:]):
        if tag not in _TAGS or perms > 7:
            raise ValueError("a POSIX ACL with an unknown entry")
        entries.append(AclEntry(tag, ident if tag in (USER, GROUP) else None, perms))
    return entries


def acl_text(acl: Acl) -> str:
    """An ACL as getfacl's short form writes it."""
    return ",".join(str(entry) for entry in acl)


def acl_opens(acl: Acl) -> list[str]:
    """The entries of an ACL that give anything to anyone but the owner, masked as the kernel does."""
    mask = next((entry.perms for entry in acl if entry.tag == MASK), 7)
    found = []
    for entry in acl:
        masked = entry.tag in (USER, GROUP, GROUP_OBJ)
        if entry.tag not in (USER_OBJ, MASK) and entry.perms & (mask if masked else 7):
            found.append(str(entry))
    return found


@dataclass
class Place:
    """A directory as found. ACLs: None if there is none; acl_error says why they could not be read, if so.

    missing: it is certain that nothing lies there; neither exists nor missing: it cannot be told.
    """

    path: str
    exists: bool = False
    missing: bool = False
    error: str | None = None
    unsafe: str | None = None
    uid: int = -1
    gid: int = -1
    mode: int = 0
    device: int = 0
    inode: int = 0
    acl: Acl | None = None
    default_acl: Acl | None = None
    acl_error: str | None = None
    ancestors: list[tuple[str, int, int]] = field(default_factory=list)

    def evidence(self) -> dict[str, Any]:
        """The same as plain JSON values."""
        return {
            "exists": self.exists,
            "error": self.error or self.unsafe,
            "uid": self.uid,
            "gid": self.gid,
            "mode": "%04o" % self.mode,
            "acl": acl_text(self.acl) if self.acl is not None else None,
            "default_acl": acl_text(self.default_acl) if self.default_acl is not None else None,
            "acl_error": self.acl_error,
            "ancestors": [{"path": path, "uid": uid, "mode": "%04o" % mode} for path, uid, mode in self.ancestors],
        }


def _acl_of(fd: int, attribute: str) -> Acl | None:
    try:
        return parse_acl(os.getxattr(fd, attribute))
    except OSError as error:
        if error.errno == errno.ENODATA:
            return None
        raise


def look(path: str) -> Place:
    """What lies at an absolute path; nothing is raised, what cannot be seen is said in error, unsafe or acl_error."""
    place = Place(path)
    try:
        fd, ancestors = fsio.open_path(path)
    except FileNotFoundError as error:
        place.error, place.missing = f"{error.filename} does not exist", True
        return place
    except fsio.UnsafePath as error:
        place.unsafe = str(error)
        return place
    except OSError as error:
        place.error = f"{error.filename or path}: {error.strerror}"
        # It may well be there: a stat by name asks for less than reading the directory.
        place.exists = error.errno in (errno.EACCES, errno.EPERM) and os.path.isdir(path)
        return place
    try:
        info = os.fstat(fd)
        place.exists = True
        place.uid, place.gid, place.mode = info.st_uid, info.st_gid, stat.S_IMODE(info.st_mode)
        place.device, place.inode = info.st_dev, info.st_ino
        place.ancestors = [(name, one.st_uid, stat.S_IMODE(one.st_mode)) for name, one in ancestors]
        try:
            place.acl = _acl_of(fd, "system.posix_acl_access")
            place.default_acl = _acl_of(fd, "system.posix_acl_default")
        except ValueError as error:
            place.acl_error = str(error)
        except OSError as error:
            place.acl_error = "the file system has no ACLs" if error.errno == errno.EOPNOTSUPP else error.strerror
    finally:
        os.close(fd)
    return place


def replaceable(place: Place, owner: int) -> list[str]:
    """Why another account than root and owner could put something else in the place of the path; empty if none can."""
    found = []
    for path, uid, mode in place.ancestors:
        if uid not in (0, owner):
            found.append("%s belongs to uid %d" % (path, uid))
        elif mode & 0o022 and not (mode & stat.S_ISVTX and uid == 0):
            found.append("%s is %04o: others may rename what lies in it" % (path, mode))
    return found


def reachable(place: Place, owner: int) -> bool:
    """Can an account other than root and owner get to what lies in the directory, by modes and ACLs alone?"""
    if place.uid not in (0, owner):
        return True
    if not place.mode & 0o077:
        return False
    for _path, uid, mode in place.ancestors:
        if uid not in (0, owner):
            return True
        if not mode & 0o011:
            return False
    return True
