# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Volumes made larger: only on request, each layer by its own size, never smaller."""

from __future__ import annotations

import shutil
import struct
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.llmhost.hardening.plugins.module_utils.kv import datamap, grow, lvm, system, volume
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.grow import Sizes
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.lvm import Group
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.volume import Image, Place, Seen

MIB = 1 << 20
GIB = 1 << 30
IMAGE = "/var/lib/llmhost/chat.img"
EXTENT = 4 * MIB


def tier(name: str = "chat", source: Any = None, size: str = "1G") -> dict[str, Any]:
    raw = {
        "name": name,
        "store": "vllm_fs",
        "path": f"/srv/{name}",
        "owner": "vllm",
        "services": ["vllm.service"],
        "volume": {"backend": "dmcrypt", "source": source or {"file": IMAGE, "size": size}},
    }
    result: dict[str, Any] = datamap.normalise([raw], "gpu1")["tiers"][0]
    return result


def logical(name: str = "chat", size: str = "1G") -> dict[str, Any]:
    return tier(name, {"vg": "cache", "lv": name, "size": size})


def seen(size: int) -> Seen:
    return Seen(image=Image(True, "chat", size, size, 0, 0o600), place=Place("ext4", 1, 100 * GIB, 50 * GIB))


# Sizes


def test_the_size_of_a_mounted_xfs_is_the_kernel_s(monkeypatch: pytest.MonkeyPatch) -> None:
    said = """meta-data=/dev/mapper/llmhost_chat isize=512    agcount=6, agsize=24576 blks
         =                       sectsz=4096  attr=2, projid32bit=1
data     =                       bsize=4096   blocks=123904, imaxpct=25
log      =internal log           bsize=4096   blocks=16384, version=2
"""
    asked = []

    def run(argv: Any, timeout: float = 0) -> subprocess.CompletedProcess[str]:
        asked.append(list(argv))
        return subprocess.CompletedProcess(argv, 0, said, "")

    monkeypatch.setattr(system, "run", run)
    assert grow.mounted_xfs_bytes("/dev/mapper/llmhost_chat") == 123904 * 4096
    # -n: it only looks.
    assert asked == [["xfs_growfs", "-n", "/dev/mapper/llmhost_chat"]]
    said = ""
    assert grow.mounted_xfs_bytes("/dev/mapper/llmhost_chat") is None


def test_each_layer_is_judged_by_its_own_size() -> None:
    whole = Sizes(GIB, GIB - MIB, MIB, GIB - MIB)
    assert not whole.mapping_short and not whole.filesystem_short
    assert replace(whole, below=GIB + 4096).mapping_short
    assert not replace(whole, below=GIB + 512).mapping_short
    assert replace(whole, filesystem=GIB - 2 * MIB).filesystem_short
    assert not replace(whole, filesystem=GIB - MIB - 4096).filesystem_short
    assert not replace(whole, filesystem=None).filesystem_short


