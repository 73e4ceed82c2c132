# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What hardening costs a host is told before it is touched: restarts, caches, sizes, spans."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
from fixtures import Tree, tier_for

from ansible_collections.llmhost.hardening.plugins.module_utils.kv import (
    absent,
    access,
    discovery,
    evidence_engine,
    forecast,
)
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.forecast import (
    DESTROYED,
    FORGOTTEN,
    Cache,
    Forecast,
    Restart,
)
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.system import Mapper, Mount
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.volume import Seen

OURS = Seen(mounted=Mount(1, 0, "253:0", "/", "/kv", "ext4", "x"), mapper=Mapper("253:0", "CRYPT-PLAIN-x", []))
RESTART = Restart("vllm.service", ("umask is 0022, not 0077",), 3 << 30, 95.0)
LOST = Cache("chat", "/srv/kv", 512, 5 << 30, True, 7200.0, DESTROYED)


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Tree, dict]:
    """A host with one tier of two blocks whose engine runs with an open umask."""
    tree = Tree(tmp_path / "kv")
    tree.block(1, 7200)
    tree.block(2, 60)
    tier = tier_for(tree.root)
    monkeypatch.setattr(access, "restarts", lambda document: {"vllm.service": ["umask is 0022, not 0077"]})
    monkeypatch.setattr(discovery, "engines", lambda tier: [discovery.Found(7, "vllm.service", "0.28.0", "/x")])
    monkeypatch.setattr(discovery, "of_services", lambda services: [])
    memory = [{"path": "/dev/shm/vllm_offload_a.mmap", "bytes": 100, "mode": "0600"}]
    both = [evidence_engine.Running(pid, "vllm.service", (), memory=memory) for pid in (7, 8)]
    monkeypatch.setattr(evidence_engine, "running", lambda processes, engines: both)
    monkeypatch.setattr(forecast.system, "show", lambda units, names: {unit: {} for unit in units})
    return tree, {"host": "gpu1", "tiers": [tier]}


def test_a_cache_below_a_volume_that_is_not_mounted_yet_is_counted_with_its_age(host) -> None:
    tree, document = host
    seen = forecast.gather(document, {document["tiers"][0]["name"]: Seen(exists=True)}, tree.now)
    (cache,) = seen.caches
    assert (cache.blocks, cache.fate, cache.complete) == (2, DESTROYED, True)
    assert cache.bytes > 0 and cache.seconds == pytest.approx(7200, abs=2)
    assert seen.destroys("never")


def test_a_mounted_volume_is_no_loss_but_an_old_engine_forgets_it_at_a_restart(host, monkeypatch) -> None:
    tree, document = host
    volumes = {document["tiers"][0]["name"]: OURS}
    (cache,) = forecast.gather(document, volumes, tree.now).caches
    assert (cache.fate, cache.units) == (FORGOTTEN, ("vllm.service",))
    monkeypatch.setattr(discovery, "engines", lambda tier: [discovery.Found(7, "vllm.service", "0.29.0", "/x")])
    assert forecast.gather(document, volumes, tree.now).caches == ()


def test_a_tier_that_goes_takes_its_cache_and_counts_as_a_host_that_loses_one(host) -> None:
    tree, document = host
    left = absent.Left(dict(document["tiers"][0], state="absent"), plain=True)
    gone: dict = {"host": "gpu1", "tiers": []}
    (cache,) = forecast.gather(gone, {}, tree.now, gone=[left]).caches
    assert (cache.blocks, cache.fate) == (2, forecast.ENDED)
    assert forecast.gather(gone, {}, tree.now, gone=[left]).destroys("never")
    assert forecast.gather(gone, {}, tree.now, gone=[replace(left, plain=False)]).caches == ()


def test_memory_that_two_processes_map_is_lost_once(host) -> None:
    tree, document = host
    assert [one.memory_bytes for one in forecast.gather(document, {}, tree.now).restarts] == [100]


def test_an_empty_or_missing_path_loses_nothing(tmp_path: Path, host) -> None:
    _tree, document = host
    for path in (tmp_path / "empty", tmp_path / "none"):
        document["tiers"] = [tier_for(path)]
        (tmp_path / "empty").mkdir(exist_ok=True)
        assert forecast.gather(document, {document["tiers"][0]["name"]: Seen()}, time.time()).caches == ()


@pytest.mark.parametrize(
    ("found", "mode", "destroys"),
    [
        (Forecast("h"), "when_needed", False),
        (Forecast("h", (RESTART,)), "never", False),
        (Forecast("h", (RESTART,)), "when_needed", True),
        (Forecast("h", (Restart("a.service", ("x",)),)), "when_needed", False),
        (Forecast("h", (), (LOST,)), "never", True),
        (Forecast("h", (), (replace(LOST, fate=FORGOTTEN),)), "never", False),
    ],
)
def test_a_host_counts_only_if_this_run_takes_a_cache(found: Forecast, mode: str, destroys: bool) -> None:
    assert found.destroys(mode) is destroys


def test_the_lines_name_engine_reason_size_and_span() -> None:
    result = Forecast("gpu1", (RESTART,), (LOST,)).as_result("never")
    json.dumps(result)
    first, second = result["lines"]
    for words in ("gpu1: vllm.service needs a restart, left to you", "umask is 0022", "3.0 GiB of memory", "95 s"):
        assert words in first
    for words in ("tier chat loses 512 blocks, 5.0 GiB, in /srv/kv", "destroyed", "2 h to gather"):
        assert words in second
    assert "restarted at the end of the play" in forecast.tell(Forecast("h", (RESTART,)), "when_needed")[0]


def test_a_start_is_timed_only_where_the_unit_tells_that_it_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    times = {"InactiveExitTimestampMonotonic": "1000000", "ActiveEnterTimestampMonotonic": "6000000"}
    shown = {"a.service": {"Type": "notify", **times}, "b.service": {"Type": "simple", **times}}
    monkeypatch.setattr(forecast.system, "show", lambda units, names: shown)
    assert forecast._start_seconds(list(shown)) == {"a.service": 5.0}
