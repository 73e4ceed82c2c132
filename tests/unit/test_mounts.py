# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Is an open directory the mount that the map declares?"""

from __future__ import annotations

import os
import subprocess

import pytest
from fixtures import mount, tier_for, with_own_mounts

from ansible_collections.llmhost.hardening.plugins.module_utils.kv import fsio, mounts

VOLUME = {"backend": "dmcrypt", "source": {"file": "/x.img", "size": 1 << 30}, "key": "ephemeral", "fstype": "ext4"}


def judge(path, was_mounted=False, **changes):
    with fsio.opened(str(path)) as fd:
        return mounts.problem(tier_for(path, **changes), fd, was_mounted)


@pytest.mark.parametrize("kind", ["tmpfs", "bind", "none"])
def test_a_mount_point_is_known_by_its_mount_not_by_its_device(tmp_path, kind):
    def work():
        place, other = tmp_path / "place", tmp_path / "other"
        place.mkdir()
        other.mkdir()
        if kind == "tmpfs":
            mount("-t", "tmpfs", "tmpfs", place)
        elif kind == "bind":
            mount("--bind", other, place)
        (place / "below").mkdir()
        with fsio.opened(str(place)) as fd, fsio.opened(str(place / "below")) as below:
            return mounts.is_mountpoint(fd), mounts.is_mountpoint(below)

    assert with_own_mounts(work) == [kind != "none", False]


def test_a_mount_point_that_was_lazily_unmounted_is_none_any_more(tmp_path):
    def work():
        mount("-t", "tmpfs", "tmpfs", tmp_path)
        with fsio.opened(str(tmp_path)) as fd:
            before = mounts.is_mountpoint(fd)
            subprocess.run(["umount", "-l", tmp_path], check=True)
            return before, mounts.is_mountpoint(fd)

    assert with_own_mounts(work) == [True, False]


@pytest.mark.parametrize(
    ("mounted", "name", "right"),
    [
        (True, "llmhost_chat", True),
        (False, "llmhost_chat", False),
        (True, "llmhost_chat2", False),
        (True, "llmhost_chat_", False),
        (True, "vg-root", False),
        (True, None, False),
    ],
)
def test_a_volume_of_ours_must_be_the_mount_of_its_mapper(tmp_path, monkeypatch, mounted, name, right):
    monkeypatch.setattr(mounts, "is_mountpoint", lambda _fd: mounted)
    monkeypatch.setattr(mounts, "dm_name", lambda _device: name)
    message = judge(tmp_path, volume=VOLUME)
    assert (message is None) == right
    if not right:
        assert "/dev/mapper/llmhost_chat" in message and "systemctl start llmhost-tier@chat.service" in message


@pytest.mark.parametrize("volume", [None, {"backend": "existing", "source": None, "key": None, "fstype": None}])
@pytest.mark.parametrize(("was", "mounted", "right"), [(0, 0, 1), (0, 1, 1), (1, 1, 1), (1, 0, 0)])
def test_any_other_tier_must_stay_the_mount_point_that_it_was(tmp_path, monkeypatch, volume, was, mounted, right):
    monkeypatch.setattr(mounts, "is_mountpoint", lambda _fd: bool(mounted))
    message = judge(tmp_path, bool(was), volume=volume)
    assert (message is None) == bool(right)


def test_the_mappers_name_is_read_from_sysfs(tmp_path):
    device = os.makedev(253, 7)
    assert mounts.dm_name(device, str(tmp_path)) is None
    place = tmp_path / "dev/block/253:7/dm"
    place.mkdir(parents=True)
    (place / "name").write_text("llmhost_chat\n")
    assert mounts.dm_name(device, str(tmp_path)) == "llmhost_chat"
    assert mounts.dm_name(os.makedev(253, 8), str(tmp_path)) is None
