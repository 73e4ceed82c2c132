# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Trees that no engine would make, for every store: counts or a message, never a traceback, and only blocks ever go."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import time
from pathlib import Path

import module_runner
import pytest
from fixtures import strings
from hypothesis import given, settings
from hypothesis import strategies as st
from store_trees import TREES
from test_fuzz import TIMES, how

from ansible_collections.llmhost.hardening.plugins.module_utils.kv.stores import CONFIG, STORES, Dir

OLD = time.time() - 10 * 86400
WORDS = sorted({part for tree in TREES.values() for path in tree.files() for part in path.split("/")})
TAILS = [".tmp", "\n", " ", ".1", "\u202e", "\x1b[2J"]
# Names as they come, names of blocks with something wrong, and bytes that are no text.
NAMES = st.one_of(
    st.sampled_from(WORDS),
    st.builds(lambda word, tail: word + tail, st.sampled_from(WORDS), st.sampled_from(TAILS)),
    st.builds(lambda word, at: word[:at] + word[at + 1 :] or "x", st.sampled_from(WORDS), st.integers(0, 30)),
    st.binary(min_size=1, max_size=30).map(os.fsdecode),
    st.sampled_from(["a" * 255, "-rf", "*", "$(id)", "\\x41", "CACHEDIR.TAG", "lost+found", "config.json"]),
).filter(lambda name: name not in (".", "..") and "/" not in name and "\0" not in name and len(os.fsencode(name)) < 256)
KINDS = st.sampled_from(["file", "file", "file", "link", "loop", "fifo", "socket", "directory", "sparse", "closed"])
PLACES = st.lists(NAMES, min_size=1, max_size=7)
# Beside the engine's own files, under a name that is nearly theirs or theirs: which file, what is behind its name.
BESIDE = st.tuples(st.integers(0, 99), st.sampled_from(["", "", "", *TAILS]))
ENTRIES = st.lists(st.tuples(st.one_of(PLACES, BESIDE, BESIDE), KINDS, st.booleans()), max_size=12)


def put(root: Path, names: list[str], kind: str, outside: Path) -> Path | None:
    """One entry; nothing where the file system will not have it."""
    path = root.joinpath(*names)
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        if kind == "directory":
            path.mkdir()
        elif kind in ("link", "loop"):
            path.symlink_to(outside / "precious" if kind == "link" else path)
        elif kind == "fifo":
            os.mkfifo(path)
        elif kind == "socket":
            with socket.socket(socket.AF_UNIX) as made:
                made.bind(str(path))
        elif not path.exists():
            path.write_bytes(b"block")
            if kind == "sparse":
                os.truncate(path, 1 << 40)
            elif kind == "closed":
                path.chmod(0)
        return path
    return None


def may_go(level: Dir, names: list[str], is_dir: bool) -> bool:
    """Whether the registry calls it a block, a temporary or a directory that is pruned, at that place."""
    if len(names) > 1:
        return any(
            may_go(below, names[1:], is_dir)
            for below in level.dirs
            if below.pattern and below.pattern.fullmatch(names[0])
        )
    if is_dir:
        return any(below.prune and below.pattern and below.pattern.fullmatch(names[0]) for below in level.dirs)
    return any(file.kind != CONFIG and file.pattern.fullmatch(names[0]) for file in level.files)


def listing(root: Path) -> set[str]:
    return {os.path.join(at, name) for at, names, files in os.walk(root) for name in names + files}


@pytest.mark.parametrize("store", TREES)
@settings(max_examples=4 * TIMES, **how)
@given(entries=ENTRIES)
def test_a_hostile_tree_is_counted_and_only_blocks_ever_go(tmp_path_factory, store, entries):
    base = tmp_path_factory.mktemp("hostile")
    root, outside = base / "kv", base / "outside"
    root.mkdir()
    outside.mkdir()
    (outside / "precious").write_bytes(b"x")
    block = root / TREES[store].blocks[0]
    block.parent.mkdir(parents=True, exist_ok=True)
    block.write_bytes(TREES[store].magic + b"block")
    block.chmod(0o600)
    os.utime(block, (OLD, OLD))
    known = sorted(TREES[store].files())
    for place, kind, old in entries:
        names = [known[place[0] % len(known)] + place[1]] if isinstance(place, tuple) else place
        path = put(root, names, kind, outside)
        if path is not None and old:
            with contextlib.suppress(OSError):
                os.utime(path, (OLD, OLD), follow_symlinks=False)
    given_ = {"path": str(root), "store": store, "owner": str(os.getuid()), "retention_minutes": 60}
    counted = module_runner.run("kv_block_info", **given_)
    assert counted.get("failed") is not True or "Traceback" not in counted["msg"]
    before = listing(root)
    kinds = {path: os.lstat(path).st_mode for path in before}
    planned = module_runner.run("kv_block_expire", check=True, **given_)
    assert listing(root) == before
    done = module_runner.run("kv_block_expire", **given_)
    for answer in (counted, planned, done):
        texts = strings(answer)
        assert not [text for text in texts if "Traceback" in text or not text.replace("\n", "").isprintable()]
    gone = before - listing(root)
    layout = STORES[store].layout
    for path in gone:
        assert stat.S_ISREG(kinds[path]) or stat.S_ISDIR(kinds[path]), path
        assert layout and may_go(layout, os.path.relpath(path, root).split("/"), stat.S_ISDIR(kinds[path])), path
    assert str(block) in gone or not STORES[store].live or "msg" in done, done
    assert (outside / "precious").read_bytes() == b"x"
