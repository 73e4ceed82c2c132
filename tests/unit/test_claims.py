# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""`make claims`: what a new or changed release brings is told line by line, and fails."""

from __future__ import annotations

import copy
import io
import json
import zipfile

import claims
import pytest
import wheels

TABLE = claims.read_table()
FS = claims.TIERING + "fs/"


@pytest.fixture
def release(tmp_path):
    """A small made-up release: one tier, one key, one removal."""
    files = {
        claims.TIERING + "factory.py": 'F.register_tier("fs", "vllm.v1.kv_offload.tiering.fs.manager", "M")\n'
        'kind = tier_config.get("type")\n',
        FS + "manager.py": "class M:\n    def __init__(self, offloading_spec, root_dir: str, n: int = 16, **kwargs):\n"
        "        self.x = extra_config.get('cpu_bytes_to_use', 5)\n",
        FS + "io.py": "def load(path):\n    os.remove(path)\n    text.replace('a', 'b')\n",
        "vllm/v1/core/kv_cache_utils.py": "DEFAULT_NONE_HASH_SEED = 'x'\n",
    }
    for name, source in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(source)
    return tmp_path, list(files)


def test_facts_of_a_release_are_its_keys_its_removals_and_its_naming(release):
    assert claims.facts_of(*release) == [
        "key every tier: type",
        "key extra_config: cpu_bytes_to_use = 5",
        "key fs: n = 16",
        "key fs: root_dir = required",
        "names: default seed 'x'",
        "removes tiering/fs/io.py load: os.remove(path)",
        "tier fs: takes any other key in silence",
        f"tier fs: {FS}manager.py M",
    ]


@pytest.mark.parametrize(
    "line",
    [
        "    shutil.rmtree(path)",
        "    os.unlink(path)",
        "    client.delete_objects(Bucket=b)",
        "    path.rmdir()",
        "    os.truncate(path, 0)",
        "    remove(path)",
    ],
)
def test_any_new_way_to_remove_a_block_is_seen(release, line):
    root, names = release
    before = set(claims.facts_of(root, names))
    with (root / FS / "io.py").open("a") as file:
        file.write(line + "\n")
    (new,) = set(claims.facts_of(root, names)) - before
    assert new == f"removes tiering/fs/io.py load: {line.strip()}"


def test_a_changed_release_a_new_one_and_a_vanished_one_are_each_told(capsys):
    now = copy.deepcopy(TABLE)
    newest = list(now["releases"])[-1]
    now["releases"]["9.0.0"] = dict(now["releases"][newest], digest="other")
    now["facts"]["key fs: max_bytes = None"] = "9.0.0"
    del now["facts"]["key fs: locality = None"]
    now["releases"]["0.22.0"]["digest"] = "other"
    assert claims.differences(TABLE, TABLE) == []
    lines = claims.differences(TABLE, now)
    assert "9.0.0: is on the index and not in claims.json" in lines
    assert "9.0.0: + key fs: max_bytes = None" in lines
    assert "9.0.0: - key fs: locality = None" in lines
    assert "0.30.0: - key fs: locality = None" in lines
    assert "0.22.0: its files changed" in lines
    assert f"{newest}: is in claims.json and no longer on the index" in claims.differences(
        TABLE, {"releases": {"0.22.0": TABLE["releases"]["0.22.0"]}, "facts": {}}
    )


def test_main_fails_with_the_lines_and_passes_without_any(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["claims.py"])
    monkeypatch.setattr(claims, "releases", dict)
    monkeypatch.setattr(claims, "make_table", lambda found: TABLE)
    assert claims.main() == 0
    changed = copy.deepcopy(TABLE)
    changed["facts"]["removes tiering/fs/io.py evict: os.unlink(path)"] = "0.33.0"
    monkeypatch.setattr(claims, "make_table", lambda found: changed)
    assert claims.main() == 1
    said = capsys.readouterr()
    assert "0.33.0: + removes tiering/fs/io.py evict: os.unlink(path)" in said.out and "--write" in said.err


