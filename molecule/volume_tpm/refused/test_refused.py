# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A TPM that does not open the volume stops no boot, and no engine runs on the bare directory."""

from __future__ import annotations

import json

import pytest
from on_host import output

testinfra_hosts = ["ansible://testbed"]

WRITERS = ("vllm.service", "vllm-python.service")


@pytest.fixture(params=["other-measurement", "other-tpm"])
def seen(host, request) -> dict:
    return json.loads(output(host, f"cat /root/{request.param}.json"))


def test_the_host_booted_without_the_volume_and_asked_nobody(seen):
    assert seen["state"] == "degraded"
    assert seen["mounted"] == "" and seen["mapping"] is False
    assert seen["units"]["systemd-cryptsetup@llmhost_sealed.service"] == "failed"
    assert "active" not in seen["asked"].split()
    assert seen["journal"] != ""


def test_no_engine_started_and_nothing_was_written_to_the_bare_directory(seen):
    assert all(seen["units"][unit] not in ("active", "activating") for unit in WRITERS)
    assert seen["below"] == [] and seen["mode"] == [0, 0]


def test_the_audit_says_so(seen):
    (place,) = [one for one in seen["audit"]["results"] if (one["control"], one["tier"]) == ("KV-02", "sealed")]
    assert place["status"] == "fail" and "the declared volume is not mounted" in place["message"]


def test_with_its_own_tpm_it_is_back_with_what_was_in_it(host):
    assert output(host, "cat /var/lib/vllm-kv/config.json") == "marker-of-before"
    for unit in WRITERS:
        assert host.service(unit).is_running
