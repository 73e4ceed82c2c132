# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Volumes that differ from the map: what is refused, with which commands, and what waits for the next opening."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Any

import pytest

from ansible_collections.llmhost.hardening.plugins.module_utils.kv import datamap, devices, drift, units, volume
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.devices import Device, Signature
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.drift import Table
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.system import Mapper, Mount, parse_mounts
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.volume import Bare, Seen

DISK = "/dev/disk/by-id/virtio-bed-0"
PATH = "/var/lib/vllm-kv"
PLAIN = "0 194560 crypt aes-xts-plain64 {} 0 254:16 2048 3 allow_discards no_read_workqueue sector_size:4096"
LUKS = "0 229376 crypt aes-xts-plain64 :64:logon:cryptsetup:6c6c-d0 0 254:32 32768 2 allow_discards sector_size:4096\n"
GOOD = Table("aes-xts-plain64", 512, 194560, 2048, 4096)
LIVE = "rw,nosuid,nodev,noexec,noatime,nosymfollow,rw,logbufs=8,logbsize=64k,noquota"


def tier(source: Any = None, **volume_keys: Any) -> dict[str, Any]:
    raw = {
        "name": "chat",
        "store": "vllm_fs",
        "path": PATH,
        "owner": "vllm",
        "services": ["vllm.service", "other.service"],
        "volume": {"backend": "dmcrypt", "source": source or {"device": DISK}, **volume_keys},
    }
    result: dict[str, Any] = datamap.normalise([raw], "gpu1")["tiers"][0]
    return result


def kept(**more: Any) -> dict[str, Any]:
    return tier(key="keyfile", keyfile="/srv/keys/chat.key", **more)


def device(key: str) -> Device:
    kind = "ext2" if key == "ephemeral" else "crypto_LUKS"
    signature = Signature(kind, 0, devices.header_uuid(tier(), key))
    return Device(DISK, "/dev/vdb", "254:16", 1 << 30, ("bed-0",), (), (signature,), False)


# Tables


def test_a_table_is_read_without_its_key() -> None:
    flags = frozenset(("allow_discards", "no_read_workqueue"))
    assert drift.parse(PLAIN.format("0" * 128)) == replace(GOOD, flags=flags)
    assert drift.parse(LUKS) == Table("aes-xts-plain64", 512, 229376, 32768, 4096, frozenset(("allow_discards",)))
    assert drift.parse("0 8 crypt aes-cbc-essiv:sha256 " + "0" * 64 + " 0 7:0 0") == Table(
        "aes-cbc-essiv:sha256", 256, 8, 0
    )


@pytest.mark.parametrize("text", ["", "0 8 error", "0 8 linear 254:16 0\n8 8 linear 254:16 99\n", LUKS * 2])
def test_what_is_not_one_crypt_target_is_no_table(text: str) -> None:
    assert drift.parse(text) is None


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (replace(GOOD, cipher="aes-cbc-essiv:sha256"), "cipher aes-cbc-essiv:sha256 with a key of 512 bits"),
        (replace(GOOD, cipher="cipher_null-ecb"), "cipher cipher_null-ecb"),
        (replace(GOOD, key_bits=256), "key of 256 bits"),
        (replace(GOOD, sector_size=512), "sectors of 512 bytes"),
        (replace(GOOD, offset=0), "begins at sector 0, not 2048"),
        (None, "not one dm-crypt target"),
    ],
)
def test_another_encryption_than_ours_is_refused(table: Table | None, words: str) -> None:
    found: list[tuple[str, str, str]] = []
    drift.judge_table(tier(), table, True, device("ephemeral"), lambda *problem: found.append(problem))
    ((key, reason, fix),) = found
    assert key == "volume" and words in reason and "kvtier purge chat" in fix


def test_our_own_encryption_is_not_refused() -> None:
    found: list[Any] = []
    drift.judge_table(tier(), GOOD, True, None, lambda *problem: found.append(problem))
    drift.judge_table(kept(), replace(GOOD, offset=32768), True, None, lambda *problem: found.append(problem))
    file = tier({"file": "/var/lib/llmhost/chat.img", "size": "1G"})
    drift.judge_table(file, replace(GOOD, offset=0), True, None, lambda *problem: found.append(problem))
    assert found == []


# Key kinds and rebuilding


def test_a_volume_for_another_kind_of_key_is_one_refusal() -> None:
    of = tier()
    seen = Seen(
        device=device("keyfile"),
        crypttab=(("llmhost_chat", "UUID=" + devices.header_uuid(of, "keyfile"), "/srv/keys/chat.key", "luks"),),
        mapper=Mapper("253:0", "CRYPT-LUKS2-x-llmhost_chat", [], ("254:16",)),
        unit_active=True,
    )
    (problem,) = volume.judge(of, seen, "gpu1")
    assert problem.key == "volume.key" and "for key: keyfile, the map says ephemeral" in problem.reason
    assert "write key: keyfile" in problem.fix


