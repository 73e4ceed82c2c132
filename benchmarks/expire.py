#!/usr/bin/env python
# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Expiry passes against their peers, on the same tree in the same run: prints ratios, judges nothing.

    benchmarks/expire.py [--blocks 100000 1000000] [--runs 3] [--parts warm cold steady delete]
                         [--dir DIRECTORY] [--keep]

Peers: find -delete, bfs, fd, systemd-tmpfiles. Ours is a program that is packed and started as kvtier is. All take
turns, so that a busy machine is busy for each of them; a figure is the median of its runs, a ratio is find's median
divided by it. CPU seconds are those of all processes of a command: other work on the machine changes them less. Needs
bfs and fd-find (Debian); figures with a cold cache need root.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import tree

from ansible_collections.llmhost.hardening.plugins.module_utils.kv import program

RETENTION_MINUTES = 1440
DAY = 86400
WORKERS = (1, 2)
COLD_WORKERS = 4
PERCENTS = (10, 100)
PARTS = ["warm", "cold", "steady", "delete"]


# What `kvtier expire` does once it is the tier's account, over a tree that no data map would take.
PASS = b"""import os, resource, sys
import kv.cli
from kv import datamap, discovery, expiry

root, state, workers, full = sys.argv[1:]
discovery.engines = lambda *_: []
raw = {"name": "bench", "store": "vllm_fs", "path": "/var/lib/bench", "owner": "bench", "services": ["bench.service"]}
tier = datamap.normalise([raw], "bench", %d)["tiers"][0]
tier.update(path=root, owner=os.getuid())
result = expiry.expire(tier, state_root=state, workers=int(workers), full=full == "full")
if result["exit"] != expiry.OK:
    sys.exit("our own pass failed: %%s" %% result["messages"])
with open("/proc/self/status") as lines:
    peak = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
print(result["dirs"], max(peak, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss))
"""


class Cost(NamedTuple):
    """Of one command: seconds until it ended, and seconds that its processes computed, in them and in the kernel."""

    seconds: float
    cpu: float


