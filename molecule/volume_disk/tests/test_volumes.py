# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Volumes on files, disks, partitions and logical volumes, seen with an operator's own commands."""

from __future__ import annotations

import pytest
from on_host import output

testinfra_hosts = ["ansible://testbed"]

PART = "/dev/disk/by-partuuid/6c6c6d68-6f73-4bed-8000-0000000000aa"
LUKS = {"kept": "/dev/disk/by-id/virtio-bed-1", "lvol": "/dev/cache/lvol"}
PLAIN = {"disk": "/dev/disk/by-id/virtio-bed-0", "part": PART, "used": "/dev/disk/by-id/virtio-bed-5"}


def status(host, name: str) -> dict[str, str]:
    """What `cryptsetup status` says of a mapping."""
    lines = output(host, f"cryptsetup status {name}").splitlines()[1:]
    return {key.strip(): value.strip() for key, _colon, value in (line.partition(":") for line in lines)}


@pytest.mark.parametrize(
    ("path", "below", "fstype"),
    [
        ("/var/lib/chat-kv", ["crypt", "loop"], "ext4"),
        ("/var/lib/disk-kv", ["crypt", "disk"], "xfs"),
        ("/var/lib/part-kv", ["crypt", "part", "disk"], "ext4"),
        ("/var/lib/lvol-kv", ["crypt", "lvm", "disk"], "xfs"),
        ("/var/lib/used-kv", ["crypt", "disk"], "ext4"),
        ("/var/lib/kept-kv", ["crypt", "disk"], "ext4"),
    ],
)
def test_each_tier_lies_on_dm_crypt_on_its_source(host, path, below, fstype):
    source = output(host, f"findmnt -n -o SOURCE --mountpoint {path}")
    assert output(host, f"lsblk --inverse --noheadings --list --output TYPE {source}").split() == below
    kind, options = output(host, f"findmnt -n -o FSTYPE,OPTIONS --mountpoint {path}").split()
    assert kind == fstype
    assert {"nodev", "nosuid", "noexec", "noatime", "nosymfollow"} <= set(options.split(","))
    assert "discard" not in options
    assert output(host, f"stat -c '%U %a' {path}") == "vllm 700"


@pytest.mark.parametrize("name", ["chat", *PLAIN, *LUKS])
def test_each_mapping_has_our_cipher_and_sectors_that_nvme_wants(host, name):
    found = status(host, f"llmhost_{name}")
    assert found["cipher"] == "aes-xts-plain64" and found["keysize"] == "512 bits"
    assert found["type"] == ("LUKS2" if name in LUKS else "PLAIN")
    assert found["sector size"] == "4096"
    table = output(host, f"dmsetup table llmhost_{name}").split()
    # Whole MiB, so that no encryption sector lies across two pages of the flash.
    assert int(table[7]) % 2048 == 0 and int(table[1]) % 8 == 0
    number = f"/sys/dev/block/{output(host, f'stat -L -c %Hr:%Lr /dev/mapper/llmhost_{name}')}"
    assert output(host, f"cat {number}/queue/logical_block_size") == "4096"


@pytest.mark.parametrize(("name", "device"), [*PLAIN.items(), *LUKS.items()])
def test_each_mapping_lies_on_the_very_device_that_was_declared(host, name, device):
    below = output(host, f"dmsetup deps -o devno llmhost_{name}").partition("(")[2].rstrip(")").replace(", ", ":")
    assert below == output(host, f"stat -L -c %Hr:%Lr {device}")


@pytest.mark.parametrize(("name", "device"), PLAIN.items())
def test_an_ephemeral_volume_starts_behind_a_labelled_header(host, name, device):
    assert output(host, f"blkid -p -s LABEL -o value {device}") == f"llmhost-{name}"
    table = output(host, f"dmsetup table llmhost_{name}").split()
    assert table[7] == "2048", table
    assert ("no_read_workqueue" in table and "no_write_workqueue" in table) == (name == "disk")
    assert "allow_discards" not in table


def test_a_logical_volume_is_tagged_for_its_tier(host):
    tags = output(host, "lvs --noheadings -o lv_tags,lv_size --units m --nosuffix cache/lvol").split()
    assert tags == ["llmhost.tier.lvol", "400.00"]


def test_a_persistent_volume_is_luks2_with_its_flags_in_the_header(host):
    dump = output(host, "cryptsetup luksDump /dev/disk/by-id/virtio-bed-1")
    assert "Version:       \t2" in dump and "sector: 4096 [bytes]" in dump
    assert "Flags:       \tallow-discards" in dump
    assert "allow_discards" in output(host, "dmsetup table llmhost_kept")
    assert "allow_discards" not in output(host, "dmsetup table llmhost_lvol")


def test_own_mount_options_reach_the_kernel(host):
    assert "logbsize=64k" in output(host, "findmnt -n -o OPTIONS --mountpoint /var/lib/lvol-kv").split(",")


@pytest.mark.parametrize("name", LUKS)
def test_the_key_and_the_copy_of_the_header_are_root_s_alone(host, name):
    assert output(host, f"stat -c '%U %a %s' /srv/keys/{name}.key") == "root 400 64"
    assert output(host, f"stat -c '%U %a' /var/lib/llmhost/headers /var/lib/llmhost/headers/{name}.luks2") == (
        "root 700\nroot 600"
    )


def test_crypttab_names_devices_by_uuid_only_and_none_stops_a_boot(host):
    lines = [line.split() for line in output(host, "grep ^llmhost_ /etc/crypttab").splitlines()]
    assert {line[0] for line in lines} == {f"llmhost_{name}" for name in ("chat", *PLAIN, *LUKS)}
    for name, source, key, options in lines:
        assert "nofail" in options.split(",")
        assert source.startswith("UUID=") or name == "llmhost_chat"
        assert key == "/dev/urandom" or key.startswith("/srv/keys/")


def test_no_key_is_in_a_table_a_log_or_a_command_line(host):
    for name in LUKS:
        key = output(host, f"od -A n -v -t x1 /srv/keys/{name}.key | tr -d ' \\n'")
        assert host.run(f"grep -q -a -r -F {key[:32]} /etc /var/log").rc == 1
        assert host.run(f"journalctl --quiet | grep -q -F {key[:32]}").rc == 1
