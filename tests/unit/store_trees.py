# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A fixture tree per store: paths as a real writer names them, and what the registry has to take each of them for.

`Tree.make` lays one out on disk. Each directory of each tree also gets names that anybody may leave there, which are
strangers in every store; where a model, a client or an operator has a say in a block's name, blocks get hostile ones.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

H = "0123456789abcdef" * 4
SHORT = H[:32]
UUID = "f" * 32
NAMESPACE = "Qwen_Qwen3-8B_0123456789ab"
RANK = NAMESPACE + "_r0"
LEAF = f"{RANK}/012/34_g0"
KEY = "Qwen-Qwen3-8B@2@0@-7f3a@bfloat16"
SEP_KEY = "Qwen-SEP-Qwen3-8B@2@0@7f3a@half"
QUOTED = "Qwen%2FQwen3-8B%402%400%407f3a%40bfloat16"
SERVER_KEY = f"Qwen-SEP-Qwen3-8B@0x02000200@0@{H}"


@dataclass(frozen=True)
class Tree:
    """Paths below the root by kind. strangers: files; stranger_dirs: directories that no level knows."""

    blocks: tuple[str, ...]
    temps: tuple[str, ...] = ()
    configs: tuple[str, ...] = ()
    strangers: tuple[str, ...] = ()
    stranger_dirs: tuple[str, ...] = ()
    magic: bytes = b""

    def files(self) -> dict[str, str]:
        kinds = {"block": self.blocks, "temp": self.temps, "config": self.configs, "stranger": self.strangers}
        return {path: kind for kind, paths in kinds.items() for path in paths}

    def make(self, root: Path, uid: int) -> None:
        """root and everything below it belongs to uid and is closed."""
        for path, kind in self.files().items():
            file = root / path
            self._directories(root, file.parent, uid)
            file.write_bytes((self.magic if kind == "block" else b"") + b"x" * 100)
            os.chmod(file, 0o600)
            os.chown(file, uid, -1)
        for path in self.stranger_dirs:
            self._directories(root, root / path, uid)
            (root / path / "file.bin").write_bytes(b"x")

    def _directories(self, root: Path, directory: Path, uid: int) -> None:
        for part in [*reversed(directory.relative_to(root).parents), directory.relative_to(root)]:
            (root / part).mkdir(mode=0o700, exist_ok=True)
            os.chown(root / part, uid, -1)


# What anybody who may write there can leave: newline, invalid UTF-8, the longest name, a terminal's commands, options.
HOSTILE = ("new\nline", "\udcff\udcfe", "z" * 255, "\x1b[2J\x1b]0;owned\x07", "-rf", "$(reboot)", " ", "\u202egnp.bin")
_MODEL = "\udcff\x1b[2J$(reboot) -rf"


_HASHED: dict[str, tuple[str, ...]] = {
    "blocks": (f"{LEAF}/{H}.bin", f"{LEAF}/{SHORT}.bin", f"{RANK}/fff/ff_g12/{H}.bin",
               f"m_{'0' * 12}_r10/000/00_g0/{H}.bin"),
    "temps": (f"{LEAF}/{H}.bin_0.tmp", f"{LEAF}/{H}.bin_9223372036854775807.tmp"),
    "configs": (f"{NAMESPACE}/config.json",),
    "strangers": (
        "config.json", f"{H}.bin", f"{RANK}/{H}.bin", f"{RANK}/012/{H}.bin", f"{RANK}/config.json",
        f"{NAMESPACE}/{H}.bin", f"{NAMESPACE}/config.json.bak", f"{LEAF}/{H}.BIN", f"{LEAF}/{H.upper()}.bin",
        f"{LEAF}/{H[:31]}.bin", f"{LEAF}/{H}0.bin", f"{LEAF}/{H}.bin\n", f"{LEAF}/\n{H}.bin", f"{LEAF}/{H}.bin.tmp",
        f"{LEAF}/{H}.bin_.tmp", f"{LEAF}/{H}.bin_-1.tmp", f"{LEAF}/{H}.bin_\u0661.tmp", f"{LEAF}/.o_direct_probe_1.tmp",
        f"{LEAF}/0x{H[:30]}.bin", f"{LEAF}/ {H}.bin",
    ),
    "stranger_dirs": ("012", f"{RANK}/0123", f"{RANK}/01g", f"{RANK}/012/34", f"{RANK}/012/34_g", f"{LEAF}/{H}",
                      "m_0123_r0", f"{NAMESPACE}_r", f"{NAMESPACE}_r\u0661", f"{NAMESPACE}_r0\n", f"_{'0' * 12}_r0"),
}  # fmt: skip

