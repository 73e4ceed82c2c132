# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Before a host is touched: engines that cannot lose blocks, and a retention shorter than what lies there is old."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from fixtures import Tree, tier_for

from ansible_collections.llmhost.hardening.plugins.module_utils.kv import datamap, discovery, preflight_expiry, system
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.discovery import Found
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.preflight_expiry import Ahead, Shorter
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.survey import Survey

CHAT = {
    "name": "chat",
    "store": "vllm_fs",
    "path": "/srv/kv",
    "owner": "vllm",
    "services": ["vllm@.service"],
    "retention_minutes": 600,
}
NEW, OLD = Found(7, "vllm@a.service", "0.29.0", "/a"), Found(8, "vllm@b.service", "0.27.1", "/b")


def document(*changes: dict[str, Any]) -> dict[str, Any]:
    return datamap.normalise([{**CHAT, **change} for change in changes or ({},)], "gpu1")


def refusals(ahead: Ahead, *changes: dict[str, Any], allowed: Any = ()) -> list[str]:
    return [str(problem) for problem in preflight_expiry.judge(document(*changes), ahead, allowed)]


@pytest.mark.parametrize(
    ("change", "engines", "words"),
    [
        ({}, (NEW,), ""),
        ({}, (), ""),
        ({}, (NEW, OLD), "0.27.1 in pid 8 (vllm@b.service) may hang"),
        ({}, (Found(0, "vllm.service", "0.27.0", "/x"),), "0.27.0 in vllm.service may hang"),
        ({}, (Found(7, "vllm.service", None, "no package"),), ""),
        ({"expire": "stopped"}, (OLD,), ""),
        ({"state": "planned"}, (OLD,), ""),
        ({"store": "lmcache_disk"}, (), "whatever its version"),
        ({"store": "lmcache_disk", "expire": "stopped"}, (OLD,), ""),
        ({"store": "llamacpp_slots"}, (Found(7, "llama.service", None, "not told"),), ""),
    ],
)
def test_an_engine_that_cannot_lose_blocks_is_refused_and_the_lowest_version_decides(change, engines, words) -> None:
    running = Ahead(engines={"chat": engines})
    found = refusals(running, change)
    assert len(found) == bool(words) and words in "".join(found)
    for line in found:
        assert line.startswith("host gpu1, tier chat, key expire: ") and "expire: stopped" in line
    # What is only installed counts as well.
    assert len(refusals(Ahead(starts={"chat": engines}), change)) == bool(words)


def test_an_unknown_version_is_told_and_stops_nothing() -> None:
    unknown = Found(7, "vllm.service", None, "no vllm found for pid 7")
    (text,) = preflight_expiry.warnings(document(), Ahead(engines={"chat": [unknown, NEW]}))
    assert "tier chat" in text and "no vllm found" in text
    slots = document({"store": "llamacpp_slots"})
    assert preflight_expiry.warnings(slots, Ahead(engines={"chat": [unknown]})) == []


