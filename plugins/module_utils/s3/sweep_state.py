# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What kvsweep is told and what it remembers: one job file and one run record for each bucket and prefix.

Several hosts may share a bucket: a job names every tier that wants it and keeps the shortest of their retentions.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
from collections.abc import Iterator
from typing import Any

from ..kv import fsio
from .client import Settings
from .keys import Keys

SCHEMA = 1
CONFIG_DIR = "/etc/llmhost/sweep.d"
STATE_DIR = "/var/lib/llmhost/sweep"
PROGRAM = "/usr/local/sbin/kvsweep"
CRON = "/etc/cron.d/llmhost-sweep"
MAX_FILE = 1 << 20

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,280}", re.ASCII)
_CONNECTION = ("bucket", "endpoint", "region", "path_style", "ca_bundle", "profile", "credentials_file", "timeout")
_FORM: dict[str, tuple[type, ...]] = {
    "schema": (int,),
    "id": (str,),
    "bucket": (str,),
    "endpoint": (str, type(None)),
    "region": (str,),
    "path_style": (bool,),
    "ca_bundle": (str, type(None)),
    "profile": (str, type(None)),
    "credentials_file": (str, type(None)),
    "timeout": (int,),
    "prefix": (str, type(None)),
    "key_prefix": (str, type(None)),
    "store": (str, type(None)),
    "tiers": (dict,),
    "interval_minutes": (int,),
    "deletes_per_second": (int,),
    "metrics_dir": (str, type(None)),
}
_RECORD: dict[str, tuple[type, ...]] = {
    "schema": (int,),
    "id": (str,),
    "target": (str,),
    "started": (int, float),
    "finished": (int, float, type(None)),
    "exit": (int, type(None)),
    "complete": (bool,),
    "seen": (int,),
    "bytes": (int,),
    "deleted": (dict,),
    "overdue": (int,),
    "strangers": (int,),
    "strangers_overdue": (int,),
    "future": (int,),
    "oldest_seconds": (int, float, type(None)),
    "errors": (dict,),
    "resume": (dict, type(None)),
    "last_success": (int, float, type(None)),
    "seconds": (int, float),
    "messages": (list,),
}


class BadJob(Exception):
    """A job file that cannot be used."""


class Busy(Exception):
    """Another pass of the job is active."""


def target(endpoint: str | None, bucket: str, prefix: str) -> str:
    """One spelling of a place: endpoint, bucket and what the keys begin with."""
    return "|".join([endpoint or "aws", bucket, prefix])


def job_id(endpoint: str | None, bucket: str, prefix: str) -> str:
    """The name of a job; the same for every host that shares the place."""
    return f"{bucket}-{hashlib.sha256(target(endpoint, bucket, prefix).encode()).hexdigest()[:8]}"


def keys_of(job: dict[str, Any]) -> Keys:
    return Keys(job["prefix"], job["store"], job["key_prefix"])


def settings_of(job: dict[str, Any]) -> Settings:
    return Settings(**{name: job[name] for name in _CONNECTION})


def retention_of(job: dict[str, Any]) -> int:
    """Minutes: the shortest that any tier wants."""
    return int(min(job["tiers"].values()))


def target_of(job: dict[str, Any]) -> str:
    return target(job["endpoint"], job["bucket"], keys_of(job).prefix)


def check_job(job: Any, name: str) -> dict[str, Any]:
    """The job if it has exactly the form of this version; BadJob otherwise."""
    fix = "run the role kv_bucket again"
    if not isinstance(job, dict) or set(job) != set(_FORM) or job["schema"] != SCHEMA or job["id"] != name:
        raise BadJob(f"job {name} is not in the form of this version. Fix: {fix}.")
    wrong = [key for key, types in _FORM.items() if type(job[key]) not in types]
    minutes = list(job["tiers"].values()) if not wrong else []
    if wrong or not minutes or any(type(one) not in (int,) or one < 1 for one in minutes):
        raise BadJob(f"job {name}: {', '.join(wrong) or 'tiers'} cannot be read. Fix: {fix}.")
    return job


