# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The gateway on a host: what differs from the settings, and making it so."""

from __future__ import annotations

import contextlib
import grp
import hashlib
import http.client
import os
import re
import secrets
import stat
import time
import urllib.request
from dataclasses import dataclass, field
from typing import Any

from ..kv import fsio, system
from ..kv.datamap import Problem
from . import derive, engine, render, tenants
from . import settings as settings_

UNIT_DIR = "/etc/systemd/system"
WAIT = 20
PAUSE = 1.2


@dataclass
class Plan:
    """What has to be written and done; `action` is what systemd is asked for."""

    settings: dict[str, Any]
    key: bytes
    files: list[File] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    action: str = ""
    enable: bool = False
    unit_changed: bool = False

    @property
    def changed(self) -> bool:
        return bool(self.files or self.action or self.enable)


@dataclass(frozen=True)
class File:
    """A file as it shall be; None is no file. What is secret is never shown."""

    path: str
    before: bytes | None
    after: bytes | None
    mode: int
    group: str = "root"
    secret: bool = False

    def differs(self) -> bool:
        if self.before != self.after:
            return True
        if self.after is None:
            return False
        info = os.lstat(self.path)
        return (stat.S_IMODE(info.st_mode), info.st_uid, info.st_gid) != (self.mode, 0, _gid(self.group))

    def make(self) -> None:
        if self.after is None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path)
            return
        system.make_dirs(os.path.dirname(self.path))
        # Closed until its group is set.
        new = self.path + ".new"
        fsio.write_atomic(new, self.after, 0o600)
        os.chown(new, 0, _gid(self.group) or 0)
        os.chmod(new, self.mode)
        os.replace(new, self.path)

    def diff(self) -> dict[str, str]:
        if self.secret:
            return system.text_diff(self.path, _state(self.before), _state(self.after))
        return system.text_diff(self.path, (self.before or b"").decode(errors="replace"), (self.after or b"").decode())


def _state(data: bytes | None) -> str:
    return "" if data is None else "(a secret)\n"


def _gid(group: str) -> int | None:
    try:
        return grp.getgrnam(group).gr_gid
    except KeyError:
        return None


# What stops it


def problems(settings: dict[str, Any], host: str, places: render.Places = render.HOST) -> list[Problem]:
    """Everything on this host that must be mended first."""
    found = [("the engine", why, fix) for why, fix in engine.problems(settings, engine.engines())]
    other = engine.version_problem(settings["engine_version"], engine.version_of(settings["upstream"]))
    if other:
        found.append(("cache_salt_gateway_engine_version", *other))
    for key in ("engine_key_file", "tls_key", "tls_certificate", "client_ca"):
        path = settings[key]
        if path:
            secret = key in ("engine_key_file", "tls_key")
            found += [(f"cache_salt_gateway_{key}", why, fix) for why, fix in _file_problems(path, secret)]
    if os.path.lexists(places.key):
        found += [(places.key, why, fix) for why, fix in _key_problems(places.key)]
    return [Problem(host, "", key, why, fix) for key, why, fix in found]


def _file_problems(path: str, secret: bool) -> list[tuple[str, str]]:
    try:
        info = os.stat(path)
    except OSError as error:
        return [(f"{path} cannot be used: {error.strerror}", "put the file there first")]
    if not stat.S_ISREG(info.st_mode):
        return [(f"{path} is no file", "name a file")]
    if secret and info.st_mode & 0o077:
        return [
            (f"{path} is open to other accounts ({info.st_mode & 0o777:04o})", f"chmod 0400 {path}, and replace it")
        ]
    if secret and info.st_size == 0:
        return [(f"{path} is empty", "put the key into it")]
    return []


def _key_problems(path: str) -> list[tuple[str, str]]:
    info = os.lstat(path)
    rotate = f"remove {path} and run again: a new key is made and every cache begins empty"
    if not stat.S_ISREG(info.st_mode) or info.st_uid != 0:
        return [("it is not root's own file", rotate)]
    if info.st_mode & 0o077:
        return [(f"other accounts could read it ({info.st_mode & 0o777:04o}), so it is no secret any more", rotate)]
    try:
        derive.parse_key(fsio.read_small(path, limit=200).decode("ascii"))
    except (derive.SaltError, UnicodeDecodeError, OSError, fsio.UnsafePath) as error:
        reason = str(error) if isinstance(error, derive.SaltError) else "it cannot be read as a key"
        return [(reason, rotate)]
    return []


# What differs


def running(settings: dict[str, Any]) -> dict[str, str] | None:
    """What the gateway that runs says it was made from, None if it does not answer."""
    where = settings_.address(settings["metrics_listen"])
    try:
        # Never through a proxy that the environment names.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"http://{where}/metrics", timeout=5) as answer:
            text = answer.read(1 << 22).decode(errors="replace")
    except (OSError, http.client.HTTPException, ValueError):
        return None
    match = re.search(r'^llmhost_gateway_info\{config="(\w*)",key="(\w*)",tenants="(\w*)"\} 1$', text, re.M)
    return dict(zip(("config", "key", "tenants"), match.groups())) if match else None


def wanted(settings: dict[str, Any], key: bytes, places: render.Places, code: str) -> dict[str, str]:
    """What a gateway with these settings says it was made from."""
    return {
        "config": render.config_id(settings, places, code),
        "key": derive.key_id(key),
        "tenants": derive.text_id(tenants.render(settings["tenants"]).encode()),
    }


