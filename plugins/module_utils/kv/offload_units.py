# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What systemd, podman and docker read from us to start an engine with its offload settings, as text. Pure."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Mapping, Sequence

from .units import UNIT_DIR

# First line of every file of ours here: only files that begin with it are changed or removed.
HEADER = "# Written by llmhost.hardening (role engine_offload); changes here are lost."
DIRECTORY = "/etc/llmhost/engine"
QUADLET_DIR = "/etc/containers/systemd"
DROP_IN = "60-llmhost-offload.conf"
CREDENTIAL = "objectstore"
CREDENTIAL_VARIABLE = "AWS_SHARED_CREDENTIALS_FILE"
SECRET_OPTIONS = ("--api-key", "--admin-api-key", "--hf-token", "--ssl-keyfile-password")
_SHELLS = ("sh", "bash", "dash", "zsh", "ksh")
_RUNTIMES = ("podman", "docker", "nerdctl", "singularity", "apptainer")


def config_path(name: str) -> str:
    """The file that the engine reads its offload settings from; vLLM wants .yaml."""
    return f"{DIRECTORY}/{name}.yaml"


def drop_in_path(unit: str) -> str:
    """Our drop-in of an existing unit."""
    return os.path.join(UNIT_DIR, unit + ".d", DROP_IN)


def quote(word: str) -> str:
    """A word as ExecStart= takes it: quoted, without specifiers and variables of systemd."""
    text = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{text}"' if not word or re.search(r"[^A-Za-z0-9_@+=:,./$%-]", word) else text


def assignment(name: str, value: str) -> str:
    """One variable as Environment= takes it."""
    text = f"{name}={value}".replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'Environment="{text}"'


def without(text: str, files: Sequence[str]) -> str:
    """The output of `systemctl cat` without those files."""
    kept, source = [], ""
    for line in text.splitlines():
        if re.fullmatch(r"# /\S+", line):
            source = line[2:]
        if source not in files:
            kept.append(line)
    return "\n".join(kept) + "\n"


def command_of(text: str) -> list[str]:
    """The ExecStart= lines in force in the output of `systemctl cat`."""
    commands: list[str] = []
    section = ""
    for line in re.sub(r"\\\n", " ", text).splitlines():
        stripped = line.strip()
        if re.fullmatch(r"# /\S+", line):
            section = ""
        if stripped.startswith("[") and stripped.endswith("]"):
            section = stripped
        if section != "[Service]" or not re.match(r"ExecStart\s*=", stripped):
            continue
        value = stripped.partition("=")[2].strip()
        commands = [*commands, value] if value else []
    return commands


def words_of(command: str) -> list[str]:
    """The words of an ExecStart= value; ValueError if it cannot be split as a shell would."""
    return shlex.split(command.lstrip("@-:+!|"))


def why_not_extended(command: str, options: Sequence[str]) -> str | None:
    """Why arguments cannot simply be put at the end of a command, None if they can."""
    try:
        words = words_of(command)
    except ValueError as error:
        return f"its ExecStart= cannot be read: {error}"
    program = os.path.basename(words[0]) if words else ""
    if program in _SHELLS:
        return "its ExecStart= is a shell, so arguments at the end would not reach the engine"
    if program in _RUNTIMES:
        return "its ExecStart= starts a container"
    for word in words[1:]:
        name = word.partition("=")[0].replace("_", "-")
        if name in options or any(name.startswith(option + ".") for option in options):
            return f"its ExecStart= already has {name}"
    return None


def secrets_in(command: str) -> list[str]:
    """Options of a command that carry a secret for everybody to read."""
    try:
        words = words_of(command)
    except ValueError:
        return []
    return [name for name in (word.partition("=")[0] for word in words) if name in SECRET_OPTIONS]


def extended(command: str, arguments: Sequence[str]) -> str:
    """The command with more arguments at its end, everything before them untouched."""
    return " ".join([command.rstrip(), *map(quote, arguments)])


def service_lines(environment: Mapping[str, str], credentials_file: str | None) -> list[str]:
    """Environment and credentials of an engine, for [Service]."""
    lines = [assignment(name, value) for name, value in sorted(environment.items())]
    if credentials_file:
        lines += [
            "# The engine sees a copy in memory that only it can read; arguments and environment hold its path alone.",
            f"LoadCredential={CREDENTIAL}:{credentials_file}",
            f"Environment={CREDENTIAL_VARIABLE}=%d/{CREDENTIAL}",
        ]
    return lines


def drop_in(command: str | None, arguments: Sequence[str], lines: Sequence[str]) -> str:
    """The drop-in of a unit that somebody else wrote. command None: its command stays."""
    text = [HEADER, "[Service]", *lines]
    if command is not None:
        text += ["# The unit's own command, with the offload settings at its end.", "ExecStart="]
        text.append("ExecStart=" + extended(command, arguments))
    return "\n".join(text) + "\n"


def complete_unit(name: str, user: str, command: Sequence[str], lines: Sequence[str]) -> str:
    """A unit for a host that has none."""
    text = [
        HEADER,
        "[Unit]",
        f"Description=LLM server {name}",
        "Wants=network-online.target",
        "After=network-online.target",
        "",
        "[Service]",
        f"User={user}",
        "UMask=0077",
        "LimitCORE=0",
        *lines,
        "ExecStart=" + " ".join(map(quote, command)),
        "Restart=on-failure",
        "RestartSec=10",
        "",
        "[Install]",
        "WantedBy=multi-user.target",
    ]
    return "\n".join(text) + "\n"


def quadlet(
    name: str,
    image: str,
    user: str,
    command: Sequence[str],
    volumes: Sequence[str],
    environment: Mapping[str, str],
    after: Sequence[str],
) -> str:
    """A podman quadlet. user: UID:GID; volumes: as podman takes them; after: the tiers' prepare units."""
    uid, _colon, gid = user.partition(":")
    text = [HEADER, "[Unit]", f"Description=LLM server {name}"]
    if after:
        text += ["Requires=" + " ".join(after), "After=" + " ".join(after)]
    text += ["", "[Container]", f"ContainerName={name}", f"Image={image}", f"User={uid}", f"Group={gid}"]
    text += ["# podman sets the umask of the container; the unit's own would not reach it.", "PodmanArgs=--umask=0077"]
    text += ["PodmanArgs=--ulimit=core=0:0"]
    text += [f"Volume={volume}" for volume in volumes]
    # podman's generator puts them into ExecStart=, where systemd would put in variables of its own.
    text += [assignment(key, value.replace("$", "$$")) for key, value in sorted(environment.items())]
    text += ["Exec=" + " ".join(map(quote, command)), "", "[Service]", "Restart=on-failure"]
    text += ["", "[Install]", "WantedBy=multi-user.target"]
    return "\n".join(text) + "\n"


def compose(
    name: str,
    image: str,
    user: str,
    command: Sequence[str],
    volumes: Sequence[str],
    environment: Mapping[str, str],
) -> str:
    """A docker compose file to be merged into the operator's own (docker compose -f compose.yaml -f this)."""
    # Docker knows no umask, so a shell sets it; the tier's default ACL closes new files as well.
    wrapper = ["sh", "-c", 'umask 0077; exec "$$@"', "sh"]
    service = {
        "image": image,
        "user": user,
        "entrypoint": wrapper,
        "command": [word.replace("$", "$$") for word in command],
        "volumes": list(volumes),
        "environment": {key: value.replace("$", "$$") for key, value in sorted(environment.items())},
        "ulimits": {"core": 0},
    }
    return HEADER + "\n" + json.dumps({"services": {name: service}}, indent=2) + "\n"
