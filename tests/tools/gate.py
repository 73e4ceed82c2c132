#!/usr/bin/env python
# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs the gate: make targets one after the other, each against its time budget, to the first that fails."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

LIMIT = 55 * 60  # of the whole gate, on two cores, from nothing

# Nobody's hosts may be hardened by a test, and no stage be narrowed by what was meant for another target.
NOT_FOR_STAGES = set(
    "ARGS CORE IMAGE INVENTORY KEEP MAKEFLAGS MAKELEVEL MAKEOVERRIDES MFLAGS MINUTES".split()
    + "OLD ONLY PYTHON RELEASE SCENARIO WHAT".split()
)

# The closing lines are read, so nobody may colour them.
PLAIN = {"NO_COLOR": "1", "PY_COLORS": "0", "ANSIBLE_NOCOLOR": "1", "PYTHONUNBUFFERED": "1"}
# A closing line of pytest, with or without its rule of equal signs.
CLOSING = re.compile(r"^[\W_]*(?:\d+ [a-z]+, )*\d+ (?:passed|failed|errors?|skipped)\b.* in [\d.]+s\b.*$")
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
COUNT = re.compile(r"(\d+) (passed|failed|error|skipped)")


@dataclass
class Stage:
    name: str
    budget: int
    make: list[str]
    beside: bool = False  # runs beside the stages after it, until one `needs` it
    needs: tuple[str, ...] = ()
    shows: str = ""  # what its output must contain
    undo: tuple[str, ...] = ()  # ends what it leaves running if it is cut off
    closing: list[str] = field(default_factory=list)
    seconds: float | None = None


# The audit's table after hardening, with its first and its last control passing.
TABLE = r"(?s)KV-02\b[^\n]*-> pass.*KV-07\b[^\n]*-> pass"

NO_HOST = ("python", "tests/testbed/bed.py", "down", "molecule-default-bookworm", "molecule-default-trixie")
GATE = [
    Stage("testbed 12", 300, ["testbed", "RELEASE=bookworm"], beside=True),
    Stage("build", 30, ["build"]),
    Stage("soak", 180, ["soak"], beside=True, shows=r"2 of 2 releases held all of it"),
    Stage("lint", 200, ["lint"]),
    Stage("unit", 240, ["unit"]),
    Stage("molecule 12", 1200, ["molecule", "RELEASE=bookworm"], beside=True, needs=("testbed 12",), undo=NO_HOST),
    Stage("testbed 13", 600, ["testbed", "RELEASE=trixie"], beside=True),
    Stage("sanity", 600, ["sanity"]),
    Stage("importer", 90, ["importer"]),
    Stage(
        "molecule 13",
        1200,
        ["molecule", "RELEASE=trixie"],
        beside=True,
        needs=("molecule 12", "testbed 13"),
        undo=NO_HOST,
    ),
    Stage("integration", 600, ["integration"]),
    Stage("harden", 480, ["harden"], needs=("molecule 13",), shows=TABLE),
]
REST = [
    Stage("unit managed", 600, ["unit-managed"]),
    Stage("ee", 60, ["ee"]),
    *(Stage(f"sanity {core}", 360, ["sanity", f"CORE={core}"]) for core in ("2.17", "2.18", "2.19", "2.20", "2.21")),
    Stage("incumbent", 120, ["incumbent"]),
    Stage("rgw", 400, ["rgw"]),
    Stage("buckets", 300, ["buckets"]),
    Stage("boto-old", 300, ["boto-old"]),
    Stage("bucket-host", 1800, ["bucket-host"]),
    Stage("report", 300, ["report"]),
    Stage("gateway-fuzz", 300, ["gateway-fuzz"]),
    Stage("molecule upgrade", 1200, ["molecule", "SCENARIO=upgrade"]),
    Stage("llama", 900, ["llama"]),
    Stage("molecule removal", 1200, ["molecule", "SCENARIO=removal"]),
    Stage("molecule refusals", 1500, ["molecule", "SCENARIO=refusals"]),
    Stage("engine-host", 2400, ["engine-host"]),
    Stage("molecule changes", 3000, ["molecule", "SCENARIO=changes"]),
    Stage("molecule volume_disk", 3600, ["molecule", "SCENARIO=volume_disk"]),
    Stage("molecule purge", 3000, ["molecule", "SCENARIO=purge"]),
    Stage("molecule volume_tpm", 1800, ["molecule", "SCENARIO=volume_tpm"]),
    Stage("bench-volume", 900, ["bench-volume"]),
    Stage("molecule containers", 2100, ["molecule", "SCENARIO=containers"]),
    Stage("molecule judged", 1200, ["molecule", "SCENARIO=judged"]),
    Stage("molecule gateway", 900, ["molecule", "SCENARIO=gateway"]),
    Stage("harden trixie", 480, ["harden", "RELEASE=trixie"], shows=TABLE),
]


