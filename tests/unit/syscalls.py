# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ends a process at a system call of the test's choosing, by ptrace(2): before the kernel sees it, or after it."""

from __future__ import annotations

import ctypes
import os
import signal

_TRACEME, _SYSCALL, _SETOPTIONS = 0, 24, 0x4200
_TRACESYSGOOD, _EXITKILL = 1, 0x100000
_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_libc.ptrace.restype = ctypes.c_long


def _ptrace(request: int, pid: int, data: int = 0) -> None:
    if _libc.ptrace(request, pid, None, data) < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"ptrace: {os.strerror(number)}; these tests must be allowed to trace their children")


def killed_at(stop: int, work) -> bool:
    """work() in a forked child that is killed with SIGKILL at its stop-th entry into or exit from a system call.

    False if the child ended before that; it must have ended well.
    """
    child = os.fork()
    if child == 0:
        code = 1
        try:
            _ptrace(_TRACEME, 0)
            os.kill(os.getpid(), signal.SIGSTOP)
            work()
            code = 0
        finally:
            os._exit(code)
    os.waitpid(child, 0)
    _ptrace(_SETOPTIONS, child, _TRACESYSGOOD | _EXITKILL)
    passed, pending = 0, 0
    while True:
        _ptrace(_SYSCALL, child, pending)
        _pid, status = os.waitpid(child, 0)
        if not os.WIFSTOPPED(status):
            assert status == 0, f"the child ended with wait status {status}"
            return False
        pending = 0
        if os.WSTOPSIG(status) != signal.SIGTRAP | 0x80:
            pending = os.WSTOPSIG(status)
            continue
        passed += 1
        if passed == stop:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return True
