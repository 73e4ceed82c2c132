# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What community.aws.s3_lifecycle makes of another team's rule on a real server, and what ours does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import s3_servers
from module_runner import run
from pinned import pinned
from s3_servers import KEY, SECRET, block

PINS = Path(__file__).with_name("requirements.txt")
THEIRS = {"Filter": {"Tag": {"Key": "team", "Value": "x"}}, "Expiration": {"Days": 30}}


@pytest.fixture(scope="session")
def weed():
    with s3_servers.weed() as server:
        yield server


@pytest.fixture(scope="session")
def collections():
    """Where the collections of the ansible bundle lie; installed once into the cache."""
    return pinned(PINS)


def incumbent(weed, collections, bucket, arguments, *flags):
    given = f"name={bucket} endpoint_url={weed.endpoint} access_key={KEY} secret_key={SECRET} region=us-east-1"
    ansible = Path(sys.executable).parent / "ansible"
    return subprocess.run(
        [ansible, "localhost", "-m", "community.aws.s3_lifecycle", "-a", f"{given} {arguments}", *flags],
        env={**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(collections), "ANSIBLE_LOCALHOST_WARNING": "0"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_incumbent_makes_a_rule_for_everything_of_another_teams_and_ours_does_not(weed, collections):
    theirs, ours = weed.bucket("theirs"), weed.bucket("ours")
    for bucket in (theirs, ours):
        weed.set_rules(bucket, THEIRS)
    done = incumbent(weed, collections, theirs, "expiration_days=1 state=present")
    assert done.returncode == 0, done.stdout + done.stderr
    left = weed.rules(theirs)
    assert not any("Tag" in rule.get("Filter", {}) for rule in left), left
    assert any(not rule.get("Filter", {}).get("Prefix") and rule["Expiration"] == {"Days": 1} for rule in left), left
    weed.put(ours, block(1))
    assert run("bucket_lifecycle", **weed.options(ours, retention_minutes=1440))["changed"]
    assert weed.rules(ours)[0] == {"ID": "theirs-0", "Status": "Enabled", **THEIRS} and len(weed.rules(ours)) == 2


def test_the_incumbent_has_no_check_mode(weed, collections):
    bucket = weed.bucket()
    weed.set_rules(bucket, THEIRS)
    done = incumbent(weed, collections, bucket, "expiration_days=1 state=present", "--check")
    assert "skipped" in done.stdout.lower() or "check mode" in done.stdout.lower() + done.stderr.lower(), done.stdout
