#!/usr/bin/env python
# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The whole vLLM 0.29 on the CPU answers over HTTP while kvtier expires its fs tier every second.

    soak_engine.py [--minutes 2]        root; the tier lies in memory

Clients ask a fixed set of prompts again and again, chosen so that their blocks are now in the engine's memories, now on
the tier alone, now expired. Judged at the end, and it fails if anything of this does not hold:
- every answer is 200;
- every answer is the one that the same prompt got without any cache, its log probabilities too (TOLERANCE);
- that comparison sees a single wrong block;
- both memories and the tier were hit by the engine's own count, and prompts were asked after their blocks had gone;
- no block that had ended when a pass began was seen after that pass;
- blocks and directories went meanwhile, each pass ended well, and each saw the release that was running.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPOSITORY / "tests" / "nightly"), str(REPOSITORY / ".build" / "pythonpath")]

import engine_server  # noqa: E402
import soak  # noqa: E402
from engine_server import BLOCK, TIER, UID, VERSION, Server  # noqa: E402

from ansible_collections.llmhost.hardening.plugins.module_utils.kv import blocknames, prefixprobe, program  # noqa: E402

RETENTION = 6  # seconds
# Two prompts fill the engine's memory and two the host's, so after so many others nothing of one is left in either.
PROMPTS, TOKENS, CROWD = 24, 600, 4
CLIENTS = 2  # two prompts at once are what the memory of the engine holds
TOLERANCE = 1e-4  # of a log probability; without rounding to bfloat16 a cache changes its last digits only
TIER_BYTES = 512 << 20
FLOAT32_PAGE = 2 * engine_server.PAGE
COUNTERS = {
    "engine_hits": "vllm:prefix_cache_hits_total",
    "external_hits": "vllm:external_prefix_cache_hits_total",
    "tier_read": "vllm:kv_offload_tiering_read_bytes_total",
    "tier_written": "vllm:kv_offload_tiering_write_bytes_total",
    "reads_failed": "vllm:kv_offload_tiering_promotion_job_failures_total",
    "writes_failed": "vllm:kv_offload_tiering_cascade_job_failures_total",
}


class Prompt:
    def __init__(self, tokens: list[int]) -> None:
        self.tokens, self.names = tokens, blocknames.names(tokens, BLOCK, VERSION)
        self.answer: tuple[str, list[float]] = ("", [])  # without any cache
        self.turn = 0  # of its last request among all requests, 0: never asked
        self.was_stored = False

    def other(self) -> list[int]:
        """The same prompt with another last whole block."""
        end = len(self.names) * BLOCK
        changed = [token + 1 for token in self.tokens[end - BLOCK : end]]
        return self.tokens[: end - BLOCK] + changed + self.tokens[end:]


def same(one: tuple[str, list[float]], other: tuple[str, list[float]]) -> bool:
    if one[0] != other[0] or len(one[1]) != len(other[1]):
        return False
    return all(abs(left - right) <= TOLERANCE for left, right in zip(one[1], other[1], strict=True))


