# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""After changes by hand and by the map: all as declared, under the same keys, with what was in it."""

from __future__ import annotations

import pytest
from on_host import output

testinfra_hosts = ["ansible://testbed"]

ALWAYS = {"nodev", "nosuid", "noexec", "noatime", "nosymfollow"}


@pytest.mark.parametrize("name", ["disk", "kept", "lvol", "part", "used", "chat"])
def test_every_mount_has_the_options_that_all_have(host, name):
    options = output(host, f"findmnt -n -o VFS-OPTIONS --mountpoint /var/lib/{name}-kv")
    assert set(options.split(",")) >= ALWAYS, options


def test_no_table_names_another_option_or_cipher(host):
    lines = output(host, "grep ^/dev/mapper/llmhost_ /etc/fstab").splitlines()
    assert len(lines) == 6 and all(set(line.split()[3].split(",")) >= ALWAYS for line in lines), lines
    assert "cbc" not in output(host, "cat /etc/crypttab")


def test_flags_are_as_declared_in_the_kernel_and_in_the_header(host):
    assert "allow_discards" in output(host, "dmsetup table llmhost_kept")
    assert "allow_discards" not in output(host, "dmsetup table llmhost_lvol")
    assert "allow-discards" in output(host, "cryptsetup luksDump /dev/disk/by-id/virtio-bed-1 | grep Flags")
    assert "allow-discards" not in output(host, "cryptsetup luksDump /dev/cache/lvol | grep Flags")


def test_copies_of_headers_are_root_s_alone_and_open_the_volume(host):
    for name in ("kept", "lvol", "used"):
        copy = f"/var/lib/llmhost/headers/{name}.luks2"
        assert output(host, f"stat -c '%U %a' {copy}") == "root 600"
        source = output(host, f"cryptsetup status llmhost_{name} | sed -n 's/ *device: *//p'")
        test = f"cryptsetup open --test-passphrase --key-file /srv/keys/{name}.key --header {copy} {source}"
        assert host.run(test).rc == 0


@pytest.mark.parametrize(
    ("name", "path", "size"), [("chat", "/var/lib/chat-kv", 320 << 20), ("lvol", "/var/lib/lvol-kv", (500 - 16) << 20)]
)
def test_what_grew_has_its_new_size_in_every_layer(host, name, path, size):
    assert int(output(host, f"blockdev --getsize64 /dev/mapper/llmhost_{name}")) == size
    blocks, block, _type = output(host, f"stat -f -c '%b %S %T' {path}").split()
    # What the file system keeps for itself.
    assert int(blocks) * int(block) > size * 85 // 100


def test_keys_and_contents_are_those_of_before(host):
    keys = "dmsetup table --showkeys llmhost_{} | cut -d ' ' -f 5 | sha256sum"
    before = output(host, "cat /root/keys").splitlines()
    assert [output(host, keys.format(name)) for name in ("chat", "disk", "kept", "lvol")] == before[:4]
    output(host, "sync; echo 3 >/proc/sys/vm/drop_caches")
    for name in ("disk", "kept", "lvol", "chat"):
        assert output(host, f"cat /var/lib/{name}-kv/config.json") == "before-drift"


def test_no_writer_noticed_what_was_done_below_it(host):
    units = " ".join(f"{name}-writer" for name in ("chat", "disk", "kept", "lvol"))
    assert output(host, f"systemctl show -P InvocationID {units}") == output(host, "cat /root/writers")
    assert all(host.service(unit).is_running for unit in units.split())


def test_a_cipher_that_was_opened_by_hand_is_gone(host):
    assert output(host, "dmsetup table llmhost_part").split()[3] == "aes-xts-plain64"
    assert output(host, "findmnt -n -o SOURCE --mountpoint /var/lib/part-kv") == "/dev/mapper/llmhost_part"


def test_a_volume_for_another_kind_of_key_was_made_anew(host):
    assert output(host, "blkid -p -s TYPE -o value /dev/disk/by-id/virtio-bed-5") == "crypto_LUKS"
    assert output(host, "dmsetup info -c --noheadings -o uuid llmhost_used").startswith("CRYPT-LUKS2-")
