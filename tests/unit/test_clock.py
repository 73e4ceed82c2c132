# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""When the clock is believed."""

from __future__ import annotations

import time

import pytest

from ansible_collections.llmhost.hardening.plugins.module_utils.kv import clock

BEFORE = {"wall": 1_000_000.0, "since_boot": 500.0, "boot_id": "a"}
YEAR = 365 * 86400


def at(wall, since_boot, boot_id="a"):
    return {"wall": 1_000_000.0 + wall, "since_boot": 500.0 + since_boot, "boot_id": boot_id}


@pytest.mark.parametrize(
    ("wall", "since_boot", "direction"),
    [
        (300, 300, None),
        (0, 0, None),
        (360, 300, None),
        (361, 300, "forward by 61 s"),
        (240, 300, None),
        (239, 300, "back by 61 s"),
        (YEAR + 300, 300, f"forward by {YEAR} s"),
        (300 - YEAR, 300, f"back by {YEAR} s"),
        (YEAR, YEAR, None),
    ],
)
def test_wall_clock_and_time_since_boot_must_advance_alike(wall, since_boot, direction):
    message = clock.problem(BEFORE, at(wall, since_boot), False)
    assert (message is None) == (direction is None)
    if direction is not None:
        assert direction in message and "--trust-clock" in message
    assert clock.problem(BEFORE, at(wall, since_boot), True) is None, "a synchronised clock is believed"


@pytest.mark.parametrize(("wall", "jumped"), [(YEAR, False), (10, False), (-59, False), (-61, True), (-YEAR, True)])
def test_across_a_reboot_only_a_step_back_is_seen(wall, jumped):
    assert (clock.problem(BEFORE, at(wall, -400, "b"), False) is not None) == jumped


@pytest.mark.parametrize(
    "before",
    [None, {}, [], "x", 5, {"wall": 1.0}, {"wall": "x", "since_boot": 1, "boot_id": "a"}, {**BEFORE, "wall": None}],
    ids=repr,
)
def test_without_a_usable_memory_there_is_no_judgement(before):
    assert clock.problem(before, at(YEAR, 0), False) is None


def test_now_tells_wall_clock_and_boot():
    first, second = clock.now(), clock.now()
    assert abs(first["wall"] - time.time()) < 60
    assert first["since_boot"] <= second["since_boot"]
    assert first["boot_id"] == second["boot_id"] and len(first["boot_id"]) == 36


@pytest.mark.parametrize(
    ("result", "status", "answer"), [(0, 0, True), (0, 0x2001, True), (0, 0x40, False), (5, 0x41, False), (-1, 0, None)]
)
def test_the_kernel_says_whether_it_is_synchronised(monkeypatch, result, status, answer):
    class Libc:
        @staticmethod
        def adjtimex(pointer):
            pointer._obj.status = status
            assert pointer._obj.modes == 0, "only to be read"
            return result

    monkeypatch.setattr(clock.ctypes, "CDLL", lambda _name: Libc)
    assert clock.synchronised() is answer


def test_the_real_kernel_answers():
    assert clock.synchronised() in (True, False)
