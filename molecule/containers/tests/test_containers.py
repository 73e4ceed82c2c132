# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Containers of podman and docker write into their volumes, as their accounts; true after a reboot, too."""

from __future__ import annotations

import json
import time

import pytest
from on_host import output

testinfra_hosts = ["ansible://testbed"]


@pytest.fixture(params=[("quad", 980), ("dock", 991)], ids=["quad", "dock"])
def engine(request) -> tuple[str, int]:
    return request.param


def test_its_blocks_lie_on_the_volume_closed_and_its_accounts(host, engine):
    name, uid = engine
    path = f"/var/lib/{name}-kv"
    assert output(host, f"findmnt -n -o SOURCE --mountpoint {path}") == f"/dev/mapper/llmhost_{name}"
    end = time.monotonic() + 120
    while int(output(host, f"find {path} -name '*.bin' | wc -l")) < 3:
        assert time.monotonic() < end, "the container writes nothing into the volume"
        time.sleep(3)
    assert output(host, f"find {path} -name '*.bin' ! -uid {uid}") == ""
    assert output(host, f"find {path} -perm /077") == ""


def test_the_audit_sees_through_the_container(host, engine):
    name, _uid = engine
    output(host, "kvtier expire || true")
    found = json.loads(host.run("kvtier audit --json").stdout)
    results = {(one["control"], one["tier"]): one for one in found["results"]}
    for control in ("KV-01", "KV-02", "KV-03", "KV-04", "KV-05"):
        assert results[control, name]["status"] == "pass", results[control, name]
    assert results["KV-03", name]["evidence"]["processes"], "no process of the container was seen"


def test_docker_starts_after_the_tier(host):
    after = output(host, "systemctl show -P After docker.service").split()
    wants = output(host, "systemctl show -P Wants docker.service").split()
    assert "llmhost-tier@dock.service" in after and "llmhost-tier@dock.service" in wants
    requires = output(host, "systemctl show -P Requires docker.service").split()
    assert "llmhost-tier@dock.service" not in requires, "other people's containers would stop with the tier"


def test_cron_expires_for_an_account_that_has_no_name(host, engine):
    name, _uid = engine
    (line,) = [one for one in output(host, "cat /etc/cron.d/llmhost").splitlines() if f"expire {name}" in one]
    assert line.split()[5] == "root"
    assert host.run(f"kvtier expire {name}").rc == 0


def test_status_is_well(host):
    done = host.run("kvtier status")
    assert "NOT ON THE VOLUME" not in done.stdout and "RESTART PENDING" not in done.stdout, done.stdout
