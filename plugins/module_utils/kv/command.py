# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Starts other programs; the one place that does, for kvtier runs where there is no AnsibleModule to ask."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
_ENVIRONMENT = {"PATH": PATH, "LC_ALL": "C", "SYSTEMD_PAGER": "", "SYSTEMD_COLORS": "0"}


def run(argv: Sequence[str], timeout: float | None = None) -> subprocess.CompletedProcess[str]:
    """Run one with fixed PATH and locale and no input; OSError or SubprocessError if it is missing or does not end."""
    return subprocess.run(  # pylint: disable=ansible-bad-function
        argv,
        env=_ENVIRONMENT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        timeout=timeout,
        check=False,
    )