def decide(now: dict[str, str] | None, then: dict[str, str], active: bool, unit_changed: bool) -> str:
    """start, restart, reload, wait (it takes up new tenants itself) or nothing."""
    if not active:
        return "start"
    if unit_changed or now is None or now["key"] != then["key"]:
        return "restart"
    if now["config"] != then["config"]:
        return "reload"
    return "wait" if now["tenants"] != then["tenants"] else ""


def code_id(places: render.Places) -> str:
    """Names the Lua that lies on the host."""
    digest = hashlib.sha256()
    with contextlib.suppress(FileNotFoundError):
        for name in sorted(os.listdir(places.lua)):
            digest.update(name.encode() + b"\0" + (system.read_file(os.path.join(places.lua, name)) or b""))
    return digest.hexdigest()[:16]


def plan(settings: dict[str, Any], key_text: str | None, places: render.Places = render.HOST) -> Plan:
    """What differs between the host and the settings (read-only). key_text: the key from the vault, if there is one."""
    there = system.read_file(places.key)
    if key_text is not None:
        key = derive.parse_key(key_text)
    else:
        key = derive.parse_key(there.decode("ascii")) if there else secrets.token_bytes(derive.KEY_BYTES)
    code = code_id(places)
    key_file = (key.hex() + "\n").encode()
    if there and derive.parse_key(there.decode("ascii")) == key:
        key_file = there
    check = render.verify(settings, key).encode() if settings["verify"] else None
    unit_path = os.path.join(UNIT_DIR, render.UNIT)
    files = [
        File(places.key, there, key_file, 0o400, secret=True),
        # The last hop learns of new salts before they come.
        File(places.verify, system.read_file(places.verify), check, 0o644),
        File(
            places.tenants,
            system.read_file(places.tenants),
            _text(tenants.render(settings["tenants"])),
            0o640,
            render.ACCOUNT,
        ),
        File(places.config, system.read_file(places.config), _text(render.nginx_conf(settings, places, code)), 0o644),
        File(unit_path, system.read_file(unit_path), _text(render.unit(settings, places)), 0o644),
    ]
    todo = Plan(settings, key, [file for file in files if file.differs()])
    todo.unit_changed = any(file.path == unit_path for file in todo.files)
    state = system.show([render.UNIT], ("ActiveState", "UnitFileState", "NeedDaemonReload"))[render.UNIT]
    active = state.get("ActiveState") == "active"
    todo.enable = state.get("UnitFileState") != "enabled"
    stale = todo.unit_changed or state.get("NeedDaemonReload") == "yes"
    todo.action = decide(running(settings) if active else None, wanted(settings, key, places, code), active, stale)
    if engine.open_to_network(settings["upstream"]):
        todo.warnings.append(
            "{} is open to the network: requests can reach the engine past the gateway. "
            "Start vLLM with --host 127.0.0.1.".format(settings["upstream"])
        )
    return todo


def _text(text: str) -> bytes:
    return text.encode()


# Making it so


def apply(todo: Plan, places: render.Places = render.HOST) -> None:
    """Do what plan() found and see that the gateway has taken it up; HostError if it has not."""
    for file in todo.files:
        file.make()
    system.daemon_reload()
    if todo.enable:
        _systemctl("enable")
    if todo.action == "start":
        system.start(render.UNIT)
    elif todo.action in ("restart", "reload"):
        _systemctl(todo.action)
    if not todo.action:
        return
    then = wanted(todo.settings, todo.key, places, code_id(places))
    end = time.monotonic() + WAIT
    while (now := running(todo.settings)) != then:
        if time.monotonic() > end:
            differs = (
                "it does not answer"
                if now is None
                else "still the old " + ", ".join(k for k in then if now[k] != then[k])
            )
            raise system.HostError(
                f"{render.UNIT} has not taken up what was written ({differs}). journalctl -u {render.UNIT} says why:\n"
                + _journal()
            )
        time.sleep(0.2)
    if todo.action == "wait":
        # One of its workers has; the others look once a second, too.
        time.sleep(PAUSE)


def _systemctl(verb: str) -> None:
    result = system.run(["systemctl", verb, "--", render.UNIT])
    if result.returncode:
        raise system.HostError(f"systemctl {verb} {render.UNIT} failed: {result.stderr.strip()}\n" + _journal())


def _journal() -> str:
    log = system.run(["journalctl", "--no-pager", "--output=cat", "--lines=12", "--unit=" + render.UNIT], 60)
    return "\n".join("  " + line for line in log.stdout.splitlines())


def plan_absent(places: render.Places = render.HOST) -> Plan:
    """What is left of a gateway."""
    unit_path = os.path.join(UNIT_DIR, render.UNIT)
    paths = (unit_path, places.config, places.tenants, places.verify, places.key)
    secret = (places.key,)
    files = [
        File(path, system.read_file(path), None, 0, secret=path in secret) for path in paths if os.path.lexists(path)
    ]
    todo = Plan({}, b"", files)
    state = system.show([render.UNIT], ("ActiveState", "LoadState"))[render.UNIT]
    runs = state.get("ActiveState") not in ("inactive", "failed", None)
    todo.action = "stop" if runs or os.path.lexists(unit_path) else ""
    return todo


def apply_absent(todo: Plan, places: render.Places = render.HOST) -> None:
    """Stop the gateway and remove its files."""
    if todo.action:
        _systemctl("disable")
        _systemctl("stop")
    for file in todo.files:
        file.make()
    with contextlib.suppress(OSError):
        os.rmdir(os.path.dirname(places.config))
    if todo.changed:
        system.daemon_reload()
