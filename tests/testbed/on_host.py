# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the scenarios' tests share."""

from __future__ import annotations

from typing import Any


def output(host: Any, command: str) -> str:
    """What a command on testinfra's host says; the test fails if the command does."""
    done = host.run(command)
    assert done.rc == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout.strip()
