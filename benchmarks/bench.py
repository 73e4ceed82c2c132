#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Expiry passes against their peers on the same tree in the same run; prints ratios, never judges.

    bench.py [--blocks 100000] [--runs 3] [--keep] [--dir /var/tmp/llmhost-bench]

Peers: find -delete, bfs, fd, systemd-tmpfiles --clean. Every figure is the median of its runs, alternating between the
peers, so that a busy machine is busy for all of them.
"""

from __future__ import annotations

import argparse
import datetime
import os
import pathlib
import platform
import shutil
import statistics
import subprocess
import sys
import time
from typing import Callable

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "plugins" / "module_utils")]

import tree  # noqa: E402
from kv import datamap, expiry  # noqa: E402

DAY = 86400
RETENTION_MINUTES = 1440


def tier_of(root: str) -> datamap.Tier:
    """A tier over the benchmark tree; it belongs to whoever runs the benchmark."""
    raw = {"name": "bench", "store": "vllm_fs", "path": root, "owner": 1, "services": ["no-such.service"]}
    tier = datamap.normalise([raw], "bench")["tiers"][0]
    tier["owner"] = os.getuid()
    return tier


def peers(root: str, scratch: pathlib.Path) -> dict[str, list[str]]:
    """Commands that delete blocks older than the retention, for the peers that are installed."""
    conf = scratch / "tmpfiles.conf"
    conf.write_text(f"e {root} - - - m:{RETENTION_MINUTES}min\n")
    fd = shutil.which("fdfind") or shutil.which("fd") or ""
    found = {
        "find": ["find", root, "-type", "f", "-name", "*.bin", "-mmin", f"+{RETENTION_MINUTES}", "-delete"],
        "bfs": ["bfs", root, "-type", "f", "-name", "*.bin", "-mmin", f"+{RETENTION_MINUTES}", "-delete"],
        "fd": [fd, "-u", "-t", "f", "-e", "bin", "--changed-before", "1d", ".", root, "-X", "rm", "-f"],
        "systemd-tmpfiles": ["systemd-tmpfiles", "--clean", str(conf)],
    }
    return {name: command for name, command in found.items() if command[0] and shutil.which(command[0])}


def timed(work: Callable[[], None]) -> float:
    """Seconds of wall clock that work took."""
    began = time.monotonic()
    work()
    return time.monotonic() - began


def command(argv: list[str]) -> Callable[[], None]:
    """Run a peer; a peer that fails is no peer."""
    return lambda: void(subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))


def void(_value: object) -> None:
    """Drop a value."""


def drop_caches() -> None:
    """Empty the page, dentry and inode caches, for cold figures."""
    os.sync()
    pathlib.Path("/proc/sys/vm/drop_caches").write_text("3")


class Bench:
    """One tree and what was measured on it: rows of (what, who, seconds, ratio to find)."""

    def __init__(self, base: pathlib.Path, blocks: int, runs: int) -> None:
        self.base, self.blocks, self.runs = base, blocks, runs
        self.root = str(base / "tree")
        self.state = str(base / "state")
        self.rows: list[tuple[str, str, float, float]] = []
        self.tier = tier_of(self.root)

    def make(self, old: int) -> None:
        """Build the tree again, `old` of its blocks past their retention."""
        shutil.rmtree(self.root, ignore_errors=True)
        shutil.rmtree(self.state, ignore_errors=True)
        os.makedirs(f"{self.state}/bench", mode=0o700)
        os.makedirs(self.root, mode=0o700)
        tree.make(self.root, self.blocks, old, 2 * DAY, 3600)

    def ours(self, workers: int, full: bool) -> Callable[[], None]:
        """One pass of ours."""
        def work() -> None:
            result = expiry.expire(self.tier, state_root=self.state, workers=workers, full=full)
            if result["exit"] != expiry.OK:
                raise SystemExit(f"our own pass failed: {result['messages']}")
        return work

    def compare(self, what: str, contenders: dict[str, Callable[[], None]], before: Callable[[], None], runs: int) -> None:
        """Median of each contender, alternating."""
        seconds: dict[str, list[float]] = {name: [] for name in contenders}
        for _run in range(runs):
            for name, work in contenders.items():
                before()
                seconds[name].append(timed(work))
        medians = {name: statistics.median(values) for name, values in seconds.items()}
        for name, median in medians.items():
            self.rows.append((what, name, median, medians["find"] / median))
            print(f"{what:34} {name:22} {median:9.3f} s   {medians['find'] / median:6.2f} x find", flush=True)

    def run(self) -> None:
        """All comparisons on this tree."""
        others = {name: command(argv) for name, argv in peers(self.root, self.base).items()}
        self.make(0)
        cold = {"ours, 1 worker": self.ours(1, True), "ours, 2 workers": self.ours(2, True)}
        self.compare("full pass, warm cache", {**others, **cold}, lambda: None, self.runs)
        self.compare(
            "full pass, cold cache",
            {"find": others["find"], "ours, 2 workers": cold["ours, 2 workers"]},
            drop_caches,
            max(1, self.runs - 1),
        )
        steady = {"ours, 1 worker": self.ours(1, False), "ours, 2 workers": self.ours(2, False)}
        self.compare("steady pass, nothing changed", {"find": others["find"], **steady}, lambda: None, self.runs)
        self.compare("steady pass, 0.5 % changed", {"find": others["find"], **steady}, self.touch, self.runs)
        for percent in (10, 100):
            self.deletion(percent, others["find"])

    def touch(self) -> None:
        """Change half a percent of the leaf directories, as a writer does, and let the change settle."""
        top = f"{self.root}/{tree.NAMESPACE}"
        for number, hexes in enumerate(sorted(os.listdir(top))):
            for leaf in os.listdir(f"{top}/{hexes}")[number % 7 :: 200]:
                path = f"{top}/{hexes}/{leaf}/{'0' * 64}.bin"
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
                os.unlink(path)
        time.sleep(2.1)

    def deletion(self, percent: int, find: Callable[[], None]) -> None:
        """Deleting a share of the blocks: each contender gets a fresh tree."""
        medians = {}
        for name, work in {"find": find, "ours, 2 workers": self.ours(2, True)}.items():
            self.make(self.blocks * percent // 100)
            medians[name] = timed(work)
        for name, seconds in medians.items():
            what = f"deleting {percent} %"
            self.rows.append((what, name, seconds, medians["find"] / seconds))
            print(f"{what:34} {name:22} {seconds:9.3f} s   {medians['find'] / seconds:6.2f} x find", flush=True)


def main() -> None:
    """Measure and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=100_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--dir", default="/var/tmp/llmhost-bench")
    parser.add_argument("--keep", action="store_true", help="leave the tree behind")
    options = parser.parse_args()
    base = pathlib.Path(options.dir)
    base.mkdir(mode=0o700, parents=True, exist_ok=True)
    bench = Bench(base, options.blocks, options.runs)
    try:
        bench.run()
    finally:
        if not options.keep:
            shutil.rmtree(base, ignore_errors=True)
    model = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if "model name" in line), "unknown")
    print(f"\n{options.blocks} blocks, {datetime.date.today()}, {os.cpu_count()} x {model}, Linux {platform.release()}, "
          f"Python {platform.python_version()}\n")
    print("| what | who | seconds | x find |\n|---|---|---|---|")
    for what, who, seconds, ratio in bench.rows:
        print(f"| {what} | {who} | {seconds:.3f} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
