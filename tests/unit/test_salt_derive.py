# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import re
import subprocess

import pytest
from ansible.errors import AnsibleFilterError
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.llmhost.hardening.plugins.filter import tenant_salt as plugin
from ansible_collections.llmhost.hardening.plugins.module_utils.salt import derive

KEY = "8b1f6f0a5d3c47e29ab0c1d2e3f405162738495a6b7c8d9eafb0c1d2e3f4a5b6"
names = st.from_regex(derive.TENANT, fullmatch=True)
epochs = st.from_regex(derive.EPOCH, fullmatch=True)


def test_a_salt_is_the_hmac_that_openssl_computes():
    message = b"llmhost-cache-salt-v1\0acme\0" + b"2026-11"
    command = ["openssl", "dgst", "-sha256", "-mac", "HMAC", "-macopt", "hexkey:" + KEY, "-binary"]
    raw = subprocess.run(command, input=message, capture_output=True, check=True).stdout
    text = subprocess.run(["basenc", "--base64url"], input=raw, capture_output=True, check=True).stdout.decode()
    assert plugin.tenant_salt("acme", KEY, "2026-11") == text.strip().rstrip("=")


@given(names, epochs, epochs)
def test_a_salt_is_43_characters_that_every_store_takes(tenant, epoch, label):
    assert re.fullmatch(r"[A-Za-z0-9_-]{43}", derive.salt(bytes.fromhex(KEY), tenant, epoch, label))


@given(st.tuples(epochs, names, epochs), st.tuples(epochs, names, epochs))
def test_two_things_never_have_one_salt(one, other):
    salts = [derive.salt(bytes.fromhex(KEY), tenant, epoch, label) for label, tenant, epoch in (one, other)]
    assert (salts[0] == salts[1]) == (one == other)


@pytest.mark.parametrize(
    ("one", "other"),
    [(("a", "b-c", "1"), ("a-b", "c", "1")), (("l", "t1", "1"), ("l", "t", "11")), (("l", "t", "1"), ("l1", "t", "1"))],
)
def test_parts_cannot_be_shifted_into_one_another(one, other):
    salts = [derive.salt(bytes.fromhex(KEY), tenant, epoch, label) for label, tenant, epoch in (one, other)]
    assert salts[0] != salts[1]


@pytest.mark.parametrize(
    ("tenant", "epoch", "label"),
    [
        ("", "1", "l"), ("A", "1", "l"), ("a_b", "1", "l"), ("-a", "1", "l"), ("a\0b", "1", "l"), ("a" * 65, "1", "l"),
        ("a\n", "1", "l"), ("a", "", "l"), ("a", "1\0", "l"), ("a", "1 ", "l"), ("a", "1", ""), ("a", "1", "l\0x"),
    ],
)  # fmt: skip
def test_what_could_be_encoded_like_something_else_is_refused(tenant, epoch, label):
    with pytest.raises(derive.SaltError):
        derive.salt(bytes.fromhex(KEY), tenant, epoch, label)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "64 hexadecimal digits"),
        (KEY[:-2], "64 hexadecimal digits"),
        (KEY + "00", "64 hexadecimal digits"),
        (KEY + "\n\n", "64 hexadecimal digits"),
        ("g" + KEY[1:], "64 hexadecimal digits"),
        ("00" * 32, "no random source"),
        ("0123456789abcdef" * 4, "no random source"),
        (b"correct horse battery staple xxx".hex(), "no random source"),
    ],
)
def test_a_weak_key_is_refused_and_not_repeated(text, reason):
    with pytest.raises(derive.SaltError, match=reason) as error:
        derive.parse_key(text)
    assert not text.strip() or text.strip() not in str(error.value)
    with pytest.raises(AnsibleFilterError, match=reason):
        plugin.tenant_salt("acme", text)


def test_random_keys_are_taken():
    for _turn in range(200):
        derive.parse_key(derive.hashlib.sha256(str(_turn).encode()).hexdigest() + "\n")


def test_an_identifier_of_the_key_is_neither_the_key_nor_a_salt():
    key = bytes.fromhex(KEY)
    assert derive.key_id(key) not in KEY and len(derive.key_id(key)) == 16
    assert derive.key_id(key) != derive.key_id(bytes(reversed(key)))