def test_a_larger_size_is_a_request_and_the_rest_follows() -> None:
    whole = Sizes(GIB, GIB, 0, GIB)
    assert grow.steps(tier(), whole, False) == []
    assert grow.steps(tier(size="2G"), whole, True) == [
        f"grow {IMAGE} to 2048M",
        "grow llmhost_chat",
        "grow the file system at /srv/chat",
    ]
    assert grow.steps(tier(), replace(whole, below=2 * GIB), False) == [
        "grow llmhost_chat",
        "grow the file system at /srv/chat",
    ]
    assert grow.steps(tier(), replace(whole, filesystem=GIB // 2), False) == ["grow the file system at /srv/chat"]


def test_a_smaller_size_is_refused_and_nothing_is_planned() -> None:
    (problem,) = (one for one in volume.judge(tier(), seen(2 * GIB), "gpu1") if "size" in one.key)
    assert "never shrunk" in problem.reason and "write 2G" in problem.fix
    assert not volume.source_short(tier(), seen(2 * GIB)) and volume.source_short(tier(), seen(GIB - MIB))


def test_a_disk_is_never_grown() -> None:
    disk = tier(source={"device": "/dev/disk/by-id/virtio-bed-0", "size": "64M"})
    assert not grow.grows(disk) and not volume.source_short(disk, Seen())


def test_the_room_for_growth_is_asked_for_before() -> None:
    little = replace(seen(GIB), place=Place("ext4", 1, 100 * GIB, 20 * GIB))
    (problem,) = volume.judge_room([tier(size="12G")], [little], "gpu1")
    assert problem.key == "volume.source.size" and "at most" in problem.fix


@pytest.mark.parametrize(("kind", "size"), [("ext4", 64 * MIB), ("ext4", 300 * MIB), ("xfs", 320 * MIB)])
def test_the_size_of_a_file_system_is_read_from_its_superblock(tmp_path: Path, kind: str, size: int) -> None:
    program = shutil.which("mkfs." + kind, path="/usr/sbin:/sbin:/usr/bin")
    if program is None:
        pytest.skip(f"no mkfs.{kind}")
    image = tmp_path / "image"
    with image.open("wb") as file:
        file.truncate(size)
    subprocess.run([program, "-q", str(image)], check=True)
    known = grow.filesystem_bytes(image.read_bytes()[:2048])
    assert known is not None and size - MIB < known <= size


def test_a_size_above_32_bits_of_blocks_is_read_and_noise_is_not() -> None:
    head = bytearray(2048)
    struct.pack_into("<I", head, 1024 + 4, 5)
    struct.pack_into("<I", head, 1024 + 24, 2)
    struct.pack_into("<H", head, 1024 + 56, 0xEF53)
    assert grow.filesystem_bytes(bytes(head)) == 5 * 4096
    struct.pack_into("<I", head, 1024 + 96, 0x80)
    struct.pack_into("<I", head, 1024 + 0x150, 1)
    assert grow.filesystem_bytes(bytes(head)) == ((1 << 32) + 5) * 4096
    assert grow.filesystem_bytes(b"\xff" * 2048) is None and grow.filesystem_bytes(b"") is None


def test_a_file_that_could_not_grow_is_as_long_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image = tmp_path / "chat.img"
    image.write_bytes(b"x" * 4096)
    of = tier()
    grow.os.setxattr(image, "user.tier", of["name"].encode())
    of["volume"]["source"]["file"] = str(image)

    def full(fd: int, offset: int, size: int) -> None:
        grow.os.ftruncate(fd, size // 2)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(grow.os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space"):
        grow.source(of, "user.tier")
    assert image.read_bytes() == b"x" * 4096


# Logical volumes

VGS = '{"report": [{"vg": [{"vg_free": "1056964608", "vg_extent_size": "4194304"}]}]}'
LVS = (
    '{"report": [{"lv": [{"lv_name": "chat", "lv_size": "1073741824",'
    ' "lv_tags": "a,llmhost.tier.chat", "lv_active": "active"}]}]}'
)


def refusals(of: dict[str, Any], group: Group | None, header: bool = False) -> list[tuple[str, str, str]]:
    found: list[tuple[str, str, str]] = []
    lvm.judge(of, group, header, lambda *problem: found.append(problem))
    return found


def test_what_lvm_reports_is_read() -> None:
    assert lvm.parse(VGS, LVS, logical()) == Group(1056964608, EXTENT, GIB, True, True)
    assert lvm.parse(VGS, LVS, logical("b")) == Group(1056964608, EXTENT)
    assert lvm.parse(VGS, LVS.replace("llmhost.tier.chat", "llmhost.tier.chat2"), logical()) == Group(
        1056964608, EXTENT, GIB, False, True
    )
    assert lvm.parse('{"report": [{"vg": []}]}', LVS, logical()) is None


def test_a_host_without_lvm_has_no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(argv: Any, timeout: float = 0) -> Any:
        raise system.HostError(f"{argv[0]} is not installed")

    monkeypatch.setattr(system, "run", missing)
    assert lvm.look(logical()) is None


OURS = Group(8 * GIB, EXTENT, GIB, ours=True, active=True)


@pytest.mark.parametrize(
    ("group", "words"),
    [
        (None, "no volume group cache"),
        (replace(OURS, ours=False), "not made by this collection"),
        (replace(OURS, active=False), "not active"),
        (replace(OURS, size=GIB + EXTENT), "never shrunk"),
    ],
)
def test_a_group_or_volume_that_is_not_for_the_tier_is_refused(group: Group | None, words: str) -> None:
    ((_key, reason, fix),) = refusals(logical(), group)
    assert words in reason and fix


def test_what_is_ours_or_not_there_yet_is_not_refused() -> None:
    assert refusals(logical(), OURS) == refusals(logical(), Group(8 * GIB, EXTENT)) == []
    assert refusals(logical(), replace(OURS, ours=False), header=True) == []
    assert refusals(logical(size="1023M"), OURS) == []


def test_what_does_not_fit_says_by_how_much_all_volumes_together() -> None:
    wanted = [logical("a", "3G"), logical("b", "6G")]
    found = [Seen(group=Group(8 * GIB, EXTENT))] * 2
    (problem,) = volume.judge_room(wanted, found, "gpu1")
    assert problem.tier == "b" and "5120 MiB free for it, 1024 MiB less than wanted" in problem.reason
    assert "at most 5120M" in problem.fix and "vgextend" in problem.fix
    (problem,) = volume.judge_room([logical("chat", "10G")], [Seen(group=OURS)], "gpu1")
    assert "at most 9216M" in problem.fix


def test_a_logical_volume_is_made_with_its_mark_and_nothing_old_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[list[str]] = []

    def run(argv: Any, timeout: float = 0) -> subprocess.CompletedProcess[str]:
        calls.append(list(argv))
        return subprocess.CompletedProcess(argv, 0, "", "")

    monkeypatch.setattr(system, "run", run)
    lvm.make(logical())
    words = calls[0]
    assert words[words.index("--addtag") + 1] == "llmhost.tier.chat"
    assert words[words.index("--wipesignatures") + 1] == words[words.index("--zero") + 1] == "y"
    assert words[words.index("--size") + 1] == "%db" % GIB and words[-1] == "cache"


@pytest.mark.parametrize(
    "source",
    [
        {"vg": "cache", "size": "1G"},
        {"vg": "cache", "lv": "chat"},
        {"vg": "-cache", "lv": "chat", "size": "1G"},
        {"vg": "cache", "lv": "a/b", "size": "1G"},
        {"vg": "..", "lv": "chat", "size": "1G"},
        {"vg": "cache", "lv": "snapshot1", "size": "1G"},
        {"vg": "cache", "lv": "x_tdata", "size": "1G"},
        {"vg": "cache", "lv": "a b", "size": "1G"},
        {"vg": "cache", "lv": "chat", "size": "1G", "file": "/x"},
    ],
)
def test_a_source_that_lvm_would_not_take_is_a_mistake_of_the_map(source: Any) -> None:
    with pytest.raises(datamap.MapError, match=r"volume\.source"):
        tier(source=source)


def test_two_tiers_do_not_share_a_logical_volume() -> None:
    raw = {"store": "vllm_fs", "owner": "vllm", "services": ["vllm.service"]}
    source = {"vg": "cache", "lv": "chat", "size": "1G"}
    tiers = [
        {**raw, "name": name, "path": f"/srv/{name}", "volume": {"backend": "dmcrypt", "source": source}}
        for name in ("a", "b")
    ]
    with pytest.raises(datamap.MapError, match="/dev/cache/chat"):
        datamap.normalise(tiers, "gpu1")


def test_a_file_that_is_another_tiers_now_does_not_grow(tmp_path: Path) -> None:
    image = tmp_path / "chat.img"
    image.write_bytes(b"x")
    of = tier()
    of["volume"]["source"]["file"] = str(image)
    grow.os.setxattr(image, "user.tier", b"other")
    with pytest.raises(grow.HostError, match="not the tier's image any more"):
        grow.source(of, "user.tier")
    assert image.read_bytes() == b"x"
