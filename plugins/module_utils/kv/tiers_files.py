# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Command lines that are configured on a host: systemd units with drop-ins, quadlets, compose files, containers.

Everything is read below a root, so a test's tree is as good as a host. What cannot be read is not there.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from . import fsio
from .loosely import parse
from .stores_settings import ENVIRONMENT

_UNITS = ("etc/systemd/system", "run/systemd/system", "usr/local/lib/systemd/system", "usr/lib/systemd/system")
_QUADLETS = ("etc/containers/systemd", "usr/share/containers/systemd", "run/containers/systemd")
_COMPOSE_NAMES = ("compose.yaml", "compose.yml", "docker-compose.yaml", "docker-compose.yml")
_COMPOSE = re.compile("|".join(map(re.escape, _COMPOSE_NAMES)) + r"|[^.].*\.compose\.yaml", re.DOTALL)
_COMPOSE_DIRS = ("etc/*", "opt", "opt/*", "srv", "srv/*", "root", "root/*", "home/*", "home/*/*")
_OCI = "var/lib/containers/storage/overlay-containers/*/userdata/config.json"
_DOCKER = "var/lib/docker/containers/*/config.v2.json"
_MAX_FILES = 5000
_MAX_HERE = 100
_MAX_BYTES = 1 << 20
_PLAIN = re.compile(r"[\w@%+=:,./ \t-]*", re.ASCII)  # words in which nothing is quoted
_VARIABLE = re.compile(r"\$\{(\w+)\}|\$(\w+)", re.ASCII)


@dataclass
class Source:
    """A command line that is configured. binds: path inside the container -> path on the host."""

    kind: str
    file: str
    words: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    unit: str | None = None
    container: str | None = None
    user: str | None = None
    umask: str | None = None
    directory: str | None = None
    binds: dict[str, str] = field(default_factory=dict)

    def on_host(self, path: str) -> str | None:
        """Where a path of the command lies on the host, None if it stays inside a container."""
        path = os.path.normpath(os.path.join(self.directory or "/", path))
        if self.kind in ("unit",):
            return path
        best = max((one for one in self.binds if _within(path, one)), key=len, default=None)
        return None if best is None else os.path.normpath(self.binds[best] + path[len(best.rstrip("/")) :])


def _within(path: str, above: str) -> bool:
    return path == above or path.startswith(above.rstrip("/") + "/")


def text_of(path: str, root: str = "") -> str | None:
    """The text of a small file, followed through symlinks as an engine would; None if there is none."""
    try:
        if not root:
            with contextlib.suppress(fsio.UnsafePath, OSError):
                return fsio.read_small(path, limit=_MAX_BYTES).decode("utf-8", "surrogateescape")
        real = os.path.realpath(root + path)
        if root and not _within(real, os.path.realpath(root)):
            return None
        return fsio.read_small(real, limit=_MAX_BYTES).decode("utf-8", "surrogateescape")
    except (OSError, ValueError, fsio.UnsafePath):
        return None


def _glob(root: str, pattern: str) -> Iterator[str]:
    for number, path in enumerate(sorted(glob.iglob(os.path.join(glob.escape(root or "/"), pattern)))):
        if number >= _MAX_FILES:
            return
        yield path[len(root) :] if root else path


def sources(root: str = "") -> list[Source]:
    """Everything that is configured below root ("" is this host)."""
    return [*_units(root), *_quadlets(root), *_compose(root), *_podman(root), *_docker(root)]


def _values(text: str, section: str) -> dict[str, list[str]]:
    """Keys of one section of a unit file; an empty value empties the list, as systemd does it."""
    found: dict[str, list[str]] = {}
    here = ""
    for line in re.sub(r"\\\n", " ", text).splitlines():
        line = line.strip()
        if line.startswith("["):
            here = line
        elif here == f"[{section}]" and line[:1] not in ("#", ";", "") and "=" in line:
            key, _equals, value = (part.strip() for part in line.partition("="))
            found[key] = [*found.get(key, []), value] if value else []
    return found


def _split(text: str) -> list[str]:
    if _PLAIN.fullmatch(text):
        return text.split()
    try:
        return shlex.split(text)
    except ValueError:
        return []