def test_what_a_stopped_unit_would_start_is_read_from_its_program(tmp_path: Path, monkeypatch) -> None:
    packages = tmp_path / "lib/python3.11/site-packages"
    (packages / "vllm-0.27.1.dist-info").mkdir(parents=True)
    line = f"{{ path={tmp_path}/bin/vllm ; argv[]={tmp_path}/bin/vllm serve ; ignore_errors=no ; }}"
    asked: list[Any] = []

    def show(names, keys):
        asked.extend(names)
        # Alone, ExecStart= of a unit that does not exist is no answer at all.
        assert "LoadState" in keys
        return {name: {"ExecStart": line if name == "vllm.service" else ""} for name in names}

    monkeypatch.setattr(system, "show", show)
    monkeypatch.setattr(discovery, "engines", lambda tier, uid: [NEW])
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/vllm").write_text("")
    services = ["vllm.service", "other.service", "vllm@.service", NEW.unit]
    ahead = preflight_expiry.gather(document({"services": services, "owner": 12345}))
    assert asked == ["other.service", "vllm.service"]
    assert [(one.unit, one.version) for one in ahead.starts["chat"]] == [("vllm.service", "0.27.1")]


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ({}, {}, []),
        ({}, {"retention_minutes": 601}, []),
        ({}, {"retention_minutes": 599}, [("chat", 599, 600)]),
        ({}, {"retention_minutes": 599, "name": "code"}, [("code", 599, 600)]),
        ({}, {"retention_minutes": 60, "name": "code", "path": "/srv/other"}, []),
        ({}, {"retention_minutes": 60, "state": "absent"}, []),
    ],
)
def test_a_retention_is_compared_with_that_of_the_same_place(old, new, found) -> None:
    named = preflight_expiry.shortened(document(old), document(new))
    assert [(tier["name"], tier["retention_minutes"], before) for tier, before in named] == found
    assert preflight_expiry.shortened(None, document(new)) == []


def test_a_lower_prompt_log_shortens_tiers_that_left_the_map_too() -> None:
    without = datamap.normalise([], "gpu1", 60)
    ((tier, before),) = preflight_expiry.shortened(document(), without)
    assert (tier["state"], tier["retention_minutes"], before) == ("vanished", 60, 600)


def shorter(complete: bool = True, **counts: int) -> Shorter:
    tier = document({"retention_minutes": 60})["tiers"][0]
    return Shorter(tier, 600, Survey(complete=complete, **counts))


def test_blocks_that_a_shorter_retention_ends_are_counted_and_need_a_word_for_each_tier() -> None:
    due = shorter(blocks=10, overdue=4, block_bytes=10 << 20)
    (line,) = refusals(Ahead(shorter=[due]))
    for words in (
        "key retention_minutes: it goes from 600 to 60 minutes",
        "4 of 10 blocks in /srv/kv",
        "about 4.0 MiB",
    ):
        assert words in line
    assert "write retention_minutes: 600, or let them go with -e llmhost_shorten_retention=chat." in line
    assert refusals(Ahead(shorter=[due]), allowed=["code"]) == [line]
    assert refusals(Ahead(shorter=[due]), allowed=["chat"]) == []
    (told,) = preflight_expiry.warnings(document(), Ahead(shorter=[due]), ["chat"])
    assert "4 of 10 blocks" in told and "llmhost_shorten_retention" in told


@pytest.mark.parametrize(
    ("one", "refused"),
    [
        (shorter(blocks=10), False),
        (shorter(complete=False, blocks=10), True),
        (shorter(complete=False, blocks=10, overdue=1), True),
        (Shorter(document()["tiers"][0], 900, None), False),
    ],
)
def test_nothing_that_falls_due_is_no_mistake_but_nobody_knows_is(one: Shorter, refused: bool) -> None:
    assert bool(refusals(Ahead(shorter=[one]))) is refused


def test_the_blocks_that_lie_there_are_looked_at(tmp_path: Path, monkeypatch) -> None:
    tree = Tree(tmp_path / "kv")
    for age in (60, 3000, 9000):
        tree.block(age, age)
    tier = tier_for(tree.root, retention_reason=None)
    old = {"host": "gpu1", "prompt_log_retention_minutes": 1440, "tiers": [{**tier, "retention_minutes": 300}]}
    new = copy.deepcopy(old)
    new["tiers"][0]["retention_minutes"] = 30
    monkeypatch.setattr(preflight_expiry.host, "old_map", lambda document: (old, [], []))
    monkeypatch.setattr(discovery, "engines", lambda tier, uid: [])
    monkeypatch.setattr(system, "show", lambda names, keys: {})
    (one,) = preflight_expiry.gather(new).shorter
    assert one.lies is not None and (one.before, one.lies.blocks, one.lies.overdue) == (300, 3, 2)
