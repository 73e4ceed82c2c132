# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Real servers without lifecycle: nothing is written or believed there, and the sweeper keeps the retention."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest
import swift
from juicefs import juicefs
from module_runner import run
from s3_servers import KEY, SECRET, Between, block

LOGIN = {"swift": (swift.KEY, swift.SECRET), "juicefs": (KEY, SECRET)}


class Case:
    """A server with a bucket that holds a block and its neighbours."""

    def __init__(self, name, server) -> None:
        self.name, self.server = name, server
        self.bucket = server.bucket()
        # JuiceFS is a file system below, which has no a//b.
        self.block = block(1) if name == "swift" else block(1).replace("//", "/")
        self.near = {"qwen-other/x", "notes"}
        server.put(self.bucket, self.block, *self.near)
        self.put = time.monotonic()

    def options(self, **more):
        key, secret = LOGIN[self.name]
        given = {"access_key": key, "secret_key": secret, "retention_minutes": 1440, **more}
        return {**self.server.options(self.bucket), **given}


@pytest.fixture(scope="module")
def cases():
    with swift.swift() as one, juicefs() as other:
        yield {"swift": Case("swift", one), "juicefs": Case("juicefs", other)}


@pytest.fixture(params=["swift", "juicefs"])
def case(request, cases):
    return cases[request.param]


def test_the_verdict_is_unsupported_and_nothing_is_kept(case):
    found = run("bucket_lifecycle_info", **case.options())
    assert (found["status"], found["kept"]) == ("unsupported", False), found
    assert found["proof"]["objects"]["seen"] == 1 and "kvsweep" in found["message"]


@pytest.mark.parametrize("state", ["present", "absent"])
def test_nothing_is_written_and_the_bucket_lives(case, state):
    with Between(case.server.endpoint) as between:
        refused = run("bucket_lifecycle", **case.options(endpoint=between.endpoint, state=state))
        assert refused["failed"] and "kvsweep" in refused["msg"], refused
        let = run("bucket_lifecycle", **case.options(endpoint=between.endpoint, state=state, allow_unsupported=True))
        assert (let["changed"], let["supported"]) == (False, False)
        assert not [line for line in between.seen if line.startswith(("PUT", "DELETE", "POST"))]
    assert set(case.server.keys(case.bucket)) == {case.block, *case.near}


def test_a_bucket_that_is_not_there_is_not_made(case):
    refused = run("bucket_lifecycle", **case.options(bucket="not-there"))
    assert refused["failed"]
    assert "not-there" not in [one["Name"] for one in case.server.client.list_buckets()["Buckets"]]


def test_wrong_credentials_are_no_verdict(case):
    found = run("bucket_lifecycle_info", **case.options(secret_key="wrong" * 4))
    assert not found["kept"] and found["status"] in ("denied", "unsupported"), found


def test_a_region_that_swift_corrects_is_taken_from_its_answer(cases):
    found = run("bucket_lifecycle_info", **cases["swift"].options(region="eu-west-9"))
    assert found["status"] == "unsupported" and found["proof"]["objects"]["seen"] == 1, found


def test_the_sweeper_keeps_the_retention_alone(case, tmp_path):
    """The shortest retention there is."""
    paths = {"program": "kvsweep", "config_dir": "jobs", "state_dir": "state", "cron_file": "cron"}
    options = case.options(tier="h/t")
    given = {name: str(tmp_path / path) for name, path in paths.items()}
    run("bucket_sweeper", python=sys.executable, **{**options, "retention_minutes": 1}, **given)

    def swept():
        program = [tmp_path / "kvsweep", f"--config={tmp_path}/jobs", f"--state={tmp_path}/state"]
        done = subprocess.run([*program, "run", "--json"], capture_output=True, text=True, check=False)
        (record,) = json.loads(done.stdout)
        assert record["exit"] == 0, record
        return record["deleted"]["objects"]

    time.sleep(max(0, case.put + 62 - time.monotonic()))
    young = case.block[:-5] + "0.bin"
    case.server.put(case.bucket, young)
    assert swept() == 1
    assert set(case.server.keys(case.bucket)) == {young, *case.near}
    found = run("bucket_lifecycle_info", **{**options, "retention_minutes": 1}, sweep_state_dir=str(tmp_path / "state"))
    assert (found["status"], found["kept_by"]) == ("unsupported", "sweeper"), found["message"]
