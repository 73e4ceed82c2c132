# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Names of blocks, where they are looked for, and the module that does both."""

from __future__ import annotations

import hashlib
import http.server
import json
import os
import pickle
import threading

import pytest
from module_runner import run

from ansible_collections.llmhost.hardening.plugins.module_utils.kv import blocknames, datamap, prefixprobe
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.stores import STORES
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.stores_places import (
    block_of_key,
    block_place,
    is_namespace,
)
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.tokenizer import tokenize

TOKENS = list(range(100, 150))


def names(tokens=None, size=16, version="0.33.0", **more):
    return blocknames.names(TOKENS if tokens is None else tokens, size, version, **more)


def file_of(root, block, space="m_0123456789ab_r0", group=0):
    path = root / space / block[:3] / f"{block[3:5]}_g{group}" / f"{block}.bin"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x")
    return path


def test_only_full_blocks_have_names_and_a_prefix_has_the_same_ones():
    assert len(names()) == 3 and names(TOKENS[:15]) == []
    assert names(TOKENS[:32]) == names()[:2]
    assert names([*TOKENS[:16], 7, *TOKENS[17:]])[0] == names()[0]
    assert names([*TOKENS[:16], 7, *TOKENS[17:]])[1:] != names()[1:]


def test_the_salt_changes_every_name_and_an_empty_one_none():
    assert not set(names(salt="a")) & set(names()) and not set(names(salt="a")) & set(names(salt="b"))
    assert names(salt="") == names()


def test_releases_agree_where_their_rules_do():
    assert names(version="0.29.0") == names(version="0.33.0")
    assert names(version="0.30.0", salt="a") != names(version="0.31.0", salt="a")
    assert names(version="0.22.0", hash_seed="0") == names(version="0.33.0", hash_seed="0") != names()
    assert names(algorithm="sha256_cbor") != names()


def test_the_first_name_is_what_the_rule_says():
    """Spelt out with the bytes of pickle and CBOR, so that both encoders are held to something outside them."""
    seed = b"\x80\x05\x95\x12\x00\x00\x00\x00\x00\x00\x00\x8c\x0evllm-none-hash\x94."
    parent = hashlib.sha256(seed).digest()
    key = b"\x80\x05\x95\x2d\x00\x00\x00\x00\x00\x00\x00\x43\x20" + parent + b"\x94K\x01K\x02\x86\x94N\x87\x94."
    assert names([1, 2], 2)[0] == hashlib.sha256(key).hexdigest()
    parent = hashlib.sha256(b"\x6evllm-none-hash").digest()
    key = b"\x83\x58\x20" + parent + b"\x82\x19\x03\xe8\x1a\x00\x01\x86\xa0\x81\x82\x6acache_salt\x61s"
    assert names([1000, 100000], 2, algorithm="sha256_cbor", salt="s")[0] == hashlib.sha256(key).hexdigest()


def test_the_salt_stands_in_the_first_block_alone_and_the_chain_carries_it():
    first, second, _third = names(salt="s")
    key = (bytes.fromhex(first), tuple(TOKENS[16:32]), None)
    assert second == hashlib.sha256(pickle.dumps(key, protocol=5)).hexdigest()


def test_a_chunk_is_named_by_its_last_block():
    assert names(blocks_per_chunk=2) == [names()[1]]


@pytest.mark.parametrize("version", ["0.28.0", "0.22.0", "0.34.0", "", None])
def test_what_nobody_can_know_is_said(version):
    with pytest.raises(blocknames.Unpredictable):
        names(version=version)
    with pytest.raises(blocknames.Unpredictable):
        names(algorithm="xxhash")


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (0, "00"),
        (23, "17"),
        (24, "1818"),
        (256, "190100"),
        (1 << 16, "1a00010000"),
        (1 << 32, "1b0000000100000000"),
        (-1, "20"),
        (-500, "3901f3"),
        (b"\x01\x02", "420102"),
        ("\u00fc", "62c3bc"),
        (None, "f6"),
        ((1, (2, 3)), "8201820203"),
        ("a" * 300, "79012c" + "61" * 300),
    ],
)
def test_cbor_is_the_canonical_one(value, encoded):
    assert blocknames.cbor(value).hex() == encoded


def test_cbor_refuses_what_it_does_not_know():
    for value in (True, 1.5, {}, 1 << 64):
        with pytest.raises((TypeError, OverflowError)):
            blocknames.cbor(value)


def test_a_directory_is_searched_in_every_namespace_and_group(tmp_path):
    first, second, third = names()
    file_of(tmp_path, first)
    file_of(tmp_path, third, space="other_ffffffffffff_r3", group=2)
    assert prefixprobe.in_directory([first, second, third], str(tmp_path)) == [True, False, True]


def test_no_symlink_is_followed_and_no_directory_taken_for_a_block(tmp_path):
    first, second, third = names()
    outside, root = tmp_path / "outside", tmp_path / "root"
    real = file_of(outside, first)
    root.mkdir()
    (root / "m_0123456789ab_r0").symlink_to(outside / "m_0123456789ab_r0")
    leaf = file_of(root, second, space="n_0123456789ab_r0")
    leaf.unlink()
    leaf.symlink_to(real)
    file_of(root, third, space="n_0123456789ab_r0").unlink()
    file_of(root, third, space="n_0123456789ab_r0").with_name("x").mkdir()
    found = prefixprobe.in_directory([first, second], str(root))
    assert found == [False, False]