def environment_of(text: str, wanted: re.Pattern[str]) -> dict[str, str]:
    """The variables of those names that a unit sets."""
    return _environment(_values(text, "Service"), "", wanted)


def _environment(values: Mapping[str, list[str]], root: str, wanted: re.Pattern[str] = ENVIRONMENT) -> dict[str, str]:
    """Variables that matter, those of files last as systemd takes them."""
    found = _assigned((word for line in values.get("Environment", []) for word in _split(line)), wanted)
    for line in values.get("EnvironmentFile", []):
        text = text_of(line.lstrip("-"), root) or ""
        rows = (row for row in text.splitlines() if row[:1] not in "#;")
        found.update(_assigned((word for row in rows for word in _split(row)), wanted))
    return found


def _assigned(words: Any, wanted: re.Pattern[str] = ENVIRONMENT) -> dict[str, str]:
    pairs = (str(word).partition("=")[::2] for word in words)
    return {name: value for name, value in pairs if wanted.fullmatch(name)}


def _drop_ins(root: str) -> dict[str, dict[str, str]]:
    """The drop-ins of each unit by file name: of several directories the one that systemd takes."""
    found: dict[str, dict[str, str]] = {}
    for place in reversed(_UNITS):
        for path in _glob(root, f"{place}/*.service.d/*.conf"):
            unit, name = path.split("/")[-2:]
            found.setdefault(unit[: -len(".d")], {})[name] = path
    return found


def _units(root: str) -> Iterator[Source]:
    seen = set()
    all_drop_ins = _drop_ins(root)
    for directory in _UNITS:
        for path in _glob(root, f"{directory}/*.service"):
            name = os.path.basename(path)
            if name in seen:
                continue
            seen.add(name)
            text = text_of(path, root)
            if text is None:
                continue
            parts = all_drop_ins.get(name, {})
            chosen = [parts[key] for key in sorted(parts)]
            whole = "\n".join([text, *(text_of(one, root) or "" for one in chosen)])
            yield from _unit(name, path, whole, root)


def _unit(name: str, path: str, text: str, root: str) -> Iterator[Source]:
    values = _values(text, "Service")
    first = {key: values[key][-1] if values.get(key) else None for key in ("User", "UMask", "WorkingDirectory")}
    environment = _environment(values, root)
    for command in values.get("ExecStart", []):
        words = _split(command.lstrip("@-:+!|"))
        if os.path.basename(words[0] if words else "") in ("sh", "bash", "dash") and "-c" in words[:-1]:
            words = _split(words[words.index("-c") + 1])
            words = words[1:] if words[:1] == ["exec"] else words
        # The variables of a unit are in its words; only those that matter are known here.
        words = [_VARIABLE.sub(lambda m: environment.get(m.group(1) or m.group(2), m.group()), word) for word in words]
        yield Source(
            "unit",
            path,
            words,
            environment,
            unit=name,
            user=first["User"],
            umask=first["UMask"],
            directory=(first["WorkingDirectory"] or "/").lstrip("-"),
        )


def _bind(text: str) -> tuple[str, str] | None:
    """Inside and outside of `OUTSIDE:INSIDE[:options]`, None for a named volume."""
    parts = text.split(":")
    return (parts[1], parts[0]) if len(parts) > 1 and parts[0].startswith("/") else None


def _binds(texts: Any) -> dict[str, str]:
    found = {}
    for text in texts if isinstance(texts, list) else []:
        if isinstance(text, dict) and text.get("type") == "bind":
            pair = (str(text.get("target")), str(text.get("source")))
        else:
            pair = _bind(str(text)) or ("", "")
        if pair[1].startswith("/"):
            found[os.path.normpath(pair[0])] = pair[1]
    return found


