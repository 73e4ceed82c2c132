# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What KV-10 rests on: who can reach the engine, and whether canary prompts are found in the store by their names."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Callable

from . import arguments, blocknames, discovery, fsio, offload_found, prefixprobe
from .datamap import Tier
from .evidence_engine import Running
from .mapkeys import is_loopback

CANARIES = "/etc/llmhost/canaries.json"
STORES = ("vllm_fs", "llmd_fs")
# A process's unit comes from its cgroup, which no account can choose; its command line anybody can.
_GATEWAY = "llmhost-gateway.service"
# At the beginning of a line: deeper ones are of other settings.
_HOST = re.compile(r"""^host\s*:\s*["']?([^\s"',#]+)""", re.MULTILINE | re.ASCII)
_DEFAULTS: dict[str, Any] = {
    "version": None,
    "block_size": 16,
    "blocks_per_chunk": 1,
    "hash_algorithm": "sha256",
    "hash_seed": None,
    "salt_file": None,
}


@dataclass(frozen=True)
class Canary:
    """One canary prompt. salted None: no salt was given to look with; problem: why it was not looked for."""

    number: int
    blocks: int = 0
    unsalted: int = 0
    salted: int | None = None
    problem: str | None = None


@dataclass
class Server:
    """A running engine that answers requests. listens None: nothing in its arguments says where; it has its own net."""

    pid: int
    version: str | None
    hash_algorithm: str | None
    listens: str
    local: bool
    own_network: bool | None


@dataclass
class Names:
    """Everything that is known of how a tier's blocks are named. gateway None: processes cannot be seen."""

    servers: list[Server] = field(default_factory=list)
    gateway: bool | None = None
    canaries: list[Canary] = field(default_factory=list)
    problem: str | None = None


def look(
    tier: Tier,
    running: Sequence[Running],
    processes: Sequence[discovery.Process] | None,
    proc: str = "/proc",
    path: str = CANARIES,
) -> Names:
    """Evidence about one tier (reads only; of blocks nothing but names)."""
    names = Names()
    if tier["store"] not in STORES:
        return names
    if processes is not None:
        names.gateway = any(process.unit == _GATEWAY for process in processes)
    names.servers = [_server(one, proc) for one in running if arguments.is_server(one.words)]
    entries, names.problem = entries_in(path)
    versions = sorted({one.version for one in names.servers if one.version})
    for number, entry in enumerate(entries, 1):
        if entry.get("tier") == tier["name"]:
            look_in = partial(prefixprobe.in_directory, root=tier["path"])
            names.canaries.append(canary(number, entry, versions, look_in))
    return names


def entries_in(path: str) -> tuple[list[dict[str, Any]], str | None]:
    """The canary prompts in a file of root's, and what is wrong with the file; one that is not there has none."""
    try:
        document = fsio.read_json(path, owner=0)
    except FileNotFoundError:
        return [], None
    except (OSError, ValueError, fsio.UnsafePath) as error:
        return [], f"{path}: {error}"
    entries = document.get("canaries") if isinstance(document, dict) else None
    if not isinstance(entries, list) or not all(isinstance(one, dict) for one in entries):
        return [], f"{path}: it has no list `canaries`"
    return entries, None


def _server(one: Running, proc: str) -> Server:
    words = list(one.words)
    listens = ""
    for number, word in enumerate(words):
        name, _equals, value = word.partition("=")
        if name in ("--host", "--uds"):
            listens = value or (words[number + 1] if number + 1 < len(words) else "")
            if name == "--uds":
                listens = "unix:" + listens
    if not listens:
        listens = _host_of(one.config or "")
    try:
        own: bool | None = os.readlink(f"{proc}/{one.pid}/ns/net") != os.readlink(f"{proc}/self/ns/net")
    except OSError:
        own = None
    local = listens.startswith("unix:") or bool(listens and is_loopback(listens))
    algorithm = offload_found.settings_of(one.words, one.config).hash_algorithm
    return Server(one.pid, one.version, algorithm, listens or "every address (the engine's default)", local, own)


def _host_of(config: str) -> str:
    """The top-level `host` of a settings file, in YAML or its JSON form."""
    try:
        document = json.loads("\n".join(line for line in config.splitlines() if not line.startswith("#")))
    except (ValueError, RecursionError):
        match = _HOST.search(config)
        return match.group(1) if match else ""
    return str(document.get("host") or "") if isinstance(document, dict) else ""


def canary(
    number: int, given: dict[str, Any], versions: Sequence[str], there: Callable[[list[str]], list[bool]]
) -> Canary:
    """Looks for one canary under the names of each release that runs. there: which of some names are in the store."""
    entry = {**_DEFAULTS, **given}
    unknown = sorted(set(entry) - set(_DEFAULTS) - {"tier", "token_ids"})
    tokens: Any = entry.get("token_ids")
    wanted = [str(entry["version"])] if entry["version"] else list(versions)
    if unknown:
        return Canary(number, problem="unknown key {}".format(", ".join(map(str, unknown))))
    if not isinstance(tokens, list) or not all(isinstance(one, int) and one >= 0 for one in tokens):
        return Canary(number, problem="token_ids is no list of whole numbers")
    if not wanted:
        return Canary(number, problem="no engine runs that tells its release, and the canary names none")
    blocks = unsalted = 0
    salted: int | None = None
    problem = None
    try:
        salt = _salt(entry["salt_file"])
        for version in wanted:
            how = (entry["block_size"], version, entry["hash_algorithm"])
            more = (entry["hash_seed"], entry["blocks_per_chunk"])
            plain = blocknames.names(tokens, *how, None, *more)
            blocks = max(blocks, len(plain))
            unsalted += sum(there(plain))
            if salt is not None:
                with_salt = blocknames.names(tokens, *how, salt, *more)
                salted = (salted or 0) + sum(there(with_salt))
        if not blocks:
            problem = "%d tokens do not fill one block" % len(tokens)
    except (blocknames.Unpredictable, OSError, ValueError, TypeError, fsio.UnsafePath) as error:
        problem = str(error)
    return Canary(number, blocks, unsalted, salted, problem)


def _salt(path: Any) -> str | None:
    """The canary tenant's salt, out of a file that only root can read."""
    if path is None:
        return None
    text = fsio.read_small(str(path), owner=0, limit=4096).decode().strip()
    if os.lstat(str(path)).st_mode & 0o077:
        raise ValueError(f"{path} is not root's alone")
    if not text:
        raise ValueError(f"{path} is empty")
    return text
