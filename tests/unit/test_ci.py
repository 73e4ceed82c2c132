# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The workflow on GitHub calls what a person calls, and runs nothing that nobody pinned."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
WORKFLOW = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))
JOBS = WORKFLOW["jobs"]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
SANITY = (ROOT / "tests/tools/sanity.sh").read_text(encoding="utf-8")
CORES = re.findall(r"^        (2\.\d+)\) release=", SANITY, re.M)


def steps():
    return [(name, step) for name, job in JOBS.items() for step in job["steps"]]


def matrix(name):
    return JOBS[name]["strategy"]["matrix"]


def test_every_action_is_pinned_to_a_commit() -> None:
    used = {step["uses"] for _job, step in steps() if "uses" in step}
    assert used and [action for action in used if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", action)] == []


def test_what_tests_is_a_make_target_that_exists() -> None:
    called = [step["run"] for _job, step in steps() if step.get("run", "").startswith("make ")]
    targets = {command.split()[1] for command in called} - {"${{"}
    targets |= set(matrix("hosts")["target"])
    assert {"test", "test-all", "sanity", "docs", "molecule", "harden"} <= targets
    assert [target for target in targets if not re.search(rf"^{target}:", MAKEFILE, re.M)] == []


@pytest.mark.parametrize("job", JOBS)
def test_a_job_ends_in_time_and_sees_no_token(job) -> None:
    assert job == "green" or JOBS[job]["timeout-minutes"] <= 240
    assert WORKFLOW["permissions"] == {"contents": "read"} and "permissions" not in JOBS[job]
    assert "secrets." not in yaml.safe_dump(JOBS[job])


def test_sanity_runs_on_every_ansible_core_that_the_collection_is_for() -> None:
    assert [row["core"] for row in matrix("sanity")["include"]] == CORES
    assert re.search(r"^cores=\((.*)\)$", SANITY, re.M).group(1).split() == CORES
    lowest = yaml.safe_load((ROOT / "meta/runtime.yml").read_text())["requires_ansible"].removeprefix(">=")
    assert lowest.startswith(CORES[0] + ".")


def test_debian_of_the_image_has_a_python_for_that_ansible_core() -> None:
    has = {"debian:12": "3.11", "debian:13": "3.13"}
    for row in matrix("sanity")["include"]:
        pythons = re.search(rf'^        {re.escape(row["core"])}\) .*pythons="(.*?)"', SANITY, re.M).group(1)
        assert has[row["image"]] in pythons.split()


def test_one_job_waits_for_all_that_a_change_must_pass() -> None:
    assert set(JOBS["green"]["needs"]) == JOBS.keys() - {"green", "everything", "distributions"}
    assert " ".join(["success"] * len(JOBS["green"]["needs"])) in JOBS["green"]["steps"][0]["run"]


def test_the_execution_environment_builds_this_version() -> None:
    version = yaml.safe_load((ROOT / "galaxy.yml").read_text())["version"]
    (one,) = yaml.safe_load((ROOT / "tests/ee/requirements.yml").read_text())["collections"]
    assert one["name"].endswith(f"/llmhost-hardening-{version}.tar.gz")
    meta = yaml.safe_load((ROOT / "meta/execution-environment.yml").read_text())
    assert (ROOT / meta["dependencies"]["python"]).is_file()
