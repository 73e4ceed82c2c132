# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The registry: each store takes exactly the names of its fixture tree for its own, and says what is known of it."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import jinja2
import pytest
from store_trees import TREES

from ansible_collections.llmhost.hardening.plugins.module_utils.kv import discovery, host, stores, walk
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.stores import (
    BLOCK,
    CONFIG,
    ENGINES,
    STORES,
    TEMP,
    Dir,
)

DAY = 86400
LIVE = {"vllm_fs", "llmd_fs", "lmcache_fs", "sglang_file", "sglang_nixl", "llamacpp_slots", "vllm_hidden_states"}
WITHOUT_FILES = {"vllm_obj", "vllm_p2p"}
WITH_FILES = sorted(set(STORES) - WITHOUT_FILES)


def levels(level):
    yield level
    for below in level.dirs:
        yield from levels(below)


def kind_of(store, path):
    """What the registry takes a file at this path for."""
    *parents, name = path.split("/")
    level = store.layout
    for parent in parents:
        level = level and level.dir_for(parent)
    known = level.file_for(name) if level else None
    return known.kind if known else "stranger"


@pytest.fixture(params=WITH_FILES)
def store(request):
    return STORES[request.param]


@pytest.fixture
def tree(store, tmp_path):
    """The store's tree on disk, and its open root."""
    root = tmp_path / "tier"
    root.mkdir(mode=0o700)
    TREES[store.name].make(root, os.geteuid())
    (root / stores.CACHEDIR_TAG).write_bytes(b"")
    (root / "lost+found").mkdir(mode=0o700)
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    yield root, fd, TREES[store.name]
    os.close(fd)


# -- the entries


def test_every_store_that_leaves_files_has_a_tree():
    assert sorted(TREES) == WITH_FILES


def test_what_is_live_safe():
    assert {name for name, one in STORES.items() if one.live} == LIVE | WITHOUT_FILES
    assert {name for name, one in STORES.items() if one.live_from} == {"vllm_fs"}


@pytest.mark.parametrize("name", sorted(STORES))
def test_an_entry_is_complete(name):
    one = STORES[name]
    assert re.fullmatch(r"[a-z0-9_]+", one.name) and one.engine in ENGINES
    assert one.evidence in (stores.OBSERVED, stores.FROM_SOURCE)
    assert one.title and one.removing and one.dangers and set(one.filesystems) <= {"ext4", "xfs"}
    for danger in one.dangers:
        assert danger.text and danger.source and (danger.text + danger.source).isprintable()
    assert one.live or one.live_from is None


def test_only_what_was_run_is_called_observed():
    assert {name for name, one in STORES.items() if one.evidence == stores.OBSERVED} == {"vllm_fs", "llamacpp_slots"}


@pytest.mark.parametrize("name", sorted(ENGINES))
def test_an_engine_can_be_recognised(name):
    engine = ENGINES[name]
    assert all(re.fullmatch(r"[a-z0-9_]+", dist) for dist in engine.dists), "as discovery spells distributions"
    assert not engine.programs.search("/usr/bin/python3\0-m\0http.server")
    assert any(one.engine == name for one in STORES.values())


@pytest.mark.parametrize(
    ("engine", "command"),
    [("vllm", "/opt/v/bin/python3\0/opt/v/bin/vllm\0serve\0m"), ("vllm", "python3\0-m\0vllm.entrypoints.openai"),
     ("sglang", "python3\0-m\0sglang.launch_server"), ("sglang", "sglang::scheduler"),
     ("lmcache", "lmcache_server\0localhost"), ("lmcache", "python3\0-m\0vllm.entrypoints.cli"),
     ("llama.cpp", "/usr/bin/llama-server\0-m\0x.gguf"), ("llama-cpp-python", "python3\0-m\0llama_cpp.server"),
     ("ktransformers", "/opt/k/bin/ktransformers\0--x"), ("mooncake", "mooncake_master\0-port=1")],
)  # fmt: skip
def test_a_command_line_is_the_engine(engine, command):
    assert ENGINES[engine].programs.search(command)


def test_a_word_that_contains_an_engine_is_not_the_engine():
    for command in ("/usr/bin/myvllm-tool", "notvllm", "python3\0xsglang.py", "vim\0vllm_notes"):
        assert not ENGINES["vllm"].programs.search(command) and not ENGINES["sglang"].programs.search(command)


# -- names


def test_patterns_are_ascii_and_mean_the_whole_name(store):
    for level in levels(store.layout):
        for pattern in [level.pattern, *(file.pattern for file in level.files)]:
            if pattern is None:
                assert level is store.layout
                continue
            assert pattern.flags & re.ASCII
            assert not re.match(r"\^|.*(?<!\\)\$$", pattern.pattern), "fullmatch anchors; ^ and $ would hide a mistake"


