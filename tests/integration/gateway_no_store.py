# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs the offloading connector's scheduler out of a vLLM wheel, without torch, on one finished prompt of ten blocks.

    gateway_no_store.py SCHEDULER.PY [KV_TRANSFER_PARAMS, ...]      prints how many blocks it asks the store to take

The scheduler's file and the package v1/kv_offload are the engine's. What else they import is needed for type hints only
and is stood in for; the store is a list.
"""

import importlib.abc
import importlib.machinery
import json
import sys
import types
from unittest import mock

BLOCK, BLOCKS = 16, 10


class Absent(types.ModuleType):
    """A module that has every name."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


class StandIn(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives an empty class for every name of every module that is not there."""

    def find_spec(self, name, path=None, target=None):
        missing = name.split(".")[0] in ("vllm", "numpy", "torch")
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if missing else None

    def create_module(self, spec):
        return Absent(spec.name)

    def exec_module(self, module):
        if module.__name__ == "vllm.logger":
            module.init_logger = mock.Mock()
        if module.__name__ == "vllm.utils.math_utils":
            module.cdiv = lambda a, b: -(-a // b)
            module.round_down = lambda a, b: a // b * b
        if module.__name__ == "vllm.v1.request":
            module.RequestStatus = types.SimpleNamespace(FINISHED_ABORTED="aborted")


def main():
    stand_in = StandIn()
    sys.meta_path.append(stand_in)
    # Beside the engine lies a directory of that name with nothing but libraries.
    sys.modules["torch"] = stand_in.create_module(stand_in.find_spec("torch"))
    loader = importlib.machinery.SourceFileLoader("scheduler", sys.argv[1])
    scheduler = types.ModuleType("scheduler")
    sys.modules["scheduler"] = scheduler
    loader.exec_module(scheduler)
    print(json.dumps([stored_blocks(scheduler, params) for params in json.loads(sys.argv[2])]))


def stored_blocks(scheduler, params):
    """The engine's own decision for one request with these parameters."""
    # Where the blocks lie in the GPU is no matter of ours, and needs numpy.
    scheduler.GPULoadStoreSpec = scheduler.TransferJob = mock.Mock()
    kind = scheduler.GroupOffloadConfig
    known = {
        "group_idx": 0,
        "tokens_per_block": BLOCK,
        "tokens_per_chunk": BLOCK,
        "hashes_per_chunk": 1,
        "sliding_window_size_in_chunks": None,
    }
    needed = [name for name in kind._fields if name not in kind._field_defaults]
    group = kind(**{name: known.get(name, None if name in known else mock.Mock()) for name in needed})
    fields = {
        "kv_group_configs": (group,),
        "blocks_per_chunk": 1,
        "tokens_per_hash": BLOCK,
        "num_workers": 1,
        "offload_prompt_only": True,
        "supports_partial_tail": False,
    }
    config = scheduler.SchedulerOffloadConfig(
        **{name: fields.get(name) for name in scheduler.SchedulerOffloadConfig._fields}
    )
    request = mock.Mock(
        kv_transfer_params=params,
        block_hashes=[bytes([number]) * 32 for number in range(BLOCKS)],
        num_tokens=BLOCK * BLOCKS,
        num_prompt_tokens=BLOCK * BLOCKS,
        num_computed_tokens=0,
        status="running",
        request_id="r",
    )
    request.is_finished.return_value = False
    state = scheduler.RequestOffloadState(config, request, scheduler._create_req_context(request), mock.Mock())
    state.update_offload_keys()
    state.update_block_id_groups((list(range(1, BLOCKS + 1)),))

    stored = []

    def prepare_store(keys, _context):
        stored.extend(keys)
        return types.SimpleNamespace(keys_to_store=list(keys), store_spec=mock.Mock())

    connector = mock.Mock(config=config, _req_status={"r": state}, _job_counter=0, _jobs={})
    connector.manager.prepare_store = prepare_store
    # Full attention: there is no block that a later request could not reach.
    connector._reachable_store_block_mask = lambda **_: None
    real = scheduler.OffloadingConnectorScheduler
    connector._calc_num_offloadable_tokens = types.MethodType(real._calc_num_offloadable_tokens, connector)
    output = types.SimpleNamespace(num_scheduled_tokens={"r": BLOCK * BLOCKS}, finished_req_ids=())
    jobs = real._build_store_jobs(connector, output)
    if bool(jobs) != bool(stored):
        sys.exit("jobs and stored blocks do not agree")
    return len(stored)


main()
