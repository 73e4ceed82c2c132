# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Engines of a host and their offload settings: finds release and Python, renders the files, writes them.

An engine is never restarted here: which one runs without its new settings is said.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import re
import stat
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from . import (
    discovery,
    fsio,
    offload_engines,
    offload_found,
    offload_images,
    offload_keys,
    offload_render,
    system,
    tiers_files,
    units,
)
from . import offload_units as text
from .datamap import Document, Problem, Tier
from .mapkeys import show
from .offload_model import Told
from .offload_plan import Entry, parse
from .stores import ENGINES
from .system import Account, HostError

RECORD = "/etc/llmhost/engines.json"
# What a unit's own command may not have beside our file: arguments win over it.
_SEED = re.compile("PYTHONHASHSEED", re.ASCII)
_BLOCKED = ("--config", "--kv-transfer-config", "--kv-events-config", "--kv-offloading-size")


@dataclass(frozen=True)
class File:
    """A file of ours as it shall be. account None: it does not exist yet, which only check mode accepts."""

    path: str
    data: bytes
    mode: int = 0o644
    account: Account | None = Account(0, 0)

    def change(self) -> system.Change | None:
        """What has to happen to it, None if nothing."""
        before = system.read_file(self.path)
        if before == self.data and self.account is not None:
            info = os.lstat(self.path)
            if (stat.S_IMODE(info.st_mode), info.st_uid, info.st_gid) == (self.mode, *self.account):
                return None
        return system.Change(self.path, before, self.data, self.mode)

    def make(self) -> None:
        """Write it; others never see it open."""
        if self.account is None:
            raise HostError(f"{self.path}: the account that shall read it does not exist")
        system.make_dirs(os.path.dirname(self.path))
        fsio.write_atomic(self.path, self.data, self.mode & 0o700)
        fd = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.fchown(fd, *self.account)
            os.fchmod(fd, self.mode)
        finally:
            os.close(fd)


class Facts(NamedTuple):
    """What is read on the host for one engine. command: the unit's own, without our drop-in; None: there is no unit."""

    command: str | None
    problem: str | None
    installed: discovery.Installed
    seed: str | None = None  # PYTHONHASHSEED of the unit

    def words(self, entry: Entry) -> list[str]:
        """The words that start the engine, without what is added here; none if they cannot be split."""
        if self.command is None:
            return list(entry.command)
        try:
            return text.words_of(self.command)
        except ValueError:
            return []


def _is_ours(data: bytes | None) -> bool:
    return data is not None and data.startswith(text.HEADER.encode())


def _unit_text(unit: str) -> str | None:
    """The unit and its drop-ins as systemd has them on disk, None if there is no such unit."""
    result = system.run(["systemctl", "cat", "--no-pager", "--", unit])
    return result.stdout if result.returncode == 0 else None


def facts(entry: Entry) -> Facts:
    """What the host says about an engine (read-only)."""
    command, problem, seed = None, None, None
    program = entry.command[0] if entry.command else None
    if entry.target == "systemd":
        own = os.path.join(units.UNIT_DIR, entry.unit)
        there = _unit_text(entry.unit)
        if there is not None and not _is_ours(system.read_file(own)):
            theirs = text.without(there, [text.drop_in_path(entry.unit)])
            commands = text.command_of(theirs)
            seed = tiers_files.environment_of(theirs, _SEED).get("PYTHONHASHSEED")
            if len(commands) == 1:
                command = commands[0]
                with contextlib.suppress(ValueError, IndexError):
                    program = text.words_of(command)[0]
            else:
                problem = "unit %s has %d ExecStart= lines, one is needed" % (entry.unit, len(commands))
        elif not entry.command:
            problem = f"this host has no unit {entry.unit} and the entry has no exec to make one of"
    engine = ENGINES["vllm"] if entry.engine == "vllm" else None
    if engine is not None and entry.target in ("quadlet", "compose"):
        found = offload_images.installed(entry.image, entry.target)
    elif engine is None or program is None:
        found = discovery.Installed(None, None, "not looked for")
    else:
        found = discovery.installed(program, engine)
    return Facts(command, problem, found, seed)


@dataclass
class Made:
    """One engine: what is written for it and what stands against it."""

    entry: Entry
    files: list[File] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    version: str | None = None
    python: str | None = None
    source: str = ""
    marks: list[str] = field(default_factory=list)  # arguments that a process with these settings has
    record: dict[str, Any] = field(default_factory=dict)
    enable: str | None = None


def _account(owner: str | int | None) -> Account | None:
    return system.account_of(owner) if owner is not None else None


def _header(data: str, name: str) -> bytes:
    """The file with a second line that says which engine it is of."""
    first, _newline, rest = data.partition("\n")
    return f"{first}\n# Engine: {name}\n{rest}".encode()