class Load:
    """The clients, and what they got."""

    def __init__(self, server: Server) -> None:
        self.server, self.over, self.lock, self.dice = server, threading.Event(), threading.Lock(), random.Random(1)
        self.prompts = [Prompt(server.tokens(TOKENS)) for _number in range(PROMPTS)]
        self.statuses, self.kinds = Counter[str](), Counter[str]()
        self.wrong: list[str] = []
        self.seconds: list[float] = []
        self.turn = self.blind = 0

    def ask(self, tokens: list[int], salt: str | None = None) -> tuple[str, list[float]] | None:
        """Text and log probabilities, None if the answer is not 200."""
        body: dict[str, Any] = {"model": "tiny", "prompt": tokens, "max_tokens": 4, "temperature": 0, "logprobs": 1}
        body.update({"cache_salt": salt} if salt else {})
        began = time.monotonic()
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=120)
        text = b""
        try:
            connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            text, status = answer.read(), str(answer.status)
        except (OSError, http.client.HTTPException) as error:
            status = type(error).__name__
        finally:
            connection.close()
        with self.lock:
            self.statuses[status] += 1
            self.seconds.append(time.monotonic() - began)
        if status != "200":
            return None
        choice = json.loads(text)["choices"][0]
        return choice["text"], choice["logprobs"]["token_logprobs"]

    def learn(self) -> None:
        """Answers without any cache: a salt that nobody else has hides every block."""
        for number, prompt in enumerate(self.prompts):
            prompt.answer = self.ask(prompt.tokens, f"alone {number}") or ("", [])
            other = self.ask(prompt.other(), f"other {number}")
            self.blind += other is None or same(prompt.answer, other)

    def choose(self, wanted: str) -> tuple[str, Prompt]:
        """A prompt whose blocks lie where wanted says, else the one that was not asked for the longest time."""
        with self.lock:
            ends = [prompt.names[-1] for prompt in self.prompts]
            stored = prefixprobe.in_directory(ends, str(TIER))
            asked = sorted((prompt.turn for prompt in self.prompts), reverse=True)
            found = []
            for prompt, there in zip(self.prompts, stored, strict=True):
                prompt.was_stored |= there
                crowded = 0 < prompt.turn < asked[CROWD]
                where = {
                    "memory": prompt.turn == asked[0] > 0,
                    "tier": crowded and there,
                    "expired": crowded and prompt.was_stored and not there,
                }
                found += [prompt] if where[wanted] else []
            kind = wanted if found else "other"
            prompt = self.dice.choice(found) if found else min(self.prompts, key=lambda one: one.turn)
            self.kinds[kind] += 1
            self.turn += 1
            prompt.turn = self.turn
        return kind, prompt

    def client(self) -> None:
        while True:
            for wanted in ("tier", "memory", "expired"):
                if self.over.is_set():
                    return
                kind, prompt = self.choose(wanted)
                answer = self.ask(prompt.tokens)
                if answer is not None and not same(answer, prompt.answer):
                    with self.lock:
                        self.wrong.append(f"{kind}: {answer} instead of {prompt.answer}")


