# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Work done as the tier's account has nothing of root's."""

from __future__ import annotations

import os
import signal

import pytest
from fixtures import NOBODY, in_child, public_directory

from ansible_collections.llmhost.hardening.plugins.module_utils.kv import account


def powers():
    """Who and what this process is."""
    status = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines())
    return {
        "uids": os.getresuid(),
        "gids": os.getresgid(),
        "groups": os.getgroups(),
        "capabilities": [int(status[name], 16) for name in ("CapPrm", "CapEff", "CapAmb")],
    }


@pytest.mark.parametrize(("owner", "uid", "gid"), [("daemon", 1, 1), (NOBODY, NOBODY, None), (54321, 54321, 54321)])
def test_work_is_done_without_any_of_roots_powers(owner, uid, gid):
    group, groups = account.gid_of(owner), os.getgroups()
    os.setgroups([0, 4, 6])
    try:
        found = account.as_owner(owner, powers)
    finally:
        os.setgroups(groups)
    assert found == {"uids": [uid] * 3, "gids": [group] * 3, "groups": [], "capabilities": [0, 0, 0]}
    assert gid is None or group == gid


def test_work_can_never_become_root_again():
    def work():
        with pytest.raises(PermissionError):
            os.setresuid(0, 0, 0)
        with pytest.raises(PermissionError):
            os.setgroups([0])
        return "kept down"

    assert account.as_owner("daemon", work) == "kept down"


def test_the_caller_stays_what_it_is():
    before = powers()
    account.as_owner("daemon", powers)
    assert powers() == before


def test_work_cannot_read_what_is_roots():
    with public_directory() as place:
        secret = place / "secret"
        secret.write_text("x")
        secret.chmod(0o600)
        with pytest.raises(RuntimeError, match="Permission denied"):
            account.as_owner("daemon", secret.read_text)


def test_what_goes_wrong_in_the_work_is_told():
    def broken():
        raise ValueError("it broke")

    with pytest.raises(RuntimeError, match="ValueError: it broke"):
        account.as_owner("daemon", broken)


@pytest.mark.parametrize(
    "death", [lambda: os._exit(0), lambda: os.kill(os.getpid(), signal.SIGKILL), object], ids=range(3)
)
def test_a_worker_that_dies_or_answers_nonsense_is_told(death):
    with pytest.raises(RuntimeError, match="the working process died"):
        account.as_owner("daemon", death)


def test_large_and_hostile_answers_come_whole():
    answer = ["\udcff\x1b[2J\n" * 10, "x" * 300_000]
    assert account.as_owner("daemon", lambda: answer) == answer


def test_no_process_or_descriptor_is_left_behind():
    account.as_owner("daemon", powers)
    before = len(os.listdir("/proc/self/fd"))
    for _count in range(5):
        account.as_owner("daemon", powers)
    assert len(os.listdir("/proc/self/fd")) == before
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_one_account_cannot_become_another():
    def inside():
        account.become("daemon")
        account.become("daemon")
        with pytest.raises(PermissionError, match="must run as root or bin"):
            account.become("bin")

    assert in_child(inside) == 0


def test_an_account_that_is_not_there_is_told():
    for function in (account.uid_of, account.gid_of):
        with pytest.raises(KeyError):
            function("no-such-account")
    with pytest.raises(RuntimeError, match="no-such-account"):
        account.as_owner("no-such-account", powers)


def test_a_number_without_an_account_has_the_group_of_its_number():
    assert (account.uid_of(54321), account.gid_of(54321)) == (54321, 54321)
    assert (account.uid_of("daemon"), account.gid_of("daemon")) == (1, 1)