def _credentials(entry: Entry, made: Made, host: str, account: Account | None) -> None:
    """The file with the object store's keys: looked at, never read."""
    path = entry.credentials_file
    if path is None:
        return
    key = "credentials_file"
    try:
        info = os.lstat(path)
    except OSError as error:
        fix = "put the file there first, 0600 and of root; this role never sees what is in it"
        made.problems.append(Problem(host, entry.name, key, f"{path}: {error.strerror}", fix))
        return
    if not stat.S_ISREG(info.st_mode) or info.st_mode & 0o077:
        reason = f"{path} is no regular file, or others can open it ({stat.S_IMODE(info.st_mode):04o})"
        made.problems.append(Problem(host, entry.name, key, reason, f"chmod 0600 {path}"))
    contained = entry.target in ("quadlet", "compose")
    if contained and account is not None and info.st_uid != account.uid:
        reason = "the container's account %d could not read it: it belongs to %d" % (account.uid, info.st_uid)
        made.problems.append(Problem(host, entry.name, key, reason, "chown it to the tier's owner"))


def make(entry: Entry, document: Document, found: Facts) -> Made:
    """The files of one engine from what was read; everything wrong is in problems."""
    made = Made(entry, version=entry.version or found.installed.version, python=entry.python or found.installed.python)
    made.source = "given" if entry.version else found.installed.source
    host = document["host"]
    if found.problem:
        fix = "name a unit that exists, or give exec (and user) to have one made"
        made.problems.append(Problem(host, entry.name, "unit", found.problem, fix))
    if entry.version and found.installed.version and entry.version != found.installed.version:
        reason = f"version {entry.version} is given, {found.installed.version} is installed ({found.installed.source})"
        made.problems.append(Problem(host, entry.name, "version", reason, "leave version out, or install that one"))
    given, there = offload_render.python_of(entry.python), offload_render.python_of(found.installed.python)
    if given and there and given != there:
        reason = f"Python {entry.python} is given, {found.installed.python} starts the engine"
        made.problems.append(Problem(host, entry.name, "python", reason, "leave python out"))
    if entry.engine == "vllm":
        _vllm(entry, document, found, made)
    else:
        _other(entry, document, found, made)
    return made


def _vllm(entry: Entry, document: Document, found: Facts, made: Made) -> None:
    host = document["host"]
    # First, since a release cannot be found behind a shell.
    if entry.target == "systemd" and _in_the_way(entry, found, made, host, _BLOCKED):
        return
    command = offload_found.settings_of(found.words(entry))
    told = Told(command.model, command.hash_algorithm, found.seed)
    rendered = offload_render.render(entry.settings, document, made.version, made.python, told)
    named = [problem._replace(tier=entry.name) if problem.tier == "-" else problem for problem in rendered.problems]
    made.problems += named
    if rendered.problems:
        return
    tiers = [tier for tier in document["tiers"] if tier["name"] in entry.settings["tiers"]]
    owner = _owner(entry, tiers, made, host)
    account = _account(owner)
    _credentials(entry, made, host, account)
    path = text.config_path(entry.name)
    config = _header(f"{text.HEADER}\n{offload_render.config_text(rendered.config)}", entry.name)
    group = Account(0, account.gid) if account is not None else None
    made.files.append(File(path, config, 0o640, group))
    made.marks = [path]
    environment = {str(key): str(value) for key, value in (entry.settings.get("environment") or {}).items()}
    arguments = ["--config", path]
    made.record = {
        "name": entry.name,
        "unit": entry.unit,
        "prompt_only": entry.settings.get("offload_prompt_only", True),
        "several_tenants": entry.settings.get("tenants", "several") == "several",
        "allow_modules": list(entry.settings.get("allow_modules") or []),
    }
    if entry.target == "systemd":
        _systemd(entry, found, made, host, owner, arguments, environment)
    elif entry.target in ("quadlet", "compose"):
        _container(entry, made, tiers, account, arguments, environment)


def _owner(entry: Entry, tiers: Iterable[Tier], made: Made, host: str) -> str | int | None:
    """The account that the engine runs as."""
    owners = {tier["owner"] for tier in tiers if tier["owner"] is not None}
    if entry.user is not None:
        owners.add(entry.user)
    if len(owners) > 1:
        reason = "its tiers and `user` name several accounts: {}".format(", ".join(map(str, sorted(owners, key=str))))
        made.problems.append(Problem(host, entry.name, "user", reason, "give all of them one owner"))
    if not owners:
        fix = "give user: the engine's account"
        made.problems.append(Problem(host, entry.name, "user", "no tier names an owner", fix))
        return None
    owner: str | int = sorted(owners, key=str)[0]
    return owner


