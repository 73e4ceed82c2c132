# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a tier's expiry remembers between runs: one record and one lock in the tier's state directory.

The directory belongs to the tier's account, so root believes nothing in it that it can measure itself, and opens it
like anything a stranger wrote: no symlink, a regular file of the right owner, small, and of a strict form.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from typing import Any

from . import account, fsio, index
from .datamap import STATE_ROOT, Tier, state_dir
from .survey import printable

SCHEMA = 2
RECORD = "run.json"
MAX_RECORD = 1 << 16

# What a complete pass says of the tier itself: kept until the next complete pass, `measured` tells when that ended.
MEASURED = (
    "blocks",
    "block_bytes",
    "overdue",
    "loose",
    "oldest_mtime",
    "future",
    "stale_temps",
    "foreign_owner",
    "hardlinks",
    "not_regular",
    "strangers",
)
# What is carried over to the record of the next run until that knows better.
CARRIED = (*MEASURED, "measured", "last_full", "last_success", "mounted", "clock", "resume")

# key -> types that its value may have.
_FORM: dict[str, tuple[type, ...]] = {
    "schema": (int,),
    "tier": (str,),
    "started": (int, float),
    "finished": (int, float, type(None)),
    "exit": (int, type(None)),
    "full": (bool,),
    "blocks": (int,),
    "block_bytes": (int,),
    "expired": (int,),
    "expired_bytes": (int,),
    "overdue": (int,),
    "loose": (int,),
    "oldest_mtime": (int, float, type(None)),
    "future": (int,),
    "stale_temps": (int,),
    "foreign_owner": (int,),
    "hardlinks": (int,),
    "not_regular": (int,),
    "strangers": (int,),
    "measured": (int, float, type(None)),
    "seconds": (int, float),
    "messages": (list,),
    "clock": (dict,),
    "mounted": (bool,),
    "resume": (str, type(None)),
    "last_full": (int, float, type(None)),
    "last_success": (int, float, type(None)),
}


_MOST = 1 << 60


class Busy(Exception):
    """Another run holds the tier's lock."""


def new_record(tier: Tier, started: float, before: dict[str, Any] | None = None) -> dict[str, Any]:
    """The record of a run that began now and has not ended; before: that of the run before it."""
    zero: dict[str, Any] = dict.fromkeys(_FORM, 0)
    zero.update(
        schema=SCHEMA,
        tier=tier["name"],
        started=started,
        finished=None,
        exit=None,
        full=False,
        oldest_mtime=None,
        messages=[],
        clock={},
        mounted=False,
        resume=None,
        last_full=None,
        last_success=None,
        measured=None,
    )
    return {**zero, **{key: before[key] for key in CARRIED}} if before else zero


def valid(record: Any, tier: Tier) -> bool:
    """True if record has exactly the form of this version and belongs to the tier."""
    return (
        isinstance(record, dict)
        and set(record) == set(_FORM)
        and all(type(record[key]) in types for key, types in _FORM.items())
        and record["schema"] == SCHEMA
        and record["tier"] == tier["name"]
        and all(_sound(value) for value in record.values())
        and all(isinstance(message, str) and message.isprintable() for message in record["messages"])
    )


def _sound(value: Any) -> bool:
    # JSON allows numbers that break arithmetic (NaN, 1e999, 400 digits) and text that a terminal obeys.
    if isinstance(value, dict):
        return all(not isinstance(one, (dict, list)) and _sound(one) for one in value.values())
    if isinstance(value, (int, float)):
        return -_MOST <= value <= _MOST
    return not isinstance(value, str) or value.isprintable()


def read_run(tier: Tier, root: str = STATE_ROOT) -> dict[str, Any] | None:
    """The tier's last run record, None if there is none that can be believed."""
    try:
        owner = account.uid_of(tier["owner"])
        with fsio.opened(state_dir(tier, root)) as fd:
            record = fsio.read_json(RECORD, dir_fd=fd, owner=owner, limit=MAX_RECORD)
    except (OSError, KeyError, fsio.UnsafePath):
        return None
    return record if valid(record, tier) else None


def write_run(fd: int, record: dict[str, Any]) -> None:
    """Replace the record in the open state directory."""
    fsio.replace(fd, RECORD, json.dumps(record, sort_keys=True).encode("ascii") + b"\n")


def remembered(root: str = STATE_ROOT) -> list[str]:
    """Names of the tiers that have a state directory."""
    try:
        with os.scandir(root) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except FileNotFoundError:
        return []


def forget(name: str, root: str = STATE_ROOT) -> list[str]:
    """Remove what expiry remembers of a tier that is gone. What somebody else put there stays, and is returned."""
    with fsio.opened(root) as parent:
        fd = fsio.open_subdir(parent, name)
        try:
            with contextlib.suppress(OSError):
                shards = fsio.open_subdir(fd, index.DIRECTORY)
                try:
                    for shard in os.listdir(shards):
                        os.unlink(shard, dir_fd=shards)
                finally:
                    os.close(shards)
                os.rmdir(index.DIRECTORY, dir_fd=fd)
            for own in (RECORD, f".{RECORD}.tmp"):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(own, dir_fd=fd)
            left = sorted(printable(one) for one in os.listdir(fd))
        finally:
            os.close(fd)
        if not left:
            os.rmdir(name, dir_fd=parent)
        return left


@contextlib.contextmanager
def locked(tier: Tier, root: str | None = STATE_ROOT) -> Iterator[int]:
    """The tier's open state directory under an exclusive lock; Busy if another run has it.

    root None: the tier has no state, its own directory is locked and given. The lock is on the directory itself: no
    lock file can be left behind, replaced or linked elsewhere.
    """
    with fsio.opened(tier["path"] if root is None else state_dir(tier, root)) as fd:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Busy(f"another run of tier {tier['name']} is active") from error
        yield fd
