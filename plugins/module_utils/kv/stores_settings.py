# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Store registry, part: what settings send KV state where. From arguments, environment and named files; pure.

Sources: vLLM 0.33.0 distributed/kv_transfer and v1/kv_offload; LMCache 0.5.6 v1/config.py; SGLang 0.5.23
srt/server_args.py and srt/environ.py; llama.cpp b11434 common/arg.cpp; FlexKV docs/flexkv_config_reference; Mooncake
and Dynamo as named in their entries of the registry.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, Callable, NamedTuple

from .arguments import is_server, option, option_name, set_at
from .loosely import parse, value_of
from .stores import STORES

Reader = Callable[[str], "str | None"]
# Variables that are looked at at all; every other one is dropped as soon as it was read.
ENVIRONMENT = re.compile(
    r"LMCACHE_(?:CONFIG_FILE|LOCAL_DISK|REMOTE_URL|GDS_PATH)|FLEXKV_(?:CONFIG_PATH|SSD_CACHE_DIR|SSD_CACHE_GB)"
    r"|MOONCAKE_(?:CONFIG_PATH|OFFLOAD_FILE_STORAGE_PATH)|DYN_KVBM_DISK_CACHE_(?:GB|DIR)"
    r"|SGLANG_HICACHE_(?:FILE|NIXL)_BACKEND_STORAGE_DIR|SGLANG_HICACHE_(?:HF3FS|MOONCAKE)_CONFIG_PATH",
    re.ASCII,
)
# What vLLM names its file in /dev/shm (v1/kv_offload/cpu/shared_offload_region.py).
SHARED_MEMORY = re.compile(r"vllm_offload_.+\.mmap(?:\.\d{1,2})?", re.ASCII)
# Files by which a value may be meant: arguments that name one.
_CONFIG = ("--config", "--lmcache-config", "--lmcache-config-file")
_MAX_CONNECTORS = 32
# Connectors that write below shared_storage_path, and the store that this is.
_SHARED_STORAGE = {
    "ExampleConnector": "vllm_example",
    "SharedStorageConnector": "vllm_example",
    "ExampleHiddenStatesConnector": "vllm_hidden_states",
}
# Listeners that engines open for their own kind: first and last port, and what speaks there.
PORTS = (
    (5710, 5741, "vLLM p2p tier"),
    (5600, 5631, "NIXL side channel"),
    (5555, 5555, "LMCache server"),
    (5556, 5556, "FlexKV"),
    (5557, 5559, "KV events or FlexKV"),
    (6999, 7030, "LMCache internal API"),
    (8998, 8998, "Mooncake bootstrap"),
    (18000, 18000, "HF3FS metadata"),
    (50051, 50052, "Mooncake"),
)


class Place(NamedTuple):
    """One place that settings name. path as the engine sees it, None for a bucket or listener."""

    store: str
    path: str | None
    named_by: str
    default: bool = False
    bucket: str | None = None
    endpoint: str | None = None
    prefix: str | None = None


class Named(NamedTuple):
    """What settings say: places, files that were named and their fate, and what could not be understood."""

    places: list[Place]
    files: list[str]
    unread: list[str]


class _Settings:
    def __init__(self, words: Sequence[str], environment: Mapping[str, str], read: Reader) -> None:
        self.words, self.environment, self._read = words, environment, read
        self.places: list[Place] = []
        self.files: list[str] = []
        self.unread: list[str] = []

    def add(self, store: str, path: Any, by: str, default: bool = False) -> None:
        if isinstance(path, str) and path.strip():
            self.places.append(Place(store, path.strip(), by, default))

    def file(self, path: Any, by: str) -> dict[str, Any]:
        """The mapping in a file that a setting names."""
        if not isinstance(path, str) or not path:
            return {}
        self.files.append(path)
        text = self._read(path)
        value = parse(text) if text is not None else None
        if isinstance(value, dict):
            return value
        self.unread.append(f"{path} ({by}) {'cannot be read' if text is None else 'is not understood'}")
        return {}


