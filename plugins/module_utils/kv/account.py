# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Accounts, and doing a tier's work as the tier's own account."""

from __future__ import annotations

import codecs
import json
import os
import pwd
from typing import Any, Callable

# Python imports codecs when they are first used; by then the account may not be allowed to read them.
codecs.lookup("ascii")


def uid_of(owner: str | int) -> int:
    """uid of an account name or number; KeyError if there is no such account."""
    return owner if isinstance(owner, int) else pwd.getpwnam(owner).pw_uid


def gid_of(owner: str | int) -> int:
    """Primary group of an account; a number without an account has the group of the same number."""
    try:
        return pwd.getpwuid(owner).pw_gid if isinstance(owner, int) else pwd.getpwnam(owner).pw_gid
    except KeyError:
        if isinstance(owner, int):
            return owner
        raise


def name_of(uid: int) -> str:
    """Name of an account, its number if it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def become(owner: str | int) -> None:
    """Give up root for good and be the account. PermissionError if this process is neither root nor the account."""
    uid, gid = uid_of(owner), gid_of(owner)
    if os.geteuid() == uid:
        return
    if os.geteuid() != 0:
        raise PermissionError(f"must run as root or {owner}")
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)


def as_owner(owner: str | int, work: Callable[[], Any]) -> Any:
    """Result of work() (anything JSON can carry), done in a child process that is the account.

    The caller keeps its privileges, the work has none. RuntimeError with the child's last line if it died.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(reader)
            become(owner)
            answer = {"result": work()}
        except BaseException:
            import traceback

            answer = {"error": traceback.format_exc(limit=3).strip().splitlines()[-1]}
        try:
            with os.fdopen(writer, "wb") as pipe:
                pipe.write(json.dumps(answer).encode("ascii"))
            status = 0
        finally:
            os._exit(status)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        text = pipe.read()
    _pid, status = os.waitpid(child, 0)
    try:
        answer = json.loads(text)
    except ValueError:
        raise RuntimeError("the working process died (wait status %d)" % status) from None
    if "error" in answer:
        raise RuntimeError(answer["error"])
    return answer["result"]
