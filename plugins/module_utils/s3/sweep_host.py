# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What of the sweeper lies on the host that runs it: the program, one job for each bucket and prefix, cron lines."""

from __future__ import annotations

import contextlib
import json
import os
import re
from dataclasses import dataclass, field
from typing import Any

from ..kv import system
from ..kv.system import Account, Change, Directory
from . import options, sweep_program, sweep_state

EVERY = (1, 2, 3, 4, 5, 6, 10, 12, 15, 20, 30, 60)
ROOT = Account(0, 0)
# What a cron line takes without quoting.
_SAFE = re.compile(r"/[A-Za-z0-9._/-]*", re.ASCII)
_HEADER = """# Ansible managed: llmhost.hardening, role kv_bucket
# kvsweep writes to syslog itself; what cron would mail is the same again.
SHELL=/bin/sh
PATH=/usr/sbin:/usr/bin:/sbin:/bin
"""


@dataclass(frozen=True)
class Paths:
    """Where everything lies."""

    program: str = sweep_state.PROGRAM
    config: str = sweep_state.CONFIG_DIR
    state: str = sweep_state.STATE_DIR
    cron: str = sweep_state.CRON


@dataclass
class Plan:
    """What differs between the host and what it shall have."""

    job: str
    record: str
    retention: int | None
    directories: list[Directory] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    secret: set[str] = field(default_factory=set)
    last: list[str] = field(default_factory=list)

    def diffs(self) -> list[dict[str, str]]:
        """Files as text, the program and credentials only by name."""
        result = []
        for change in self.changes:
            if change.path in self.secret:
                after = "" if change.after is None else "changed\n"
                result.append(system.text_diff(change.path, "", after))
            else:
                result.append(change.diff())
        return result


def check(params: dict[str, Any], paths: Paths) -> None:
    """Options that only the sweeper has."""
    options.check(params)
    if params["interval_minutes"] not in EVERY:
        text = ", ".join(map(str, EVERY))
        raise options.BadOption("interval_minutes", "not a divisor of an hour", f"choose one of {text}")
    for name, path in (("program", paths.program), ("config_dir", paths.config), ("state_dir", paths.state)):
        if not _SAFE.fullmatch(path):
            raise options.BadOption(name, "not a plain absolute path", "use letters, digits and ._-/")
    if not _SAFE.fullmatch(params["python"]):
        raise options.BadOption("python", "not a plain absolute path", "name an interpreter, e.g. /usr/bin/python3")
    if params["deletes_per_second"] < 0:
        raise options.BadOption("deletes_per_second", "less than 0", "write 0 for no limit")


def plan(params: dict[str, Any], paths: Paths) -> Plan:
    """Everything that has to change (read-only)."""
    check(params, paths)
    keys = options.keys(params)
    name = sweep_state.job_id(params["endpoint"], params["bucket"], keys.prefix)
    job_path = os.path.join(paths.config, name + ".json")
    tiers = _tiers(params, name, paths)
    secret_path = os.path.join(paths.config, name + ".credentials")
    todo = Plan(name, sweep_state.record_path(name, paths.state), min(tiers.values()) if tiers else None)
    todo.secret = {secret_path, paths.program}
    wanted: list[tuple[str, bytes | None, int]] = []
    if tiers:
        directories = [Directory(path, 0o755, ROOT) for path in (paths.config, paths.state)]
        todo.directories = [one for one in directories if one.differs()]
        there = system.read_file(paths.program)
        python = params["python"]
        current = there is not None and sweep_program.is_current(there, python)
        wanted.append((paths.program, there if current else sweep_program.build(python), 0o755))
        login = _login(params)
        credentials = _credentials(login)
        if credentials is not None:
            wanted.append((secret_path, credentials, 0o600))
            login.update(credentials_file=secret_path, profile=None)
        job = _job({**params, **login}, name, tiers)
        wanted.append((job_path, (json.dumps(job, indent=2, sort_keys=True) + "\n").encode(), 0o644))
    else:
        # A record of a job that is gone would pass for a sweeper that died.
        wanted += [(job_path, None, 0o644), (secret_path, None, 0o600), (todo.record, None, 0o644)]
        if set(sweep_state.jobs(paths.config)) <= {name}:
            wanted.append((paths.program, None, 0o755))
            todo.last = [paths.config, paths.state]
    for path, data, mode in wanted:
        change = _change(path, data, mode)
        if change is not None:
            todo.changes.append(change)
    cron = _cron(paths, name, params["interval_minutes"] if tiers else None)
    change = _change(paths.cron, cron, 0o644)
    if change is not None:
        todo.changes.append(change)
    return todo


