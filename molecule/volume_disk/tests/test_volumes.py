# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Volumes on disks, seen with an operator's own commands."""

from __future__ import annotations

import pytest

testinfra_hosts = ["ansible://testbed"]


def output(host, command: str) -> str:
    done = host.run(command)
    assert done.rc == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout.strip()


def chain(host, path: str) -> list[str]:
    """Kinds of the devices below a mount point, from the top."""
    source = output(host, f"findmnt -n -o SOURCE --mountpoint {path}")
    return output(host, f"lsblk --inverse --noheadings --list --output TYPE {source}").split()


@pytest.mark.parametrize(
    ("path", "below", "fstype"),
    [
        ("/var/lib/vllm-kv", ["crypt", "loop"], "ext4"),
        ("/var/lib/disk-kv", ["crypt", "disk"], "xfs"),
        ("/var/lib/kept-kv", ["crypt", "disk"], "ext4"),
    ],
)
def test_each_tier_lies_on_dm_crypt_on_its_source(host, path, below, fstype):
    assert chain(host, path) == below
    kind, options = output(host, f"findmnt -n -o FSTYPE,OPTIONS --mountpoint {path}").split()
    assert kind == fstype
    assert {"nodev", "nosuid", "noexec", "noatime"} <= set(options.split(","))
    assert output(host, f"stat -c '%U %a' {path}") == "vllm 700"


def test_an_ephemeral_volume_starts_behind_a_labelled_header(host):
    label = "blkid -p -s LABEL -o value /dev/disk/by-id/virtio-bed-0"
    assert output(host, label) == "llmhost-disk"
    table = output(host, "dmsetup table llmhost_disk").split()
    assert table[2:4] == ["crypt", "aes-xts-plain64"]
    assert table[7] == "2048", table
    assert "no_read_workqueue" in table and "no_write_workqueue" in table and "sector_size:4096" in table
    assert "allow_discards" not in table


def test_a_persistent_volume_is_luks2_with_its_flags_in_the_header(host):
    dump = output(host, "cryptsetup luksDump /dev/disk/by-id/virtio-bed-1")
    assert "Version:       \t2" in dump and "sector: 4096 [bytes]" in dump
    assert "Flags:       \tallow-discards" in dump
    assert "allow_discards" in output(host, "dmsetup table llmhost_kept")


def test_the_key_and_the_copy_of_the_header_are_root_s_alone(host):
    assert output(host, "stat -c '%U %a %s' /srv/keys/kept.key") == "root 400 64"
    assert output(host, "stat -c '%U %a' /var/lib/llmhost/headers /var/lib/llmhost/headers/kept.luks2") == (
        "root 700\nroot 600"
    )


def test_crypttab_names_disks_by_uuid_only_and_none_stops_a_boot(host):
    lines = [line.split() for line in output(host, "grep ^llmhost_ /etc/crypttab").splitlines()]
    assert {line[0] for line in lines} == {"llmhost_chat", "llmhost_disk", "llmhost_kept"}
    for name, source, _key, options in lines:
        assert "nofail" in options.split(",")
        assert source.startswith("UUID=") or name == "llmhost_chat"
