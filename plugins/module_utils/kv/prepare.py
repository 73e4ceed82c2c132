# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Make a mounted tier's root what it has to be: owner, mode, ACLs, label, tag. Nothing below the root is touched.

The role and the unit that runs at every mount run this same code: a fresh file system belongs to root
with mode 0755, and nothing else puts that right before the engine starts.
"""

from __future__ import annotations

import errno
import os
import stat
import struct

from . import account, command, datamap, fsio, mounts
from .datamap import Tier
from .stores import CACHEDIR_TAG, COMMON_DIRS

TAG_TEXT = b"""Signature: 8a477f597d28d172789f06886806bc55
# KV cache blocks computed from prompts: do not back up. Written by llmhost.hardening.
"""
_ACL_ACCESS = "system.posix_acl_access"
_ACL_DEFAULT = "system.posix_acl_default"
# Version 2, then tag, permissions, id: owner rwx, group none, others none.
CLOSED_ACL = struct.pack("<I", 2) + b"".join(
    struct.pack("<HHI", tag, bits, 0xFFFFFFFF) for tag, bits in ((0x01, 7), (0x04, 0), (0x20, 0))
)


class Refused(datamap.Refused):
    """A tier that must not be prepared; the text says why and what to do."""


def prepare(tier: Tier) -> list[str]:
    """Put the tier's root right, as root; what was done, one line each. Refused if it is not the declared place."""
    try:
        uid, gid = account.uid_of(tier["owner"]), account.gid_of(tier["owner"])
    except KeyError as error:
        raise Refused(f"tier {tier['name']}: there is no account {tier['owner']}; run the harden playbook") from error
    try:
        fd, _ancestors = fsio.open_path(tier["path"])
    except (OSError, fsio.UnsafePath) as error:
        raise Refused(f"tier {tier['name']}: {error}") from error
    try:
        wrong = mounts.problem(tier, fd)
        if wrong is not None:
            raise Refused(f"tier {tier['name']}: {wrong}")
        return _root(tier, fd, uid, gid)
    finally:
        os.close(fd)


def _root(tier: Tier, fd: int, uid: int, gid: int) -> list[str]:
    done: list[str] = []
    for name in COMMON_DIRS:
        try:
            os.rmdir(name, dir_fd=fd)
            done.append(f"removed empty {name}")
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.ENOTDIR, errno.EBUSY):
                raise Refused(f"tier {tier['name']}: {name} cannot be removed: {error}") from error
    info = os.fstat(fd)
    # Closed first, given away second: in between nobody but root gets in.
    if stat.S_IMODE(info.st_mode) != 0o700:
        os.fchmod(fd, 0o700)
        done.append(f"mode {stat.S_IMODE(info.st_mode):04o} -> 0700")
    if fsio.xattr(fd, _ACL_ACCESS) is not None:
        os.removexattr(fd, _ACL_ACCESS)
        os.fchmod(fd, 0o700)
        done.append("removed extended access ACL")
    if fsio.xattr(fd, _ACL_DEFAULT) != CLOSED_ACL:
        try:
            os.setxattr(fd, _ACL_DEFAULT, CLOSED_ACL)
            done.append("default ACL u::rwx,g::---,o::---")
        except OSError as error:
            raise Refused(f"tier {tier['name']}: {tier['path']} takes no default ACL: {error}") from error
    if (info.st_uid, info.st_gid) != (uid, gid):
        os.fchown(fd, uid, gid)
        done.append(f"owner {info.st_uid}:{info.st_gid} -> {uid}:{gid}")
    if _label(tier["path"]):
        done.append("restored security label")
    if _tag(fd, uid, gid):
        done.append(f"wrote {CACHEDIR_TAG}")
    return done


def _label(path: str) -> bool:
    """SELinux label of the root alone, where SELinux is on; written for the RHEL family, not run here."""
    if not os.path.exists("/sys/fs/selinux/enforce"):
        return False
    result = command.run(["/sbin/restorecon", "-v", path])
    return bool(result.stdout.strip())


def _tag(fd: int, uid: int, gid: int) -> bool:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        tag = os.open(CACHEDIR_TAG, flags, 0o600, dir_fd=fd)
    except FileExistsError:
        return False
    with os.fdopen(tag, "wb") as file:
        file.write(TAG_TEXT)
        os.fchown(tag, uid, gid)
    return True
