# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""After a reboot: an ephemeral disk is empty under a new key, a persistent one has what it had."""

from __future__ import annotations

testinfra_hosts = ["ansible://testbed"]


def output(host, command: str) -> str:
    done = host.run(command)
    assert done.rc == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout.strip()


def test_the_host_did_boot(host):
    assert output(host, "cat /proc/sys/kernel/random/boot_id") != output(host, "cat /root/boot")


def test_an_ephemeral_disk_comes_back_empty_under_a_new_key(host):
    assert output(host, "findmnt -n -o FSTYPE --mountpoint /var/lib/disk-kv") == "xfs"
    assert not host.file("/var/lib/disk-kv/config.json").exists
    assert output(host, "dmsetup table --showkeys llmhost_disk | sha256sum") != output(host, "cat /root/disk-key")


def test_a_persistent_disk_comes_back_with_what_it_had(host):
    assert output(host, "cat /var/lib/kept-kv/config.json") == "before"
    assert host.service("kept-writer").is_running
