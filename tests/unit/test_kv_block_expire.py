# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The module around one expiry pass."""

from __future__ import annotations

import os

import pytest
import yaml
from fixtures import (
    HOSTILE_NAMESPACE,
    NOBODY,
    Tree,
    full_tree,
    make_state,
    public_directory,
    remember_in,
    strings,
    tier_for,
)
from module_runner import run

from ansible_collections.llmhost.hardening.plugins.module_utils.kv import (
    datamap,
    discovery,
    expiry,
    holders,
    state,
)
from ansible_collections.llmhost.hardening.plugins.modules import kv_block_expire


@pytest.fixture
def place(monkeypatch):
    with public_directory() as root:
        monkeypatch.setattr(discovery, "engines", lambda *_: [])
        yield root


@pytest.fixture
def tree(place):
    made = Tree(place / "kv")
    made.ended = {made.block(number, 4000) for number in range(3)}
    made.young = {made.block(10, 60)}
    made.give(NOBODY)
    return made


def expire(tree, check=False, **options):
    arguments = {"path": str(tree.root), "store": "vllm_fs", "owner": str(NOBODY), "retention_minutes": 60}
    return run("kv_block_expire", check=check, **{**arguments, **options})


def test_a_pass_over_a_directory_deletes_what_ended_and_says_so(tree):
    result = expire(tree)
    assert tree.files() == tree.young
    assert result["changed"] and set(result["deleted"]) == tree.ended
    assert (result["deleted_count"], result["exit_code"], result["messages"]) == (3, 0, [])
    assert (result["info"]["expired"], result["info"]["blocks"], result["info"]["complete"]) == (3, 1, True)
    again = expire(tree)
    assert not again["changed"] and again["deleted"] == []


def test_check_mode_lists_the_same_and_deletes_nothing(tree):
    before = tree.files()
    result = expire(tree, check=True)
    assert tree.files() == before
    assert result["changed"] and set(result["deleted"]) == tree.ended == set(expire(tree)["deleted"])


def test_check_mode_predicts_change_by_an_empty_directory_alone(tree):
    expire(tree)
    tree.path("x_0123456789ab_r0/abc/de_g0").mkdir(parents=True)
    tree.age_directories(9000)
    tree.give(NOBODY)
    predicted = expire(tree, check=True)
    assert predicted["changed"] and "x_0123456789ab_r0/abc/de_g0" in predicted["deleted"]
    assert expire(tree)["deleted"] == predicted["deleted"]


def test_the_list_is_bounded_and_the_count_is_not(tree, monkeypatch):
    monkeypatch.setattr(kv_block_expire, "MAX_LISTED", 2)
    result = expire(tree, check=True)
    assert (len(result["deleted"]), result["deleted_count"], kv_block_expire.MAX_LISTED) == (2, 3, 2)


def test_diff_mode_shows_what_goes(tree):
    result = expire(tree, check=True, _ansible_diff=True)
    assert set(result["diff"]["before"].splitlines()) == tree.ended and result["diff"]["after"] == ""
    assert "diff" not in expire(tree, check=True)


def test_limits_take_the_oldest(tree):
    expire(tree)
    kept = {tree.block(number, 30) for number in range(20, 23)}
    tree.give(NOBODY)
    result = expire(tree, max_files=3)
    assert tree.files() == kept and result["info"]["capped"] == 1
    result = expire(tree, max_bytes="1K")
    assert not result["changed"]


def test_hostile_names_come_back_printable(place):
    tree, ended, stays = full_tree(place / "kv")
    tree.give(NOBODY)
    result = expire(tree, _ansible_diff=True)
    # An undeclared directory has the default grace of an hour for its temporaries.
    temps = {path for path in ended if path.endswith(".tmp")}
    assert tree.files() == stays | temps and result["deleted_count"] == 6
    texts = strings({key: value for key, value in result.items() if key not in ("diff", "invocation")})
    assert all(text.isprintable() for text in texts)
    assert any("\\xff\\x1b[2J" in text for text in texts) and not HOSTILE_NAMESPACE.isprintable()
    assert all(line.isprintable() for line in result["diff"]["before"].splitlines())


