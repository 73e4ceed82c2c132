# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The receipt of a purge: who destroyed which tier when, by what, and what proves it. Root's alone, never rewritten.

It is written before anything is destroyed and again after each stage, so that a purge that was killed has one too.
"""

from __future__ import annotations

import json
import os
import stat
import time
from typing import Any

from . import account, fsio, system
from .mapkeys import LIB_ROOT
from .survey import printable

DIRECTORY = LIB_ROOT + "/receipts"
SCHEMA = 1
_NOBODY = 4294967295
_WHO_MAX = 200


def utc(seconds: float) -> str:
    """A time as ISO 8601 in UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def who(given: str | None = None, proc: str = "/proc") -> dict[str, Any]:
    """Who runs this: the account, the one that logged in, and what the caller says (not proven)."""
    login = None
    try:
        with open(f"{proc}/self/loginuid", encoding="ascii") as file:
            uid = int(file.read())
        login = None if uid == _NOBODY else account.name_of(uid)
    except (OSError, ValueError):
        pass
    sudo = os.environ.get("SUDO_USER")
    return {
        "account": account.name_of(os.geteuid()),
        "login": login,
        "sudo": printable(sudo)[:_WHO_MAX] if sudo else None,
        "says": printable(given)[:_WHO_MAX] if given else None,
    }


class Receipt:
    """One purge of one tier; stage() and end() write it."""

    def __init__(self, tier: str, host: str, by: dict[str, Any], method: str, directory: str = DIRECTORY) -> None:
        now = time.time()
        self.directory = directory
        self.began = time.monotonic()
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
        self.path = os.path.join(directory, "%s-%s-%d.json" % (tier, stamp, os.getpid()))
        self.content: dict[str, Any] = {
            "schema": SCHEMA,
            "tier": tier,
            "host": host,
            "by": by,
            "method": method,
            "begun": utc(now),
            "finished": None,
            "result": "unfinished",
            "stages": [],
            "keys_destroyed": [],
            "keys_elsewhere": [],
            "files_deleted": 0,
            "bytes_deleted": 0,
            "held_by": [],
            "stopped": [],
            "writers": [],
            "proof": {},
            "messages": [],
        }

    def write(self) -> None:
        """Make the file say what is known now. A full disk must not keep a key alive: then a message says so."""
        try:
            self._write()
        except OSError as error:
            text = f"no receipt was written: {error}"
            if text not in self.content["messages"]:
                self.content["messages"].append(text)

    def _write(self) -> None:
        system.make_dirs(self.directory)
        info = os.lstat(self.directory)
        if not stat.S_ISDIR(info.st_mode) or info.st_uid != 0:
            raise system.HostError(f"{self.directory} is not root's own directory")
        os.chmod(self.directory, 0o700)
        data = json.dumps(self.content, indent=2, sort_keys=True) + "\n"
        fsio.write_atomic(self.path, data.encode(), 0o600)

    def stage(self, name: str) -> None:
        """Note that a stage is done."""
        self.content["stages"].append({"stage": name, "seconds": round(time.monotonic() - self.began, 3)})
        self.write()

    def end(self, result: str) -> None:
        """Note how the purge ended."""
        self.content["finished"], self.content["result"] = utc(time.time()), result
        self.write()


def unfinished_writers(tier: str, directory: str = DIRECTORY) -> list[str]:
    """Writers that a purge of the tier stopped and, killed or failed, did not start again; from its newest receipt."""
    try:
        names = sorted(name for name in os.listdir(directory) if name.startswith(tier + "-") and name.endswith(".json"))
    except OSError:
        return []
    for name in reversed(names):
        try:
            old = fsio.read_json(os.path.join(directory, name), owner=0)
        except (OSError, fsio.UnsafePath):
            continue
        # A tier `a` also matches the receipts of a tier `a-b`.
        if isinstance(old, dict) and old.get("tier") == tier:
            writers = old.get("writers")
            started = old.get("result") == "destroyed"
            return [] if started or not isinstance(writers, list) else [one for one in writers if isinstance(one, str)]
    return []