def named(words: Sequence[str], environment: Mapping[str, str], read: Reader) -> Named:
    """The places that a command line, its environment and the files they name send KV state to.

    read: the text of a file as the engine sees it, None if it cannot be read.
    """
    settings = _Settings(words, environment, read)
    programs = {word.rpartition("/")[2] for word in words[:4]}
    lines = "\0".join(words[:8])
    if is_server(words) or _is_transfer(words):
        _vllm(settings)
    if "sglang" in lines:
        _sglang(settings)
    if "llama-server" in programs:
        settings.add("llamacpp_slots", option(words, "--slot-save-path"), "--slot-save-path")
    if "llama_cpp" in lines and option(words, "--cache_type") == "disk":
        _default(settings, "llama_cpp_python_disk", "--cache_type")
    if "ktransformers" in lines or "balance_serve" in lines:
        settings.add("ktransformers", option(words, "--kvc2_disk_path", "--disk_path"), "--kvc2_disk_path")
    _lmcache(settings)
    _from_environment(settings)
    return Named(list(dict.fromkeys(settings.places)), settings.files, settings.unread)


def _is_transfer(words: Sequence[str]) -> bool:
    return any(word.startswith(("--kv-transfer-config", "--kv_transfer_config")) for word in words)


def _default(settings: _Settings, store: str, by: str) -> None:
    for path in STORES[store].default_paths[:1]:
        settings.add(store, path, by + ", its default", True)


def _vllm(settings: _Settings) -> None:
    transfer: Any = None
    path = option(settings.words, "--config")
    if path:
        given = {option_name("--" + str(key)): value for key, value in settings.file(path, "--config").items()}
        transfer = value_of(given.get("--kv-transfer-config"))
    for number, word in enumerate(settings.words):
        name = option_name(word)
        following = settings.words[number + 1] if number + 1 < len(settings.words) else ""
        value = word.partition("=")[2] if "=" in word else following
        if name == "--kv-transfer-config":
            transfer = value_of(value)
        elif name.startswith("--kv-transfer-config."):
            transfer = set_at(transfer, name.partition(".")[2], value_of(value))
    if transfer is None:
        return
    if not isinstance(transfer, dict):
        settings.unread.append("--kv-transfer-config is not understood")
        return
    _connector(settings, transfer, 0)


def _connector(settings: _Settings, transfer: Mapping[str, Any], depth: int) -> None:
    name = str(transfer.get("kv_connector") or "")
    extra = transfer.get("kv_connector_extra_config")
    extra = extra if isinstance(extra, dict) else {}
    by = f"--kv-transfer-config {name}"
    below = extra.get("connectors")
    if isinstance(below, list) and depth < 4:
        for one in below[:_MAX_CONNECTORS]:
            if isinstance(one, dict):
                _connector(settings, one, depth + 1)
    tiers = extra.get("secondary_tiers")
    for tier in tiers[:_MAX_CONNECTORS] if isinstance(tiers, list) else []:
        if isinstance(tier, dict):
            _secondary(settings, tier, by)
    if extra.get("spec_name") == "SharedStorageOffloadingSpec":
        settings.add("llmd_fs", extra.get("shared_storage_path"), by)
    elif name in _SHARED_STORAGE:
        path = extra.get("shared_storage_path")
        if path:
            settings.add(_SHARED_STORAGE[name], path, by)
        else:
            _default(settings, _SHARED_STORAGE[name], by)
    elif name == "HF3FSKVConnector":
        path = extra.get("hf3fs_storage_path")
        if path:
            settings.add("hf3fs", path, by)
        else:
            _default(settings, "hf3fs", by)
    elif name == "SimpleCPUOffloadConnector" and extra.get("kv_offload_backend") == "disk":
        settings.add("vllm_simple_disk", os.path.dirname(str(extra.get("disk_path") or "")), by)
    elif name == "FlexKVConnectorV1" and not _flexkv_given(settings):
        _default(settings, "flexkv", by)
    elif name == "MooncakeStoreConnector" and "MOONCAKE_OFFLOAD_FILE_STORAGE_PATH" not in settings.environment:
        _default(settings, "mooncake", by)


def _flexkv_given(settings: _Settings) -> bool:
    return any(name in settings.environment for name in ("FLEXKV_CONFIG_PATH", "FLEXKV_SSD_CACHE_DIR"))


