# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""KV-01, of the host: a store that runs, is configured or lies in a default directory is in the map, or a finding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fixtures import Tree
from test_tiers_found import Host, transfer

from ansible_collections.llmhost.hardening.plugins.module_utils.kv import controls, datamap, judge_found, tiers_found
from ansible_collections.llmhost.hardening.plugins.module_utils.report import document as report
from ansible_collections.llmhost.hardening.plugins.module_utils.report import junit

CHAT = {
    "name": "chat",
    "store": "vllm_fs",
    "path": "/var/lib/vllm-kv",
    "owner": "vllm",
    "services": ["vllm.service"],
}
BUCKET = {"name": "far", "store": "vllm_obj", "bucket": "kv-prod", "endpoint": "https://s3", "prefix": "qwen"}
PEERS = {"name": "peers", "store": "vllm_p2p", "services": ["vllm.service"]}


def place(path: str | None = "/var/lib/vllm-kv", store: str = "vllm_fs", **more: Any) -> dict[str, Any]:
    way = {"kind": "process", "pid": 7, "unit": "vllm.service"}
    return {"store": store, "path": path, "inside": path, "sure": "running", "found": [way], **more}


def judged(*found: dict[str, Any], root: bool = True, tiers: Any = (CHAT,), **more: Any) -> dict[str, Any]:
    document = datamap.normalise(list(tiers), "gpu1")
    answer = {"tiers": list(found), "unread": [], "processes": 9, "engines": 1, **more}
    return dict(judge_found.judge(document, answer, root, lambda path: path.replace("/link", "/var/lib/vllm-kv")))


@pytest.mark.parametrize(
    ("found", "tiers"),
    [
        (place(), (CHAT,)),
        (place("/var/lib/vllm-kv/a"), (CHAT,)),
        (place("/link"), (CHAT,)),
        (place(None, "vllm_obj", bucket="kv-prod", prefix="qwen"), (BUCKET,)),
        (place(None, "vllm_p2p"), (PEERS,)),
    ],
)
def test_a_place_of_a_declared_tier_is_no_finding(found, tiers) -> None:
    results = judged(found, tiers=tiers)
    assert list(results) == ["-"] and results["-"].status == "pass"


@pytest.mark.parametrize(
    ("found", "tiers", "name", "words"),
    [
        (place("/srv/other"), (CHAT,), "/srv/other", "vllm_fs at /srv/other (running: pid 7 vllm.service) is no tier"),
        (place("/var/lib/vllm-kv2"), (CHAT,), "/var/lib/vllm-kv2", "is no tier"),
        (place(None, inside="/kv"), (CHAT,), "/kv", "inside a container"),
        (place(), (), "/var/lib/vllm-kv", "is no tier"),
        (place(), ({**CHAT, "state": "planned"},), "/var/lib/vllm-kv", "but tier chat is planned"),
        (place(), ({**CHAT, "state": "absent"},), "/var/lib/vllm-kv", "but tier chat is absent"),
        (place(None, "vllm_obj", bucket="kv-prod", prefix="llama"), (BUCKET,), "kv-prod/llama", "is no tier"),
        (place(None, "vllm_p2p"), (CHAT,), "vllm_p2p", "is no tier"),
    ],
)
def test_a_place_that_no_tier_names_is_a_finding_of_its_own(found, tiers, name, words) -> None:
    results = judged(found, tiers=tiers)
    verdict = results["undeclared:" + name]
    assert verdict.status == "fail" and words in verdict.message and verdict.remedy
    assert results["-"].status == "pass" and "1 places" in results["-"].message


def test_a_container_s_own_path_is_known_once_it_runs_on_a_declared_tier() -> None:
    configured = place(None, inside="/kv", sure="configured")
    assert "undeclared:/kv" in judged(configured)
    assert list(judged(configured, place(inside="/kv"))) == ["-"]


@pytest.mark.parametrize(
    ("more", "root", "words"),
    [
        ({"unread": ["pid 7: its environment cannot be read", "x"]}, True, "could not all be read: pid 7"),
        ({"error": "no /proc", "tiers": []}, True, "no /proc"),
        ({}, False, "only root"),
    ],
)
def test_what_could_not_be_looked_at_is_unknown_and_never_passes(more, root, words) -> None:
    verdict = judged(root=root, **more)["-"]
    assert verdict.status == "unknown" and words in verdict.message and verdict.remedy


def test_a_scan_that_ended_early_is_said() -> None:
    assert "ended early" in judged(scan={"complete": False})["-"].message


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_what_runs_and_what_lies_in_a_default_directory_is_found_on_a_host(host: Host) -> None:
    host.process(7, "python3", "/venv/bin/vllm", "serve", *transfer(), env={})
    Tree(host.root / "tmp/hicache").put("a" * 64 + "_Qwen_0_1.bin")
    found = host.find()
    results = dict(judge_found.judge(datamap.normalise([CHAT], "gpu1"), found, True))
    assert list(results) == ["undeclared:/tmp/hicache", "-"]
    results = dict(judge_found.judge(datamap.normalise([], "gpu1"), found, True))
    assert list(results) == ["undeclared:/tmp/hicache", "undeclared:/var/lib/vllm-kv", "-"]


def test_the_audit_waives_one_place_and_not_the_next(tmp_path: Path) -> None:
    document = datamap.normalise([], "gpu1")
    found = {"tiers": [place("/srv/a"), place("/srv/b")], "unread": []}
    waiver = {"control": "KV-01", "tier": "undeclared:/srv/a", "reason": "a trial", "until": "2999-01-01"}
    audit = controls.audit(document, map_path=str(tmp_path / "none"), waivers=[waiver], found=found)
    statuses = {one["tier"]: one["status"] for one in audit["results"] if one["control"] == "KV-01"}
    assert (statuses["undeclared:/srv/a"], statuses["undeclared:/srv/b"]) == ("waived", "fail")
    assert audit["verdict"] == "fail"
    # The report names the place once, and the waived one as what it is.
    made = report.build([report.host("gpu1", {"audit": audit}, document, {"found": found})], 0)
    (told,) = made["hosts"][0]["undeclared"]
    assert told["where"] == "/srv/b" and made["hosts"][0]["tiers"] == []
    assert junit.render(made).count("/srv/b is in no data map") == 0 and "undeclared:/srv/b" in junit.render(made)
    assert controls.audit(document, map_path=str(tmp_path / "none"))["results"] == []


def test_a_host_that_cannot_be_looked_at_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(**_options: Any) -> Any:
        raise OSError("no /proc here")

    monkeypatch.setattr(tiers_found, "find", broken)
    assert tiers_found.look() == {"error": "no /proc here"}
