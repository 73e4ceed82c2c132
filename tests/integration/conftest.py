# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The real vLLM fs tier as a fixture: `engine_tree` is its installation, `run_writer` a running instance of it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import s3_servers

FETCH = Path(__file__).resolve().parents[1] / "testbed" / "writer" / "fetch.py"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "integration: runs the real engine's storage code, taken from PyPI once")


@cache
def make_tree(version: str) -> Path:
    done = subprocess.run([sys.executable, FETCH, version], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.fail(f"no engine to test with:\n{done.stderr}", pytrace=False)
    return Path(done.stdout.strip()) / "opt" / "vllm"


class Running:
    """A writer process, its status and what it said."""

    def __init__(self, process: subprocess.Popen[bytes], root: Path, status_file: Path, log: Path) -> None:
        self.process, self.root, self.status_file, self.log = process, root, status_file, log

    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = json.loads(self.status_file.read_text())
        return status

    def wait_for(self, condition: Callable[[dict[str, Any]], bool], seconds: float = 60) -> dict[str, Any]:
        """The first status written from now on that meets the condition."""
        asked = time.time()
        end = asked + seconds
        found: dict[str, Any] = {}
        while time.time() < end:
            with contextlib.suppress(FileNotFoundError):
                found = self.status()
                if found["time"] >= asked and condition(found):
                    return found
            if self.process.poll() is not None:
                break
            time.sleep(0.05)
        return pytest.fail(f"never came; exit {self.process.poll()}, last {found}\n{self.log.read_text()[-2000:]}")

    def more(self, *names: str) -> dict[str, Any]:
        """Wait until each of these counters has grown."""
        before = self.status() if self.status_file.exists() else {}
        return self.wait_for(lambda now: all(now[name] > before.get(name, 0) for name in names))

    def stop(self) -> dict[str, Any]:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)
        return self.status()

    def namespace(self) -> Path:
        """The directory of the blocks, beside the one of config.json."""
        return Path(self.status()["base"] + "_r0")

    def blocks(self) -> list[Path]:
        return sorted(self.root.rglob("*.bin"))


@contextlib.contextmanager
def writer(
    tree: Path,
    root: Path,
    variant: str = "compiled",
    *,
    umask: int = 0o022,
    rate: float = 200,
    user: int | None = None,
    beside: Path | None = None,
    **options: Any,
) -> Iterator[Running]:
    """Run the engine's fs tier on `root`; status and log lie in `beside` (default: root's parent)."""
    beside = beside or root.parent
    status_file, log = beside / f"{root.name}.status.json", beside / f"{root.name}.log"
    status_file.unlink(missing_ok=True)
    command = [
        tree / "bin" / "python3",
        tree / "fs_writer.py",
        f"--root={root}",
        f"--variant={variant}",
        f"--rate={rate}",
        f"--status={status_file}",
    ]
    command += [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    account = {} if user is None else {"user": user, "group": user, "extra_groups": []}
    with log.open("wb") as said, subprocess.Popen(command, umask=umask, stderr=said, **account) as process:  # type: ignore[call-overload]
        running = Running(process, root, status_file, log)
        try:
            yield running
        finally:
            if process.poll() is None:
                process.kill()


@pytest.fixture(scope="session")
def engine_tree() -> Path:
    """opt/vllm of vLLM 0.29.0."""
    return make_tree("0.29.0")


@pytest.fixture(scope="session")
def engine_of() -> Callable[[str], Path]:
    """opt/vllm of a given version."""
    return make_tree


@pytest.fixture(scope="session")
def run_writer(engine_tree: Path) -> Callable[..., contextlib.AbstractContextManager[Running]]:
    """run_writer(root, variant, umask=, rate=, user=, beside=, **writer_options) as a context manager."""
    return partial(writer, engine_tree)


@pytest.fixture
def tmpfs(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Mount a small tmpfs; remount it by calling again with other options."""
    if os.geteuid():
        pytest.skip("mounting a tmpfs needs root")
    place = tmp_path / "tmpfs"

    def mount(*options: str) -> Path:
        verb = ["remount"] if place.is_mount() else []
        place.mkdir(exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", ",".join([*verb, *options]), "tmpfs", place], check=True)
        return place

    yield mount
    if place.is_mount():
        subprocess.run(["umount", place], check=True)


# One for each file: every bucket takes volumes of it, and it has only so many.
@pytest.fixture(scope="module")
def weed() -> Iterator[s3_servers.Weed]:
    """SeaweedFS: its lifecycle runs on command, and its objects can be aged."""
    with s3_servers.weed() as server:
        yield server


@pytest.fixture(scope="session")
def rclone() -> Iterator[s3_servers.Server]:
    """`rclone serve s3`: answers lifecycle questions with a listing, and deletes the bucket by `DELETE ?lifecycle`."""
    with s3_servers.rclone() as server:
        yield server
