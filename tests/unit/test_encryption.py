# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a path is stored on: on trees made by hand, and once on the machine itself."""
# pylint: disable=raising-bad-type

from __future__ import annotations

import os
import struct

import pytest

from ansible_collections.llmhost.hardening.plugins.module_utils.kv import encryption
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.encryption import BAD, GOOD, UNKNOWN, Roots

STATUS = "/dev/mapper/x is active.\n  type:    PLAIN\n  cipher:  aes-xts-plain64\n  keysize: 512 bits\n"


class Machine:
    """A host made of files: devices, mounts and crypttab."""

    def __init__(self, top):
        self.top = top
        self.lines = []
        self.commands = {("cryptsetup", "status"): STATUS}
        self.policy = None
        self.asked = []
        (top / "proc" / "self").mkdir(parents=True)
        (top / "sys" / "dev" / "block").mkdir(parents=True)
        (top / "etc").mkdir()
        self.crypttab("")

    def roots(self, root=True):
        (self.top / "proc/self/mountinfo").write_text("\n".join(self.lines) + "\n")

        def fscrypt(path):
            self.asked.append(path)
            if isinstance(self.policy, OSError):
                raise self.policy
            return self.policy

        return Roots(
            proc=str(self.top / "proc"),
            sys=str(self.top / "sys"),
            etc=str(self.top / "etc"),
            root=root,
            run=self.run,
            mount_id=lambda path: None,
            fscrypt=fscrypt,
        )

    def run(self, argv):
        self.asked.append(list(argv))
        return self.commands.get(tuple(argv[:2]))

    def crypttab(self, text):
        (self.top / "etc/crypttab").write_text(text)

    def mount(self, number, point, fstype="ext4", source="/dev/x", options="rw"):
        ident = 20 + len(self.lines)
        self.lines.append(f"{ident} 1 {number} / {point} {options} shared:1 - {fstype} {source} rw")

    def device(self, number, name, slaves=(), under=None, **files):
        """A block device; files: sysfs attributes by path with __ for /."""
        path = (under or self.top / "sys/devices") / name
        (path / "slaves").mkdir(parents=True)
        for attribute, text in files.items():
            file = path / attribute.replace("__", "/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text + "\n")
        for slave in slaves:
            (path / "slaves" / slave.name).symlink_to(slave)
        (self.top / "sys/dev/block" / number).symlink_to(path)
        return path

    def crypt(self, number, name, slaves, uuid="CRYPT-PLAIN-x"):
        return self.device(number, "dm-" + number[4:], slaves, dm__name=name, dm__uuid=uuid)


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def test_plain_disk_is_not_encrypted(machine):
    disk = machine.device("8:0", "sda", device__model="DISK")
    machine.device("8:1", "sda1", under=disk, partition="1")
    machine.mount("8:1", "/")
    storage = encryption.describe("/srv/kv", machine.roots())
    assert storage.encrypted is False
    assert [layer["kind"] for layer in storage.chain] == ["partition", "disk"]
    assert storage.problems == ["no layer below it encrypts"]
    assert storage.key is None


def test_ephemeral_file_volume_is_encrypted_with_a_key_in_memory(machine):
    machine.device("8:0", "sda")
    loop = machine.device("7:0", "loop0", loop__backing_file="/var/lib/llmhost/chat.img")
    machine.crypt("253:0", "llmhost_chat", [loop])
    machine.crypttab("# a comment\nllmhost_chat /var/lib/llmhost/chat.img /dev/urandom plain,tmp=ext4,nofail\n")
    machine.mount("8:0", "/")
    machine.mount("253:0", "/srv/kv", source="/dev/mapper/llmhost_chat")
    storage = encryption.describe("/srv/kv", machine.roots())
    assert storage.encrypted is True
    assert (storage.by, storage.cipher, storage.key_size_bits) == ("llmhost_chat", "aes-xts-plain64", 512)
    assert (storage.key_kind, storage.key.status) == ("memory", GOOD)
    assert [layer["kind"] for layer in storage.chain] == ["crypt", "loop", "disk"]
    assert storage.chain[1]["detail"] == "/var/lib/llmhost/chat.img"
    assert storage.problems == []


def test_encryption_is_found_below_lvm_and_raid(machine):
    disks = [machine.device(f"8:{16 * i}", f"sd{'ab'[i]}") for i in range(2)]
    crypts = [machine.crypt(f"253:{i}", f"c{i}", [disks[i]], "CRYPT-LUKS2-abc-x") for i in range(2)]
    raid = machine.device("9:0", "md0", crypts, md__level="raid1", md__uuid="u")
    machine.device("253:9", "dm-9", [raid], dm__name="vg-kv", dm__uuid="LVM-abc")
    machine.crypttab("c0 UUID=1 none luks\nc1 UUID=2 none luks\n")
    machine.mount("253:9", "/srv/kv")
    storage = encryption.describe("/srv/kv", machine.roots())
    assert storage.encrypted is True
    assert [layer["kind"] for layer in storage.chain] == ["dm lvm", "md", "crypt", "disk", "crypt", "disk"]


def test_one_clear_branch_makes_it_not_encrypted(machine):
    disks = [machine.device(f"8:{16 * i}", f"sd{'ab'[i]}") for i in range(2)]
    crypt = machine.crypt("253:0", "c0", [disks[0]], "CRYPT-LUKS2-abc-x")
    machine.device("253:9", "dm-9", [crypt, disks[1]], dm__name="vg-kv", dm__uuid="LVM-abc")
    machine.crypttab("c0 UUID=1 none luks\n")
    machine.mount("253:9", "/srv/kv")
    assert encryption.describe("/srv/kv", machine.roots()).encrypted is False


@pytest.mark.parametrize("uuid", ["CRYPT-VERITY-abc-x", "CRYPT-INTEGRITY-x", "LVM-CRYPT-LUKS2-", ""])
def test_other_mappings_encrypt_nothing(machine, uuid):
    disk = machine.device("8:0", "sda")
    machine.crypt("253:0", "x", [disk], uuid)
    machine.crypttab("x /dev/sda /dev/urandom plain\n")
    machine.mount("253:0", "/srv/kv")
    assert encryption.describe("/srv/kv", machine.roots()).encrypted is False


def test_null_cipher_encrypts_nothing(machine):
    disk = machine.device("8:0", "sda")
    machine.crypt("253:0", "x", [disk])
    machine.crypttab("x /dev/sda /dev/urandom plain\n")
    machine.commands["cryptsetup", "status"] = "  cipher:  cipher_null-ecb\n"
    machine.mount("253:0", "/srv/kv")
    storage = encryption.describe("/srv/kv", machine.roots())
    assert storage.encrypted is False
    assert "cipher_null-ecb" in storage.problems[0]


def _keyfile_machine(machine, root_is_encrypted, mode=0o400):
    disk = machine.device("8:0", "sda")
    if root_is_encrypted:
        machine.crypt("253:1", "root", [disk], "CRYPT-LUKS2-r-root")
        machine.mount("253:1", "/")
    else:
        machine.mount("8:0", "/")
    other = machine.device("8:16", "sdb")
    machine.crypt("253:0", "x", [other], "CRYPT-LUKS2-abc-x")
    machine.mount("253:0", "/srv/kv")
    key = machine.top / "x.key"
    key.write_text("secret")
    key.chmod(mode)
    machine.crypttab(f"x UUID=1 {key} luks\nroot UUID=2 none luks\n")
    return key


def _as_root_owned(monkeypatch):
    real = os.stat

    def stat(path, *args, **kwargs):
        info = real(path, *args, **kwargs)
        return os.stat_result([*info[:4], 0, 0, *info[6:10]]) if str(path).endswith(".key") else info

    monkeypatch.setattr(encryption.os, "stat", stat)


def test_keyfile_on_an_unencrypted_root_is_bad(machine, monkeypatch):
    _as_root_owned(monkeypatch)
    key = _keyfile_machine(machine, root_is_encrypted=False)
    found = encryption.describe("/srv/kv", machine.roots())
    assert found.encrypted is True
    assert (found.key.status, found.key.on_encrypted, found.key.path) == (BAD, False, str(key))


def test_closed_keyfile_on_an_encrypted_root_is_good(machine, monkeypatch):
    _as_root_owned(monkeypatch)
    _keyfile_machine(machine, root_is_encrypted=True)
    key = encryption.describe("/srv/kv", machine.roots()).key
    assert (key.kind, key.status, key.on_encrypted, key.mode) == ("keyfile", GOOD, True, "0400")


def test_keyfile_that_others_may_read_is_bad(machine, monkeypatch):
    _as_root_owned(monkeypatch)
    _keyfile_machine(machine, root_is_encrypted=True, mode=0o440)
    assert encryption.describe("/srv/kv", machine.roots()).key.status == BAD


def test_the_key_is_never_read_or_asked_for(machine, monkeypatch):
    _as_root_owned(monkeypatch)
    key = _keyfile_machine(machine, root_is_encrypted=True)
    storage = encryption.describe("/srv/kv", machine.roots())
    assert {tuple(argv[:2]) for argv in machine.asked} == {("cryptsetup", "status")}
    assert key.read_text() not in repr(storage.evidence())


@pytest.mark.parametrize(
    "uuid, line, kind, status",
    [
        ("CRYPT-LUKS2-a-x", "x UUID=1 none luks,tpm2-device=auto", "tpm2", GOOD),
        ("CRYPT-LUKS2-a-x", "x UUID=1 - fido2-device=auto", "token", GOOD),
        ("CRYPT-LUKS2-a-x", "x UUID=1", "passphrase", GOOD),
        ("CRYPT-LUKS2-a-x", "x UUID=1 none luks,keyscript=/x", "unknown", UNKNOWN),
        ("CRYPT-LUKS2-a-x", "x UUID=1 /key:UUID=2 luks", "unknown", UNKNOWN),
        ("CRYPT-LUKS2-a-x", "x UUID=1 /dev/urandom luks", "unknown", UNKNOWN),
        ("CRYPT-LUKS2-a-x", "x UUID=1 /nowhere/at/all luks", "keyfile", UNKNOWN),
        ("CRYPT-LUKS2-a-x", "y UUID=1 none luks", "unknown", UNKNOWN),
        ("CRYPT-PLAIN-x", "x /f /dev/random plain", "memory", GOOD),
    ],
)
def test_key_kind_comes_from_crypttab_and_must_fit_the_mapping(machine, uuid, line, kind, status):
    disk = machine.device("8:0", "sda")
    machine.crypt("253:0", "x", [disk], uuid)
    machine.crypttab(line + "\n")
    machine.mount("253:0", "/srv/kv")
    key = encryption.describe("/srv/kv", machine.roots()).key
    assert (key.kind, key.status) == (kind, status)


def test_key_in_the_default_directory_is_a_keyfile(machine):
    disk = machine.device("8:0", "sda")
    machine.crypt("253:0", "x", [disk], "CRYPT-LUKS2-a-x")
    machine.crypttab("x UUID=1 none luks\n")
    (machine.top / "etc/cryptsetup-keys.d").mkdir()
    (machine.top / "etc/cryptsetup-keys.d/x.key").write_text("k")
    machine.mount("253:0", "/srv/kv")
    assert encryption.describe("/srv/kv", machine.roots()).key_kind == "keyfile"


def test_without_root_the_cipher_comes_from_crypttab_or_is_unknown(machine):
    disk = machine.device("8:0", "sda")
    machine.crypt("253:0", "x", [disk])
    machine.mount("253:0", "/srv/kv")
    machine.crypttab("x /f /dev/urandom plain,cipher=aes-xts-plain64,size=512\n")
    storage = encryption.describe("/srv/kv", machine.roots(root=False))
    assert (storage.cipher, storage.key_size_bits, machine.asked) == ("aes-xts-plain64", 512, [])
    machine.crypttab("x /f /dev/urandom plain\n")
    assert encryption.describe("/srv/kv", machine.roots(root=False)).cipher is None


def test_the_better_of_two_layers_counts(machine):
    disk = machine.device("8:0", "sda")
    outer = machine.crypt("253:0", "outer", [disk], "CRYPT-LUKS2-a-outer")
    machine.crypt("253:1", "inner", [outer], "CRYPT-LUKS2-b-inner")
    machine.crypttab("outer UUID=1 none luks\n")
    machine.mount("253:1", "/srv/kv")
    storage = encryption.describe("/srv/kv", machine.roots())
    assert (storage.by, storage.key.status) == ("outer", GOOD)


@pytest.mark.parametrize(
    "fstype, words",
    [
        ("nfs4", "network"),
        ("ceph", "network"),
        ("lustre", "network"),
        ("overlay", "layered"),
        ("tmpfs", "memory"),
    ],
)
def test_file_systems_that_are_no_local_volume_are_named(machine, fstype, words):
    machine.mount("0:40", "/srv/kv", fstype, "host:/x")
    storage = encryption.describe("/srv/kv", machine.roots())
    assert storage.encrypted is False
    assert fstype in storage.problems[0] and words in storage.problems[0]
    assert storage.local is (words != "network")


@pytest.mark.parametrize("name", ["nbd0", "rbd1", "drbd2"])
def test_network_disks_are_not_local_even_with_encryption(machine, name):
    disk = machine.device("43:0", name)
    machine.crypt("253:0", "x", [disk])
    machine.crypttab("x /f /dev/urandom plain\n")
    machine.mount("253:0", "/srv/kv")
    storage = encryption.describe("/srv/kv", machine.roots())
    assert storage.encrypted is True and storage.local is False


def test_what_cannot_be_seen_is_not_called_unencrypted(machine):
    machine.mount("0:50", "/srv/kv", "bcachefs", "/dev/sda:/dev/sdb")
    assert encryption.describe("/srv/kv", machine.roots()).encrypted is None
    machine.mount("8:77", "/srv/kv")
    assert encryption.describe("/srv/kv", machine.roots()).encrypted is None
    machine.device("7:0", "loop0", loop__backing_file="/x (deleted)")
    machine.mount("7:0", "/srv/kv")
    assert encryption.describe("/srv/kv", machine.roots()).encrypted is None


def test_longest_mount_wins_and_the_last_of_equals(machine):
    machine.mount("0:1", "/srv", "tmpfs", "one")
    machine.mount("0:2", "/srv/kv", "tmpfs", "two")
    machine.mount("0:3", "/srv/kv", "tmpfs", "three")
    machine.mount("0:4", "/srv/kvx", "tmpfs", "four")
    storage = encryption.describe("/srv/kv/below", machine.roots())
    assert (storage.source, storage.mountpoint) == ("three", "/srv/kv")


def test_mount_points_with_spaces_are_read():
    (mount,) = encryption.parse_mounts("36 35 98:0 / /mnt\\040a rw master:1 - ext4 /dev/sd\\134a rw\nrubbish\n")
    assert (mount.point, mount.source) == ("/mnt a", "/dev/sd\\a")


def test_fscrypt_is_encryption_whose_key_is_not_judged(machine):
    machine.device("8:0", "sda")
    machine.mount("8:0", "/")
    machine.policy = bytes([2, 1, 4, 3]) + bytes(20)
    storage = encryption.describe("/srv/kv", machine.roots())
    assert storage.encrypted is True
    assert (storage.cipher, storage.key.status) == ("AES-256-XTS", UNKNOWN)
    machine.policy = PermissionError(13, "Permission denied")
    assert encryption.describe("/srv/kv", machine.roots()).encrypted is None


def test_what_does_not_exist_yet_has_the_policy_of_the_directory_that_is_there(machine, tmp_path):
    machine.device("8:0", "sda")
    machine.mount("8:0", "/")
    storage = encryption.describe(str(tmp_path / "not/yet/tier.key"), machine.roots())
    assert str(tmp_path) in machine.asked and storage.encrypted is False


@pytest.mark.parametrize(
    "answer, encrypted, status",
    [
        ("encryption\taes-256-gcm\nkeylocation\tprompt\nencryptionroot\ttank\n", True, GOOD),
        ("encryption\taes-256-gcm\nkeylocation\thttps://x\nencryptionroot\ttank\n", True, UNKNOWN),
        ("encryption\toff\n", None, None),
        (None, None, None),
    ],
)
def test_zfs_is_asked_as_root_only(machine, answer, encrypted, status):
    machine.commands["zfs", "get"] = answer
    machine.mount("0:60", "/srv/kv", "zfs", "tank/kv")
    storage = encryption.describe("/srv/kv", machine.roots())
    assert storage.encrypted is encrypted
    assert (storage.key.status if storage.key else None) == status
    assert encryption.describe("/srv/kv", machine.roots(root=False)).encrypted is None


def test_btrfs_is_encrypted_only_if_all_its_devices_are(machine):
    disks = [machine.device(f"8:{16 * i}", f"sd{'ab'[i]}") for i in range(2)]
    crypt = machine.crypt("253:0", "c0", [disks[0]], "CRYPT-LUKS2-abc-x")
    machine.crypttab("c0 UUID=1 none luks\n")
    devices = machine.top / "sys/fs/btrfs/1234/devices"
    devices.mkdir(parents=True)
    (devices / "dm-0").symlink_to(crypt)
    machine.mount("0:33", "/srv/kv", "btrfs", "/dev/mapper/c0")
    assert encryption.describe("/srv/kv", machine.roots()).encrypted is True
    (devices / "sdb").symlink_to(disks[1])
    assert encryption.describe("/srv/kv", machine.roots()).encrypted is False


def test_this_machine_agrees_with_the_kernel(tmp_path):
    storage = encryption.describe(str(tmp_path))
    number = os.stat(tmp_path).st_dev
    assert storage.mountpoint and storage.fstype and storage.chain
    if not storage.device.startswith("0:"):
        assert storage.device == f"{os.major(number)}:{os.minor(number)}"
    memory = encryption.describe("/proc/self")
    assert (memory.fstype, memory.encrypted) == ("proc", None)


def test_a_directory_without_policy_has_none(tmp_path):
    policy = encryption.fscrypt_policy(str(tmp_path))
    assert policy is None or struct.unpack_from("B", policy)[0] in (1, 2)