def test_what_cannot_be_deleted_is_a_warning(tree):
    stuck = tree.path(sorted(tree.ended)[0]).parent
    os.chown(stuck, 0, 0)
    stuck.chmod(0o755)
    result = expire(tree)
    assert result["exit_code"] == expiry.ERRORS and result["deleted_count"] == 2 and not result.get("failed")
    assert "1 x EACCES while walking" in result["messages"]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"path": "/nonexistent/kv"}, "No such file or directory"),
        ({"path": "kv/../kv"}, "plain spelling|not an absolute path"),
        ({"store": "vllm_obj"}, "no store vllm_obj that keeps files"),
        ({"owner": "no-such-account"}, "no-such-account"),
        ({"owner": "daemon"}, "Permission denied|does not belong"),
        ({"retention_minutes": 0}, "retention_minutes is less than 1"),
        ({"max_files": 0}, "max_files is less than 1"),
        ({"max_bytes": "5g"}, "ambiguous"),
        ({"tier": "chat"}, "mutually exclusive"),
        ({"owner": None}, "missing parameter"),
    ],
)
def test_what_is_wrong_fails_in_words_and_deletes_nothing(tree, options, reason):
    before = tree.files()
    options = {key: value for key, value in options.items() if value is not None or key == "owner"}
    result = expire(tree, **options)
    assert result["failed"] and any(part in result["msg"] for part in reason.split("|")), result["msg"]
    assert tree.files() == before


def test_an_unsafe_engine_fails_the_task(tree, monkeypatch):
    monkeypatch.setattr(discovery, "engines", lambda *_: [discovery.Found(7, None, "0.27.0", "/x")])
    for check in (True, False):
        result = expire(tree, check=check)
        assert result["failed"] and "upgrade to 0.28" in result["msg"] and result["exit_code"] == expiry.REFUSED
        assert result["changed"] is False
    assert tree.ended <= tree.files()


def test_a_store_whose_engine_must_be_stopped_needs_the_word_and_the_look(place, monkeypatch):
    tree = Tree(place / "kv")
    old = tree.put("m@1@0@7f@half.pt", 4000)
    tree.give(NOBODY)
    result = expire(tree, store="lmcache_disk")
    assert result["failed"] and "(module kv_block_expire: stopped)" in result["msg"] and old in tree.files()
    answers = ["not stopped: pid 7 has it open"]
    monkeypatch.setattr(holders, "in_use", lambda tier, family: answers[0])
    result = expire(tree, store="lmcache_disk", stopped=True)
    assert result["failed"] and "pid 7 has it open" in result["msg"] and old in tree.files()
    answers[0] = None
    assert expire(tree, check=True, store="lmcache_disk", stopped=True)["deleted"] == [old]
    assert expire(tree, store="lmcache_disk", stopped=True)["deleted"] == [old] and tree.files() == set()


def test_a_pass_that_another_one_excludes_fails_the_task(tree):
    tier = {**tier_for(tree.root), "path": str(tree.root)}
    with state.locked(tier, None):
        result = expire(tree)
    assert result["failed"] and result["exit_code"] == expiry.BUSY and tree.ended <= tree.files()


def test_a_tier_of_the_map_is_expired_with_its_state(tree, place, monkeypatch):
    tier = tier_for(tree.root, owner=NOBODY)
    document = {"schema": 1, "host": "h", "prompt_log_retention_minutes": 1440, "tiers": [tier]}
    monkeypatch.setattr(datamap, "load", lambda: document)
    monkeypatch.setattr(datamap, "validate", lambda given, source: given)
    directory = make_state(place / "state", tier)
    remember_in(monkeypatch, place / "state", expiry.expire)
    assert run("kv_block_expire", check=True, tier="chat")["deleted_count"] == 3
    assert list(directory.iterdir()) == []
    result = run("kv_block_expire", tier="chat", data_map=document)
    assert set(result["deleted"]) == tree.ended
    assert (directory / state.RECORD).stat().st_uid == NOBODY
    assert "no tier x in the data map (known: chat)" in run("kv_block_expire", tier="x")["msg"]
    tier["state"] = "planned"
    assert "has nothing to expire" in run("kv_block_expire", tier="chat")["msg"]


def test_the_returned_counts_are_the_documented_ones(tree):
    documented = yaml.safe_load(kv_block_expire.RETURN)
    result = expire(tree)
    assert set(result["info"]) == set(documented["info"]["contains"]) == set(kv_block_expire.INFO)
    assert set(documented) <= set(result)
