# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Packages that only one slow test needs: pinned by hash in a file of their own, installed into the cache once."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

CACHE = Path(os.environ.get("LLMHOST_CACHE", Path.home() / ".cache/llmhost"))


def pinned(pins: Path) -> Path:
    """Where the packages of a requirements file lie; the first of them names the place."""
    name, _equals, version = pins.read_text().partition("==")
    place = CACHE / f"{name.split()[-1]}-{version.split()[0]}"
    if not (place / "complete").exists():
        uv = shutil.which("uv")
        if uv is None:
            raise RuntimeError("uv is missing: make setup installs it from tests/requirements.lock")
        shutil.rmtree(place, ignore_errors=True)
        command = [uv, "pip", "install", "-q", "--no-deps", "--require-hashes", "--target", str(place), "-r", str(pins)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{pins.name} cannot be had: {done.stderr}")
        (place / "complete").touch()
    return place
