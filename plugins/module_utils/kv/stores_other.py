# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Store registry, part: SGLang, llama.cpp, Mooncake, KTransformers, Dynamo."""

from __future__ import annotations

from .stores_model import BLOCK, CONFIG, OBSERVED, TEMP, Danger, Dir, Engine, File, Store, name, program

ENGINES = (
    Engine("sglang", dists=("sglang",), programs=program("sglang")),
    Engine("llama.cpp", programs=name(r"(?:^|/)llama-server(?:[\s\0]|$)")),
    Engine("llama-cpp-python", dists=("llama_cpp_python",), programs=program("llama_cpp")),
    Engine(
        "mooncake",
        dists=("mooncake_transfer_engine",),
        programs=program("mooncake", "mooncake_master", "mooncake_client", "vllm", "sglang"),
    ),
    Engine("ktransformers", dists=("ktransformers",), programs=program("ktransformers")),
    Engine("dynamo", dists=("ai_dynamo",), programs=program("dynamo", "vllm")),
)

_SHA256 = r"[0-9a-f]{64}"
_HEX_PAIR = r"[0-9a-f]{2}"

STORES = (
    Store(
        name="sglang_file",
        title="SGLang HiCache, storage backend `file`",
        engine="sglang",
        # HASH[.POOL]_MODEL and ranks; MODEL may be empty.
        layout=Dir(
            files=(
                File(BLOCK, name(_SHA256 + r"(?:\.[a-z0-9_]+)?_.*\.bin")),
                File(TEMP, name(r"\.[0-9a-f]{32}\.tmp")),
            )
        ),
        live=True,
        live_from=None,
        removing="a missing page is a miss: it is computed again and stored again",
        default_paths=("/tmp/hicache",),  # noqa: S108  where the engine writes, not we
        dangers=(
            Danger(
                "one flat directory: ext4 without large_dir reports a full disk at millions of files; cap max_files",
                "sgl-project/sglang#28653, #28654",
            ),
            Danger(
                "neither dtype nor layout is in the name: after a change of either, wrong bytes load; empty it first",
                "SGLang 0.5.23 mem_cache/hicache_storage.py:763",
            ),
            Danger(
                "the clear endpoint needs no key if none is configured and removes every file of the directory",
                "SGLang 0.5.23 mem_cache/hicache_storage.py:1095-1105",
            ),
            Danger("a killed server leaves its temporaries for good", "SGLang 0.5.23 mem_cache/hicache_storage.py:908"),
        ),
    ),
    Store(
        name="sglang_nixl",
        title="SGLang HiCache, storage backend `nixl` on files",
        engine="sglang",
        # The engine makes its 256 directories once, at start: they must stay.
        layout=Dir(dirs=(Dir(name(_HEX_PAIR), files=(File(BLOCK, name(_SHA256 + r"_.*")),)),)),
        live=True,
        live_from=None,
        removing="a missing page is a miss: it is computed again and stored again",
        default_paths=("/tmp/hicache_storage",),  # noqa: S108  where the engine writes, not we
        dangers=(
            Danger("blocks are 0644 and written in place", "SGLang 0.5.23 mem_cache/storage/nixl/nixl_utils.py:303"),
            Danger(
                "its own cleaner goes by how full the file system is (80/70 %), not by age",
                "SGLang 0.5.23 mem_cache/storage/nixl/nixl_cleaner.py:21-22",
            ),
        ),
    ),
    Store(
        name="llamacpp_slots",
        title="llama.cpp server slot files (--slot-save-path)",
        engine="llama.cpp",
        # The client chooses the name, so only the first bytes tell a slot file from a stranger's.
        layout=Dir(files=(File(BLOCK, name(r"(?s:.+)"), magic=b"qsgg"),)),
        live=True,
        live_from=None,
        removing="restoring a missing file answers 400; the server goes on",
        evidence=OBSERVED,
        dangers=(
            Danger(
                "the prompt's token ids stand in clear at the head of each file",
                "llama.cpp b11434 server-context.cpp; observed with 0.6.0-dev",
            ),
            Danger(
                "erase clears the slot and leaves the file; any client may restore any file",
                "observed with llama.cpp 0.6.0-dev",
            ),
        ),
    ),
    Store(
        name="llama_cpp_python_disk",
        title="llama-cpp-python server with cache_type `disk` (LlamaDiskCache)",
        engine="llama-cpp-python",
        layout=Dir(
            files=(File(BLOCK, name(r"cache\.db(?:-wal|-shm|-journal)?"), common=True),),
            dirs=(
                Dir(
                    name(_HEX_PAIR),
                    prune=True,
                    dirs=(Dir(name(_HEX_PAIR), prune=True, files=(File(BLOCK, name(r"[0-9a-f]{28}\.val")),)),),
                ),
            ),
        ),
        live=False,
        live_from=None,
        removing="a missing value is a miss once the server starts again; a missing database empties the cache",
        default_paths=(".cache/llama_cache",),
        dangers=(
            Danger(
                "values are pickles: whoever can write the directory runs code in the server",
                "llama-cpp-python llama_cpp/llama_cache.py",
            ),
            Danger(
                "keys in the database are the prompts' token ids in clear, as old as the database is in use: "
                "its age is that of its last write",
                "llama-cpp-python llama_cpp/llama_cache.py; diskcache 5.6.3 core.py",
            ),
        ),
    ),
    Store(
        name="mooncake",
        title="Mooncake Store SSD offload (bucket storage backend)",
        engine="mooncake",
        layout=Dir(files=(File(BLOCK, name(r"\d+(?:-\d+)?\.(?:bucket|meta)")),)),
        live=False,
        live_from=None,
        removing="the client keeps an index in memory and reads the directory again at start: stop it first",
        default_paths=("/data/file_storage",),
        dangers=(
            Danger(
                "the file_per_key and other storage backends have names that are not known here: they are strangers",
                "Mooncake MOONCAKE_OFFLOAD_STORAGE_BACKEND_DESCRIPTOR",
            ),
            Danger("nothing was evicted before #2474: set the limits explicitly", "kvcache-ai/Mooncake#2475, #924"),
            Danger(
                "master 50051, client 0.0.0.0:50052 and metadata 8080 listen without authentication; "
                "a socket in /tmp accepts a reset that removes everything",
                "vLLM 0.33.0 MooncakeStoreConnector",
            ),
        ),
    ),
    Store(
        name="ktransformers",
        title="KTransformers kvc2 (balance_serve, disk_path)",
        engine="ktransformers",
        layout=Dir(
            files=(
                File(BLOCK, name(r"tree\.json")),
                File(CONFIG, name(r"(?:disk_cache|config|quant_configs|model_configs)\.json")),
            ),
            dirs=(
                # MODEL/QUANTISATION/key or value
                Dir(
                    name(r"[A-Za-z0-9].*"),
                    dirs=(
                        Dir(
                            name(r"[A-Za-z0-9].*"),
                            dirs=(Dir(name(r"key|value"), files=(File(BLOCK, name(r"layer-\d+\.kvc")),)),),
                        ),
                    ),
                ),
            ),
        ),
        live=False,
        live_from=None,
        removing="only as a whole: a tree.json that is younger than the layers it names points at what is gone",
        default_paths=("/mnt/data/kvc",),
        dangers=(
            Danger(
                "the engine cannot delete KV: if an expiry left tree.json, empty the tier before the next start",
                "KTransformers balance_serve documentation; csrc/balance_serve/kvc2/src/prefix.cpp",
            ),
            Danger("tree.json holds the prompts' token ids in clear", "KTransformers kvc2/src/prefix.cpp"),
            Danger("cache_salt is ignored", "kvcache-ai/ktransformers#2184"),
        ),
    ),
    Store(
        name="dynamo_kvbm",
        title="NVIDIA Dynamo KVBM disk cache (DYN_KVBM_DISK_CACHE_GB)",
        engine="dynamo",
        layout=Dir(
            files=(
                File(BLOCK, name(r"dynamo-kvbm-disk-cache-[A-Za-z0-9]{6}")),
                File(BLOCK, name(r"kvbm_g3_[A-Za-z0-9_-]+\.bin")),
            )
        ),
        live=False,
        live_from=None,
        removing="what has a name is left over from a run that ended badly: a running engine unlinks its file",
        default_paths=("/tmp",),  # noqa: S108  where the engine writes, not we
        dangers=(
            Danger("files of an unclean exit stay in /tmp", "ai-dynamo/dynamo#8779, #6101"),
            Danger("with an explicit path the file is 0644 and keeps its name", "Dynamo KVBM v1 disk storage"),
        ),
    ),
)
