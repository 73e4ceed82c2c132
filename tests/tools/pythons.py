#!/usr/bin/env python
# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Finds the Python interpreters of this machine: `pythons.py 3.12` prints the path of one, or fails."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

MANAGED = ("3.9", "3.10", "3.11", "3.12", "3.13")


def find(version: str) -> str | None:
    """Return an interpreter of this minor version that really runs; a pyenv shim may not."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    candidates = [shutil.which(f"python{version}"), *sorted(pyenv.glob(f"versions/{version}.*/bin/python"))]
    candidates += ["/usr/bin/python3", sys.executable]
    for candidate in filter(None, candidates):
        probe = [str(candidate), "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        try:
            if subprocess.run(probe, capture_output=True, text=True, check=True).stdout.strip() == version:
                return str(candidate)
        except (OSError, subprocess.CalledProcessError):
            continue
    return None


if __name__ == "__main__":
    found = find(sys.argv[1])
    sys.exit(print(found) if found else f"no Python {sys.argv[1]} on the PATH or under pyenv")
