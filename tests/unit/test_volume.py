# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Volumes: what is refused, what is left to do, and what the steps do to real files."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.llmhost.hardening.plugins.module_utils.kv import (
    access,
    datamap,
    fsio,
    system,
    units,
    volume,
    volume_make,
)
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.system import HostError, Mapper, Mount
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.volume import Bare, Image, Place, Seen

GIB = 1 << 30
IMAGE = "/var/lib/llmhost/chat.img"
PATH = "/var/lib/vllm-kv"
ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="trusted attributes and owners are root's")


def tier(name: str = "chat", path: str = PATH, image: str = IMAGE, size: str = "1G") -> dict[str, Any]:
    raw = {
        "name": name,
        "store": "vllm_fs",
        "path": path,
        "owner": "vllm",
        "services": ["vllm.service"],
        "volume": {"backend": "dmcrypt", "source": {"file": image, "size": size}},
    }
    result: dict[str, Any] = datamap.normalise([raw], "gpu1")["tiers"][0]
    return result


VIRGIN = Seen(place=Place("ext4", 1, 100 * GIB, 50 * GIB))
MAPPER = Mapper("253:0", "CRYPT-PLAIN-llmhost_chat", [IMAGE])
MOUNT = Mount(50, 20, "253:0", "/", PATH, "ext4", "/dev/mapper/llmhost_chat")
HARDENED = Seen(
    image=Image(True, "chat", GIB, GIB, 0, 0o600),
    place=Place("ext4", 1, 100 * GIB, 50 * GIB),
    crypttab=(("llmhost_chat", IMAGE, "/dev/urandom", units.CRYPT_OPTIONS),),
    fstab=(("/dev/mapper/llmhost_chat", PATH, "ext4", "nodev", "0", "0"),),
    crypttab_same=True,
    fstab_same=True,
    mapper=MAPPER,
    unit_active=True,
    exists=True,
    mounted=MOUNT,
    bare=Bare(0, (), 0, 0, 0, True),
)


def refusals(seen: Seen, of: dict[str, Any] | None = None) -> list[tuple[str, str]]:
    problems = volume.judge(of or tier(), seen, "gpu1")
    for problem in problems:
        assert problem.host == "gpu1" and problem.tier and problem.reason and problem.fix
    return [(problem.key, problem.reason) for problem in problems]


# Refusals


def test_a_virgin_host_and_a_hardened_host_are_not_refused() -> None:
    assert refusals(VIRGIN) == []
    assert refusals(HARDENED) == []


FOREIGN_IMAGE = Image(True, None, GIB, GIB, 0, 0o600)


