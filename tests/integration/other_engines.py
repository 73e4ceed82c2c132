# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Lets SGLang's and LMCache's own file writers store a page, out of their wheels, without torch or a GPU.

other_engines.py ENGINE TREE      JSON on stdin and stdout
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

import engine_classes


class Page:
    """As much of a tensor as the writers use: some bytes."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.byte_array = bytearray(data)

    def numel(self) -> int:
        return len(self.data)

    def element_size(self) -> int:
        return 1

    def contiguous(self) -> Page:
        return self

    def view(self, *_arguments: Any, **_more: Any) -> Page:
        return self

    def numpy(self) -> Page:
        return self

    def tofile(self, path: str) -> None:
        with open(path, "wb") as file:
            file.write(self.data)


def sglang(given: dict[str, Any]) -> dict[str, Any]:
    """Stores pages through HiCacheFile; its directory and cap come from the environment, as the role sets them."""
    # Only bytes are asked of it here; its own parser of sizes lies in a module that needs half of SGLang.
    importlib.import_module("sglang.srt.utils.common").human_readable_int = int  # type: ignore[attr-defined]
    storage = importlib.import_module("sglang.srt.mem_cache.hicache_storage")
    config = storage.HiCacheStorageConfig(
        tp_rank=0,
        tp_size=1,
        pp_rank=0,
        pp_size=1,
        attn_cp_rank=0,
        attn_cp_size=1,
        is_mla_model=False,
        enable_storage_metrics=False,
        is_page_first_layout=True,
        model_name="org/model",
    )
    backend = storage.HiCacheFile(config)
    stored = [backend.set(key, Page(b"x" * 4096)) for key in given["keys"]]
    there = sorted(os.listdir(backend.file_path))
    missing = backend.get("f" * 64, Page(b""))
    if given.get("clear"):
        backend.clear()
    return {"place": backend.file_path, "stored": stored, "files": there, "missing": missing is None}


def lmcache(given: dict[str, Any]) -> dict[str, Any]:
    """What its configuration makes of the environment; then its writer of that store stores a chunk and reads it."""
    config = importlib.import_module("lmcache.v1.config").LMCacheEngineConfig.from_env()
    utils = importlib.import_module("lmcache.utils")
    dtype = next(iter(utils.TORCH_DTYPE_TO_STR_DTYPE))
    key = utils.CacheEngineKey("org/model", 1, 0, 0x5F0C0FFEE, dtype)
    write = _lmcache_fs if given["store"] == "lmcache_fs" else _lmcache_disk
    return {"config": {name: getattr(config, name) for name in given["names"]}, **write(config, key)}


def _lmcache_fs(config: Any, key: Any) -> dict[str, Any]:
    place = "lmcache.v1.storage_backend.connector."
    # Shapes of tensors are all that it keeps; here a page is as long as its file.
    blank = {"__init__": lambda _self, *_arguments: None, "__getattr__": lambda _self, _name: None}
    base = type("RemoteConnector", (), blank)
    importlib.import_module(place + "base_connector").RemoteConnector = base  # type: ignore[attr-defined]
    connector = importlib.import_module(place + "fs_connector").FSConnector
    memory = engine_classes.Anything()
    memory.allocate = lambda *_arguments: Page(bytes(4096))  # type: ignore[attr-defined]
    fs = connector(None, memory, None, base_paths_str=str(config.remote_url).removeprefix("fs://"))
    fs.save_chunk_meta, fs.reshape_partial_chunk = False, lambda page, _count: page
    asyncio.run(fs.put(key, Page(b"x" * 4096)))
    there = sorted(os.listdir(fs.base_paths[0]))
    read = asyncio.run(fs.get(key))
    (fs.base_paths[0] / there[0]).unlink()
    gone = asyncio.run(fs.get(key)) is None
    temporary = fs._get_file_and_tmp_path(key)[1].name
    return {"files": there, "same": read.byte_array == b"x" * 4096, "miss": gone, "temporary": temporary}


def _lmcache_disk(config: Any, key: Any) -> dict[str, Any]:
    backend = importlib.import_module("lmcache.v1.storage_backend.local_disk_backend").LocalDiskBackend
    disk = backend.__new__(backend)
    disk.path, disk.os_disk_bs, disk.use_odirect, disk.dict = str(config.local_disk), 4096, False, {}
    path = disk._key_to_path(key)
    disk.write_file(bytearray(b"x" * 4096), path)
    read = bytearray(4096)
    disk.read_file(key, read, path)
    return {"files": sorted(os.listdir(disk.path)), "same": read == b"x" * 4096}


def main() -> None:
    engine, tree = sys.argv[1], Path(sys.argv[2])
    given = json.load(sys.stdin)
    engine_classes.prepare(tree, engine)
    try:
        result = {"sglang": sglang, "lmcache": lmcache}[engine](given)
    except Exception as error:
        result = {"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc(limit=-6)}
    print(json.dumps(result, default=str), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
