# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Gives offload settings to a vLLM release's own classes, out of its wheel, without torch or a GPU.

    engine_classes.py TREE        JSON on stdin and stdout, see settings(), names() and leak()

Real: the loader of --config, KVTransferConfig, KVEventsConfig, the tiering spec, the factory, each tier's constructor,
the naming of blocks and the writer, compiled where the release has one. Everything else is a stand-in.
"""

from __future__ import annotations

import ctypes
import dataclasses
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import mmap
import os
import sys
import traceback
import types
from pathlib import Path
from typing import Any

SLOTS = 4


class AnyMeta(type):
    """A class that has every attribute, can be called with anything, subclassed, subscripted and used to decorate."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return AnyMeta(name, (Anything,), {})

    def __call__(cls, *arguments: Any, **more: Any) -> Any:
        if "__init__" in vars(cls):
            return super().__call__(*arguments, **more)
        if len(arguments) == 1 and not more and isinstance(arguments[0], (types.FunctionType, type)):
            return arguments[0]  # a decorator
        return super().__call__()

    def __getitem__(cls, _key: Any) -> Any:
        return cls

    def __or__(cls, _other: Any) -> Any:
        return cls

    __ror__ = __or__

    def __iter__(cls) -> Any:
        return iter(())

    def __len__(cls) -> int:
        return 0

    def __bool__(cls) -> bool:
        return True

    def __contains__(cls, _item: Any) -> bool:
        return False


class Anything(metaclass=AnyMeta):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return AnyMeta(name, (Anything,), {})

    def __call__(self, *arguments: Any, **more: Any) -> Any:
        if len(arguments) == 1 and not more and isinstance(arguments[0], (types.FunctionType, type)):
            return arguments[0]
        return Anything()

    def __getitem__(self, _key: Any) -> Any:
        return Anything()

    def __iter__(self) -> Any:
        return iter(())

    def __len__(self) -> int:
        return 0

    def __bool__(self) -> bool:
        return True


