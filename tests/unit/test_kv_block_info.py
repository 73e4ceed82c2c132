# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The counts of kv_block_info on real trees, and the module around them."""

from __future__ import annotations

import os
import time

import pytest
import yaml
from module_runner import run

from ansible_collections.llmhost.hardening.plugins.module_utils.kv import blockinfo, datamap, fsio
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.stores import STORES
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.walk import Policy
from ansible_collections.llmhost.hardening.plugins.modules import kv_block_info

STORE = STORES["vllm_fs"]
POLICY = Policy(3600, 600, 600)


@pytest.fixture
def tree(tmp_path):
    """One young closed block, one old open block, one stale temporary, one stranger with a hostile name."""
    root = tmp_path / "kv"
    leaf = root / "m_0123456789ab_r0" / "abc" / "de_g0"
    leaf.mkdir(parents=True)
    for directory in (root, leaf.parent.parent, leaf.parent, leaf):
        directory.chmod(0o700)
    for name, mode, age in (
        ("a" * 64 + ".bin", 0o600, 60),
        ("b" * 64 + ".bin", 0o644, 7200),
        ("c" * 64 + ".bin_1.tmp", 0o600, 7200),
        ("evil\x1b[2J", 0o600, 60),
    ):
        path = leaf / name
        path.write_bytes(b"0123456789")
        path.chmod(mode)
        os.utime(path, (time.time() - age,) * 2)
    return root


def describe(path, **options):
    return blockinfo.describe(str(path), STORE, options.pop("owner", None), POLICY, **options)


def test_each_kind_is_counted_once(tree):
    info = describe(tree)
    wanted = {"blocks": 2, "block_bytes": 20, "temps": 1, "stale_temps": 1, "strangers": 1, "loose": 1, "overdue": 1}
    assert {key: info[key] for key in wanted} == wanted
    assert info["complete"] and info["exists"]
    assert 7200 <= info["oldest_age_seconds"] < 7300


def test_a_closed_root_keeps_what_is_loose_out_of_reach(tree):
    assert describe(tree)["reachable"] == 0
    for directory in [tree, *tree.parents]:
        if directory.stat().st_uid == os.getuid() and "pytest" in str(directory):
            directory.chmod(0o755)
    assert describe(tree)["reachable"] == 3


def test_another_owner_is_foreign(tree):
    assert describe(tree)["foreign_owner"] == 0
    assert describe(tree, owner=os.getuid() + 12345)["foreign_owner"] > 0


def test_offenders_are_limited_and_escaped(tree):
    info = describe(tree)
    assert info["offenders"] and all(one["path"].isprintable() for one in info["offenders"])
    assert all(name.isprintable() for name in info["stranger_names"])
    assert describe(tree, max_offenders=0)["offenders"] == []


def test_a_missing_directory_is_an_answer_and_a_symlink_is_not(tmp_path):
    assert describe(tmp_path / "none") == {"path": str(tmp_path / "none"), "store": "vllm_fs", "exists": False}
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(fsio.UnsafePath):
        describe(tmp_path / "link")


def test_an_unknown_store_is_named_with_the_known_ones():
    with pytest.raises(ValueError, match="vllm_fs"):
        blockinfo.store_named("vllm_obj")


def test_the_module_counts_a_path(tree):
    answer = run("kv_block_info", path=str(tree), store="vllm_fs", retention_minutes=60)
    assert (answer["changed"], answer["info"]["overdue"], answer["info"]["loose"]) == (False, 1, 1)
    assert run("kv_block_info", check=True, path=str(tree), store="vllm_fs")["info"]["overdue"] == 0


def test_the_module_takes_a_tier_of_the_map(tree):
    tier = {"name": "chat", "store": "vllm_fs", "path": "/srv/llmhost-test-none", "owner": max(1, os.getuid())}
    given = datamap.normalise([{**tier, "services": ["v.service"]}], "gpu1")
    assert run("kv_block_info", tier="chat", data_map=given)["info"]["exists"] is False
    answer = run("kv_block_info", tier="slots", data_map=given)
    assert answer["failed"] and "no tier slots" in answer["msg"]


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"path": "/srv/x"},
        {"path": "/srv/x", "tier": "a", "store": "vllm_fs"},
        {"path": "/srv/x", "store": "nope"},
        {"path": "/srv/x", "store": "vllm_fs", "owner": "no-such-account-here"},
    ],
)
def test_the_module_refuses_what_it_cannot_use(arguments):
    answer = run("kv_block_info", **arguments)
    assert answer["failed"] and answer["msg"]


def test_what_is_returned_is_what_is_documented(tree):
    documented = yaml.safe_load(kv_block_info.RETURN)["info"]["contains"]
    assert set(documented) == set(describe(tree))
