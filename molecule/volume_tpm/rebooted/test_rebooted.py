# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""After a reboot: the TPM has opened the volume, with what was in it."""

from __future__ import annotations

from on_host import output

testinfra_hosts = ["ansible://testbed"]


def test_the_host_did_boot(host):
    assert output(host, "cat /proc/sys/kernel/random/boot_id") != output(host, "cat /root/boot")


def test_the_tpm_opened_it_and_what_was_in_it_is_there(host):
    assert output(host, "findmnt -n -o SOURCE --mountpoint /var/lib/vllm-kv") == "/dev/mapper/llmhost_sealed"
    assert output(host, "cat /var/lib/vllm-kv/config.json") == "marker-of-before"
    assert output(host, "stat -c '%U %a' /var/lib/vllm-kv") == "vllm 700"
    for unit in ("vllm.service", "vllm-python.service"):
        assert host.service(unit).is_running