def test_a_listing_is_searched_by_whole_keys():
    first, second, third = names()
    keys = [
        f"qwen//m_0123456789ab_r0/{first[:3]}/{first[3:5]}_g0/{first}.bin",
        f"qwen//m_0123456789ab_r0/{second[:3]}/{second[3:5]}_g0/{second}.bin_7.tmp",
        f"elsewhere/{third}.bin",
    ]
    assert prefixprobe.in_keys([first, second, third], keys) == [True, False, False]
    assert block_of_key("") is None and block_of_key("a/b/c.bin") is None


@pytest.fixture
def tokenizer():
    """A tokenizer on loopback: a token for each letter."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            answer = json.dumps({"tokens": [ord(char) for char in body["prompt"]]}).encode()
            if self.path == "/moved":
                self.send_response(307)
                self.send_header("Location", "http://127.0.0.1:1/")
                self.end_headers()
                return
            self.send_response(200)
            self.end_headers()
            self.wfile.write(answer if self.path == "/tokenize" else b'{"tokens": "x"}')

        def log_message(self, *_arguments):
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_text_is_turned_into_tokens_by_the_engine_on_loopback_only(tokenizer):
    assert tokenize(tokenizer + "/tokenize", "ab") == [97, 98]
    for url in (
        tokenizer + "/moved",
        tokenizer + "/wrong",
        "http://10.0.0.1/tokenize",
        "ftp://x",
        "http://u@127.0.0.1/",
    ):
        with pytest.raises(ValueError):
            tokenize(url, "ab")


def test_the_module_finds_what_is_there_and_no_salted_block(tmp_path, tokenizer):
    for block in names(version="0.33.0", salt="tenant secret"):
        file_of(tmp_path, block)
    common = {"token_ids": TOKENS, "version": "0.33.0", "path": str(tmp_path)}
    answer = run("kv_prefix_probe", **common)
    assert (answer["found"], answer["present"], answer["blocks"], answer["changed"]) == (False, 0, 3, False)
    answer = run("kv_prefix_probe", **common, salt="tenant secret")
    assert (answer["found"], answer["present"]) == (True, 3) and "tenant secret" not in json.dumps(answer)
    text = {"text": "x" * 20, "tokenizer_url": tokenizer + "/tokenize", "version": "0.33.0", "path": str(tmp_path)}
    assert run("kv_prefix_probe", **text)["found"] is False
    file_of(tmp_path, names([120] * 16)[0])
    assert run("kv_prefix_probe", check=True, **text)["found"] is True


def test_the_module_takes_keys_or_a_tier(tmp_path):
    first = names()[0]
    key = f"qwen//m_0123456789ab_r0/{first[:3]}/{first[3:5]}_g0/{first}.bin"
    answer = run("kv_prefix_probe", token_ids=TOKENS, version="0.33.0", keys=[key])
    assert (answer["present"], answer["names"][0]) == (1, {"name": first, "present": True})
    chat = {"name": "chat", "store": "vllm_fs", "path": "/srv/llmhost-test-none", "owner": max(1, os.getuid())}
    given = datamap.normalise([{**chat, "services": ["v.service"]}], "gpu1")
    answer = run("kv_prefix_probe", token_ids=TOKENS, version="0.33.0", tier="chat", data_map=given)
    assert answer["failed"] and "llmhost-test-none" in answer["msg"]


def test_the_module_says_when_names_cannot_be_known():
    answer = run("kv_prefix_probe", token_ids=TOKENS, version="0.28.0", keys=[])
    assert (answer["found"], answer["predictable"]) == (False, False) and "random" in answer["reason"]


@pytest.mark.parametrize(
    "arguments",
    [
        {"version": "0.33.0", "keys": []},
        {"version": "0.33.0", "token_ids": [1]},
        {"version": "0.33.0", "token_ids": [1], "keys": []},
        {"version": "0.33.0", "text": "x", "keys": []},
        {"version": "0.33.0", "token_ids": TOKENS, "keys": [], "block_size": 0},
        {"version": "0.33.0", "token_ids": TOKENS, "path": "/srv/../etc"},
        {"version": "0.33.0", "token_ids": TOKENS, "tier": "chat", "path": "/srv/x"},
    ],
)
def test_the_module_refuses_what_it_cannot_use(arguments):
    answer = run("kv_prefix_probe", **arguments)
    assert answer["failed"] and answer["msg"]


def test_places_are_those_of_the_registry():
    layout = STORES["vllm_fs"].layout
    first, second, file = block_place(names()[0])
    space = "m_0123456789ab_r0"
    assert is_namespace(space) and not is_namespace("m_0123456789ab")
    level = layout.dir_for(space).dir_for(first).dir_for(second + "0")
    assert level.file_for(file).kind == "block"