@pytest.mark.parametrize(
    ("seen", "key", "words"),
    [
        (replace(VIRGIN, image=FOREIGN_IMAGE), "volume.source.file", "not made by this collection"),
        (replace(VIRGIN, image=replace(FOREIGN_IMAGE, mark="other")), "volume.source.file", "belongs to tier other"),
        (replace(VIRGIN, image=Image(False, None, 0, 0, -1, 0)), "volume.source.file", "not a regular file"),
        (
            replace(HARDENED, image=Image(True, "chat", 2 * GIB, GIB, 0, 0o600)),
            "volume.source.size",
            "not made smaller",
        ),
        (replace(VIRGIN, place=Place("btrfs", 1, GIB, GIB)), "volume.source.file", "btrfs"),
        (replace(VIRGIN, place=Place("overlay", 1, GIB, GIB)), "volume.source.file", "overlay"),
        (replace(VIRGIN, place=Place("nfs4", 1, GIB, GIB)), "volume.source.file", "nfs4"),
        (replace(VIRGIN, place=Place("tmpfs", 1, GIB, GIB)), "volume.source.file", "tmpfs"),
        (replace(VIRGIN, place=Place("ext4", 1, GIB, GIB, "/srv/images")), "volume.source.file", "/srv/images"),
        (replace(VIRGIN, crypttab=(("llmhost_chat", "/dev/sdb", "none"),)), "volume.source", "/dev/sdb"),
        (replace(VIRGIN, crypttab=(("swap", IMAGE, "/dev/urandom"),)), "volume.source", "swap"),
        (replace(VIRGIN, fstab=(("/dev/sdb1", PATH, "xfs"),)), "path", "/dev/sdb1"),
        (replace(VIRGIN, fstab=(("/dev/mapper/llmhost_chat", "/srv", "ext4"),)), "path", "/srv"),
        (replace(HARDENED, fstab=HARDENED.fstab * 2), "volume", "2 times"),
        (replace(VIRGIN, mapper=Mapper("253:3", "LVM-abc", [])), "volume", "is not plain dm-crypt"),
        (replace(VIRGIN, mapper=MAPPER._replace(files=["/other.img"])), "volume", "is not plain dm-crypt"),
        (replace(HARDENED, mapper=None, unit_active=True, mounted=None, bare=None), "volume", "closed by hand"),
        (replace(VIRGIN, exists=True, mounted=MOUNT._replace(device="8:1")), "path", "is mounted at"),
        (replace(HARDENED, mounted=MOUNT._replace(root="/sub")), "path", "is mounted at"),
        (replace(VIRGIN, below=(PATH + "/models",)), "path", "would be hidden"),
        (replace(VIRGIN, unsafe=PATH + " is a symlink or not a directory"), "path", "symlink"),
        (replace(VIRGIN, exists=True, foreign=("notes.txt", "a/b")), "path", "notes.txt, a/b"),
        (replace(HARDENED, bare=Bare(1, ("notes.txt",), 0, 0, 0, True)), "path", "below the mount"),
        (replace(VIRGIN, tables_unsafe="/etc/fstab cannot be read: is a symlink"), "volume", "symlink"),
    ],
)
def test_what_is_not_ours_is_refused(seen: Seen, key: str, words: str) -> None:
    found = refusals(seen)
    assert any(key == at and words in reason for at, reason in found), found


def test_mounts_below_a_live_tier_do_not_matter() -> None:
    assert refusals(replace(HARDENED, below=(PATH + "/x",))) == []


def room(*wanted: tuple[str, Seen]) -> list[str]:
    tiers = [
        tier(f"t{number}", f"/srv/t{number}", f"/var/lib/llmhost/t{number}.img", size)
        for number, (size, _seen) in enumerate(wanted)
    ]
    return [str(problem) for problem in volume.judge_room(tiers, [seen for _size, seen in wanted], "gpu1")]


def test_an_image_leaves_a_tenth_or_five_gib_of_its_file_system() -> None:
    on_large = replace(VIRGIN, place=Place("ext4", 1, 100 * GIB, 50 * GIB))
    assert room(("40G", on_large)) == []
    assert "lower it to at most 40960M" in room(("41G", on_large))[0]
    on_small = replace(VIRGIN, place=Place("ext4", 1, 10 * GIB, 9 * GIB))
    assert room(("4G", on_small)) == []
    assert "4096M" in room(("5G", on_small))[0]
    assert "no volume fits here" in room(("1G", replace(VIRGIN, place=Place("ext4", 1, 4 * GIB, 4 * GIB))))[0]


def test_images_on_one_file_system_share_its_room() -> None:
    here = replace(VIRGIN, place=Place("ext4", 1, 100 * GIB, 50 * GIB))
    there = replace(VIRGIN, place=Place("ext4", 2, 100 * GIB, 50 * GIB))
    assert room(("30G", here), ("30G", there)) == []
    problems = room(("30G", here), ("30G", here))
    assert len(problems) == 1
    assert "t1" in problems[0] and "10240M" in problems[0]


def test_only_bytes_that_are_not_allocated_yet_count() -> None:
    full = Seen(place=Place("ext4", 1, 100 * GIB, 1 * GIB), image=Image(True, "t0", 40 * GIB, 40 * GIB, 0, 0o600))
    assert room(("40G", full)) == []


