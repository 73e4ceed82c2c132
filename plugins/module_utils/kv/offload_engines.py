# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Store registry, part: how llama.cpp, SGLang and LMCache are told their directory, and what is refused. Pure."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from .arguments import option
from .datamap import Tier
from .mapkeys import is_loopback
from .offload_keys import KeyFile
from .units import has_own_volume

CODES = {
    "inline-credentials": "a key in the arguments, which everybody who lists processes can read",
    "open-slots": "llama.cpp's /slots without a key: any client restores any file",
    "other-place": "the unit sends blocks to another directory",
    "open-admin": "an admin endpoint that asks for no key, or runs what it is sent",
}


class Settings(NamedTuple):
    """What an engine is given for a tier."""

    arguments: list[str]
    environment: dict[str, str]
    refusals: list[tuple[str, str, str]]  # code, reason, remedy
    warnings: list[str]


# Where each option was read: llama.cpp b11434 common/arg.cpp; SGLang 0.5.23 srt/server_args.py and srt/environ.py;
# LMCache 0.5.6 v1/config.py and v1/storage_backend/connector/__init__.py.


def _unusable(files: Mapping[str, KeyFile]) -> list[tuple[str, str, str]]:
    remedy = "name a file that exists by its full path, 0640, of root and the engine's group"
    return [
        ("inline-credentials", f"the file of {name}: {one.problem}", remedy)
        for name, one in sorted(files.items())
        if one.problem
    ]


def llamacpp(tier: Tier, words: Sequence[str], files: Mapping[str, KeyFile] | None = None) -> Settings:
    """Slot files of llama-server."""
    refusals = _unusable(files or {})
    if option(words, "--api-key") is not None:
        remedy = "put the key into a file that only the account can read, and use --api-key-file"
        refusals.append(("inline-credentials", "--api-key shows in the list of processes", remedy))
    elif option(words, "--api-key-file") is None and not is_loopback(option(words, "--host") or "127.0.0.1"):
        reason = "it listens for others without a key, and any client can save and restore any slot file"
        refusals.append(("open-slots", reason, "use --api-key-file, or --host 127.0.0.1 behind the gateway"))
    there = option(words, "--slot-save-path")
    if there is not None and there.rstrip("/") != tier["path"]:
        remedy = "take --slot-save-path out of the unit, the role puts it there"
        refusals.append(("other-place", "its --slot-save-path is another directory than the tier's", remedy))
    warnings = [
        "tier {}: any client that holds the API key can restore any slot file, whoever saved it; close /slots in the "
        "gateway".format(tier["name"]),
        "tier {}: `erase` empties the slot and leaves the file; only expiry removes it".format(tier["name"]),
    ]
    if not tier["max_bytes"] and not has_own_volume(tier):
        warnings.append(
            "tier {}: it has neither max_bytes nor a volume of its own: clients can fill the disk".format(tier["name"])
        )
    arguments = [] if there is not None else ["--slot-save-path", tier["path"]]
    return Settings(arguments, {}, refusals, warnings)


def sglang(tier: Tier, words: Sequence[str], files: Mapping[str, KeyFile] | None = None) -> Settings:
    """HiCache on files, backend `file` or `nixl`."""
    refusals = _unusable(files or {}) + _sglang_refusals(tier, words, files or {})
    if tier["store"] == "sglang_nixl":
        return Settings([], {"SGLANG_HICACHE_NIXL_BACKEND_STORAGE_DIR": tier["path"]}, refusals, [])
    environment = {"SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR": tier["path"]}
    if tier["max_bytes"]:
        environment["SGLANG_HICACHE_FILE_BACKEND_MAX_SIZE"] = str(tier["max_bytes"])
    return Settings([], environment, refusals, [])


