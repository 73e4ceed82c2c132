# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The queue from which the processes of a pass take their work: nothing is done twice, nothing is left."""

from __future__ import annotations

import os
import signal
import time

import pytest
from fixtures import NAMESPACE, POLICY, VLLM, Tree

from ansible_collections.llmhost.hardening.plugins.module_utils.kv import workers
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.stores import Dir
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.walk import Stop, Unit
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.workers import SharedWalk, _Queue


def groups_of(count: int) -> list[list[Unit]]:
    return [[Unit(f"ns/{number}", "ns", str(number), Dir())] for number in range(count)]


@pytest.fixture
def queue():
    made = _Queue(groups_of(10))
    yield made
    made.close()


def test_each_group_is_taken_once(queue):
    taken = [group for one, two in zip(queue.taken_by(1), queue.taken_by(2)) for group in (one, two)]
    assert taken == queue.groups and list(queue.taken_by(1)) == []


def test_what_a_process_that_died_had_taken_is_left_and_so_is_what_nobody_is_known_to_have_taken(queue):
    one, two = queue.taken_by(1), queue.taken_by(2)
    next(one), next(two), next(two)
    os.read(queue.reader, 4)  # taken by a process that died before it could say so
    rest = list(one)
    assert len(rest) == 6 and list(queue.left_by([2])) == queue.groups[1:4]


def test_after_a_stop_nobody_takes_more(queue):
    one = queue.taken_by(1)
    next(one)
    queue.drain()
    assert list(one) == []


def test_more_groups_than_the_pipe_holds_are_put_together():
    """Seen hanging without: nobody reads while the numbers are written."""
    queue = _Queue(groups_of(50_000))
    taken = list(queue.taken_by(1))
    queue.close()
    assert len(taken) <= 4096 and [unit.below for group in taken for unit in group] == [
        str(number) for number in range(50_000)
    ]


def walk_over(tree: Tree, **options):
    fd = os.open(tree.root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return SharedWalk(fd, VLLM, os.getuid(), float(tree.now), POLICY, delete=True, workers=2, **options).run()
    finally:
        os.close(fd)


@pytest.fixture
def tree(tmp_path):
    made = Tree(tmp_path / "kv")
    for first in range(16):
        made.put(f"{NAMESPACE}_r0/{first:x}00/00_g0/{first:x}0000{0:059x}.bin", 9000)
    return made


def test_who_is_faster_takes_more(tree):
    """The other one is busy with something else for the whole pass: all but its one group go by this one."""
    parent = os.getpid()
    reader, writer = os.pipe()

    def pause():
        if os.getpid() != parent:
            os.write(writer, b"x")
            time.sleep(0.3)

    found = walk_over(tree, pause=pause)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        # Once for the unit, once for its leaf.
        assert len(pipe.read()) <= 2 * 4
    assert found.expired == 16 and tree.files() == set()


def test_a_process_that_is_killed_with_work_in_hand_loses_none(tree, monkeypatch):
    parent, real = os.getpid(), workers.SharedWalk._run_share

    def dying(self, units):
        if os.getpid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(self, units)

    monkeypatch.setattr(workers.SharedWalk, "_run_share", dying)
    found = walk_over(tree)
    assert found.errors in ({"ECHILD": 1}, {}) and found.complete and tree.files() == set()


def test_without_time_each_process_gets_through_one_unit(tree):
    found = walk_over(tree, deadline=0.0)
    assert not found.complete and found.resume and 1 <= found.expired <= 2
    for _turn in range(16):
        found = walk_over(tree, deadline=0.0, start_at=found.resume)
    assert tree.files() == set()


def test_a_pass_without_time_goes_on_at_the_first_unit_that_nobody_came_to(tree):
    """Seen failing without those that nobody took: two units of one group would take turns for ever."""
    parent = os.getpid()
    for second in range(1, 4):
        tree.put(f"{NAMESPACE}_r0/00{second}/00_g0/00{second}00{0:059x}.bin", 9000)

    def pause():
        if os.getpid() != parent:
            time.sleep(0.1)

    resume = None
    while left := tree.files():
        found = walk_over(tree, deadline=0.0, start_at=resume, pause=pause)
        resume = found.resume
        assert len(tree.files()) < len(left)


def test_a_stop_keeps_the_others_from_taking_more(tree):
    parent = os.getpid()

    def pause():
        if os.getpid() != parent:
            raise Stop("no longer the directory")
        time.sleep(0.1)

    found = walk_over(tree, pause=pause)
    assert found.stopped == "no longer the directory" and found.expired < 8
