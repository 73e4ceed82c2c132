# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Store registry, part: how llama.cpp, SGLang and LMCache are told their directory, and what is refused. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from .datamap import Tier
from .mapkeys import is_loopback
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


def option(words: Sequence[str], *names: str) -> str | None:
    """The last value of an option in a command line; "" if it stands there without one."""
    found = None
    for number, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name in names:
            following = words[number + 1] if number + 1 < len(words) else ""
            found = value if equals else "" if following.startswith("-") else following
    return found


# Where each option was read: llama.cpp b11434 common/arg.cpp; SGLang 0.5.23 srt/server_args.py and srt/environ.py;
# LMCache 0.5.6 v1/config.py and v1/storage_backend/connector/__init__.py.


def llamacpp(tier: Tier, words: Sequence[str]) -> Settings:
    """Slot files of llama-server."""
    refusals = []
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


def sglang(tier: Tier, words: Sequence[str]) -> Settings:
    """HiCache on files, backend `file` or `nixl`."""
    refusals = _sglang_refusals(tier, words)
    if tier["store"] == "sglang_nixl":
        return Settings([], {"SGLANG_HICACHE_NIXL_BACKEND_STORAGE_DIR": tier["path"]}, refusals, [])
    environment = {"SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR": tier["path"]}
    if tier["max_bytes"]:
        environment["SGLANG_HICACHE_FILE_BACKEND_MAX_SIZE"] = str(tier["max_bytes"])
    return Settings([], environment, refusals, [])


def _sglang_refusals(tier: Tier, words: Sequence[str]) -> list[tuple[str, str, str]]:
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
    named = option(words, "--admin-api-key", "--api-key", "--config")
    if named is None:
        reason = "its clear endpoint removes every file of the directory and asks for no key if none is configured"
        found.append(("open-admin", reason, "give an admin-api-key in the file that --config names"))
    return found


def lmcache(tier: Tier, words: Sequence[str]) -> Settings:
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
    for name in ("--run-script-api-enabled", "--host", "--http-host"):
        value = option(words, name)
        if name == "--run-script-api-enabled" and value is not None:
            refusals.append(("open-admin", "/run_script runs what it is sent", f"take {name} out of the unit"))
    warnings = []
    if tier["store"] == "lmcache_disk":
        text = "tier {}: LocalDisk keeps an index in memory; its blocks expire only while the engine is stopped"
        warnings.append(text.format(tier["name"]))
    return Settings([], environment, refusals, warnings)


ENGINES = {
    "llamacpp": (("llamacpp_slots",), llamacpp),
    "sglang": (("sglang_file", "sglang_nixl"), sglang),
    "lmcache": (("lmcache_fs", "lmcache_disk"), lmcache),
}
NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?", re.ASCII)
