# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Can the clock be believed? Ages are wall clock differences, so a clock that jumped would expire the wrong blocks."""

from __future__ import annotations

import ctypes
import time
from typing import Any

_STA_UNSYNC = 0x0040


class _Timex(ctypes.Structure):
    # struct timex up to status; the kernel writes the whole structure, so the rest is room.
    _fields_ = [
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_char * 256),
    ]


def synchronised() -> bool | None:
    """True if the kernel says that something keeps its clock right (adjtimex(2), read only), None if it cannot say."""
    timex = _Timex()
    if ctypes.CDLL(None).adjtimex(ctypes.byref(timex)) < 0:
        return None
    return not timex.status & _STA_UNSYNC


def now() -> dict[str, Any]:
    """Wall clock, time since boot (both seconds) and the boot they belong to."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        boot_id = file.read().strip()
    return {"wall": time.time(), "since_boot": time.clock_gettime(time.CLOCK_BOOTTIME), "boot_id": boot_id}


def problem(before: Any, at: dict[str, Any], synchronised: bool, slack: float = 60.0) -> str | None:
    """Why ages cannot be believed now, or None.

    Between two runs the wall clock must advance like the time since boot. A jump is believed when the kernel says that
    the clock is synchronised. Across a reboot only a step back can be seen.
    """
    try:
        wall, since, boot = float(before["wall"]), float(before["since_boot"]), before["boot_id"]
    except (KeyError, TypeError, ValueError):
        return None
    elapsed = at["wall"] - wall
    if boot == at["boot_id"]:
        elapsed -= at["since_boot"] - since
    elif elapsed > 0:
        return None
    if abs(elapsed) <= slack or synchronised:
        return None
    direction = "forward" if elapsed > 0 else "back"
    return (
        f"the clock jumped {direction} by {abs(elapsed):.0f} s since the last run and is not synchronised: nothing is "
        "expired by age; start time synchronisation, or run kvtier expire --trust-clock once the time is right"
    )
