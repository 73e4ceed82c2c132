# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Owner, mode, ACLs and ancestors: the pure judgements on made-up places, the look on real directories."""

from __future__ import annotations

import errno
import os
import struct

import pytest

from ansible_collections.llmhost.hardening.plugins.module_utils.kv import posture
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.posture import Place

OWNER = 990
NOBODY = 0xFFFFFFFF


def acl_bytes(*entries):
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


CLOSED = acl_bytes((0x01, 7, NOBODY), (0x04, 0, NOBODY), (0x20, 0, NOBODY))


def place(ancestors, mode=0o700, uid=OWNER):
    return Place(
        "/a/b", exists=True, uid=uid, mode=mode, ancestors=[("/" + "a" * i, *a) for i, a in enumerate(ancestors)]
    )


def test_acl_bytes_are_parsed():
    acl = posture.parse_acl(acl_bytes((0x01, 7, NOBODY), (0x02, 5, 1000), (0x10, 4, NOBODY), (0x20, 0, NOBODY)))
    assert posture.acl_text(acl) == "u::rwx,u:1000:r-x,m::r--,o::---"


@pytest.mark.parametrize(
    "data",
    [b"", b"\x02\0\0", b"\x01\0\0\0", b"\x02\0\0\0" + b"\0" * 7, acl_bytes((0x03, 7, 0)), acl_bytes((0x01, 8, 0))],
)
def test_broken_acl_bytes_are_refused(data):
    with pytest.raises(ValueError):
        posture.parse_acl(data)


def test_closed_default_acl_opens_nothing():
    assert posture.acl_opens(posture.parse_acl(CLOSED)) == []


@pytest.mark.parametrize(
    "entries, opened",
    [
        ([(0x20, 4, NOBODY)], ["o::r--"]),
        ([(0x04, 4, NOBODY)], ["g::r--"]),
        ([(0x02, 7, 1000), (0x10, 5, NOBODY)], ["u:1000:rwx"]),
        ([(0x02, 7, 1000), (0x10, 0, NOBODY)], []),
        ([(0x08, 2, 50), (0x10, 5, NOBODY)], []),
        ([(0x20, 4, NOBODY), (0x10, 0, NOBODY)], ["o::r--"]),
    ],
)
def test_entries_open_by_what_the_mask_leaves(entries, opened):
    assert posture.acl_opens(posture.parse_acl(acl_bytes((0x01, 7, NOBODY), *entries))) == opened


@pytest.mark.parametrize(
    "ancestors, count",
    [
        ([(0, 0o755), (0, 0o755)], 0),
        ([(0, 0o755), (OWNER, 0o755)], 0),
        ([(0, 0o755), (1000, 0o755)], 1),
        ([(0, 0o755), (0, 0o775)], 1),
        ([(0, 0o755), (0, 0o757)], 1),
        ([(0, 0o755), (0, 0o1777)], 0),
        ([(0, 0o755), (OWNER, 0o1777)], 1),
    ],
)
def test_ancestors_that_others_can_replace_are_found(ancestors, count):
    assert len(posture.replaceable(place(ancestors), OWNER)) == count


@pytest.mark.parametrize(
    "mode, ancestors, expected",
    [
        (0o700, [(0, 0o755)], False),
        (0o755, [(0, 0o755)], True),
        (0o710, [(0, 0o755)], True),
        (0o704, [(0, 0o755)], True),
        (0o755, [(0, 0o755), (0, 0o700)], False),
        (0o755, [(0, 0o755), (0, 0o750)], True),
        (0o755, [(0, 0o755), (0, 0o744)], False),
        (0o755, [(1000, 0o700)], True),
    ],
)
def test_reachable_needs_an_open_root_and_open_ancestors(mode, ancestors, expected):
    assert posture.reachable(place(ancestors, mode), OWNER) is expected


def test_a_root_of_another_account_is_reachable_for_it():
    assert posture.reachable(place([(0, 0o755)], uid=1000), OWNER) is True


def test_look_reads_owner_mode_and_ancestors(tmp_path):
    directory = tmp_path / "kv"
    directory.mkdir(mode=0o700)
    found = posture.look(str(directory))
    info = os.stat(directory)
    assert found.exists and not found.missing
    assert (found.uid, found.mode, found.inode) == (info.st_uid, 0o700, info.st_ino)
    assert [path for path, _uid, _mode in found.ancestors][-1] == str(tmp_path)


def test_look_reads_the_acls_from_the_file_system(tmp_path):
    directory = tmp_path / "kv"
    directory.mkdir(mode=0o700)
    try:
        os.setxattr(directory, "system.posix_acl_default", CLOSED)
    except OSError as error:
        assert error.errno == errno.EOPNOTSUPP
        assert posture.look(str(directory)).acl_error == "the file system has no ACLs"
        return
    found = posture.look(str(directory))
    assert found.default_acl is not None
    assert posture.acl_text(found.default_acl) == "u::rwx,g::---,o::---"
    assert found.acl is None


def test_look_tells_missing_from_unsafe(tmp_path):
    assert posture.look(str(tmp_path / "no/where")).missing
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    found = posture.look(str(tmp_path / "link"))
    assert found.unsafe and not found.exists and not found.missing