def _in_the_way(entry: Entry, found: Facts, made: Made, host: str, blocked: tuple[str, ...]) -> bool:
    """Is there a reason why the unit's own command cannot get arguments at its end?"""
    why = text.why_not_extended(found.command, blocked) if found.command is not None else None
    if why is None:
        return False
    config = text.config_path(entry.name)
    fix = f"take it out of the unit, or use target: files and put --config {config} into the command yourself"
    made.problems.append(Problem(host, entry.name, "unit", f"{entry.unit}: {why}", fix))
    return True


def _systemd(
    entry: Entry,
    found: Facts,
    made: Made,
    host: str,
    owner: str | int | None,
    arguments: list[str],
    environment: dict[str, str],
) -> None:
    lines = text.service_lines(environment, entry.credentials_file)
    if found.command is None:
        if entry.command and owner is not None:
            unit = text.complete_unit(entry.name, str(owner), [*entry.command, *arguments], lines)
            made.files.append(File(os.path.join(units.UNIT_DIR, entry.unit), _header(unit, entry.name)))
            made.enable = entry.unit
        return
    if arguments and entry.engine != "vllm" and _in_the_way(entry, found, made, host, ()):
        return
    for name in text.secrets_in(found.command):
        reason = f"[inline-credentials] {entry.unit}: {name} shows in the list of processes"
        made.problems.append(Problem(host, entry.name, "unit", reason, "give it by a file or a systemd credential"))
    if not arguments and not lines:
        return
    drop_in = text.drop_in(found.command if arguments else None, arguments, lines)
    made.files.append(File(text.drop_in_path(entry.unit), _header(drop_in, entry.name)))


def _container(
    entry: Entry,
    made: Made,
    tiers: list[Tier],
    account: Account | None,
    arguments: list[str],
    environment: dict[str, str],
) -> None:
    user = "%d:%d" % account if account is not None else "UID:GID"
    volumes = [f"{tier['path']}:{tier['path']}" for tier in tiers if tier["path"]]
    volumes.append("{0}:{0}:ro".format(text.config_path(entry.name)))
    if entry.credentials_file:
        inside = f"/run/secrets/{text.CREDENTIAL}"
        volumes.append(f"{entry.credentials_file}:{inside}:ro")
        environment = dict(environment, **{text.CREDENTIAL_VARIABLE: inside})
    command = [*entry.command, *arguments]
    image = entry.image or ""
    if entry.target == "quadlet":
        after = [units.prepare_name(tier) for tier in tiers if tier["path"]]
        data = text.quadlet(entry.name, image, user, command, volumes, environment, after)
        made.files.append(File(os.path.join(text.QUADLET_DIR, entry.name + ".container"), _header(data, entry.name)))
    else:
        data = text.compose(entry.name, image, user, command, volumes, environment)
        made.files.append(File(f"{text.DIRECTORY}/{entry.name}.compose.yaml", _header(data, entry.name)))


def _other(entry: Entry, document: Document, found: Facts, made: Made) -> None:
    """llama.cpp, SGLang, LMCache: a drop-in with their directory."""
    host = document["host"]
    stores, settings_of = offload_engines.ENGINES[entry.engine]
    tier = next((one for one in document["tiers"] if one["name"] == entry.tier), None)
    if tier is None or tier["store"] not in stores or tier["state"] not in ("present", "planned"):
        reason = f"{show(entry.tier, 40)} is no present tier of store {' or '.join(stores)}"
        made.problems.append(Problem(host, entry.name, "tier", reason, "name one of llmhost_tiers"))
        return
    words = found.words(entry)
    settings = settings_of(tier, words, offload_keys.files_of(words, entry.engine))
    for code, reason, remedy in settings.refusals:
        made.problems.append(Problem(host, tier["name"], entry.unit, f"[{code}] {reason}", remedy))
    made.warnings += settings.warnings
    made.marks = settings.arguments
    _systemd(entry, found, made, host, tier["owner"], settings.arguments, settings.environment)


# The whole host


@dataclass
class Plan:
    """What has to be done for all engines."""

    made: list[Made]
    files: list[File]
    changes: list[system.Change]
    stale: list[system.Change]
    problems: list[Problem]
    warnings: list[str]
    enable: list[str]

    @property
    def changed(self) -> bool:
        """True if anything differs."""
        return bool(self.changes or self.stale or self.enable)


def our_files(name: str | None = None) -> dict[str, bytes]:
    """Files on the host that carry our first line, of one engine or of all."""
    patterns = (
        os.path.join(units.UNIT_DIR, "*.service.d", text.DROP_IN),
        os.path.join(units.UNIT_DIR, "*.service"),
        os.path.join(text.QUADLET_DIR, "*.container"),
        os.path.join(text.DIRECTORY, "*.yaml"),
    )
    found = {}
    for path in sorted(path for pattern in patterns for path in glob.glob(pattern)):
        data = None if os.path.islink(path) else system.read_file(path)
        if data is not None and _is_ours(data) and (name is None or _engine_of(data) == name):
            found[path] = data
    return found