def test_only_names_with_a_magic_may_be_anything(store):
    for level in levels(store.layout):
        for file in level.files:
            if not file.magic:
                for name in ("notes.txt", "id_rsa", ".bashrc", "a", "model.safetensors.index.json", "\n"):
                    assert not file.pattern.fullmatch(name), f"{file.pattern.pattern} takes {name}"
            assert file.kind in (BLOCK, TEMP, CONFIG)


def test_no_pattern_takes_our_tag_or_lost_and_found_for_its_own(store):
    for file in store.layout.files:
        for name in (*stores.COMMON_FILES, *stores.COMMON_DIRS):
            assert file.magic or not file.pattern.fullmatch(name)


def test_each_name_of_the_tree_is_of_its_kind(store):
    wrong = {path: kind for path, kind in TREES[store.name].files().items() if kind_of(store, path) != kind}
    if TREES[store.name].magic:
        wrong = {path: kind for path, kind in wrong.items() if kind != "stranger"}
    assert wrong == {}


def test_no_directory_of_the_tree_has_the_name_of_a_file(store):
    for path in TREES[store.name].files():
        *parents, _name = path.split("/")
        level = store.layout
        for parent in parents:
            assert level.file_for(parent) is None
            level = level.dir_for(parent)
            if level is None:
                break


def test_every_known_name_is_in_the_tree(store):
    """A pattern that no fixture matches is a pattern that nobody tested."""
    seen = set()
    for path in TREES[store.name].files():
        *parents, name = path.split("/")
        level = store.layout
        for parent in parents:
            level = level and level.dir_for(parent)
        if level and level.file_for(name):
            seen.add((id(level), level.file_for(name).pattern))
    for level in levels(store.layout):
        assert all((id(level), file.pattern) in seen for file in level.files)


# -- the walk over the tree


def test_survey_counts_what_the_tree_declares(store, tree):
    _root, fd, made = tree
    found = walk.survey(fd, store, os.geteuid(), time.time(), walk.Policy(DAY))
    assert (found.blocks, found.temps, found.configs) == (len(made.blocks), len(made.temps), len(made.configs))
    assert found.strangers + found.not_regular == len(made.strangers) + len(made.stranger_dirs)
    assert found.block_bytes == (100 + len(made.magic)) * len(made.blocks)
    assert (found.errors, found.foreign_owner, found.loose, found.overdue) == ({}, 0, 0, 0)


def test_foreign_names_are_the_strangers(store, tree):
    _root, fd, made = tree
    wanted = {walk.printable(path) for path in (*made.strangers, *made.stranger_dirs)}
    # A stranger in a strange directory is not looked at: the directory is named.
    assert set(walk.foreign(fd, store, 1000)) == {
        name for name in wanted if not any(name.startswith(other + "/") for other in wanted)
    }


def test_expiry_takes_the_old_blocks_and_temporaries_and_nothing_else(store, tree):
    root, fd, made = tree
    old = time.time() - 10 * DAY
    for path in made.files():
        os.utime(root / path, (old, old))
    young = made.blocks[0]
    os.utime(root / young)
    done = walk.Walk(fd, store, os.geteuid(), time.time(), walk.Policy(DAY), delete=True).run()
    assert (done.expired, done.temps_removed, done.blocks) == (len(made.blocks) - 1, len(made.temps), 1)
    left = {path for path in made.files() if (root / path).exists()}
    assert left == {young, *made.configs, *made.strangers}
    assert all((root / path / "file.bin").exists() for path in made.stranger_dirs)


def test_destroy_leaves_the_strangers_and_nothing_else(store, tree):
    root, fd, made = tree
    files, _bytes, left = walk.destroy(fd, store)
    known = len(made.blocks) + len(made.temps) + len(made.configs)
    assert files == known + 1  # our own tag
    assert left >= len(made.strangers) + len(made.stranger_dirs)
    assert {path for path in made.files() if (root / path).exists()} == set(made.strangers)
    assert all((root / path / "file.bin").exists() for path in made.stranger_dirs)


def test_destroy_empties_a_tree_without_strangers(store, tmp_path):
    root = tmp_path / "tier"
    root.mkdir()
    made = TREES[store.name]
    type(made)(made.blocks, made.temps, made.configs, magic=made.magic).make(root, os.geteuid())
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        assert walk.destroy(fd, store)[2] == 0
    finally:
        os.close(fd)
    assert list(root.iterdir()) == []


def test_a_directory_in_place_of_a_block_stays(store, tree):
    root, fd, made = tree
    path = root / made.blocks[0]
    path.unlink()
    path.mkdir()
    (path / "inside").write_bytes(b"x")
    os.utime(path, (0, 0))
    walk.Walk(fd, store, os.geteuid(), time.time(), walk.Policy(DAY), delete=True).run()
    walk.destroy(fd, store)
    assert (path / "inside").exists()


def test_directories_above_the_free_levels_are_never_pruned():
    """An engine that makes its directories once must find them again."""
    pruned = {
        name: {level.pattern.pattern for level in levels(STORES[name].layout) if level.prune} for name in WITH_FILES
    }
    assert pruned["sglang_nixl"] == set() and pruned["ktransformers"] == set()
    assert pruned["vllm_fs"] == pruned["llmd_fs"] == {r"[0-9a-f]{3}", r"[0-9a-f]{2}_g\d+"}