TREES: dict[str, Tree] = {
    "vllm_fs": Tree(
        blocks=_HASHED["blocks"],
        temps=(*_HASHED["temps"], f"{NAMESPACE}/.o_direct_probe_17.tmp"),
        configs=_HASHED["configs"],
        strangers=_HASHED["strangers"],
        stranger_dirs=_HASHED["stranger_dirs"],
    ),
    "llmd_fs": Tree(
        blocks=_HASHED["blocks"],
        temps=(*_HASHED["temps"], f"{LEAF}/{H}.bin_4294967295.tmp"),
        configs=_HASHED["configs"],
        strangers=(*_HASHED["strangers"], f"{NAMESPACE}/.o_direct_probe_17.tmp"),
        stranger_dirs=(*_HASHED["stranger_dirs"], "Qwen"),
    ),
    "vllm_simple_disk": Tree(
        blocks=("kv.rank_0", "kv.bin.rank_12", "a.rank_1.rank_2"),
        strangers=("kv", "kv.rank_", "kv.rank_x", "kv.rank_0.tmp", ".rank_0", "kv.rank_0\n", "kv.rank_\u0661"),
        stranger_dirs=("x",),
    ),
    "vllm_example": Tree(
        blocks=(f"{UUID}/model.layers.0.self_attn.safetensors",),
        strangers=("x.safetensors", f"{UUID}/.safetensors", f"{UUID}/x.lock", f"{UUID}/x.safetensors\n"),
        stranger_dirs=("g" * 32, "f" * 31, f"{UUID}/{UUID}"),
    ),
    "vllm_hidden_states": Tree(
        blocks=("cmpl-0a1b2c-0.safetensors", "chatcmpl-it is mine.safetensors"),
        temps=("cmpl-0a1b2c-0.safetensors.lock",),
        strangers=("model.safetensors", "model-00001-of-00002.safetensors", "cmpl-.safetensors", "cmpl-x.lock",
                   "xcmpl-x.safetensors", "cmpl-x.safetensors\n", "cmpl-x.safetensors.lock.old"),
        stranger_dirs=("cmpl-x",),
    ),
    "kvcr": Tree(
        blocks=("g3-0.kvcr", "a.b_c.kvcr"),
        strangers=("g3-0", "g3.bin", ".kvcr", "-x.kvcr", "g3.kvcr.old", "g3.kvcr\n", "g 3.kvcr", "\u0661.kvcr"),
        stranger_dirs=("x",),
    ),
    "flexkv": Tree(
        blocks=("flexkv_ssdcache_0a1b2c", "flexkv_ssdcache_0a1b2c_0.bin", "flexkv_ssdcache_0a1b2c_swa_0_1.bin",
                "flexkv_ssdcache_0a1b2c_-1_3"),
        strangers=("flexkv_ssdcache_", "flexkv_ssdcache_0a1b2", "flexkv_ssdcache_0a1b2c.tmp", "flexkv_trace.log",
                   "xflexkv_ssdcache_0a1b2c", "flexkv_ssdcache_0a1b2c\n"),
        stranger_dirs=("x",),
    ),
    "hf3fs": Tree(
        blocks=("hf3fs_vllm_data_file_0", "hf3fs_vllm_data_file_15", "hicache.3.bin"),
        strangers=("hf3fs_vllm_data_file_", "hicache.bin", "hicache.x.bin", "hicache.3.bin\n", "hicache.\u0661.bin"),
        stranger_dirs=("x",),
    ),
    "lmcache_fs": Tree(
        blocks=(f"{SEP_KEY}.data", f"{SEP_KEY}@31.data", f"{SEP_KEY}@user%anna.data", f"{SERVER_KEY}.data",
                f"{SERVER_KEY}@secret salt.data"),
        temps=(f"{SEP_KEY}.tmp", f"{SERVER_KEY}.tmp"),
        strangers=("notes.data", "a@b.data", f"{KEY}.pt", f"{SEP_KEY}.data\n", f"{SEP_KEY}\n.data", "x.tmp", ".data",
                   "m@\u0661@0@7f@half.data", "m@1@0@zz@half.data"),
        stranger_dirs=("tmp", "x.data"),
    ),
    "lmcache_disk": Tree(
        blocks=(f"{KEY}.pt", f"{KEY}@31.pt", f"{KEY}@31@user%anna.pt"),
        strangers=("model.pt", "a@b.pt", f"{KEY}.pt.tmp", f"{SEP_KEY}.data", f"{KEY}.pt\n"),
        stranger_dirs=("x",),
    ),
    "lmcache_gds": Tree(
        blocks=(f"12/34/{QUOTED}.kvcache.safetensors", f"12/34/{QUOTED}.kvcache.safetensors.metadata",
                f"-1/23/{QUOTED}.weka1", f"b'/\\x/{QUOTED}%401%40user%25anna.kvcache.safetensors"),
        temps=(f"12/34/{QUOTED}.kvcache.safetensors.tmp0a1b2c3d",
               f"12/34/{QUOTED}.kvcache.safetensors.metadata.tmp0a1b2c3d"),
        strangers=(f"{QUOTED}.kvcache.safetensors", f"12/{QUOTED}.kvcache.safetensors", "12/34/model.safetensors",
                   f"12/34/{KEY}.kvcache.safetensors", f"12/34/{QUOTED}.kvcache.safetensors.tmp",
                   f"12/34/{QUOTED}.kvcache.safetensors\n"),
        stranger_dirs=("123", "ab", "12/345", "12/34/56", "12/\u0661"),
    ),
    "lmcache_nixl": Tree(
        blocks=("obj_0_0a1b.bin", "obj_1023_ffff.bin"),
        strangers=("obj_0.bin", "obj_x_0a1b.bin", "obj_0_0a1b.bin\n", "obj_\u0661_0a1b.bin"),
        stranger_dirs=("x",),
    ),
    "sglang_file": Tree(
        blocks=(f"{H}_Qwen-Qwen3-8B_0_2.bin", f"{H}.mamba_Qwen_0_1_2_0_cp1_2.bin", f"{H}_.bin",
                f"{H}_m_tp2_dcp0_2_page64.bin"),
        temps=(f".{UUID}.tmp",),
        strangers=(f"{H}.bin", f"{SHORT}_Qwen_0_2.bin", f"{H}_Qwen_0_2", f"{H}_Qwen_0_2.bin.tmp", f"{UUID}.tmp",
                   ".x.tmp", f"{H}_Qwen\n.bin", f"{H}_Qwen.bin\n", "model.bin", f"x{H}_Qwen.bin"),
        stranger_dirs=("x", "00"),
    ),
    "sglang_nixl": Tree(
        blocks=(f"00/{H}_Qwen-Qwen3-8B_0_2_k", f"ff/{H}_Qwen_0_1_mamba_conv_0", f"0a/{H}_"),
        strangers=(f"{H}_Qwen_0_1_k", f"00/{H}", f"00/{SHORT}_Qwen_0_1", f"00/{H}_Qwen\n", f"00/x{H}_Qwen"),
        stranger_dirs=("000", "0", "GG", "0\n", f"00/{H}_dir"),
    ),
    "llamacpp_slots": Tree(
        magic=b"qsgg",
        blocks=("slot0", "chat.bin", "with space", "\u0661\u0662", "new\nline", ".hidden", "x" * 255),
        strangers=("notes.txt", "notes.bin"),
        stranger_dirs=("x",),
    ),
    "llama_cpp_python_disk": Tree(
        blocks=("cache.db", "cache.db-wal", "cache.db-shm", f"0a/1b/{H[:28]}.val"),
        strangers=("cache.db.bak", "other.db", f"0a/{H[:28]}.val", f"0a/1b/{H[:27]}.val", f"0a/1b/{H[:28]}.val\n",
                   "0a/1b/x.pkl"),
        stranger_dirs=("0ab", "0a/1bc", "0a/1b/00"),
    ),
    "mooncake": Tree(
        blocks=("1718000000-3.bucket", "1718000000-3.meta", "42.bucket", "42.meta"),
        strangers=("bucket", "x.bucket", "1-2-3.bucket", "42.bucket.tmp", "42.meta\n", "\u0661.meta", "42.metadata"),
        stranger_dirs=("0", "42"),
    ),
    "ktransformers": Tree(
        blocks=("tree.json", "DeepSeek-V3/FP16/key/layer-0.kvc", "DeepSeek-V3/FP16/value/layer-60.kvc"),
        configs=("disk_cache.json", "config.json", "quant_configs.json", "model_configs.json"),
        strangers=("x.json", "DeepSeek-V3/notes", "DeepSeek-V3/FP16/layer-0.kvc", "DeepSeek-V3/FP16/key/layer-x.kvc",
                   "DeepSeek-V3/FP16/key/layer-0.kvc\n", "DeepSeek-V3/FP16/key/layer-\u0661.kvc"),
        stranger_dirs=(".hidden", "DeepSeek-V3/FP16/keys", "DeepSeek-V3/FP16/key/x", "DeepSeek-V3/-x"),
    ),
    "dynamo_kvbm": Tree(
        blocks=("dynamo-kvbm-disk-cache-aB3xYz", "kvbm_g3_worker-0.bin"),
        strangers=("dynamo-kvbm-disk-cache-", "dynamo-kvbm-disk-cache-aB3xYz1", "kvbm_g3_.bin",
                   "kvbm_g3_a\n.bin", "kvbm_g3_\u0661.bin"),
        stranger_dirs=("x",),
    ),
}  # fmt: skip

