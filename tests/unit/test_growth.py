# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A volume grows in use: each of its parts is compared, and nothing but the tier's own image is written to."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from test_volume import GIB, HARDENED, MAPPER, refusals, tier

from ansible_collections.llmhost.hardening.plugins.module_utils.kv import growth, system, volume
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.volume import Image, Place

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="trusted attributes are root's")
WHOLE = MAPPER._replace(size=GIB, names=("loop0",))


@pytest.mark.parametrize(
    ("image", "mapper", "filesystem", "wanted"),
    [
        (GIB, None, None, False),
        (GIB, WHOLE, GIB, False),
        (GIB, WHOLE, GIB - (8 << 20), False),
        (GIB // 2, None, None, True),
        (GIB, WHOLE._replace(size=GIB // 2), GIB // 2, True),
        (GIB, WHOLE, GIB // 2, True),
        (GIB, WHOLE, None, False),
        (GIB, WHOLE._replace(size=0), None, False),
    ],
)
def test_each_part_is_compared_so_that_a_killed_run_is_finished(image, mapper, filesystem, wanted) -> None:
    assert growth.needed(GIB, image, mapper, filesystem) is wanted


def test_a_larger_volume_is_a_step_and_a_smaller_one_is_refused() -> None:
    small = replace(HARDENED, image=Image(True, "chat", GIB // 2, GIB // 2, 0, 0o600))
    assert refusals(small) == []
    assert volume.steps(tier(), small) == ["grow /var/lib/llmhost/chat.img to 1G, blocks stay"]
    assert volume.steps(tier(), HARDENED) == []
    ((key, reason),) = refusals(replace(HARDENED, image=Image(True, "chat", 2 * GIB, GIB, 0, 0o600)))
    assert key == "volume.source.size" and "not made smaller" in reason


def test_growing_leaves_room_for_the_system_and_says_what_would_fit() -> None:
    grown = tier(size="40G")
    seen = replace(HARDENED, place=Place("ext4", 1, 100 * GIB, 20 * GIB))
    (problem,) = volume.judge_room([grown], [seen], "gpu1")
    # 20 of 100 GiB are free, 10 stay free, 1 is allocated.
    assert "at most %dM" % (11 << 10) in problem.fix


@pytest.mark.parametrize("kind", ["ext4", "xfs"])
def test_the_size_of_a_file_system_is_read_from_it(tmp_path: Path, kind: str) -> None:
    tool = shutil.which("mkfs." + kind, path=system.PATH)
    if tool is None:
        pytest.skip(f"no mkfs.{kind} here")
    image = tmp_path / "image"
    image.touch()
    os.truncate(image, 400 << 20)
    subprocess.run([tool, "-q", str(image)], check=True)
    assert growth.fs_bytes(str(image)) == 400 << 20
    (tmp_path / "other").write_bytes(b"x" * 8192)
    assert growth.fs_bytes(str(tmp_path / "other")) is None
    assert growth.fs_bytes(str(tmp_path / "none")) is None


@pytest.fixture
def image(tmp_path: Path) -> Path:
    path = tmp_path / "chat.img"
    path.touch()
    os.truncate(path, 1 << 20)
    return path


@ROOT_ONLY
def test_only_the_tiers_own_image_grows(image: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[list[str]] = []

    def run(argv: list[str], timeout: float = 0) -> subprocess.CompletedProcess[str]:
        calls.append(list(argv))
        return subprocess.CompletedProcess(argv, 0, "", "")

    monkeypatch.setattr(system, "run", run)
    grown = tier(size="64M")
    grown["volume"]["source"]["file"] = str(image)
    try:
        os.setxattr(image, volume.MARK, b"other")
    except OSError:
        pytest.skip("no trusted attributes here")
    with pytest.raises(system.HostError, match="not the tier's image"):
        growth.grow(grown, volume.MARK, WHOLE, GIB)
    assert image.stat().st_size == 1 << 20 and calls == []
    os.setxattr(image, volume.MARK, b"chat")
    growth.grow(grown, volume.MARK, WHOLE, GIB)
    assert image.stat().st_size == 64 << 20
    assert [call[0] for call in calls] == ["losetup", "cryptsetup", "resize2fs"]