# Steps


def test_a_virgin_host_gets_every_step_and_a_hardened_one_none() -> None:
    todo = "\n".join(volume.steps(tier(), VIRGIN))
    for words in ("allocate", "crypttab", "fstab", "create", "open", "mount", "below the mount"):
        assert words in todo
    assert volume.steps(tier(), HARDENED) == []


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (replace(HARDENED, image=replace(HARDENED.image, mode=0o644)), "close " + IMAGE),  # type: ignore[type-var]
        (replace(HARDENED, crypttab_same=False), "crypttab"),
        (replace(HARDENED, bare=Bare(3, (), 0, 0, 0, True)), "empty and close"),
        (replace(HARDENED, bare=Bare(0, (), 997, 0, 0o700, False)), "close the directory below"),
        (replace(HARDENED, bare=Bare(0, (), 0, 0, 0, False)), "close the directory below"),
    ],
)
def test_what_a_killed_run_left_is_the_next_runs_work(seen: Seen, words: str) -> None:
    (step,) = volume.steps(tier(), seen)
    assert words in step


def test_a_file_system_without_the_immutable_flag_is_as_closed_as_it_gets() -> None:
    assert volume.steps(tier(), replace(HARDENED, bare=Bare(0, (), 0, 0, 0, None))) == []


def test_no_step_ever_stops_or_restarts_a_unit() -> None:
    text = "".join(
        Path(module.__file__).read_text(encoding="utf-8") for module in (volume, volume_make, access, system)
    )
    assert '"restart"' not in text
    assert '"stop"' not in text


# Tables

FSTAB = b"# comment\tkept\n\nUUID=1 / ext4 errors=remount-ro 0 1\n//nas/x /mnt/x cifs password=geheim 0 0\n"


def test_other_lines_of_a_table_stay_as_they_were() -> None:
    line = units.fstab_line(tier())
    once = volume.with_line(FSTAB, volume.own_fstab(tier()), line)
    assert once == FSTAB + line.encode() + b"\n"
    assert volume.with_line(once, volume.own_fstab(tier()), line) == once
    old = once.replace(b"noexec,", b"")
    assert volume.with_line(old, volume.own_fstab(tier()), line) == once
    assert volume.with_line(b"last \xff", volume.own_fstab(tier()), line) == b"last \xff\n" + line.encode() + b"\n"


def test_a_table_is_written_in_place_with_its_mode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    crypttab, fstab = tmp_path / "crypttab", tmp_path / "fstab"
    fstab.write_bytes(FSTAB)
    fstab.chmod(0o640)
    monkeypatch.setattr(volume, "CRYPTTAB", str(crypttab))
    monkeypatch.setattr(volume, "FSTAB", str(fstab))
    for change in volume.table_changes([tier()]):
        change.make()
    assert fstab.read_bytes().startswith(FSTAB)
    assert stat.S_IMODE(fstab.stat().st_mode) == 0o640
    assert crypttab.read_text(encoding="ascii") == units.crypttab_line(tier()) + "\n"
    assert volume.table_changes([tier()]) == []


def test_the_diff_of_a_table_shows_no_line_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fstab = tmp_path / "fstab"
    fstab.write_bytes(FSTAB)
    monkeypatch.setattr(volume, "CRYPTTAB", str(tmp_path / "crypttab"))
    monkeypatch.setattr(volume, "FSTAB", str(fstab))
    diffs = [volume.table_diff(change, [tier()]) for change in volume.table_changes([tier()])]
    assert [diff["after"] for diff in diffs] == [units.crypttab_line(tier()) + "\n", units.fstab_line(tier()) + "\n"]
    assert "geheim" not in str(diffs)


# Images