class StandIn(types.ModuleType):
    """A module in which every name is Anything."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__version__":
            raise AttributeError(name)
        value = AnyMeta(name, (Anything,), {})
        setattr(self, name, value)
        return value


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """The engine's files where the tree has them; a stand-in for all its other modules, or (last) for anybody's."""

    def __init__(self, tree: Path, engine: str, last: bool) -> None:
        self.tree, self.engine, self.last = tree, engine, last

    def find_spec(self, name: str, _path: Any = None, _target: Any = None) -> Any:
        if name.partition(".")[0] == self.engine:
            place = self.tree.joinpath(*name.split("."))
            for file in (place.with_suffix(".py"), place.with_suffix(".abi3.so"), place / "__init__.py"):
                if file.is_file():
                    below = [str(place)] if file.name == "__init__.py" else None
                    return importlib.util.spec_from_file_location(name, file, submodule_search_locations=below)
        elif not self.last:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: Any) -> types.ModuleType:
        return StandIn(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        module.__path__ = []


def prepare(tree: Path, engine: str = "vllm") -> None:
    """From here on, imports find the engine of the tree and nothing missing."""
    for library in sorted(tree.glob("torch/lib/*.so*")):
        ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    sys.meta_path.insert(0, Finder(tree, engine, last=False))
    sys.meta_path.append(Finder(tree, engine, last=True))
    if engine != "vllm":
        return
    module = importlib.import_module
    module("vllm.config.utils").config = dataclasses.dataclass  # type: ignore[attr-defined]  # pydantic's, in the engine
    module("vllm.utils.math_utils").round_up = lambda number, to: -(-number // to) * to  # type: ignore[attr-defined]
    extensions = module("typing_extensions")
    if isinstance(extensions, StandIn):
        extensions.override = lambda method: method  # type: ignore[attr-defined]


def engine_config(extra: dict[str, Any]) -> Any:
    """The engine's side of the settings for a small dense model on one GPU, in the shape of the tree's release."""
    config = importlib.import_module("vllm.v1.kv_offload.config")
    layers = ("model.layers.0.self_attn.attn",)
    if isinstance(config, StandIn):
        group = types.SimpleNamespace(layer_names=layers, kv_cache_spec=types.SimpleNamespace(block_size=16))
        vllm_config = types.SimpleNamespace(
            kv_transfer_config=types.SimpleNamespace(kv_connector_extra_config=extra, engine_id="engine"),
            kv_events_config=types.SimpleNamespace(enable_kv_cache_events=False),
            instance_id="instance",
            use_v2_model_runner=False,
            cache_config=types.SimpleNamespace(block_size=16, cache_dtype="auto", hash_block_size=16),
            model_config=types.SimpleNamespace(model="org/model", max_model_len=1024, use_mla=False),
            parallel_config=types.SimpleNamespace(
                tensor_parallel_size=1,
                pipeline_parallel_size=1,
                prefill_context_parallel_size=1,
                decode_context_parallel_size=1,
                world_size=1,
                rank=0,
                data_parallel_index=0,
            ),
        )
        tensors = [types.SimpleNamespace(size=4096 * 8, shared_by=list(layers), block_stride=0)]
        cache = types.SimpleNamespace(num_blocks=8, kv_cache_tensors=tensors, kv_cache_groups=[group])
        return (vllm_config, cache)
    fields = {
        "groups": (_made(config.OffloadingGroupConfig, tokens_per_block=16, layer_names=layers, group_id=0),),
        "worker_kv_bytes_per_block": 4096,
        "enable_kv_cache_events": False,
        "extra_config": extra,
        "engine_id": "engine",
        "model": _made(config.OffloadingModelConfig, name="org/model", dtype="bfloat16"),
        "cache": _made(config.OffloadingCacheConfig, tokens_per_hash=16, blocks_per_chunk=1, block_size_factor=1),
        "parallel": _made(
            config.OffloadingParallelConfig,
            rank=0,
            world_size=1,
            tp_size=1,
            pp_size=1,
            pcp_size=1,
            dcp_size=1,
            data_parallel_index=0,
            data_parallel_size=1,
            data_parallel_rank_local=None,
            is_parallelism_agnostic=True,
        ),
    }
    return (_made(config.OffloadingConfig, **fields),)


def _made(cls: Any, **values: Any) -> Any:
    """An instance with those of the values that this release has a field for."""
    names = {field.name for field in dataclasses.fields(cls)}
    return cls(**{name: value for name, value in values.items() if name in names})


def view(slots: int) -> memoryview:
    return memoryview(mmap.mmap(-1, slots * 4096)).cast("B", (slots, 4096))


def parse(path: str) -> dict[str, Any]:
    """The settings file through the release's own loader of --config."""
    arguments = importlib.import_module("vllm.utils.argparse_utils")
    parser = types.SimpleNamespace(_option_string_actions={})
    words = arguments.FlexibleArgumentParser.load_config_file(parser, path)
    return dict(zip(words[::2], words[1::2], strict=True))


def build(extra: dict[str, Any], slots: int) -> list[Any]:
    """The tiers as the release's tiering spec and its factory make them."""
    factory = importlib.import_module("vllm.v1.kv_offload.tiering.factory").SecondaryTierFactory
    spec_class = importlib.import_module("vllm.v1.kv_offload.factory").OffloadingSpecFactory._registry[
        extra["spec_name"]
    ]()
    spec = spec_class(*engine_config(extra))
    return [factory.create_secondary_tier(tier, view(slots), spec) for tier in spec.secondary_tier_configs]