class Passes:
    """Runs of kvtier over the tier, and a look between them at what they left."""

    def __init__(self, place: Path, server: Server) -> None:
        (self.document,) = server.document["tiers"]
        self.kvtier, self.tiers, self.state = place / "kvtier", place / "tiers.json", place / "state"
        self.kvtier.write_bytes(program.build())
        self.tiers.write_text(json.dumps(server.document))
        own = self.state / self.document["name"]
        own.mkdir(mode=0o700, parents=True)
        os.chown(own, UID, UID)
        self.results: list[dict[str, Any]] = []
        self.took: list[float] = []
        self.outlived, self.looks = 0.0, 0

    def expire(self) -> None:
        began = time.monotonic()
        command = [sys.executable, "-c", soak.PASS, str(self.kvtier), str(RETENTION), str(soak.DIR_GRACE)]
        command += [str(self.tiers), str(self.state)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if not done.stdout.startswith("["):
            sys.exit(f"soak-engine: kvtier ended with {done.returncode}: {done.stderr}")
        self.results += json.loads(done.stdout)
        self.took.append(time.monotonic() - began)

    def look(self) -> None:
        """What had ended when the last pass began, and is there all the same."""
        began = self.results[-1]["started"]
        for block in self.blocks():
            with contextlib.suppress(FileNotFoundError):
                self.outlived = max(self.outlived, began - block.stat().st_mtime - RETENTION)
        self.looks += 1

    def blocks(self) -> list[Path]:
        # Directories go while they are listed, which pathlib does not take.
        return [Path(at, name) for at, _names, files in os.walk(TIER) for name in files if name.endswith(".bin")]


def count(server: Server) -> dict[str, float]:
    """The engine's own counters; of a dead one there are none."""
    try:
        return {name: server.counter(counter) for name, counter in COUNTERS.items()}
    except OSError:
        return dict.fromkeys(COUNTERS, 0.0)


def verdict(load: Load, passes: Passes, counted: dict[str, float]) -> tuple[dict[str, Any], list[str]]:
    """Numbers, and what does not hold."""
    sums = Counter[str]()
    for result in passes.results:
        sums.update({key: result[key] for key in ("expired", "dirs_removed", "temps_removed")})
    exits = Counter(result["exit"] for result in passes.results)
    odd = {key: passes.results[-1].get(key) for key in soak.ODD}
    checks = {
        "every answer is 200": set(load.statuses) == {"200"},
        "the engine is at work to the end": load.server.process.poll() is None,
        "every answer is the one without a cache": not load.wrong,
        "one wrong block would be seen": not load.blind,
        "the engine's memory was hit": counted["engine_hits"] > 0 and load.kinds["memory"] > 0,
        "blocks were read from the tier": counted["external_hits"] > 0
        and counted["tier_read"] > 0
        and load.kinds["tier"] > 0,
        "prompts were asked after their blocks had gone": load.kinds["expired"] > 0,
        "blocks were stored": counted["tier_written"] > 0,
        "blocks went": sums["expired"] > 0,
        "directories were pruned": sums["dirs_removed"] > 0,
        "no block outlived the pass after its end": passes.outlived <= soak.TOLERANCE and passes.looks > 3,
        "each pass ended well": set(exits) == {0} and len(passes.results) > 3,
        "each pass knew the release": {result.get("version") for result in passes.results} == {VERSION},
        "nothing odd was left": not any(odd.values()),
    }
    numbers = {
        "answers": dict(load.statuses),
        "asked_for": dict(load.kinds),
        "median_answer": f"{statistics.median(load.seconds):.3f} s",
        "wrong": len(load.wrong),
        **{name: int(value) for name, value in counted.items()},
        **sums,
        "passes": len(passes.results),
        "slowest_pass": f"{max(passes.took):.2f} s",
        "outlived": round(passes.outlived, 2),
        "exits": dict(exits),
        "odd": odd,
    }
    return numbers, [what for what, holds in checks.items() if not holds]


def work(minutes: float, place: Path, server: Server) -> int:
    load, passes = Load(server), Passes(place, server)
    load.learn()
    before = count(server)
    end = time.monotonic() + minutes * 60
    with ThreadPoolExecutor(CLIENTS) as pool:
        try:
            clients = [pool.submit(load.client) for _number in range(CLIENTS)]
            while time.monotonic() < end and server.process.poll() is None:
                due = time.monotonic() + soak.INTERVAL
                passes.expire()
                passes.look()
                time.sleep(max(0.0, due - time.monotonic()))
        finally:
            load.over.set()
    for client in clients:
        client.result()
    after = count(server)
    numbers, problems = verdict(load, passes, {name: after[name] - before[name] for name in COUNTERS})
    print(f"soak-engine: {minutes:g} min, {CLIENTS} clients, {PROMPTS} prompts, retention {RETENTION} s")
    print(f"vLLM {VERSION}: " + ", ".join(f"{key} {value}" for key, value in numbers.items()))
    for problem in problems:
        print(f"vLLM {VERSION}: DOES NOT HOLD: {problem}")
    if problems:
        said = {message for result in passes.results for message in result["messages"]}
        print(*load.wrong[:3], *sorted(said)[:3], server.log.read_text(errors="replace")[-4000:], sep="\n")
    print("the engine did not hold all of it" if problems else "the engine held all of it", flush=True)
    return 1 if problems else 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Expiry under the whole vLLM engine at work over HTTP.")
    parser.add_argument("--minutes", type=float, default=2.0)
    options = parser.parse_args()
    if os.geteuid():
        sys.exit("soak-engine: must be root: the engine runs as another account and on a mount of its own")
    try:
        engine = engine_server.installed()
    except RuntimeError as error:
        sys.exit(f"soak-engine: {error}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with contextlib.ExitStack() as stack:
        place = Path(tempfile.mkdtemp(prefix="llmhost-soak-engine-", dir="/var/tmp"))
        place.chmod(0o755)
        stack.callback(shutil.rmtree, place)
        more = ("--dtype", "float32")
        running = engine_server.running(engine, place / "log", TIER_BYTES, 40 * FLOAT32_PAGE, more)
        return work(options.minutes, place, stack.enter_context(running))


if __name__ == "__main__":
    sys.exit(main())