@ROOT_ONLY
def test_an_image_is_whole_roots_and_marked(tmp_path: Path) -> None:
    path = tmp_path / "chat.img"
    small = tier(image=str(path).replace(str(tmp_path), "/srv"), size="64M")
    small["volume"]["source"]["file"] = str(path)
    volume_make.allocate(small)
    seen = volume._image(str(path))
    assert seen is not None
    assert (seen.regular, seen.mark, seen.size, seen.uid, seen.mode) == (True, "chat", 64 << 20, 0, 0o600)
    assert seen.allocated >= 64 << 20
    assert os.listdir(tmp_path) == ["chat.img"]


@ROOT_ONLY
def test_an_image_never_replaces_a_file(tmp_path: Path) -> None:
    path = tmp_path / "chat.img"
    path.write_bytes(b"precious")
    mine = tier(size="64M")
    mine["volume"]["source"]["file"] = str(path)
    with pytest.raises(FileExistsError):
        volume_make.allocate(mine)
    assert path.read_bytes() == b"precious"
    assert os.listdir(tmp_path) == ["chat.img"]


def test_a_symlink_in_an_images_place_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"x")
    (tmp_path / "chat.img").symlink_to(tmp_path / "target")
    seen = volume._image(str(tmp_path / "chat.img"))
    assert seen is not None and not seen.regular


# Below the mount

BLOCK = "model_0123456789ab_r0/abc/de_g0/" + "a" * 64 + ".bin"


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory that stands for what a mount covers; its immutable flag is taken off in the end."""
    below = tmp_path / "below"
    below.mkdir()

    @contextlib.contextmanager
    def covered(path: str) -> Iterator[int]:
        assert path == PATH
        with fsio.opened(str(below)) as fd:
            yield fd

    monkeypatch.setattr(fsio, "covered", covered)
    yield below
    with fsio.opened(str(below)) as fd:
        fsio.set_immutable(fd, False)


def put(root: Path, name: str) -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * 100)
    return path


@ROOT_ONLY
def test_blocks_below_the_mount_are_destroyed_and_the_directory_closed(bare: Path) -> None:
    put(bare, BLOCK)
    put(bare, BLOCK + "_7.tmp")
    put(bare, "model_0123456789ab/config.json")
    cleaned = volume_make.clean(tier())
    assert (cleaned.files, cleaned.bytes, cleaned.changed) == (3, 300, True)
    assert os.listdir(bare) == []
    info = bare.stat()
    assert (info.st_uid, info.st_gid, stat.S_IMODE(info.st_mode)) == (0, 0, 0)
    assert cleaned.immutable
    with pytest.raises(PermissionError):
        (bare / "new").write_bytes(b"")
    assert volume_make.clean(tier()) == volume_make.Cleaned(0, 0, False, True)


@ROOT_ONLY
def test_foreign_names_below_the_mount_stay_with_everything_around_them(bare: Path) -> None:
    block, notes = put(bare, BLOCK), put(bare, "notes.txt")
    mode = bare.stat().st_mode
    with pytest.raises(HostError, match=r"notes\.txt"):
        volume_make.clean(tier())
    assert block.exists() and notes.exists()
    assert bare.stat().st_mode == mode


@ROOT_ONLY
def test_cleaning_is_finished_after_a_kill(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(bare, BLOCK)
    put(bare, BLOCK.replace("a" * 64, "b" * 64))

    def killed(fd: int, store: Any) -> Any:
        (bare / BLOCK).unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(volume_make.walk, "destroy", killed)
        with pytest.raises(KeyboardInterrupt):
            volume_make.clean(tier())
    assert stat.S_IMODE(bare.stat().st_mode) == 0
    assert volume_make.clean(tier()).files == 1
    assert os.listdir(bare) == []


@ROOT_ONLY
def test_blocks_that_come_back_below_the_mount_are_said(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(bare, BLOCK)
    monkeypatch.setattr(volume_make.walk, "destroy", lambda fd, store: (0, 0, 1))
    with pytest.raises(HostError, match="who writes there"):
        volume_make.clean(tier())
