# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The table of settings says what vLLM's own wheels say: claims.json was read out of them."""

from __future__ import annotations

import re

import claims
import pytest

from ansible_collections.llmhost.hardening.plugins.module_utils.kv import offload_table as table

FACTS = claims.facts_in(claims.read_table())


def named(version, prefix):
    """What stands after a prefix in the facts of a version, without its default."""
    return {
        re.split(r"[ :]", fact.removeprefix(prefix), maxsplit=1)[0]
        for fact in FACTS[version]
        if fact.startswith(prefix)
    }


def known(spans, version):
    return {name for name in spans if table.within(spans[name], version)}


def test_the_table_and_the_claims_have_the_same_releases():
    assert list(table.RELEASES) == list(FACTS)


@pytest.mark.parametrize("version", table.RELEASES)
def test_tier_types_and_their_keys_are_those_of_the_wheel(version):
    types = known(table.TIER_TYPES, version)
    assert types == named(version, "tier ")
    for kind in types:
        assert known(table.TIER_KEYS[kind], version) == named(version, f"key {kind}: ")


@pytest.mark.parametrize("version", table.RELEASES)
@pytest.mark.parametrize(
    ("spans", "prefix"),
    [
        (table.EXTRA, "key extra_config: "),
        (table.SIMPLE, "key simple: "),
        (table.STORE_CONFIG, "key obj.store_config: "),
        (table.BACKPRESSURE, "key backpressure: "),
        (table.TRANSFER, "key KVTransferConfig: "),
        (table.EVENTS, "key KVEventsConfig: "),
        (table.PER_REQUEST, "key per request: "),
        (table.SPECS, "spec "),
        (table.CONNECTORS, "connector "),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_keys_are_those_of_the_wheel(version, spans, prefix):
    assert known(spans, version) == named(version, prefix)


@pytest.mark.parametrize("version", table.RELEASES)
def test_what_the_refusals_rest_on_is_in_the_wheel(version):
    facts = FACTS[version]
    assert table.within(table.COMPILED_WRITER, version) == ("compiled: offers batch_store_block" in facts)
    assert table.within(table.SEED_FIXED, version) == (f"names: default seed '{table.SEED}'" in facts)
    tagged = any(fact.startswith("names: salt adds [('cache_salt', ") for fact in facts)
    assert table.within(table.SALT_TAGGED, version) == tagged
    assert table.within(table.P2P_NEEDS_SEED, version) == ("tier p2p: needs PYTHONHASHSEED" in facts)
    bound = "key p2p: host = '0.0.0.0'" in facts
    assert table.within(table.P2P_BINDS_ALL, version) == bound
    needs_keys = "key obj.store_config: secret_key = required" in facts
    if table.within(table.TIER_TYPES["obj"], version):
        assert table.within(table.OBJ_WITHOUT_INLINE_KEYS, version) != needs_keys
    assert f"key KVEventsConfig: endpoint = '{table.EVENTS_DEFAULT_ENDPOINT}'" in facts
    required = {
        kind for kind in table.REQUIRED for key in table.REQUIRED[kind] if f"key {kind}: {key} = required" in facts
    }
    assert required == {kind for kind in table.REQUIRED if table.within(table.TIER_TYPES[kind], version)}
    assert table.within(table.EVERY_TIER["module_path"], version) == ("key every tier: module_path" in facts)


@pytest.mark.parametrize("version", table.RELEASES)
def test_nothing_in_the_tiers_deletes_a_good_block(version):
    """The promise behind the whole collection: a release that expires blocks itself would appear here first."""
    removes = {fact for fact in FACTS[version] if fact.startswith("removes ")}
    compiled = {f"removes {claims.COMPILED}: imports {name}" for name in ("unlink", "rename")}
    own = {
        fact for fact in removes - compiled if re.search(r"os\.(remove|replace)\((tmp_path|source_path|path)\b", fact)
    }
    assert removes - compiled == own
    assert not any("tiering/obj" in fact for fact in removes)


@pytest.mark.parametrize(
    ("version", "release"),
    [
        ("0.29.0", "0.29.0"),
        ("0.29", "0.29.0"),
        ("0.29.0+cpu", "0.29.0"),
        ("0.29.0+cu129.gabc", "0.29.0"),
        ("0.29.0rc1", None),
        ("0.29.1", None),
        ("0.34.0", None),
        ("0.33.1.dev7+g123", None),
        ("0.21.0", None),
        ("", None),
        (None, None),
        ("0.29.0; rm -rf /", None),
    ],
)
def test_only_a_release_that_was_read_is_known(version, release):
    assert table.release_of(version) == release
    if release is None:
        assert table.why_unknown(version)


def test_a_newer_release_is_called_newer():
    assert "newer than" in table.why_unknown("1.0.0") and "older than" in table.why_unknown("0.9.2")
