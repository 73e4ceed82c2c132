# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The host that failed every control passes all of them; what was closed is seen closed with an operator's commands."""

from __future__ import annotations

import json

import pytest
from on_host import output

testinfra_hosts = ["ansible://testbed"]
JUDGED = [f"KV-{number:02d}" for number in (*range(1, 9), *range(10, 17))]


@pytest.fixture(scope="module")
def audit(host) -> dict:
    return json.loads(host.run("kvtier audit --json").stdout)


@pytest.mark.parametrize("control", JUDGED)
def test_every_control_passes(audit, control):
    found = [one for one in audit["results"] if (one["control"], one["tier"]) == (control, "chat")]
    assert [(one["status"], one["message"]) for one in found if one["status"] != "pass"] == []
    assert len(found) == 1


def test_the_verdict_is_pass(audit):
    assert audit["verdict"] == "pass", [one for one in audit["results"] if one["status"] in ("fail", "unknown")]


def test_swap_is_plain_dm_crypt_and_nothing_else(host):
    (line,) = output(host, "tail -n +2 /proc/swaps").splitlines()
    name = output(host, "readlink -f /dev/mapper/llmhost__swap")
    assert line.split()[0] == name
    assert output(host, "dmsetup table llmhost__swap").split()[2:4] == ["crypt", "aes-xts-plain64"]
    assert output(host, "cat /etc/fstab").count("#llmhost-spill# /swap.img") == 1


def test_a_killed_engine_leaves_no_memory(host):
    command = "head -c 4096 /dev/zero > /dev/shm/vllm_offload_left.mmap && systemctl restart vllm-api.service"
    output(host, command)
    assert not host.file("/dev/shm/vllm_offload_left.mmap").exists


def test_memory_that_a_process_maps_is_left_alone(host):
    code = (
        "import mmap, subprocess, os; file = open('/dev/shm/vllm_offload_held.mmap', 'w+b'); file.truncate(4096);"
        "held = mmap.mmap(file.fileno(), 4096); file.close();"
        "subprocess.run(['kvtier', 'orphans', '--remove'], check=True);"
        "print(os.path.exists('/dev/shm/vllm_offload_held.mmap'))"
    )
    assert output(host, f'python3 -c "{code}"').splitlines()[-1] == "True"
    assert "vllm_offload_held" in output(host, "kvtier orphans --remove")


def test_hibernation_is_masked(host):
    assert output(host, "readlink /etc/systemd/system/hibernate.target") == "/dev/null"
