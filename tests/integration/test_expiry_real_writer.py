# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The real vLLM fs tier writes and reads at full speed while kvtier expires the tier every second."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.llmhost.hardening.plugins.module_utils.kv import datamap, program
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.mapkeys import KEYS

pytestmark = pytest.mark.integration

ACCOUNT = 65534
SECONDS = float(os.environ.get("LLMHOST_SOAK_SECONDS", "15"))  # of each variant
# The map counts in minutes, so each pass is told this retention, in seconds.
RETENTION = 4
INTERVAL = 1
SLACK = 2
PASS = """
import sys
sys.path.insert(0, sys.argv[1])
from kv import cli, datamap, expiry
policy_of, expire = expiry.policy_of, expiry.expire
expiry.policy_of = lambda tier: policy_of(tier)._replace(retention=int(sys.argv[2]), dir_grace=2)
expiry.expire = lambda tier, **options: expire(tier, state_root=sys.argv[4], **options)
datamap.validate = lambda document, source: document
raise SystemExit(cli.main(["--map", sys.argv[3], "expire", "--json"]))
"""


class Tier:
    """A tier of an unprivileged account as the map declares it, and passes of kvtier over it."""

    def __init__(self, place: Path, root: Path, engine: Path) -> None:
        self.place, self.root, self.state, self.beside = place, root, place / "state", place / "beside"
        self.root.mkdir(mode=0o700)
        self.beside.mkdir()
        (self.state / "soak").mkdir(parents=True, mode=0o700)
        for path in (self.root, self.beside, self.state / "soak"):
            os.chown(path, ACCOUNT, ACCOUNT)
        # The cache may lie where only root gets to.
        self.engine = place / "vllm"
        shutil.copytree(engine, self.engine, symlinks=True)
        tier: dict[str, Any] = {key: default for key, (_parse, default) in KEYS.items()}
        tier.update(name="soak", store="vllm_fs", path=str(self.root), owner=ACCOUNT, services=["soak.service"])
        tier.update(retention_minutes=1)
        self.map = place / "tiers.json"
        document = {"schema": datamap.SCHEMA, "host": "h", "prompt_log_retention_minutes": 1440, "tiers": [tier]}
        self.map.write_text(json.dumps(document))
        self.program = place / "kvtier"
        self.program.write_bytes(program.build())
        self.results: list[dict[str, Any]] = []

    def expire(self) -> dict[str, Any]:
        """One pass in a process of its own, as root like an operator's; it drops to the account itself."""
        command = [sys.executable, "-c", PASS, str(self.program), str(RETENTION), str(self.map), str(self.state)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.stdout.startswith("["), done.stderr
        result: dict[str, Any] = json.loads(done.stdout)[0]
        self.results.append(result)
        return result

    def writer(self, run_writer: Any, variant: str, **options: Any) -> Any:
        """The engine's storage as the account."""
        options.update(umask=0o077, user=ACCOUNT, beside=self.beside)
        return run_writer.func(self.engine, self.root, variant, **options)

    def blocks(self) -> dict[str, float]:
        """Each block and its time; what vanishes meanwhile is left out."""
        found = {}
        for directory, _names, files in os.walk(self.root):
            for path in (f"{directory}/{name}" for name in files if name.endswith(".bin")):
                with contextlib.suppress(FileNotFoundError):
                    found[path] = os.stat(path).st_mtime
        return found


class Watcher(threading.Thread):
    """Looks again and again: who is older than may be, and who was lost while it was young."""

    def __init__(self, tier: Tier) -> None:
        super().__init__()
        self.tier, self.stop = tier, threading.Event()
        self.looks = 0
        self.oldest = 0.0
        self.lost_young: list[float] = []

    def run(self) -> None:
        known: dict[str, float] = {}
        while not self.stop.wait(0.5):
            looked = time.time()
            now = self.tier.blocks()
            ended = time.time()
            gone = known.keys() - now.keys()
            # It went before `ended`, so it was at most this old.
            self.lost_young += [ended - known[path] for path in gone if ended - known[path] < RETENTION]
            self.oldest = max([self.oldest, *(looked - mtime for mtime in now.values())])
            known = now
            self.looks += 1


@pytest.fixture
def tier(engine_tree: Path) -> Iterator[Tier]:
    """A tier in memory: the writer is as fast as it gets, and no disk decides what the test sees."""
    if os.geteuid():
        pytest.skip("working as another account needs root")
    with contextlib.ExitStack() as stack:
        places = []
        for parent in ("/var/tmp", "/dev/shm"):
            places.append(Path(tempfile.mkdtemp(prefix="llmhost-soak-", dir=parent)))
            places[-1].chmod(0o755)
            stack.callback(shutil.rmtree, places[-1])
        yield Tier(places[0], places[1] / "kv", engine_tree)


@pytest.mark.parametrize("variant", ["compiled", "python"])
def test_blocks_go_in_time_and_the_writer_never_notices(tier, run_writer, variant):
    with tier.writer(run_writer, variant, rate=1000, threads=4) as running:
        running.more("stored", "loaded")
        watcher = Watcher(tier)
        watcher.start()
        slowest = 0.0
        try:
            end = time.monotonic() + SECONDS
            while time.monotonic() < end:
                began = time.monotonic()
                result = tier.expire()
                took = time.monotonic() - began
                slowest = max(slowest, took)
                assert result["exit"] == 0, result["messages"]
                time.sleep(max(0.0, INTERVAL - took))
            running.more("stored", "loaded")
            stopped = running.stop()
        finally:
            watcher.stop.set()
            watcher.join()
    expired = sum(result["expired"] for result in tier.results)
    counts = {key: stopped[key] for key in ("stored", "loaded", "misses", "recomputed", "wrong", "errors")}
    print(
        f"{variant} {counts}, expired {expired} in {len(tier.results)} passes, slowest {slowest:.2f} s, "
        f"oldest block {watcher.oldest:.2f} s"
    )
    assert stopped["wrong"] == 0
    assert stopped["errors"] == {}, running.log.read_text()[-2000:]
    assert stopped["misses"] > 0 and stopped["loaded"] > 0, "blocks must be asked for before and after they have gone"
    assert expired > 100 and watcher.looks > 2
    assert {result["version"] for result in tier.results} == {stopped["version"]}, "the gate looked at this engine"
    # Between two passes lies the interval, or the pass itself where that takes longer; then the next takes its time.
    assert watcher.oldest <= RETENTION + max(INTERVAL, slowest) + slowest + SLACK
    assert watcher.lost_young == []
    last = tier.results[-1]
    assert last["strangers"] == last["foreign_owner"] == last["hardlinks"] == last["not_regular"] == last["loose"] == 0
    time.sleep(RETENTION)
    assert tier.expire()["blocks"] == 0 and tier.blocks() == {}
    assert len(list(tier.root.glob("*/config.json"))) == 1


def test_what_a_pass_leaves_of_a_running_tier_is_read_back(tier, run_writer):
    with tier.writer(run_writer, "python") as running:
        running.more("stored")
        while not tier.expire()["expired"]:
            time.sleep(0.5)
        before = running.status()
        after = running.more("stored", "loaded")
    assert after["wrong"] == 0 and after["loaded"] > before["loaded"]