def _sglang_refusals(tier: Tier, words: Sequence[str], files: Mapping[str, KeyFile]) -> list[tuple[str, str, str]]:
    found = []
    backend = option(words, "--hicache-storage-backend")
    if backend == "dynamic":
        found.append(("open-admin", "backend dynamic imports a module by name", "use file or nixl"))
    elif backend is not None and backend != {"sglang_file": "file", "sglang_nixl": "nixl"}[tier["store"]]:
        reason = "its storage backend is not that of store {}".format(tier["store"])
        found.append(("other-place", reason, "make --hicache-storage-backend and the tier's store agree"))
    extra = option(words, "--hicache-storage-backend-extra-config") or ""
    if "file_storage_path" in extra:
        remedy = "leave file_storage_path out, the role sets the directory"
        found.append(("other-place", "its extra config names a directory of its own", remedy))
    for name in ("--api-key", "--admin-api-key"):
        if option(words, name) is not None:
            remedy = f"move {name[2:]} to a file that only the account can read, and use --config"
            found.append(("inline-credentials", f"{name} shows in the list of processes", remedy))
    if option(words, "--admin-api-key", "--api-key") is None and not any(one.key for one in files.values()):
        reason = "its clear endpoint removes every file of the directory and asks for no key if none is configured"
        found.append(("open-admin", reason, "give an admin-api-key in the file that --config names"))
    return found


def lmcache(tier: Tier, words: Sequence[str], _files: Mapping[str, KeyFile] | None = None) -> Settings:
    """LMCache inside an engine: LocalDisk or the fs:// remote. Its own variables win over its file."""
    environment = {
        "LMCACHE_INTERNAL_API_SERVER_HOST": "127.0.0.1",
        "LMCACHE_RUN_SCRIPT_API_ENABLED": "False",
    }
    refusals = []
    if tier["store"] == "lmcache_fs":
        environment["LMCACHE_REMOTE_URL"] = "fs://" + tier["path"]
    else:
        environment["LMCACHE_LOCAL_DISK"] = tier["path"]
        if not tier["max_bytes"]:
            reason = "without a cap LocalDisk stores nothing, and files of an earlier run are never counted"
            refusals.append(("other-place", reason, "give the tier max_bytes"))
        else:
            environment["LMCACHE_MAX_LOCAL_DISK_SIZE"] = "%g" % (tier["max_bytes"] / (1 << 30))
    if option(words, "--run-script-api-enabled") is not None:
        remedy = "take --run-script-api-enabled out of the unit"
        refusals.append(("open-admin", "/run_script runs what it is sent", remedy))
    warnings = []
    if _is_lmcache_server(words):
        given = {name: option(words, name) for name in ("--host", "--http-host")}
        if os.path.basename(words[0]) == "lmcache_server" and len(words) > 1 and not words[1].startswith("-"):
            given["--host"] = words[1]
        for name, address in given.items():
            if address is not None and not is_loopback(address):
                reason = f"{name}: it answers other machines, and its endpoints ask for no key"
                refusals.append(("open-admin", reason, f"write {name} 127.0.0.1"))
    else:
        text = "tier {}: LMCache inside the engine drops cache_salt: one engine and one directory for each tenant"
        warnings.append(text.format(tier["name"]))
    if tier["store"] == "lmcache_disk":
        text = "tier {}: LocalDisk keeps an index in memory; its blocks expire only while the engine is stopped"
        warnings.append(text.format(tier["name"]))
    return Settings([], environment, refusals, warnings)


def _is_lmcache_server(words: Sequence[str]) -> bool:
    """Is that LMCache's own server, whose --host is its own?"""
    return any(os.path.basename(word) in ("lmcache", "lmcache_server") for word in words[:2]) or any(
        word == "-m" and following.partition(".")[0] == "lmcache" for word, following in zip(words, words[1:])
    )


ENGINES = {
    "llamacpp": (("llamacpp_slots",), llamacpp),
    "sglang": (("sglang_file", "sglang_nixl"), sglang),
    "lmcache": (("lmcache_fs", "lmcache_disk"), lmcache),
}
NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?", re.ASCII)