class Bench:
    """One tree and what was measured on it."""

    def __init__(self, base: Path, blocks: int, runs: int, keep: bool) -> None:
        self.base, self.blocks, self.runs, self.keep = base, blocks, runs, keep
        self.root = str(base / "tree")
        self.rows: list[tuple[str, str, Cost, Cost]] = []
        self.memory: dict[str, tuple[int, int]] = {}
        sources = {f"kv/{name}.py": source for name, source in program.sources().items()}
        self.program = base / "pass"
        self.program.write_bytes(program.pack({**sources, "__main__.py": PASS % RETENTION_MINUTES}, program.SHEBANG))

    def ours(self, workers: int, full: bool) -> list[str]:
        state, mode = str(self.base / "state"), "full" if full else "steady"
        return [sys.executable, "-IS", str(self.program), self.root, state, str(workers), mode]

    def peers(self) -> dict[str, list[str]]:
        """Commands that delete what is older than the retention."""
        config = self.base / "tmpfiles.conf"
        config.write_text(f"e {self.root} - - - m:{RETENTION_MINUTES}min\n")
        aged = ["-type", "f", "-name", "*.bin", "-mmin", f"+{RETENTION_MINUTES}", "-delete"]
        fd = shutil.which("fdfind") or shutil.which("fd") or "fd"
        commands = {
            "find": ["find", self.root, *aged],
            "bfs": ["bfs", self.root, *aged],
            "fd": [fd, "-u", "-t", "f", "-e", "bin", "--changed-before", "1d", ".", self.root, "-X", "rm", "-f"],
            "systemd-tmpfiles": ["systemd-tmpfiles", "--clean", str(config)],
        }
        missing = [name for name, command in commands.items() if shutil.which(command[0]) is None]
        if missing:
            raise SystemExit(f"missing: {', '.join(missing)}; apt-get install bfs fd-find findutils systemd")
        return commands

    def make(self, old: float) -> None:
        """The tree again, the share `old` of its blocks past their retention, and no memory of the one before."""
        if not (self.keep and os.path.isdir(self.root)):
            shutil.rmtree(self.root, ignore_errors=True)
            if not os.getuid():
                # Names of a tree that is gone would make every look-up in the kernel's table longer.
                drop_caches()
            tree.make(self.root, self.blocks, old, 2 * DAY, 3600)
        shutil.rmtree(self.base / "state", ignore_errors=True)
        (self.base / "state" / "bench").mkdir(mode=0o700, parents=True)
        time.sleep(2.1)  # what the index believes is older than two seconds

    def timed(self, name: str, command: list[str]) -> Cost:
        """What a command takes; it must end well."""
        began = time.monotonic()
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            said = process.stdout.read() if process.stdout else b""
            _pid, status, usage = os.wait4(process.pid, 0)
            seconds = time.monotonic() - began
            process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
        if said:
            directories, peak = map(int, said.split())
            self.memory[name] = (directories, max(peak, self.memory.get(name, (0, 0))[1]))
        return Cost(seconds, usage.ru_utime + usage.ru_stime)

    def compare(self, what: str, commands: dict[str, list[str]], before: Callable[[], None] | None = None) -> None:
        """All commands in turn, so often as there are runs."""
        costs: dict[str, list[Cost]] = {name: [] for name in commands}
        for _run in range(self.runs):
            for name, command in commands.items():
                if before is not None:
                    before()
                costs[name].append(self.timed(name, command))
        self.tell(what, {name: Cost(*map(statistics.median, zip(*all_, strict=True))) for name, all_ in costs.items()})

    def tell(self, what: str, costs: dict[str, Cost]) -> None:
        for name, cost in costs.items():
            ratio = Cost(costs["find"].seconds / cost.seconds, costs["find"].cpu / cost.cpu)
            self.rows.append((what, name, cost, ratio))
            print(
                f"{what:32} {name:22} {cost.seconds:9.3f} s {ratio.seconds:7.2f} x find"
                f" {cost.cpu:9.3f} s CPU {ratio.cpu:7.2f} x find",
                flush=True,
            )

    def run(self, parts: list[str]) -> None:
        """What is asked for, on a tree of this size."""
        peers = self.peers()
        find = {"find": peers["find"]}
        full = {f"full pass, {n} workers": self.ours(n, True) for n in WORKERS}
        steady = {f"steady pass, {n} workers": self.ours(n, False) for n in WORKERS}
        both = dict([*find.items(), list(full.items())[-1]])
        self.make(0)
        self.timed("find", peers["find"])
        if "warm" in parts:
            self.compare("nothing to delete, warm cache", {**peers, **full})
        if "cold" in parts:
            # Who waits for a disk needs no core meanwhile.
            more = {f"full pass, {COLD_WORKERS} workers": self.ours(COLD_WORKERS, True)}
            self.compare("nothing to delete, cold cache", {**peers, **both, **more}, drop_caches)
        if "steady" in parts:
            # The first one writes the index, the second warms what the first left cold.
            for _turn in range(2):
                self.timed("full pass before", self.ours(WORKERS[-1], True))
            self.compare("unchanged since the last pass", {**find, **steady})
            self.compare("0.5 % of the leaves changed", {**find, **steady}, self.touch)
        for percent in PERCENTS if "delete" in parts else ():
            self.deletion(percent, both)

    def touch(self) -> None:
        """Let a block come and go in half a percent of the leaves, as a writer does."""
        for leaf in tree.leaves(self.root)[::200]:
            block = f"{leaf}/{'0' * 64}.bin"
            os.close(os.open(block, os.O_WRONLY | os.O_CREAT, 0o600))
            os.unlink(block)

    def deletion(self, percent: int, commands: dict[str, list[str]]) -> None:
        """Each gets a tree of its own."""
        costs = {}
        for name, command in commands.items():
            self.make(percent / 100)
            costs[name] = self.timed(name, command)
        self.tell(f"deleting {percent} %", costs)


def drop_caches() -> None:
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3")


def main() -> None:
    """Measure, and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="cold: as root; delete: slow")
    parser.add_argument("--dir", type=Path, default=Path("/var/tmp/llmhost-bench"))
    parser.add_argument("--keep", action="store_true", help="take the tree that is in DIR, and leave it there")
    options = parser.parse_args()
    if options.keep and ("delete" in options.parts or len(options.blocks) > 1):
        parser.error("--keep is for one tree, of which nothing is deleted")
    table = []
    try:
        for blocks in options.blocks:
            options.dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            bench = Bench(options.dir, blocks, options.runs, options.keep)
            bench.run(options.parts)
            table += [(f"{blocks:,}", *row) for row in bench.rows]
            print("directories in the end, and KiB of the largest process:", bench.memory, flush=True)
    finally:
        if not options.keep:
            shutil.rmtree(options.dir, ignore_errors=True)
    with open("/proc/cpuinfo", encoding="ascii", errors="replace") as lines:
        model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "unknown")
    print(
        f"\n{datetime.date.today()}, `{' '.join(sys.argv)}`, {os.cpu_count()} x {model}, Linux {platform.release()}, "
        f"Python {platform.python_version()}, load {os.getloadavg()[0]:.1f}\n"
    )
    print("| blocks | what | who | seconds | x find | CPU seconds | x find |\n|---:|---|---|---:|---:|---:|---:|")
    for blocks, what, who, cost, ratio in table:
        print(f"| {blocks} | {what} | {who} | {cost[0]:.2f} | {ratio[0]:.2f} | {cost[1]:.2f} | {ratio[1]:.2f} |")


if __name__ == "__main__":
    main()