def _engine_of(data: bytes) -> str:
    lines = data.split(b"\n", 2)
    return lines[1].decode(errors="replace").partition(": ")[2] if len(lines) > 1 else ""


def plan(entries: Any, document: Document) -> Plan:
    """What differs between the host and the engines that an operator declares (read-only)."""
    parsed, problems = parse(entries, document["host"])
    if problems:
        return Plan([], [], [], [], problems, [], [])
    made = [make(entry, document, facts(entry)) for entry in parsed if entry.state == "present"]
    for one in made:
        problems += one.problems
    files = [file for one in made for file in one.files]
    records = [one.record for one in made if one.record]
    if records or os.path.exists(RECORD):
        data = json.dumps({"schema": 1, "engines": records}, indent=2, sort_keys=True) + "\n"
        files.append(File(RECORD, data.encode()))
    for file in files:
        before = system.read_file(file.path)
        if before is not None and file.path != RECORD and not _is_ours(before):
            reason = f"{file.path} exists and was not written by this collection"
            problems.append(Problem(document["host"], "-", "unit", reason, "move it away, or use another name"))
    wanted = {file.path for file in files}
    there = our_files()
    names = {entry.name for entry in parsed}
    stale = [
        system.Change(path, data, None, 0)
        for path, data in there.items()
        if path not in wanted and _engine_of(data) in names
    ]
    strangers = sorted({_engine_of(data) for data in there.values()} - names)
    warnings = [warning for one in made for warning in one.warnings]
    undeclared = "engine {} has files of ours here and is not declared: declare it with state: absent"
    warnings += [undeclared.format(name) for name in strangers]
    changes = [] if problems else [change for file in files if (change := file.change())]
    enable = [one.enable for one in made if one.enable and not problems and not _enabled(one.enable)]
    return Plan(made, files, changes, [] if problems else stale, problems, warnings, enable)


def _enabled(unit: str) -> bool:
    return os.path.lexists(os.path.join(units.UNIT_DIR, "multi-user.target.wants", unit))


def apply(todo: Plan) -> None:
    """Do what plan() found."""
    changed = {change.path for change in todo.changes}
    files = [file for file in todo.files if file.path in changed]
    for file in files:
        if file.account is None:
            raise HostError(f"{file.path}: the account that shall read it does not exist; run kv_access before")
    for file in files:
        file.make()
    for change in todo.stale:
        change.make()
        link = os.path.join(units.UNIT_DIR, "multi-user.target.wants", os.path.basename(change.path))
        if os.path.islink(link) and os.path.dirname(change.path) == units.UNIT_DIR:
            os.unlink(link)
        with contextlib.suppress(OSError):
            os.rmdir(os.path.dirname(change.path))
    for unit in todo.enable:
        link = os.path.join(units.UNIT_DIR, "multi-user.target.wants", unit)
        system.make_dirs(os.path.dirname(link))
        os.symlink(os.path.join(units.UNIT_DIR, unit), link)
    if todo.changed:
        system.daemon_reload()


def restarts(todo: Plan) -> list[str]:
    """Units whose processes run without their settings as they are now."""
    pending = set()
    booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    ticks = os.sysconf("SC_CLK_TCK")
    changed = {change.path for change in [*todo.changes, *todo.stale]}
    for one in todo.made:
        newest = 0.0
        for file in one.files:
            with contextlib.suppress(OSError):
                newest = max(newest, os.stat(file.path).st_mtime)
        touched = any(file.path in changed for file in one.files)
        for process in discovery.of_services([one.entry.unit] if one.entry.unit else []):
            if touched or booted + process.start_time / ticks < newest:
                pending.add(process.unit or one.entry.unit)
    return sorted(pending)


def run(entries: Any, document: Document, act: bool) -> dict[str, Any]:
    """The module kv_engine: plan, and do it if act. MapError-like problems are for the caller."""
    todo = plan(entries, document)
    result: dict[str, Any] = {"problems": todo.problems, "warnings": todo.warnings}
    if todo.problems:
        return result
    pending = restarts(todo)
    if act:
        apply(todo)
    diffs = [change.diff() for change in [*todo.changes, *todo.stale]]
    diffs += [system.text_diff(unit, "", "enabled\n") for unit in todo.enable]
    engines = [
        {"name": one.entry.name, "version": one.version, "python": one.python, "source": one.source}
        for one in todo.made
    ]
    written = [change.path for change in todo.changes]
    removed = [change.path for change in todo.stale]
    result.update(changed=todo.changed, diff=diffs, engines=engines, written=written, removed=removed)
    result["restart_pending"] = pending
    return result
