# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Store registry, part: LMCache, inside vLLM or SGLang or as a server of its own."""

from __future__ import annotations

from .stores_model import BLOCK, TEMP, Danger, Dir, Engine, File, Store, name, program

ENGINES = (Engine("lmcache", dists=("lmcache",), programs=program("lmcache", "lmcache_server", "vllm", "sglang")),)

# MODEL@WORLD@WORKER@HASH@DTYPE and perhaps layer and tags (CacheEngineKey.to_string).
_KEY = r".+@\d+@\d+@-?[0-9a-f]+@[a-z0-9_]+(?:@.+)?"
# MODEL@0xRANK@GROUP@HASH and perhaps the salt, of the multi-process server.
_SERVER_KEY = r".+@0x[0-9a-f]{8,16}@[0-9a-f]+@[0-9a-f]+(?:@.+)?"
# The first kind again, percent-encoded.
_QUOTED = r"[A-Za-z0-9._~%-]+"
_QUOTED_KEY = rf"{_QUOTED}%40\d+%40\d+%40-?[0-9a-f]+%40[a-z0-9_]+(?:%40{_QUOTED})?"
_GDS = _QUOTED_KEY + r"\.(?:kvcache\.safetensors|weka1)(?:\.metadata)?"

STORES = (
    Store(
        name="lmcache_fs",
        title="LMCache remote `fs://` and the `fs` L2 adapter of its server",
        engine="lmcache",
        layout=Dir(
            files=(
                File(BLOCK, name(_KEY + r"\.data")),
                File(BLOCK, name(_SERVER_KEY + r"\.data")),
                File(TEMP, name(_KEY + r"\.tmp")),
                File(TEMP, name(_SERVER_KEY + r"\.tmp")),
            )
        ),
        live=True,
        live_from=None,
        removing="a missing chunk is a miss: it is computed again and stored again",
        dangers=(
            Danger(
                "the server's file names hold the cache_salt in clear",
                "LMCache 0.5.6 v1/distributed/l2_adapters/fs_l2_adapter.py:99-122",
            ),
            Danger(
                "with fs_connector_relative_tmp_dir or relative_tmp_dir set, unfinished files lie in a directory "
                "of the operator's naming that counts as a stranger: leave it unset",
                "LMCache 0.5.6 v1/storage_backend/connector/fs_connector.py:163",
            ),
            Danger(
                "the connector inside the engine drops vLLM's cache_salt: one directory per tenant",
                "LMCache/LMCache#2878",
            ),
        ),
    ),
    Store(
        name="lmcache_disk",
        title="LMCache LocalDisk (local_disk)",
        engine="lmcache",
        layout=Dir(files=(File(BLOCK, name(_KEY + r"\.pt")),)),
        live=False,
        live_from=None,
        removing="the engine keeps an index in memory: a file that vanishes under it ends the engine",
        dangers=(
            Danger(
                "eviction or a read of a missing file ends EngineCore with FileNotFoundError or KeyError",
                "LMCache/LMCache#1981, #2420, #1313; LMCache 0.5.6 local_disk_backend.py:290,820-824",
            ),
            Danger(
                "files of an earlier run are neither counted nor removed (460 GB seen at a limit of 250)",
                "LMCache/LMCache#2273, #2840, #1454",
            ),
            Danger("writes in place, without a temporary", "LMCache 0.5.6 local_disk_backend.py:782-785"),
        ),
    ),
    Store(
        name="lmcache_gds",
        title="LMCache GPUDirect Storage (gds_path)",
        engine="lmcache",
        # The two levels are the first characters of the hash as Python prints it: digits, or b'.. of bytes.
        layout=Dir(
            dirs=(
                Dir(
                    name(r"\d{1,2}|-\d|b['\"]"),
                    prune=True,
                    dirs=(
                        Dir(
                            name(r"[ -~]{1,2}"),
                            prune=True,
                            files=(File(BLOCK, name(_GDS)), File(TEMP, name(_GDS + r"\.tmp[0-9a-f]{8}"))),
                        ),
                    ),
                ),
            ),
        ),
        live=False,
        live_from=None,
        removing="the engine reads the tree once at start and keeps an index in memory: stop it first",
        dangers=(
            Danger("no cap and no eviction: it fills the disk", "LMCache/LMCache#4664"),
            Danger(
                "temporaries of failed writes are kept",
                "LMCache 0.5.6 v1/storage_backend/gds_backend.py:678,1030",
            ),
        ),
    ),
    Store(
        name="lmcache_nixl",
        title="LMCache NIXL static storage (files of one slot each)",
        engine="lmcache",
        layout=Dir(files=(File(BLOCK, name(r"obj_\d+_[0-9a-f]{4}\.bin")),)),
        live=False,
        live_from=None,
        removing="each start makes a new set of files; those of earlier runs are never used again",
        dangers=(
            Danger(
                "files are made 0755 under umask 022, a new set at every start, and none is ever removed",
                "LMCache 0.5.6 v1/storage_backend/nixl_storage_backend.py:344",
            ),
        ),
    ),
)