def _change(path: str, data: bytes | None, mode: int) -> Change | None:
    if data is not None:
        return system.file_change(path, data, mode)
    before = system.read_file(path)
    return None if before is None else Change(path, before, None, mode)


def _tiers(params: dict[str, Any], name: str, paths: Paths) -> dict[str, int]:
    """Every tier that wants this job, with its retention, this one added or taken out.

    A host has one tier at a place, so another of its names is an earlier one of this tier.
    """
    try:
        tiers = dict(sweep_state.load_job(name, paths.config)["tiers"])
    except sweep_state.BadJob:
        if params["state"] == "absent":
            return {}
        tiers = {}
    host, slash, _name = params["tier"].rpartition("/")
    tiers = {one: minutes for one, minutes in tiers.items() if one != params["tier"] and not _of(one, host + slash)}
    if params["state"] == "present":
        tiers[params["tier"]] = params["retention_minutes"]
    return tiers


def _of(tier: str, host: str) -> bool:
    return bool(host) and tier.rpartition("/")[0] + "/" == host


def _login(params: dict[str, Any]) -> dict[str, Any]:
    """Where the job's credentials come from. What only this run's environment gives is taken now: cron's has none."""
    names = ("access_key", "secret_key", "session_token", "credentials_file", "profile")
    login = {name: params[name] for name in names}
    if login["access_key"] or login["credentials_file"] or login["profile"]:
        return login
    given = os.environ.get
    if given("AWS_ACCESS_KEY_ID") and given("AWS_SECRET_ACCESS_KEY"):
        login.update(access_key=given("AWS_ACCESS_KEY_ID"), secret_key=given("AWS_SECRET_ACCESS_KEY"))
        login.update(session_token=given("AWS_SESSION_TOKEN"))
    else:
        login.update(credentials_file=given("AWS_SHARED_CREDENTIALS_FILE"), profile=given("AWS_PROFILE"))
    return login


def _credentials(login: dict[str, Any]) -> bytes | None:
    """A credentials file of the job's own, for a key that was handed over."""
    if login["access_key"] is None:
        return None
    pairs = {"aws_access_key_id": login["access_key"], "aws_secret_access_key": login["secret_key"]}
    if login["session_token"]:
        pairs["aws_session_token"] = login["session_token"]
    if any(not text.isprintable() or " " in text for text in pairs.values()):
        raise options.BadOption(
            "secret_key", "a credential has spaces or control characters", "write it as it was given"
        )
    return ("[default]\n" + "".join(f"{key} = {text}\n" for key, text in pairs.items())).encode()


def _job(params: dict[str, Any], name: str, tiers: dict[str, int]) -> dict[str, Any]:
    connection = ("bucket", "endpoint", "region", "path_style", "ca_bundle", "timeout", "credentials_file", "profile")
    job = {key: params[key] for key in connection}
    job.update(
        {key: params[key] for key in ("prefix", "key_prefix", "store", "interval_minutes", "deletes_per_second")}
    )
    job.update(schema=sweep_state.SCHEMA, id=name, tiers=tiers, metrics_dir=params["metrics_dir"] or None)
    return sweep_state.check_job(job, name)


def _cron(paths: Paths, name: str, interval: int | None) -> bytes | None:
    """The cron file with this job's line; None: there is no job left."""
    lines = {}
    for other in sweep_state.jobs(paths.config):
        if other != name:
            try:
                lines[other] = sweep_state.load_job(other, paths.config)["interval_minutes"]
            except sweep_state.BadJob:
                continue
    if interval is not None:
        lines[name] = interval
    if not lines:
        return None
    command = paths.program
    if (paths.config, paths.state) != (sweep_state.CONFIG_DIR, sweep_state.STATE_DIR):
        command += f" --config {paths.config} --state {paths.state}"
    text = _HEADER
    for job, minutes in sorted(lines.items()):
        every = "0" if minutes == 60 else "*" if minutes == 1 else f"*/{minutes}"
        text += f"{every} * * * * root {command} run {job} >/dev/null 2>&1\n"
    return text.encode()


def apply(todo: Plan) -> None:
    """Do what plan() found."""
    for directory in todo.directories:
        directory.make()
    for change in todo.changes:
        change.make()
    # With the last job: directories that nothing else lies in.
    for path in todo.last:
        with contextlib.suppress(OSError):
            os.rmdir(path)