class Failed(Exception):
    """Names the stage and why."""


class Run:
    """One stage at work; its output goes to the terminal, or is kept while it runs beside others."""

    def __init__(self, stage: Stage) -> None:
        self.stage, self.began, self.kept = stage, time.monotonic(), bytearray()
        self.process = subprocess.Popen(
            ["make", *stage.make],
            env={name: value for name, value in os.environ.items() if name not in NOT_FOR_STAGES} | PLAIN,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.quiet = stage.beside
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            self.kept += line
            if not self.quiet:
                sys.stdout.buffer.write(line)
                sys.stdout.buffer.flush()
        self.process.wait()
        self.stage.seconds = time.monotonic() - self.began

    def finish(self) -> None:
        stage = self.stage
        self.reader.join()
        text = COLOUR.sub("", self.kept.decode(errors="replace"))
        if self.quiet:
            say(f"stage {stage.name}, which ran beside the others")
            print(text, end="", flush=True)
        stage.closing = [line for line in text.splitlines() if CLOSING.match(line)]
        say(f"stage {stage.name}: {stage.seconds:.0f} s of {stage.budget} s")
        if self.process.returncode:
            command = " ".join(["make", *stage.make])
            raise Failed(f"stage {stage.name} failed: `{command}` ended with {self.process.returncode}")
        if stage.shows and not re.search(stage.shows, text):
            raise Failed(f"stage {stage.name} ended well, but did not show what it must ({stage.shows})")

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGTERM)
        if self.stage.undo:
            self.process.wait()
            subprocess.run(self.stage.undo, stdout=subprocess.DEVNULL, check=False)


def say(text: str) -> None:
    print(f"==> {text}", flush=True)


@contextlib.contextmanager
def runs() -> Iterator[dict[str, Run]]:
    """What was started is ended with us."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    started: dict[str, Run] = {}
    try:
        yield started
    finally:
        for run in started.values():
            if run.process.poll() is None:
                run.end()


def run_all(stages: list[Stage]) -> None:
    with runs() as started:
        waiting: dict[str, Run] = {}
        for stage in stages:
            for name in stage.needs:
                waiting.pop(name).finish()
            say(f"stage {stage.name} (budget {stage.budget} s)")
            run = started[stage.name] = Run(stage)
            if stage.beside:
                waiting[stage.name] = run
            else:
                run.finish()
        for run in waiting.values():
            run.finish()


def report(stages: list[Stage], began: float, left: list[Stage]) -> None:
    print(f"\n{'stage':<16}{'seconds':>9}{'budget':>9}")
    for stage in stages:
        actual = "not run" if stage.seconds is None else f"{stage.seconds:.0f}"
        note = "  over its budget" if stage.seconds and stage.seconds > stage.budget else ""
        note += "  (beside the others)" if stage.beside else ""
        print(f"{stage.name:<16}{actual:>9}{stage.budget:>9}{note}")
    total = time.time() - began
    print(f"{'total':<16}{total:>9.0f}{LIMIT:>9}  limit of the gate")
    if left:
        print("Left to `make test-all`: " + ", ".join(stage.name for stage in left))
    count = dict.fromkeys(("passed", "failed", "error", "skipped"), 0)  # in pytest's words
    for stage in stages:
        for line in stage.closing:
            print(f"{stage.name}: {line.strip('=│ ')}")
            for number, word in COUNT.findall(line):
                count[word] += int(number)
    failed = count["failed"] + count["error"]
    print(f"{count['passed']} passed, {failed} failed, {count['skipped']} skipped", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["gate", "all"])
    parser.add_argument("--began", type=float, default=time.time(), help="when the set-up began (seconds since 1970)")
    args = parser.parse_args()
    setup = Stage("setup", 120, ["setup"], seconds=time.time() - args.began)
    stages = GATE + (REST if args.what == "all" else [])
    problem = ""
    try:
        run_all(stages)
    except Failed as error:
        problem = str(error)
    report([setup, *stages], args.began, REST if args.what == "gate" else [])
    if problem:
        print(f"gate: {problem}", file=sys.stderr, flush=True)
    return 1 if problem else 0


if __name__ == "__main__":
    sys.exit(main())