# -- versions

TRUTH = [
    ("0.27.1", False), ("0.9", False), ("0.27.1.post1", False), ("0.27.99rc1", False),
    ("0.28", True), ("0.28.0", True), ("0.28.0rc1", False), ("0.28.0.rc1", False), ("0.28.0-rc1", False),
    ("0.28rc2", False), ("0.28.0a1", False), ("0.28.0b1+cu128", False), ("0.28.0.dev3", False),
    ("0.28.0.dev3+gabc123", False), ("0.28.0rc1.post1", False), ("0.28.0rc1.dev2", False), ("0.28.0+cpu", True),
    ("0.28.0.post1", True), ("0.28.1rc1", True), ("0.28.1", True), ("0.29.0+cpu", True), ("0.29.0rc1", True),
    ("0.33", True), ("1.0", True), ("10", True), ("0.100.0", True),
    (None, None), ("", None), ("unknown", None), ("v0.29.0", None), (" 0.29.0", None), ("0.29.0 ", None),
    ("0.29.0\n", None), ("0.28.", None), ("0.28.0foo", None), ("1!0.1", None), ("\u0660.29", None), ("9" * 5000, None),
    ("0." + "9" * 5000, None), ("-1", None), ("0.29.0/../x", None),
]  # fmt: skip


@pytest.mark.parametrize(("version", "safe"), TRUTH, ids=lambda value: str(value)[:20])
def test_live_safe_by_version(version, safe):
    assert stores.live_safe(STORES["vllm_fs"], version) is safe


@pytest.mark.parametrize("name", sorted(STORES))
def test_a_store_without_a_first_version_needs_no_version(name):
    if STORES[name].live_from is None:
        for version in (None, "garbage", "0.1", "99"):
            assert stores.live_safe(STORES[name], version) is STORES[name].live


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("0.29.0rc1+cpu", (0, 29, 0)),
        ("1", (1,)),
        ("", None),
        ("x1", None),
        ("9" * 5000, None),
        ("1." + "9" * 5000, None),
    ],
    ids=lambda value: str(value)[:20],
)
def test_parse_version(text, wanted):
    assert stores.parse_version(text) == wanted


@pytest.mark.parametrize("name", WITH_FILES)
def test_what_is_not_live_safe_refuses_under_a_running_engine_and_expires_when_it_is_stopped(name):
    tier = {"name": "x", "store": name, "services": ["engine.service"], "path": "/srv/x"}
    running = [discovery.Found(4711, "engine.service", "0.33.0", "here")]
    unknown = [discovery.Found(4711, "engine.service", None, "nobody could tell")]
    assert discovery.live_gate(tier, []).allowed is True
    assert discovery.live_gate(tier, running).allowed is (name in LIVE)
    if name not in LIVE:
        for found in (running, unknown):
            gate = discovery.live_gate(tier, found)
            assert gate.allowed is False and "stop" in gate.reason and "4711" in gate.reason
    assert discovery.live_gate(tier, unknown).allowed is (None if name == "vllm_fs" else name in LIVE)


def test_a_release_that_is_known_to_be_unsafe_is_named_before_one_that_nobody_knows():
    tier = {"name": "x", "store": "vllm_fs", "services": ["engine.service"], "path": "/srv/x"}
    found = [discovery.Found(1, "a.service", None, "nobody could tell"), discovery.Found(2, "b.service", "0.27.0", "x")]
    gate = discovery.live_gate(tier, found)
    assert gate.allowed is False and "0.27.0" in gate.reason


def test_a_level_knows_no_names_but_its_own():
    level = Dir()
    assert level.dir_for("x") is None and level.file_for("x") is None


# -- what cron is told


def cron_lines(*tiers):
    """The job lines of /etc/cron.d/llmhost for these tiers."""
    role = Path(__file__).resolve().parents[2] / "roles/kv_retention"
    environment = jinja2.Environment(loader=jinja2.FileSystemLoader(role / "templates"), trim_blocks=True)
    text = environment.get_template("cron.j2").render(
        ansible_managed="",
        __kv_retention_host={"data_map": {"tiers": tiers}, "stopped": host.only_stopped({"tiers": list(tiers)})},
        kv_retention_audit_every_minutes=15,
    )
    return [line for line in text.splitlines() if " expire " in line]


def test_cron_has_root_look_where_the_engine_must_be_stopped_and_nowhere_else():
    for name in WITH_FILES:
        tier = {
            "name": "t",
            "store": name,
            "path": "/x",
            "state": "present",
            "owner": "vllm",
            "expire_every_minutes": 5,
        }
        (line,) = cron_lines(tier)
        user, stopped = ("vllm", "") if STORES[name].live else ("root", " --stopped")
        assert line == f"*/5 * * * * {user} /usr/local/sbin/kvtier expire t{stopped} >/dev/null 2>&1"