def test_a_device_that_was_given_up_is_not_asked_what_it_was_for() -> None:
    wipes = [{"device": DISK, "serial": "bed-0"}]
    assert volume.judge(tier(), Seen(device=device("keyfile")), "gpu1", wipes) == []


def test_the_commands_of_a_rebuild_name_this_tier_only() -> None:
    commands = drift.rebuild(tier(), device("ephemeral"))
    assert commands.startswith("systemctl stop vllm.service other.service && ")
    assert units.cryptsetup_unit(tier()) in commands
    assert f'with -e \'{{"kv_volume_wipe": [{{"device": "{DISK}", "serial": "bed-0"}}]}}\'' in commands
    for command in commands.partition(";")[0].split(" && "):
        assert shlex.split(command)
    lines = ["llmhost_chat /x none", "llmhost_chat2 /y none", "theirs llmhost_chat none"]
    pattern = next(word for word in shlex.split(commands) if word.startswith("/^llmhost"))
    assert pattern == "/^llmhost_chat /d"
    assert [line for line in lines if line.startswith("llmhost_chat ")] == lines[:1]


def test_a_rebuild_takes_an_image_or_a_logical_volume_away_and_never_a_disk() -> None:
    file = drift.rebuild(tier({"file": "/var/lib/llmhost/chat.img", "size": "1G"}), None)
    logical = drift.rebuild(tier({"vg": "cache", "lv": "chat", "size": "1G"}), None)
    assert "rm -f /var/lib/llmhost/chat.img; run harden again" in file
    assert "lvremove --yes cache/chat; run harden again" in logical
    disk = drift.rebuild(tier(), device("ephemeral"))
    assert not {"rm", "wipefs", "dd", "mkfs", "blkdiscard"} & set(disk.split())


# Mount options


def mount(options: str) -> Mount:
    return Mount(50, 20, "253:0", "/", PATH, "ext4", "/dev/mapper/llmhost_chat", options)


OPEN = Seen(
    exists=True,
    fstab_same=True,
    crypttab_same=True,
    mapper=Mapper("253:0", "CRYPT-PLAIN-llmhost_chat", [], ("254:16",)),
    mounted=mount(LIVE),
    device=device("ephemeral"),
    table=GOOD,
    bare=Bare(0, (), 0, 0, 0, True),
)


def test_mount_options_are_read() -> None:
    line = "50 20 253:0 / /x rw,nosuid,noexec shared:1 - ext4 /dev/mapper/x rw,commit=60"
    assert parse_mounts(line)[0].options == "rw,nosuid,noexec,rw,commit=60"


@pytest.mark.parametrize("missing", ["nosuid", "nodev", "noexec", "noatime", "nosymfollow"])
def test_a_mount_that_lost_an_option_is_remounted(missing: str) -> None:
    assert volume.steps(tier(), OPEN) == []
    lost = replace(OPEN, mounted=mount(LIVE.replace(missing + ",", "")))
    assert volume.steps(tier(), lost) == [f"remount {PATH} with its options"]


def test_own_options_stand_in_fstab_behind_those_that_all_have() -> None:
    options = units.fstab_line(tier(mount_options=["commit=60", "lazytime"])).split()[3].split(",")
    assert options[:8] == ["nodev", "nosuid", "noexec", "noatime", "nosymfollow", "commit=60", "lazytime", "nofail"]


@pytest.mark.parametrize(
    "option",
    ["exec", "dev", "suid", "atime", "relatime", "symfollow", "fail", "nofail", "noauto", "user", "ro", "defaults"]
    + ["remount", "bind", "x-systemd.automount", "X-mount.owner=vllm", "commit=60,exec", "a b", "", "loop", "discard"],
)
def test_an_option_that_would_open_the_tier_is_refused(option: str) -> None:
    with pytest.raises(datamap.MapError, match="mount_options"):
        tier(mount_options=[option])


def test_discard_reaches_the_mount_only_with_the_volume() -> None:
    assert tier(mount_options=["discard"], discard=True)["volume"]["mount_options"] == ["discard"]


@pytest.mark.parametrize(
    ("declared", "found"),
    [
        (["logbsize=64k"], []),
        (["logbsize=256k"], ["logbsize=256k"]),
        (["quota"], ["quota"]),
        (["noquota", "largeio"], []),
    ],
)
def test_an_option_that_the_kernel_contradicts_is_told(declared: list[str], found: list[str]) -> None:
    assert drift.contradicted(declared, LIVE) == found


# What waits


def test_an_ephemeral_volume_gets_flags_and_file_system_at_its_next_opening() -> None:
    assert drift.notes(tier(), GOOD, "ext4", LIVE) == []
    flags, fstype = drift.notes(tier(discard=True, fstype="xfs"), GOOD, "ext4", LIVE)
    assert "none, not allow_discards" in flags and "ext4, not xfs" in fstype
    assert all("until the next boot or kvtier purge chat" in note for note in (flags, fstype))


def test_a_persistent_volume_does_not_wait() -> None:
    assert drift.notes(kept(discard=True), GOOD, "ext4", LIVE) == []