def _quadlets(root: str) -> Iterator[Source]:
    for pattern in (*_QUADLETS, "etc/containers/systemd/users/*", "home/*/.config/containers/systemd"):
        for path in _glob(root, f"{pattern}/*.container"):
            values = _values(text_of(path, root) or "", "Container")
            words = [word for key in ("Entrypoint", "Exec") for line in values.get(key, []) for word in _split(line)]
            name = os.path.basename(path)[: -len(".container")]
            yield Source(
                "quadlet",
                path,
                words,
                _environment(values, root),
                unit=name + ".service",
                container=(values.get("ContainerName") or ["systemd-" + name])[-1],
                user=next(reversed(values.get("User") or []), None),
                directory=(values.get("WorkingDir") or ["/"])[-1],
                binds=_binds(values.get("Volume")),
            )


def _compose_files(root: str) -> Iterator[str]:
    """Each directory is listed once, for all the names that it may have; the first of one directory hide no other's."""
    for place in _COMPOSE_DIRS:
        for directory in sorted(glob.iglob(os.path.join(glob.escape(root or "/"), place))):
            try:
                names = list(filter(_COMPOSE.fullmatch, os.listdir(directory)))
            except PermissionError:
                # It may be entered all the same.
                names = [name for name in _COMPOSE_NAMES if os.path.lexists(os.path.join(directory, name))]
            except OSError:
                continue
            for name in sorted(names)[:_MAX_HERE]:
                yield os.path.join(directory, name)[len(root) :]


def _compose(root: str) -> Iterator[Source]:
    for path in _compose_files(root):
        document = parse(text_of(path, root) or "")
        services = document.get("services") if isinstance(document, dict) else None
        for name, service in services.items() if isinstance(services, dict) else []:
            if isinstance(service, dict):
                yield _service(path, str(name), service)


def _words(value: Any) -> list[str]:
    return [str(word) for word in value] if isinstance(value, list) else _split(str(value)) if value else []


def _service(path: str, name: str, service: Mapping[str, Any]) -> Source:
    given = service.get("environment")
    pairs = [f"{key}={value}" for key, value in given.items()] if isinstance(given, dict) else given
    return Source(
        "compose",
        path,
        _words(service.get("entrypoint")) + _words(service.get("command")),
        _assigned(pairs if isinstance(pairs, list) else []),
        container=str(service.get("container_name") or name),
        user=str(service["user"]) if service.get("user") else None,
        directory=str(service.get("working_dir") or "/"),
        binds=_binds(service.get("volumes")),
    )


def _json(path: str, root: str) -> dict[str, Any]:
    try:
        value = json.loads(text_of(path, root) or "")
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _of(value: Any, key: str) -> dict[str, Any]:
    below = value.get(key) if isinstance(value, dict) else None
    return below if isinstance(below, dict) else {}


def _podman(root: str) -> Iterator[Source]:
    for pattern in (_OCI, "home/*/.local/share/" + _OCI[len("var/lib/") :]):
        for path in _glob(root, pattern):
            document = _json(path, root)
            process = _of(document, "process")
            mounts = document.get("mounts")
            yield Source(
                "podman",
                path,
                _words(process.get("args")),
                _assigned(_words(process.get("env"))),
                container=path.split("/")[-3][:12],
                user=str(_of(process, "user").get("uid", "")) or None,
                directory=str(process.get("cwd") or "/"),
                binds={
                    os.path.normpath(str(one.get("destination"))): str(one["source"])
                    for one in (mounts if isinstance(mounts, list) else [])
                    if isinstance(one, dict) and one.get("type") == "bind" and str(one.get("source"))[:1] == "/"
                },
            )


def _docker(root: str) -> Iterator[Source]:
    for path in _glob(root, _DOCKER):
        document = _json(path, root)
        config = _of(document, "Config")
        points = _of(document, "MountPoints")
        yield Source(
            "docker",
            path,
            [str(document.get("Path") or ""), *_words(document.get("Args"))],
            _assigned(_words(config.get("Env"))),
            container=str(document.get("Name") or "").lstrip("/") or path.split("/")[-2][:12],
            user=str(config.get("User") or "") or None,
            directory=str(config.get("WorkingDir") or "/"),
            binds={
                os.path.normpath(str(inside)): str(point["Source"])
                for inside, point in points.items()
                if isinstance(point, dict) and str(point.get("Source"))[:1] == "/"
            },
        )