def _secondary(settings: _Settings, tier: Mapping[str, Any], by: str) -> None:
    kind = tier.get("type")
    by = f"{by} {kind}"
    if kind in ("fs", "fs_python"):
        settings.add("vllm_fs", tier.get("root_dir"), by)
    elif kind == "obj":
        store = tier.get("store_config")
        store = store if isinstance(store, dict) else {}
        texts = [str(value) if value else None for value in (store.get("bucket"), store.get("endpoint_override"))]
        settings.places.append(Place("vllm_obj", None, by, False, texts[0], texts[1], str(tier.get("prefix") or "")))
    elif kind == "p2p":
        settings.places.append(Place("vllm_p2p", None, by))
    elif kind == "kvcr":
        files = tier.get("g3")
        files = files.get("paths") if isinstance(files, dict) else None
        for path in files[:_MAX_CONNECTORS] if isinstance(files, list) else []:
            settings.add("kvcr", os.path.dirname(str(path)), by)


def _sglang(settings: _Settings) -> None:
    words = settings.words
    given = settings.file(option(words, "--config"), "--config") if option(words, "--config") else {}
    given = {str(key).replace("_", "-"): value for key, value in given.items()}
    name = "hicache-storage-backend"
    backend = option(words, "--" + name) or given.get(name)
    extra = value_of(option(words, f"--{name}-extra-config") or given.get(f"{name}-extra-config"))
    extra = extra if isinstance(extra, dict) else {}
    stores = {
        "file": ("sglang_file", "FILE", extra.get("file_storage_path")),
        "nixl": ("sglang_nixl", "NIXL", None),
    }
    if backend in stores:
        store, word, inline = stores[backend]
        variable = f"SGLANG_HICACHE_{word}_BACKEND_STORAGE_DIR"
        value = settings.environment.get(variable) or inline
        if value:
            for path in str(value).split(","):
                settings.add(store, path, variable if variable in settings.environment else f"--{name}-extra-config")
        else:
            _default(settings, store, f"--{name} {backend}")
    elif backend == "hf3fs":
        _default(settings, "hf3fs", f"--{name}")
    elif backend == "mooncake":
        _default(settings, "mooncake", f"--{name}")


def _lmcache(settings: _Settings) -> None:
    given: dict[str, Any] = {}
    for by in ("LMCACHE_CONFIG_FILE", *_CONFIG[1:]):
        named_file = settings.environment.get(by) or option(settings.words, by)
        if named_file:
            given.update(settings.file(named_file, by))
    for key in ("local_disk", "remote_url", "gds_path"):
        variable = "LMCACHE_" + key.upper()
        value = settings.environment.get(variable, given.get(key))
        by = variable if variable in settings.environment else key
        for path in str(value or "").split(",") if value not in (None, False) else []:
            path = path.strip()
            if key == "remote_url":
                if path.startswith("fs://"):
                    settings.add("lmcache_fs", "/" + path[5:].partition("/")[2], by)
            elif path.lower() not in ("", "none", "null", "false", "true"):
                store = "lmcache_disk" if key == "local_disk" else "lmcache_gds"
                settings.add(store, path[7:] if path.startswith("file://") else path, by)


def _from_environment(settings: _Settings) -> None:
    environment = settings.environment
    flexkv = settings.file(environment.get("FLEXKV_CONFIG_PATH"), "FLEXKV_CONFIG_PATH")
    directory = environment.get("FLEXKV_SSD_CACHE_DIR") or flexkv.get("ssd_cache_dir")
    for path in str(directory or "").split(";"):
        settings.add("flexkv", path, "FLEXKV_SSD_CACHE_DIR")
    for by in ("MOONCAKE_CONFIG_PATH", "SGLANG_HICACHE_MOONCAKE_CONFIG_PATH"):
        settings.add("mooncake", settings.file(environment.get(by), by).get("file_storage_path"), by)
    by = "MOONCAKE_OFFLOAD_FILE_STORAGE_PATH"
    settings.add("mooncake", environment.get(by), by)
    if environment.get("DYN_KVBM_DISK_CACHE_GB", "0") not in ("", "0"):
        there = environment.get("DYN_KVBM_DISK_CACHE_DIR")
        if there:
            settings.add("dynamo_kvbm", there, "DYN_KVBM_DISK_CACHE_DIR")
        else:
            _default(settings, "dynamo_kvbm", "DYN_KVBM_DISK_CACHE_GB")
