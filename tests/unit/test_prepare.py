# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The root of a mounted tier is put right, and nothing else is touched."""

from __future__ import annotations

import os
import stat
import subprocess

import pytest
from fixtures import NOBODY, Tree, mount, tier_for, with_own_mounts

from ansible_collections.llmhost.hardening.plugins.module_utils.kv import mounts, prepare
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.prepare import CLOSED_ACL, Refused

VOLUME = {"backend": "dmcrypt", "source": {"file": "/x.img", "size": 1 << 30}, "key": "ephemeral", "fstype": "ext4"}


@pytest.fixture
def tree(tmp_path):
    made = Tree(tmp_path / "kv")
    made.root.chmod(0o755)
    return made


def state_of(path):
    info = os.lstat(path)
    names = os.listxattr(path, follow_symlinks=False)
    return (
        info.st_uid,
        info.st_gid,
        stat.S_IMODE(info.st_mode),
        info.st_mtime_ns,
        {name: os.getxattr(path, name, follow_symlinks=False) for name in names},
    )


def test_a_fresh_file_system_is_closed_and_given_to_the_account(tree):
    tree.directory("lost+found")
    done = prepare.prepare(tier_for(tree.root, owner=NOBODY))
    assert done == [
        "removed empty lost+found",
        "mode 0755 -> 0700",
        "default ACL u::rwx,g::---,o::---",
        f"owner 0:0 -> {NOBODY}:{NOBODY}",
        "wrote CACHEDIR.TAG",
    ]
    uid, gid, mode, _mtime, attributes = state_of(tree.root)
    assert (uid, gid, mode) == (NOBODY, NOBODY, 0o700)
    assert attributes == {"system.posix_acl_default": CLOSED_ACL}
    assert state_of(tree.root / "CACHEDIR.TAG")[:3] == (NOBODY, NOBODY, 0o600)
    assert (tree.root / "CACHEDIR.TAG").read_bytes().startswith(b"Signature: 8a477f597d28d172789f06886806bc55\n")


def test_the_closed_acl_is_what_setfacl_writes(tree):
    prepare.prepare(tier_for(tree.root, owner=NOBODY))
    text = subprocess.run(["getfacl", "-cp", tree.root], capture_output=True, text=True, check=True).stdout
    assert text.split() == [
        "user::rwx", "group::---", "other::---", "default:user::rwx", "default:group::---", "default:other::---",
    ]  # fmt: skip


def test_what_is_made_below_afterwards_is_closed_under_any_umask(tree):
    prepare.prepare(tier_for(tree.root, owner=NOBODY))
    old = os.umask(0)
    try:
        (tree.root / "dir").mkdir()
        (tree.root / "dir" / "file").touch()
    finally:
        os.umask(old)
    assert stat.S_IMODE((tree.root / "dir").stat().st_mode) == 0o700
    assert stat.S_IMODE((tree.root / "dir/file").stat().st_mode) == 0o600


def test_the_second_time_nothing_is_done(tree):
    tier = tier_for(tree.root, owner=NOBODY)
    prepare.prepare(tier)
    before = state_of(tree.root)
    assert prepare.prepare(tier) == []
    assert state_of(tree.root) == before


@pytest.mark.parametrize(
    ("harm", "cure"),
    [
        (lambda root: root.chmod(0o770), "mode 0770 -> 0700"),
        (lambda root: root.chmod(0o2700), "mode 2700 -> 0700"),
        (lambda root: os.chown(root, 5, 5), f"owner 5:5 -> {NOBODY}:{NOBODY}"),
        (lambda root: os.chown(root, NOBODY, 5), f"owner {NOBODY}:5 -> {NOBODY}:{NOBODY}"),
        (lambda root: os.removexattr(root, "system.posix_acl_default"), "default ACL u::rwx,g::---,o::---"),
        (lambda root: subprocess.run(["setfacl", "-d", "-m", "u:5:rwx", root], check=True), "default ACL"),
        (lambda root: subprocess.run(["setfacl", "-m", "u:5:rwx", root], check=True), "removed extended access ACL"),
        (lambda root: (root / "CACHEDIR.TAG").unlink(), "wrote CACHEDIR.TAG"),
    ],
)
def test_what_went_wrong_since_is_put_right(tree, harm, cure):
    tier = tier_for(tree.root, owner=NOBODY)
    prepare.prepare(tier)
    right = state_of(tree.root)
    harm(tree.root)
    assert any(cure in line for line in prepare.prepare(tier))
    assert state_of(tree.root)[:3] + state_of(tree.root)[4:] == right[:3] + right[4:]
    assert prepare.prepare(tier) == []


