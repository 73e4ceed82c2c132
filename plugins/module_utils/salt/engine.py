# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What can be seen of the engines that run on this host: ways in that know no salt, and ways past the gateway."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import urllib.request
from typing import Any, NamedTuple

from . import endpoints
from . import settings as settings_

_SERVERS = re.compile(r"vllm\.entrypoints\.|(?:^|/)vllm$")


class Engine(NamedTuple):
    """A process of vLLM: what it was started with."""

    pid: int
    argv: tuple[str, ...]
    environment: dict[str, str]


def engines(proc: str = "/proc") -> list[Engine]:
    """The processes of vLLM that serve."""
    found = []
    for name in os.listdir(proc):
        if not name.isdigit():
            continue
        # It may end while we look, or be hidden.
        with contextlib.suppress(OSError):
            with open(os.path.join(proc, name, "cmdline"), "rb") as file:
                argv = tuple(file.read(1 << 16).decode(errors="replace").split("\0")[:-1])
            if any(_SERVERS.search(word) for word in argv[:4]):
                with open(os.path.join(proc, name, "environ"), "rb") as file:
                    pairs = file.read(1 << 18).decode(errors="replace").split("\0")
                found.append(Engine(int(name), argv, dict(pair.split("=", 1) for pair in pairs if "=" in pair)))
    return found


def problems(settings: dict[str, Any], found: list[Engine]) -> list[tuple[str, str]]:
    """Reason and fix for everything about the engines that no gateway can make good."""
    result = []
    version = endpoints.parse_version(settings["engine_version"]) or (0, 0)
    for engine in found:
        line, who = " ".join(engine.argv), f"vLLM (process {engine.pid})"
        if "grpc_server" in line or "--grpc" in engine.argv:
            why = "answers gRPC, whose requests have no field for a salt"
            result.append((f"{who} {why}", "start it without gRPC"))
        if "/v1/responses" in settings["paths"] and "--tool-server" in line:
            fix = "start it without --tool-server, or take /v1/responses from the paths"
            result.append((f"{who} has a tool server: {endpoints.TOOL_TURNS}", fix))
        chunked = re.search(r"enable_chunked_processing\W+true", line, re.I)
        if chunked and "/v1/embeddings" in settings["paths"] and version < endpoints.CHUNKED_EMBEDDINGS:
            fix = "take /v1/embeddings from the paths, or upgrade to %d.%d" % endpoints.CHUNKED_EMBEDDINGS
            result.append((f"{who} cuts long embeddings into chunks and names those without the salt", fix))
        rust = engine.environment.get("VLLM_USE_RUST_FRONTEND", "").strip().lower()
        if settings["verify"] and rust not in ("", "0", "false", "no", "off"):
            fix = "unset VLLM_USE_RUST_FRONTEND, or do without the last hop's check"
            result.append((f"{who} has the Rust front end, which loads no middleware", fix))
    return result


def version_of(upstream: str) -> str | None:
    """The version that the engine itself says it is, None if nothing answers as vLLM does."""
    # Never through a proxy that the environment names.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://{settings_.address(upstream)}/version", timeout=5) as answer:
            version = json.loads(answer.read(1 << 16))["version"]
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError, RecursionError):
        return None
    return version if isinstance(version, str) else None


def version_problem(declared: str, said: str | None) -> tuple[str, str] | None:
    """Reason and fix if the engine says it is another version than was declared."""
    if said is None or endpoints.parse_version(said) == endpoints.parse_version(declared):
        return None
    why = f"the engine says it is {said!r}, and which endpoints take a salt depends on that"
    return why, "set it to what runs"


def open_to_network(upstream: str, proc: str = "/proc") -> bool:
    """True if something listens on the engine's port and not on the loopback interface only."""
    where = settings_.address(upstream)
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError), open(os.path.join(proc, "net", name), encoding="ascii") as file:
            for line in file.readlines()[1:]:
                fields = line.split()
                ip, _colon, port = fields[1].partition(":")
                listening = fields[3] == "0A" and where is not None and int(port, 16) == where.port
                if listening and not (ip.endswith("7F") and len(ip) == 8) and ip != "0" * 24 + "01000000":
                    return True
    return False