# Blocks whose name a model, a client or an operator chose in part.
HOSTILE_BLOCKS: dict[str, tuple[str, ...]] = {
    "vllm_fs": (f"{_MODEL}_{'0' * 12}_r0/000/00_g0/{H}.bin", f"{'z' * 239}_{'0' * 12}_r0/000/00_g0/{H}.bin"),
    "llmd_fs": (f"{_MODEL}_{'0' * 12}_r0/000/00_g0/{H}.bin", f"{'z' * 239}_{'0' * 12}_r0/000/00_g0/{H}.bin"),
    "lmcache_fs": (f"{_MODEL}@1@0@7f@half.data", f"{'z' * 237}@1@0@7f@half.data", f"{SERVER_KEY}@{_MODEL}.data"),
    "lmcache_disk": (f"{_MODEL}@1@0@7f@half.pt", f"{'z' * 239}@1@0@7f@half.pt"),
    "sglang_file": (f"{H}_{_MODEL}_0_1.bin", f"{H}_{'z' * 186}.bin"),
    "sglang_nixl": (f"00/{H}_{_MODEL}", f"00/{H}_{'z' * 190}"),
    "llamacpp_slots": (_MODEL, "\udcff\n"),
}


def _with_hostile(name: str, tree: Tree) -> Tree:
    directories = {path.rpartition("/")[0] for path in (*tree.blocks, *tree.temps, *tree.configs)}
    directories |= {part for path in directories for part in ("", path.partition("/")[0])}
    taken = {*tree.blocks, *tree.strangers}
    left = {f"{at}/{one}".lstrip("/") for at in directories for one in HOSTILE} - taken
    return replace(tree, blocks=tree.blocks + HOSTILE_BLOCKS.get(name, ()), strangers=(*tree.strangers, *sorted(left)))


TREES = {name: _with_hostile(name, tree) for name, tree in TREES.items()}
