# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Disks as sources: which may be taken, which never, and that a permission to wipe fits one device only."""

from __future__ import annotations

import io
import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.llmhost.hardening.plugins.module_utils.kv import (
    datamap,
    devices,
    drift,
    luks,
    luksheader,
    system,
    units,
    volume,
)
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.devices import Device, Signature
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.luks import KeyFile
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.system import HostError

DISK = "/dev/disk/by-id/virtio-bed-0"
GIB = 1 << 30
# What wipefs 2.38.1 of Debian 12 prints for a disk with a partition table.
GPT = """{
   "signatures": [
      {
         "device": "vdd",
         "offset": "0x200",
         "type": "gpt",
         "uuid": null,
         "label": null
      },{
         "device": "vdd",
         "offset": "0x1fe",
         "type": "PMBR",
         "uuid": null,
         "label": null
      }
   ]
}
"""


def tier(key: str = "ephemeral", size: str | None = None, name: str = "chat", **more: Any) -> dict[str, Any]:
    source: dict[str, Any] = {"device": DISK}
    if size:
        source["size"] = size
    volume: dict[str, Any] = {"backend": "dmcrypt", "source": source, "key": key, **more}
    if key == "keyfile":
        volume["keyfile"] = "/srv/keys/chat.key"
    raw = {
        "name": name,
        "store": "vllm_fs",
        "path": "/var/lib/vllm-kv",
        "owner": "vllm",
        "services": ["vllm.service"],
        "volume": volume,
    }
    result: dict[str, Any] = datamap.normalise([raw], "gpu1")["tiers"][0]
    return result


EMPTY = Device(DISK, "/dev/vdb", "254:16", GIB, ("bed-0", "0x1af4_bed-0"))
OURS = replace(EMPTY, blank=False, signatures=(Signature("ext2", 0x438, devices.header_uuid(tier())),))
EXT4 = replace(EMPTY, blank=False, signatures=(Signature("ext4", 0x438, "5d1c"),))
WIPE = [{"device": DISK, "serial": "bed-0"}]


def refusals(of: dict[str, Any], device: Device | None, wipes: Any = ()) -> list[tuple[str, str, str]]:
    found: list[tuple[str, str, str]] = []
    devices.judge(of, device, wipes, lambda *problem: found.append(problem))
    return found


def test_an_empty_device_and_our_own_are_taken() -> None:
    assert refusals(tier(), EMPTY) == []
    assert refusals(tier(), OURS) == []
    assert devices.step(tier(), EMPTY) == f"take {DISK}"
    assert devices.step(tier(), OURS) is None