def test_runs_of_versions_are_written_and_read_back():
    order = ["1", "2", "3", "4", "5"]
    for versions, text in ((["1"], "1"), (["1", "2"], "1-2"), (["2", "4", "5"], "2 4-"), (order, "1-"), (["5"], "5-")):
        assert claims.ranges(versions, order) == text
        assert claims.expand(text, order) == versions


class Index:
    """A package index in memory that answers range requests, or does not."""

    def __init__(self, ranges=True):
        held = io.BytesIO()
        with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("big/first.bin", bytes(range(256)) * 9000)
            archive.writestr("vllm/keep.py", "kept = 1\n" * 20000)
            archive.writestr("vllm/other.py", "x")
        self.data, self.ranges, self.asked = held.getvalue(), ranges, 0

    def __call__(self, url, headers):
        start, end = (int(part) for part in headers["Range"].removeprefix("bytes=").split("-"))
        if not self.ranges:
            raise wheels.IndexProblem("no ranges")
        self.asked += end + 1 - start
        return self.data[start : end + 1]

    def wheel(self):
        return wheels.Wheel("1.0", "vllm-1.0-x.whl", "https://index/x.whl", len(self.data))


def test_only_what_is_wanted_is_fetched_once_and_whole(monkeypatch, tmp_path):
    index = Index()
    monkeypatch.setattr(wheels, "_open", index)
    monkeypatch.setattr(wheels, "TAIL", 300)
    monkeypatch.setattr(wheels, "CHUNK", 1000)
    (path,) = wheels.extract(index.wheel(), lambda name: name == "vllm/keep.py", tmp_path / "x")
    assert path.read_text() == "kept = 1\n" * 20000
    asked = index.asked
    assert asked < len(index.data)
    assert wheels.extract(index.wheel(), lambda name: False, tmp_path / "x") == [path]
    assert index.asked == asked


def test_an_index_that_fails_leaves_no_stamp(monkeypatch, tmp_path):
    index = Index(ranges=False)
    monkeypatch.setattr(wheels, "_open", index)
    with pytest.raises(wheels.IndexProblem):
        wheels.extract(index.wheel(), lambda name: True, tmp_path / "x")
    assert not (tmp_path / "x" / ".files").exists()


def test_the_last_build_of_final_releases_counts(monkeypatch):
    def file(name, **more):
        return {"filename": name, "url": name, "size": 1, **more}

    files = [
        file("vllm-0.23.0-cp38-abi3-manylinux_2_28_x86_64.whl"),
        file("vllm-0.23.0-2-cp38-abi3-manylinux_2_28_x86_64.whl"),
        file("vllm-0.24.0rc1-cp38-abi3-manylinux_2_28_x86_64.whl"),
        file("vllm-0.22.0-cp38-abi3-manylinux_2_28_aarch64.whl"),
        file("vllm-0.25.0-cp38-abi3-manylinux_2_28_x86_64.whl", yanked="broken"),
        file("vllm-0.9.0-cp38-abi3-manylinux_2_28_x86_64.whl"),
        file("vllm-0.10.0.tar.gz"),
    ]
    monkeypatch.setattr(wheels, "_open", lambda url, headers: json.dumps({"files": files}).encode())
    found = wheels.wheels("vllm")
    assert list(found) == ["0.9.0", "0.23.0"]
    assert found["0.23.0"].name == "vllm-0.23.0-2-cp38-abi3-manylinux_2_28_x86_64.whl"


def test_a_cache_that_was_tampered_with_is_not_used(monkeypatch, tmp_path):
    pinned = TABLE["releases"]["0.33.0"]
    assert set(pinned) == {"wheel", "url", "size", "digest"}
    monkeypatch.setattr(wheels, "cache_dir", lambda: tmp_path)
    monkeypatch.setattr(wheels, "_open", Index(ranges=False))
    keep = claims.cached("0.33.0")
    keep.mkdir(parents=True)
    (keep / "a.py").write_text("x")
    (keep / ".files").write_text("a.py\n")
    with pytest.raises(wheels.IndexProblem, match="remove it"):
        claims.tree("0.33.0")