def jobs(config_dir: str = CONFIG_DIR) -> list[str]:
    """Names of all jobs."""
    try:
        files = sorted(os.listdir(config_dir))
    except FileNotFoundError:
        return []
    return [file[: -len(".json")] for file in files if file.endswith(".json") and _NAME.fullmatch(file)]


def load_job(name: str, config_dir: str = CONFIG_DIR) -> dict[str, Any]:
    """A job by name."""
    if not _NAME.fullmatch(name):
        raise BadJob("not the name of a job. Fix: take one that `kvsweep status` lists.")
    path = os.path.join(config_dir, name + ".json")
    try:
        return check_job(fsio.read_json(path, owner=os.geteuid(), limit=MAX_FILE), name)
    except FileNotFoundError:
        known = ", ".join(jobs(config_dir)) or "none"
        raise BadJob(f"no job {name} (known: {known}). Fix: take one of them or run the role kv_bucket.") from None
    except (OSError, ValueError, fsio.UnsafePath) as error:
        raise BadJob(f"job {name}: {error}. Fix: run the role kv_bucket again.") from None


def new_record(job: dict[str, Any], started: float) -> dict[str, Any]:
    """A record of a pass that began now."""
    zero: dict[str, Any] = dict.fromkeys(_RECORD, 0)
    zero.update(schema=SCHEMA, id=job["id"], target=target_of(job), started=started, finished=None, exit=None)
    zero.update(complete=False, oldest_seconds=None, errors={}, resume=None, last_success=None, messages=[])
    zero.update(deleted=dict.fromkeys(("objects", "versions", "markers", "uploads"), 0))
    return zero


def read(path: str) -> dict[str, Any] | None:
    """A run record, None if there is none that can be believed."""
    try:
        record = fsio.read_json(path, limit=MAX_FILE)
    except (OSError, ValueError, fsio.UnsafePath):
        return None
    if not isinstance(record, dict) or set(record) != set(_RECORD) or record["schema"] != SCHEMA:
        return None
    return record if all(type(record[key]) in types for key, types in _RECORD.items()) else None


def record_path(name: str, state_dir: str = STATE_DIR) -> str:
    return os.path.join(state_dir, name + ".json")


def write(record: dict[str, Any], state_dir: str = STATE_DIR) -> None:
    data = json.dumps(record, sort_keys=True).encode("ascii") + b"\n"
    fsio.write_atomic(record_path(record["id"], state_dir), data, 0o644)


def alive(
    record: dict[str, Any] | None, now: float, interval_seconds: float, settings: Settings, keys: Keys
) -> dict[str, Any]:
    """Is a sweeper at work on this very place? Its last good pass must be younger than two intervals."""
    if record is None:
        return {"alive": False, "message": "kvsweep has left no record"}
    if record["target"] != target(settings.endpoint, settings.bucket, keys.prefix):
        return {"alive": False, "message": "kvsweep's record is about another bucket or prefix"}
    last = record["last_success"]
    if last is None:
        return {
            "alive": False,
            "message": f"kvsweep never ended well: {'; '.join(record['messages'][:2]) or 'no reason'}",
        }
    age = now - last
    # A pass may take its time; what it began with counts.
    if age > 2 * interval_seconds + 60:
        return {"alive": False, "message": f"kvsweep's last good pass began {int(age // 60)} minutes ago"}
    if age < -300:
        return {"alive": False, "message": "kvsweep's last good pass lies in the future"}
    return {"alive": True, "message": ""}


@contextlib.contextmanager
def locked(name: str, state_dir: str = STATE_DIR) -> Iterator[None]:
    """One pass of a job at a time; Busy if another runs."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(os.path.join(state_dir, f".{name}.lock"), flags, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Busy(f"another pass of {name} is active") from error
        yield
    finally:
        os.close(fd)
