# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""After power losses, with the right disks in their slots again: every tier is in service, nothing kept was lost."""

from __future__ import annotations

import pytest
from on_host import output

testinfra_hosts = ["ansible://testbed"]


@pytest.mark.parametrize("name", ["disk", "kept", "lvol", "part", "used"])
def test_every_writer_runs_on_its_own_volume(host, name):
    assert host.service(f"{name}-writer").is_running
    source = output(host, f"findmnt -n -o SOURCE --mountpoint /var/lib/{name}-kv")
    assert source == f"/dev/mapper/llmhost_{name}"
    assert output(host, f"lsblk --inverse --noheadings --list --output TYPE {source}").split()[0] == "crypt"
    assert output(host, f"stat -c '%U %a' /var/lib/{name}-kv") == "vllm 700"


@pytest.mark.parametrize(("name", "text"), [("kept", "before"), ("lvol", "before")])
def test_what_was_kept_survived_every_power_loss(host, name, text):
    assert output(host, f"cat /var/lib/{name}-kv/config.json") == text


@pytest.mark.parametrize("name", ["cut1", "cut2", "cut3", "cut4"])
def test_a_volume_that_was_cut_off_is_whole(host, name):
    assert output(host, f"findmnt -n -o SOURCE --mountpoint /srv/{name}") == f"/dev/mapper/llmhost_{name}"
    assert output(host, f"dmsetup table llmhost_{name}").split()[2:4] == ["crypt", "aes-xts-plain64"]
    assert host.run(f"echo written >/srv/{name}/config.json && sync").rc == 0
