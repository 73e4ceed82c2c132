# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The module kv_audit as Ansible runs it: arguments on stdin, one JSON object back."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest
import yaml
from module_runner import run

from ansible_collections.llmhost.hardening.plugins.module_utils.kv import controls, datamap
from ansible_collections.llmhost.hardening.plugins.modules import kv_audit, kv_block_info

TIER = {
    "name": "chat",
    "store": "vllm_fs",
    "path": "/srv/llmhost-test-none",
    "owner": "vllm",
    "services": ["v.service"],
}


def audited(**arguments):
    return run("kv_audit", data_map=datamap.normalise([TIER], "gpu1"), **arguments)


@pytest.mark.parametrize("check", [False, True])
def test_findings_are_returned_and_never_fail_the_task(check):
    answer = audited(check=check)
    assert not answer.get("failed") and answer["changed"] is False
    assert answer["audit"]["verdict"] == "fail"
    assert "KV-02 chat" in answer["failed_controls"]


def test_waivers_reach_the_audit():
    waiver = {"control": "KV-02", "tier": "chat", "reason": "test", "until": "2999-12-31"}
    answer = audited(waivers=[waiver])
    assert answer["audit"]["counts"]["waived"] == 1
    assert "KV-02 chat" not in answer["failed_controls"]


def test_an_incomplete_waiver_is_a_finding_and_no_error():
    answer = audited(waivers=[{"control": "KV-02", "tier": "chat"}])
    assert "WAIVER chat" in answer["failed_controls"]


def test_a_broken_map_fails_with_the_reason():
    broken = datamap.normalise([TIER], "gpu1")
    broken["tiers"][0]["path"] = "/etc/kv"
    answer = run("kv_audit", data_map=broken)
    assert answer["failed"] and "belongs to the system" in answer["msg"]


def test_without_a_map_the_host_must_have_one():
    if os.path.exists(datamap.PATH):
        pytest.skip("this machine has a data map")
    answer = run("kv_audit")
    assert answer["failed"] and "no data map on this host" in answer["msg"]


@pytest.mark.parametrize("module", [kv_audit, kv_block_info])
def test_documentation_and_return_are_yaml(module):
    documentation = yaml.safe_load(module.DOCUMENTATION)
    assert documentation["module"] == module.__name__.rsplit(".", 1)[1]
    assert yaml.safe_load(module.EXAMPLES) and yaml.safe_load(module.RETURN)


def test_what_is_returned_is_what_is_documented():
    documented = yaml.safe_load(kv_audit.RETURN)["audit"]["contains"]
    audit = audited()["audit"]
    assert set(documented) == set(audit)
    assert set(documented["results"]["contains"]) == set(audit["results"][0])
    assert set(audit["counts"]) == set(documented["counts"]["sample"])


def test_docs_describe_every_control():
    text = (pathlib.Path(__file__).resolve().parents[2] / "docs" / "controls.md").read_text()
    for name, control in controls.CONTROLS.items():
        assert f"## {name} {control.title}" in text


def test_a_host_without_tiers_does_not_pay_for_the_judges_of_tiers():
    # A module is compiled anew on each host, and that is most of what an audit of a large fleet costs.
    code = (
        "import sys; from ansible_collections.llmhost.hardening.plugins.module_utils.kv import controls, datamap;"
        "controls.audit(datamap.normalise([], 'gpu1'), map_path='/none', found={});"
        "print(*(name.rpartition('.')[2] for name in sys.modules))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert {"controls", "judge_found", "history"} < (loaded := set(done.stdout.split()))
    heavy = {"judge_tier", "evidence_tier", "walk", "expiry", "encryption", "devices", "offload_judge", "client"}
    assert not loaded & heavy