def settings(given: dict[str, Any]) -> dict[str, Any]:
    """What the release makes of a settings file."""
    words = parse(given["config"])
    transfer = json.loads(words["--kv-transfer-config"])
    made = importlib.import_module("vllm.config.kv_transfer").KVTransferConfig(**transfer)
    extra = transfer["kv_connector_extra_config"]
    result: dict[str, Any] = {"offloads": made.is_kv_transfer_instance and made.kv_connector_extra_config == extra}
    if "--kv-events-config" in words:
        events = json.loads(words["--kv-events-config"])
        result["events"] = importlib.import_module("vllm.config.kv_events").KVEventsConfig(**events).endpoint
    result["tiers"] = [tier_facts(tier) for tier in build(extra, SLOTS)]
    return result


def tier_facts(tier: Any) -> dict[str, Any]:
    """Class and name of a tier, and where its blocks would go."""
    mapper = getattr(tier, "file_mapper", None) or getattr(tier, "_file_mapper", None)
    place = mapper.base_path if mapper is not None else None
    return {"class": type(tier).__name__, "type": tier.tier_type, "place": place}


def names(given: dict[str, Any]) -> dict[str, Any]:
    """The release's own names of a prompt's blocks, each stored as a file by its own writer; case by case."""
    utils = importlib.import_module("vllm.v1.core.kv_cache_utils")
    base = importlib.import_module("vllm.v1.kv_offload.base")
    writer = importlib.import_module("vllm.v1.kv_offload.tiering.fs.io")
    hashing = importlib.import_module("vllm.utils.hashing")
    found = []
    for case in given["cases"]:
        os.environ.pop("PYTHONHASHSEED", None)
        if case["seed"] is not None:
            os.environ["PYTHONHASHSEED"] = case["seed"]
        digest = hashing.get_hash_fn_by_name(case["algorithm"])
        utils.init_none_hash(digest)
        chain = _chain(utils, digest, given["tokens"], given["block_size"], case["salt"])
        extra = json.loads(json.dumps(given["extra"]))
        extra["secondary_tiers"][0]["root_dir"] = case["root"]
        (tier,) = build(extra, SLOTS)
        paths = [tier.file_mapper.get_file_name(base.make_offload_key(name, 0)) for name in chain]
        if hasattr(writer, "batch_store_block"):
            writer.batch_store_block(paths, view(len(paths)), [4096 * n for n in range(len(paths))], 4096)
        else:
            for path in paths:
                writer.store_block(path, view(1), 0, 4096)
        found.append([name.hex() for name in chain])
    return {"names": found, "compiled": getattr(writer, "_HAS_FSIO_C", False)}


def _chain(utils: Any, digest: Any, tokens: list[int], size: int, salt: str | None) -> list[bytes]:
    request = types.SimpleNamespace(cache_salt=salt, lora_request=None, mm_features=[], prompt_embeds=None)
    parent, found = None, []
    for start in range(0, len(tokens) - size + 1, size):
        keys, _next = utils.generate_block_hash_extra_keys(request, start, start + size, 0)
        parent = utils.hash_block_tokens(digest, parent, tokens[start : start + size], keys)
        found.append(parent)
    return found


def leak(given: dict[str, Any]) -> dict[str, Any]:
    """How many references to None the compiled writer loses in so many calls of each kind."""
    writer = importlib.import_module("vllm.v1.kv_offload.tiering.fs.io")
    assert writer._HAS_FSIO_C
    held = [None] * 100_000  # or the process would end before it could answer
    memory, path, counts = view(1), given["root"] + "/a/block", []
    for call in (writer.batch_store_block, writer.batch_load_block):
        before = sys.getrefcount(None)
        for _turn in range(given["calls"]):
            call([path], memory, [0], 4096)
        counts.append(before - sys.getrefcount(None))
    return {"store": counts[0], "load": counts[1], "held": len(held)}


def main() -> None:
    given = json.load(sys.stdin)
    prepare(Path(sys.argv[1]))
    try:
        result = {"settings": settings, "names": names, "leak": leak}[given["mode"]](given)
    except Exception as error:
        result = {"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc(limit=-4)}
    print(json.dumps(result), flush=True)
    # Threads of the tiers wait for work for ever.
    os._exit(0)


if __name__ == "__main__":
    main()