def test_nothing_below_the_root_is_touched(tree, tmp_path):
    tree.block(1)
    tree.path(tree.config()).chmod(0o666)
    tree.directory("lost+found/saved")
    outside = tmp_path / "outside"
    outside.touch()
    (tree.root / "link").symlink_to(outside)
    (tree.root / "CACHEDIR.TAG").symlink_to(outside)
    paths = [outside, *tree.root.rglob("*")]
    before = {path: state_of(path) for path in paths}
    prepare.prepare(tier_for(tree.root, owner=NOBODY))
    assert {path: state_of(path) for path in paths} == before
    assert outside.read_bytes() == b"" and len(list(tree.root.rglob("*"))) == len(paths) - 1


@pytest.mark.parametrize("kind", ["missing", "file", "symlink", "no account", "not the mount"])
def test_what_is_not_the_declared_place_is_refused_untouched(tree, tmp_path, kind):
    aside = tmp_path / "aside"
    tier = tier_for(tree.root, owner="no-such-account" if kind == "no account" else NOBODY)
    if kind == "not the mount":
        tier["volume"] = VOLUME
    elif kind != "no account":
        tree.root.rename(aside)
    if kind == "file":
        tree.root.touch()
    elif kind == "symlink":
        tree.root.symlink_to(aside)
    before = {path: state_of(path) for path in (tree.root, aside) if os.path.lexists(path)}
    with pytest.raises(Refused, match="tier chat"):
        prepare.prepare(tier)
    assert {path: state_of(path) for path in (tree.root, aside) if os.path.lexists(path)} == before


def test_another_volume_in_the_tiers_place_is_refused(tmp_path, monkeypatch):
    def work():
        place = tmp_path / "kv"
        place.mkdir()
        mount("-t", "tmpfs", "-o", "mode=0755", "tmpfs", place)
        monkeypatch.setattr(mounts, "dm_name", lambda _device: "llmhost_other")
        before = list(state_of(place)[:3])
        try:
            prepare.prepare(tier_for(place, owner=NOBODY, volume=VOLUME))
        except Refused as error:
            return str(error), list(state_of(place)[:3]) == before, os.listdir(place)
        return None

    message, same, names = with_own_mounts(work)
    assert "is not the mount of /dev/mapper/llmhost_chat (it is on llmhost_other)" in message
    assert same and names == []


def test_the_declared_volume_is_prepared_through_its_mount(tmp_path, monkeypatch):
    def work():
        place = tmp_path / "kv"
        place.mkdir(mode=0o755)
        mount("-t", "tmpfs", "-o", "mode=0755", "tmpfs", place)
        monkeypatch.setattr(mounts, "dm_name", lambda _device: "llmhost_chat")
        prepare.prepare(tier_for(place, owner=NOBODY, volume=VOLUME))
        mounted = list(state_of(place)[:3])
        subprocess.run(["umount", place], check=True)
        return mounted, list(state_of(place)[:3])

    mounted, below = with_own_mounts(work)
    assert mounted == [NOBODY, NOBODY, 0o700] and below == [0, 0, 0o755]


def test_a_file_system_without_acls_is_refused_with_the_reason(tree, monkeypatch):
    def unsupported(*_arguments):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(prepare.os, "setxattr", unsupported)
    with pytest.raises(Refused, match="takes no default ACL: .*not supported"):
        prepare.prepare(tier_for(tree.root, owner=NOBODY))
    assert stat.S_IMODE(tree.root.stat().st_mode) == 0o700, "what was closed stays closed"