@pytest.mark.parametrize(
    ("device", "words"),
    [
        (None, "is not there"),
        (EXT4, "carries ext4"),
        (replace(EMPTY, blank=False), "is not empty"),
        (replace(EXT4, signatures=(Signature("LVM2_member", 0x218, "x"),)), "carries LVM2_member"),
        (replace(EXT4, signatures=(Signature("linux_raid_member", 0x1000, "x"),)), "carries linux_raid_member"),
        (replace(EXT4, signatures=(Signature("zfs_member", 0x3F000, "x"),)), "carries zfs_member"),
        (replace(EXT4, signatures=(Signature("swap", 0xFF6, "x"),)), "carries swap"),
        (replace(EXT4, signatures=devices.parse_signatures(GPT)), "carries PMBR, gpt"),
        # Our header's UUID on another kind of signature, or far behind the header, is not our header.
        (replace(OURS, signatures=(Signature("ext4", 0x438, devices.header_uuid(tier())),)), "carries ext4"),
        (replace(OURS, signatures=(Signature("ext2", GIB // 2, devices.header_uuid(tier())),)), "carries ext2"),
        (replace(OURS, signatures=(Signature("ext2", 0x438, devices.header_uuid(tier(name="b"))),)), "carries ext2"),
        (replace(EMPTY, in_use=("/dev/vdb1 is mounted at /",)), "mounted at /"),
        (replace(OURS, in_use=("/etc/fstab names /dev/vdb",)), "fstab names"),
        (replace(EMPTY, readonly=True), "read-only"),
        (replace(EMPTY, size=GIB + 512), "no multiple of the 4096"),
        (replace(OURS, twins=("/dev/vdc",)), "/dev/vdc carries the tier's header too"),
    ],
)
def test_what_must_not_be_taken_is_refused(device: Device | None, words: str) -> None:
    (problem,) = refusals(tier(), device)
    assert words in problem[1] and problem[2]


def test_a_size_that_does_not_fit_says_by_how_much() -> None:
    (problem,) = refusals(tier(size="1100M"), EMPTY)
    assert problem[0] == "volume.source.size"
    assert "1024 MiB, 76 MiB less than wanted" in problem[1] and "1024M" in problem[2]


def test_a_wipe_counts_for_one_path_and_its_serial_only() -> None:
    assert refusals(tier(), EXT4, WIPE) == []
    for other in (
        [{"device": DISK, "serial": "bed-1"}],
        [{"device": "/dev/disk/by-id/virtio-bed-1", "serial": "bed-0"}],
        [{"device": "/dev/vdb", "serial": "bed-0"}],
        [{"device": DISK, "serial": ""}],
    ):
        assert len(refusals(tier(), EXT4, other)) == 1
    assert len(refusals(tier(), replace(EXT4, serials=()), [{"device": DISK, "serial": ""}])) == 1


@pytest.mark.parametrize("state", [{"in_use": ("/dev/vdb is swap",)}, {"readonly": True}, {"twins": ("/dev/vdc",)}])
def test_no_wipe_takes_what_is_in_use(state: Any) -> None:
    assert refusals(tier(), replace(EXT4, **state), WIPE) != []


def test_the_fix_is_the_very_argument_that_gives_it_up() -> None:
    (problem,) = refusals(tier(), EXT4)
    assert f'-e \'{{"kv_volume_wipe": [{{"device": "{DISK}", "serial": "bed-0"}}]}}\'' in problem[2]


# Looking


def test_wipefs_is_read() -> None:
    assert devices.parse_signatures("") == ()
    assert devices.parse_signatures(GPT) == (Signature("gpt", 0x200, None), Signature("PMBR", 0x1FE, None))


def sysfs(root: Path, name: str, number: str, parent: Path | None = None, holders: tuple[str, ...] = ()) -> Path:
    directory = (parent or root) / name
    (directory / "holders").mkdir(parents=True)
    (directory / "dev").write_text(number + "\n")
    if parent:
        (directory / "partition").write_text("1\n")
    for holder in holders:
        (directory / "holders" / holder / "dm").mkdir(parents=True)
        (directory / "holders" / holder / "dm" / "name").write_text(holder + "\n")
    return directory


def test_a_disk_is_in_use_if_any_partition_of_it_is(tmp_path: Path) -> None:
    disk = sysfs(tmp_path, "vda", "254:0")
    one = sysfs(tmp_path, "vda1", "254:1", disk, ("vg-root",))
    two = sysfs(tmp_path, "vda2", "254:2", disk)
    found = devices.users(str(disk), "llmhost_chat", {"254:2": "/boot"}, ["/dev/vda1"], [("/dev/vda2", "/etc/fstab")])
    assert found == [
        "/dev/vda1 is swap",
        "/dev/vda1 is part of vg-root",
        "/dev/vda2 is mounted at /boot",
        "/etc/fstab names /dev/vda2",
    ]
    assert devices.users(str(one), "llmhost_chat", {"254:2": "/boot"}, [], []) == ["/dev/vda1 is part of vg-root"]
    assert devices.users(str(two), "llmhost_chat", {"254:0": "/srv"}, [], []) == ["/dev/vda is mounted at /srv"]


def test_the_tier_s_own_mapping_may_use_it(tmp_path: Path) -> None:
    disk = sysfs(tmp_path, "vdb", "254:16", None, ("llmhost_chat", "other"))
    assert devices.users(str(disk), "llmhost_chat", {}, [], []) == ["/dev/vdb is part of other"]


@pytest.mark.parametrize("at", [0, (1 << 20) - 1, (1 << 22) - 1])
def test_a_single_byte_at_either_end_is_seen(tmp_path: Path, at: int) -> None:
    image = tmp_path / "disk"
    data = bytearray(1 << 22)
    image.write_bytes(data)
    assert devices._blank(str(image), len(data))
    data[at] = 1
    image.write_bytes(data)
    assert not devices._blank(str(image), len(data))


# Taking


class Host:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, found: list[Device]) -> None:
        self.calls: list[tuple[str, ...]] = []
        self.found = found
        monkeypatch.setattr(system, "run", self.run)
        monkeypatch.setattr(devices, "look", lambda tier: self.found.pop(0) if self.found else None)
        monkeypatch.setattr(devices, "claim", lambda device: None)
        monkeypatch.setattr(devices, "resolve", lambda field: "/dev/vdb")

    def run(self, argv: Any, timeout: float = 0) -> subprocess.CompletedProcess[str]:
        self.calls.append(tuple(argv))
        return subprocess.CompletedProcess(argv, 0, "", "")


@pytest.mark.parametrize(
    "now",
    [
        replace(EMPTY, real="/dev/vdc"),
        replace(EMPTY, number="254:32"),
        replace(EMPTY, serials=("bed-9",)),
        replace(EMPTY, blank=False),
        EXT4,
    ],
)
def test_a_device_that_changed_since_it_was_judged_is_not_touched(monkeypatch: pytest.MonkeyPatch, now: Device) -> None:
    host = Host(monkeypatch, [now])
    with pytest.raises(HostError, match="nothing was touched"):
        devices.take(tier(), EMPTY, [], devices.make_header(tier()))
    assert host.calls == []


def test_an_empty_device_is_not_wiped_and_a_given_up_one_is(monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host(monkeypatch, [EMPTY])
    devices.take(tier(), EMPTY, [], devices.make_header(tier()))
    assert [call[0] for call in host.calls] == ["mke2fs", "udevadm", "udevadm"]
    header = host.calls[0]
    assert header[-2:] == ("/dev/vdb", "1024") and devices.header_uuid(tier()) in header
    host = Host(monkeypatch, [EXT4])
    devices.take(tier(), EXT4, WIPE, devices.make_header(tier()))
    assert [call[0] for call in host.calls] == ["wipefs", "mke2fs", "udevadm", "udevadm"]


def test_udev_reads_a_device_again_after_the_header_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    # It stops watching a device while it reads it, and claim() makes it read: the header's own event may be lost.
    host = Host(monkeypatch, [EMPTY])
    devices.take(tier(), EMPTY, [], devices.make_header(tier()))
    assert host.calls[-2:] == [
        ("udevadm", "trigger", "--action=change", "/dev/vdb"),
        ("udevadm", "settle", "--timeout=60"),
    ]


def test_a_header_that_udev_does_not_show_is_shown_by_the_next_run_or_named(monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host(monkeypatch, [])
    devices.shown(tier(), EMPTY)
    assert host.calls == []
    monkeypatch.setattr(devices, "resolve", lambda field: "/dev/vdb" if host.calls else None)
    devices.shown(tier(), EMPTY)
    assert [call[1] for call in host.calls] == ["trigger", "settle"]
    monkeypatch.setattr(devices, "resolve", lambda field: None)
    with pytest.raises(HostError, match="udev does not show its UUID"):
        devices.shown(tier(), EMPTY)


def test_a_device_in_use_is_not_claimed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(devices, "number_of", lambda path: EMPTY.number)
    monkeypatch.setattr(devices.os.path, "realpath", lambda path: EMPTY.real)
    monkeypatch.setattr(system, "run", lambda argv, timeout=0: subprocess.CompletedProcess(argv, 0, "", ""))
    monkeypatch.setattr(devices, "openers", lambda numbers: [])

    def busy(path: str, flags: int) -> int:
        assert flags & devices.os.O_EXCL
        raise OSError(16, "Device or resource busy")

    monkeypatch.setattr(devices.os, "open", busy)
    with pytest.raises(HostError, match="in use"):
        devices.claim(EMPTY)


# Names and lines


def test_crypttab_names_a_device_by_a_uuid_that_only_the_tier_has() -> None:
    line = units.crypttab_line(tier()).split()
    assert line[1] == "UUID=" + devices.header_uuid(tier()) and line[2] == "/dev/urandom"
    assert {"plain", "offset=2048", "tmp=ext4", "nofail"} <= set(line[3].split(","))
    idents = {devices.header_uuid(one) for one in (tier(), tier("keyfile"), tier(name="b"))}
    assert len(idents) == 3


def test_options_are_off_unless_asked() -> None:
    options = units.crypttab_line(tier(discard=True, no_workqueue=True)).split()[3].split(",")
    assert {"discard", "no-read-workqueue", "no-write-workqueue"} <= set(options)
    assert not {"discard", "no-read-workqueue"} & set(units.crypttab_line(tier()).split()[3].split(","))
    assert luks.flags(tier("keyfile")) == []
    assert luks.flags(tier("keyfile", discard=True)) == ["--allow-discards"]


def test_a_persistent_line_names_the_key_file_and_asks_nobody() -> None:
    line = units.crypttab_line(tier("keyfile")).split()
    assert line[2] == "/srv/keys/chat.key" and {"luks", "headless=true", "nofail"} <= set(line[3].split(","))
    assert "tmp=" not in line[3]


# Key files

GOOD = KeyFile(True, True, 64, True, "")


@pytest.mark.parametrize(
    ("key", "words"),
    [
        (replace(GOOD, encrypted=False), "is not encrypted"),
        (replace(GOOD, encrypted=None), "cannot be told"),
        (replace(GOOD, decoration="key file /root/k lies on storage that is not encrypted"), "protects nothing"),
        (replace(GOOD, closed=False), "mode 0400"),
        (replace(GOOD, size=4), "4 bytes"),
    ],
)
def test_a_key_file_that_protects_nothing_is_refused(key: KeyFile, words: str) -> None:
    found: list[tuple[str, str, str]] = []
    luks.judge(tier("keyfile"), key, EMPTY, lambda *problem: found.append(problem))
    assert len(found) == 1 and words in found[0][1]


def test_a_volume_whose_key_is_lost_is_not_formatted() -> None:
    of = tier("keyfile")
    ours = replace(EMPTY, blank=False, signatures=(Signature("crypto_LUKS", 0, devices.header_uuid(of)),))
    found: list[tuple[str, str, str]] = []
    luks.judge(of, replace(GOOD, exists=False), ours, lambda *problem: found.append(problem))
    assert "is gone" in found[0][1] and "kvtier purge chat" in found[0][2]


def test_no_key_is_in_any_argument() -> None:
    words = luks.format_command(tier("keyfile"))
    assert words[words.index("--key-file") + 1] == "/srv/keys/chat.key" and words[-1] == "{}"


@pytest.mark.parametrize("key", [{"key": "keyfile"}, {"key": "tpm2", "tpm2_pcrs": [7]}, {"key": "ephemeral"}])
def test_a_volume_that_was_never_open_is_looked_at(monkeypatch: pytest.MonkeyPatch, key: dict[str, Any]) -> None:
    of = tier(**key)
    monkeypatch.setattr(system, "read_file", lambda _path: b"")
    monkeypatch.setattr(system, "mapper", lambda _name: None)
    monkeypatch.setattr(system, "show", lambda _units, _properties: {units.cryptsetup_unit(of): {}})
    monkeypatch.setattr(devices, "look", lambda _tier, _tables=(): EMPTY)
    monkeypatch.setattr(luks, "look", lambda _tier: KeyFile(False, True, 0, True, ""))
    seen = volume.look(of, ())
    assert seen.mapper is None and seen.table is None and not seen.flags_differ
    assert "open llmhost_chat" in " ".join(volume.steps(of, seen))


def test_a_persistent_file_system_is_made_on_an_empty_mapping_only(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, ...]] = []
    answer = ""

    def run(argv: Any, timeout: float = 0) -> subprocess.CompletedProcess[str]:
        calls.append(tuple(argv))
        return subprocess.CompletedProcess(argv, 0, answer if argv[0] == "wipefs" else "", "")

    head = bytearray(512)
    monkeypatch.setattr(system, "run", run)
    monkeypatch.setattr("builtins.open", lambda *_args, **_more: io.BytesIO(bytes(head)))
    assert luks.make_filesystem(tier("keyfile"))
    assert calls[-1] == ("mkfs.ext4", "-q", "/dev/mapper/llmhost_chat")
    calls.clear()
    answer = GPT.replace('"gpt"', '"ext4"').replace('"PMBR"', '"ext4"')
    assert not luks.make_filesystem(tier("keyfile"))
    answer = GPT.replace('"gpt"', '"xfs"').replace('"PMBR"', '"xfs"')
    with pytest.raises(HostError, match="carries xfs"):
        luks.make_filesystem(tier("keyfile"))
    assert [call[0] for call in calls] == ["wipefs", "wipefs"]
    # A mkfs.xfs that a power loss cut off left its signature.
    head[:4], head[126] = b"XFSB", 1
    assert luks.make_filesystem(tier("keyfile", fstype="xfs"))
    assert calls[-1] == ("mkfs.xfs", "-q", "-f", "/dev/mapper/llmhost_chat")


def test_flags_of_an_open_volume_are_compared_with_the_map() -> None:
    text = "0 8 crypt aes-xts-plain64 :64:logon:cryptsetup:x 0 254:16 32768 2 allow_discards sector_size:4096"
    table = drift.parse(text)
    more = drift.parse(text + " no_read_workqueue no_write_workqueue")
    assert table and more
    assert luks.flags_differ(tier("keyfile"), table, None)
    assert not luks.flags_differ(tier("keyfile", discard=True), table, None)
    assert luks.flags_differ(tier("keyfile", discard=True, no_workqueue=True), table, None)
    assert not luks.flags_differ(tier("keyfile", discard=True, no_workqueue=True), more, None)


@pytest.mark.parametrize(("kept", "differ"), [(["allow-discards"], False), ([], True), (["no-read-workqueue"], True)])
def test_flags_that_the_header_does_not_keep_are_a_difference(
    monkeypatch: pytest.MonkeyPatch, kept: list[str], differ: bool
) -> None:
    dump = json.dumps({"keyslots": {}, "config": {"json_size": "12288", "flags": kept}})
    monkeypatch.setattr(system, "run", lambda argv, timeout=0: subprocess.CompletedProcess(argv, 0, dump, ""))
    of = tier("keyfile", discard=True)
    ours = replace(EMPTY, blank=False, signatures=(Signature("crypto_LUKS", 0, devices.header_uuid(of)),))
    table = drift.parse("0 8 crypt aes-xts-plain64 :64:logon:cryptsetup:x 0 254:16 32768 1 allow_discards")
    assert table and luks.flags_differ(of, table, ours) is differ


@pytest.mark.parametrize(
    "found", [replace(GOOD, encrypted=False), replace(GOOD, encrypted=None), replace(GOOD, decoration="x")]
)
def test_no_key_is_made_in_the_clear(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, found: KeyFile) -> None:
    of = tier("keyfile")
    of["volume"]["keyfile"] = str(tmp_path / "keys" / "chat.key")
    monkeypatch.setattr(luks, "look", lambda tier: found)
    with pytest.raises(HostError, match="no key was made"):
        luks.make_key(of)
    assert list(tmp_path.iterdir()) == []


def test_a_device_that_a_process_has_open_is_not_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "number_of", lambda path: EMPTY.number)
    monkeypatch.setattr(devices.os.path, "realpath", lambda path: EMPTY.real)
    monkeypatch.setattr(system, "run", lambda argv, timeout=0: subprocess.CompletedProcess(argv, 0, "", ""))
    monkeypatch.setattr(devices, "openers", lambda numbers: ["pid 7 (qemu-system-x86)"])
    with pytest.raises(HostError, match="pid 7"):
        devices.claim(EMPTY)


# Headers that a power loss or a purge left without a key


@pytest.mark.parametrize(
    ("slots", "opens", "unfinished", "refused"),
    [({"0": {}}, 0, False, False), ({}, 1, True, False), ({"0": {}}, 2, False, True)],
)
def test_a_header_without_a_keyslot_is_finished_and_one_that_another_key_opens_is_refused(
    monkeypatch: pytest.MonkeyPatch, slots: dict[str, Any], opens: int, unfinished: bool, refused: bool
) -> None:
    calls: list[list[str]] = []

    def run(argv: Any, timeout: float = 0) -> subprocess.CompletedProcess[str]:
        calls.append(list(argv))
        text = json.dumps({"keyslots": slots}) if argv[1] == "luksDump" else ""
        return subprocess.CompletedProcess(argv, 0 if argv[1] == "luksDump" else opens, text, "")

    monkeypatch.setattr(system, "run", run)
    of = tier("keyfile")
    ours = replace(EMPTY, blank=False, signatures=(Signature("crypto_LUKS", 0, devices.header_uuid(of)),))
    found = luks.tried(of, GOOD, ours)
    assert found.unfinished is unfinished
    assert all(call[1] == "luksDump" or "--test-passphrase" in call for call in calls)
    problems: list[tuple[str, str, str]] = []
    luks.judge(of, found, ours, lambda *problem: problems.append(problem))
    assert [("does not open it" in reason) for _key, reason, _fix in problems] == [True] * refused
    # Without its key file, a header that no key opens is no reason to stop.
    problems.clear()
    luks.judge(of, replace(found, exists=False, opens=True), ours, lambda *problem: problems.append(problem))
    assert bool(problems) is not unfinished


def test_a_disk_that_is_not_the_tier_s_is_not_asked_for_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "run", lambda argv, timeout=0: pytest.fail(str(argv)))
    assert luks.tried(tier("keyfile"), GOOD, EXT4) == luks.tried(tier("keyfile"), GOOD, None) == GOOD


def test_a_copy_of_the_header_that_others_may_read_is_a_difference(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    copy = tmp_path / "chat.luks2"
    monkeypatch.setattr(luksheader, "backup_path", lambda tier: str(copy))
    assert luks.backup_differs(tier("keyfile"))
    copy.write_bytes(b"")
    copy.chmod(0o644)
    assert luks.backup_differs(tier("keyfile"))
    copy.chmod(0o600)
    assert luks.backup_differs(tier("keyfile")) is (os.geteuid() != 0)
