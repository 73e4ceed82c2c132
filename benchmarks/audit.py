#!/usr/bin/env python
# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The audit of one large tier whose expiry has an index and a full pass on record, and of the same tier walked whole.

    PYTHONPATH=.build/pythonpath:benchmarks python benchmarks/audit.py [--blocks 1000000] [--runs 3] [--dir DIRECTORY]

Each audit is a new process of a packed program, as kvtier is: Python's start and all imports are in the figure.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from expire import Bench

from ansible_collections.llmhost.hardening.plugins.module_utils.kv import program

AUDIT = b"""import functools, json, os, resource, sys
from kv import controls, datamap, history, state, tiers_found

root, place, full = sys.argv[1:]
raw = {"name": "bench", "store": "vllm_fs", "path": "/var/lib/bench", "owner": "bench", "services": ["bench.service"]}
document = datamap.normalise([raw], "bench", 1440)
document["tiers"][0].update(path=root, owner=os.getuid())
state.read_run = functools.partial(state.read_run, root=place)
audit = controls.audit(document, past=history.read(), found=tiers_found.look(), full=full == "full")
facts = next(one for one in audit["results"] if one["control"] == "KV-04")
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps({"peak": peak, "message": facts["message"], **facts["evidence"]}))
"""


def audited(command: list[str], runs: int) -> tuple[float, dict[str, Any]]:
    """Median seconds of an audit, and what it said in the end."""
    seconds = []
    for _run in range(runs):
        began = time.monotonic()
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        seconds.append(time.monotonic() - began)
    return statistics.median(seconds), json.loads(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--dir", type=Path, default=Path("/var/tmp/llmhost-bench-audit"))
    given = parser.parse_args()
    given.dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        bench = Bench(given.dir, given.blocks, 1, False)
        bench.make(0)
        # The first one writes the index, the second uses it.
        for full in (True, False):
            cost = bench.timed("pass", bench.ours(os.cpu_count() or 1, full))
            print(f"{'full' if full else 'steady'} pass before: {cost.seconds:.1f} s", flush=True)
        sources = {f"kv/{name}.py": source for name, source in program.sources().items()}
        packed = given.dir / "audit"
        packed.write_bytes(program.pack({**sources, "__main__.py": AUDIT}, program.SHEBANG))
        for mode in ("record", "full"):
            command = [sys.executable, "-IS", str(packed), bench.root, str(given.dir / "state"), mode]
            seconds, said = audited(command, given.runs if mode == "record" else 1)
            print(
                f"{mode}: {seconds:.2f} s, {said['peak'] >> 10} MiB, {said['blocks']} blocks, by {said['source']}, "
                f"load {os.getloadavg()[0]:.1f}: {said['message']}",
                flush=True,
            )
    finally:
        shutil.rmtree(given.dir)


if __name__ == "__main__":
    main()
