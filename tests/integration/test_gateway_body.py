# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""No body gets a salt past the gateway that is not its tenant's, and nothing else in it is changed."""

from __future__ import annotations

import json
from collections.abc import Iterator

import gateway_attacks as attacks
import gateway_bed as bed
import pytest

HEAD = b'{"cache_salt":"%s"' % bed.salt("acme").encode()


@pytest.fixture(scope="module")
def gateway() -> Iterator[bed.Gateway]:
    with bed.gateway() as running:
        yield running


def sent(gateway: bed.Gateway, body: bytes | str, who: str = "acme", path: str = "/v1/chat/completions") -> bytes:
    """What the engine got of a body that is let through."""
    gateway.upstream.seen.clear()
    status, answer = gateway.post(body, who, path)
    assert status == 200, answer
    (seen,) = gateway.upstream.seen
    assert bed.salts_of(seen.body) == [bed.salt(who)]
    assert seen.document["cache_salt"] == bed.salt(who)
    return seen.body


def refused(gateway: bed.Gateway, body: bytes | str, who: str = "acme", path: str = "/v1/chat/completions") -> str:
    """Why a body was refused; the engine must not have seen it."""
    gateway.upstream.seen.clear()
    status, answer = gateway.post(body, who, path)
    assert 400 <= status < 500 and gateway.upstream.seen == []
    code: str = json.loads(answer)["error"]["code"]
    return code


@pytest.mark.parametrize(("body", "rest"), attacks.SALTED)
def test_exactly_one_salt_and_the_rest_byte_for_byte(gateway: bed.Gateway, body: bytes, rest: bytes) -> None:
    got = sent(gateway, body)
    # The brace that the salt came before may have become a space; nothing else changes.
    assert got.replace(b'", ', b'",', 1).rstrip() == HEAD + rest + b"}"


@pytest.mark.parametrize(
    "value",
    [
        "9223372036854775807",
        "-9223372036854775808",
        "123456789012345678901234567890123456789012345678901234567890",
        "1e400",
        "-0.0",
        "1.000000000000000000000000000000000001",
        "[]",
        "{}",
        "[[],{},[[]]]",
        '{"b":1,"a":2,"b":3}',
        '"\\ud800"',
        '"\\ud83d\\ude00 \U0001f600 \u00e9 \u2028 \x7f"',
        '"' + "\\u0000" * 50 + '"',
        "1" * 5000,
    ],
)
def test_values_are_never_encoded_again(gateway: bed.Gateway, value: str) -> None:
    body = '{"x":%s}' % value
    assert sent_bytes(gateway, body) == HEAD + b', "x":' + value.encode() + b"}"


def sent_bytes(gateway: bed.Gateway, body: str) -> bytes:
    """What the engine got, also where Python's parser would refuse it."""
    gateway.upstream.seen.clear()
    assert gateway.post(body)[0] == 200
    return gateway.upstream.seen[0].body


@pytest.mark.parametrize("body", attacks.NOT_JSON)
def test_what_is_no_single_utf8_json_object_is_refused(gateway: bed.Gateway, body: bytes) -> None:
    assert refused(gateway, body) == "not_json"


def test_an_empty_body_is_refused(gateway: bed.Gateway) -> None:
    assert refused(gateway, b"") == "body"


@pytest.mark.parametrize("depth", [128, 129, 1000, 100_000])
def test_depth_is_bounded(gateway: bed.Gateway, depth: int) -> None:
    inside = depth - 1
    for body in ('{"a":' + "[" * inside + "]" * inside + "}", '{"a":' * depth + "1" + "}" * depth):
        if depth <= 128:
            sent(gateway, body)
        else:
            assert refused(gateway, body) == "too_deep"


def test_the_number_of_fields_is_bounded(gateway: bed.Gateway) -> None:
    sent(gateway, json.dumps({str(number): number for number in range(512)}))
    assert refused(gateway, json.dumps({str(number): number for number in range(513)})) == "too_many_fields"


@pytest.mark.parametrize("field", attacks.GUARDED)
def test_fields_that_reach_into_other_requests_are_refused(gateway: bed.Gateway, field: str) -> None:
    escaped = "".join("\\u%04x" % ord(letter) for letter in field)
    for name in (field, escaped):
        assert refused(gateway, '{"a":1,"%s":{"x":1}}' % name) == "guarded_field"
    # Only as a field of the request itself.
    sent(gateway, '{"metadata":{"%s":1}}' % field)


@pytest.mark.parametrize(("body", "reason"), attacks.MEDIA)
def test_a_part_of_a_message_has_no_name_of_the_client_s(gateway: bed.Gateway, body: str, reason: str) -> None:
    if reason:
        assert refused(gateway, body) == reason
    else:
        sent(gateway, body)


def test_a_tenant_that_must_not_be_stored_says_so_in_every_request(gateway: bed.Gateway) -> None:
    for body in (
        '{"a":1}',
        '{"kv_transfer_params":{"max_offload_tokens":99,"remote_host":"evil"},"a":1}',
        '{"a":1,"kv_transfer\\u005fparams":null,"kv_transfer_params":1}',
    ):
        got = sent(gateway, body, "shy")
        expected = '{"cache_salt":"%s","kv_transfer_params":{"max_offload_tokens":0},"a":1}' % bed.salt("shy")
        assert got.replace(b"}, ", b"},", 1) == expected.encode()
    assert refused(gateway, '{"vllm_xargs":{}}', "shy") == "guarded_field"


def test_a_tenant_that_must_not_be_stored_gets_no_endpoint_that_stores(gateway: bed.Gateway) -> None:
    assert refused(gateway, '{"input":"x"}', "shy", "/v1/embeddings") == "no_persist"
    sent(gateway, '{"input":"x"}', "acme", "/v1/embeddings")


def test_a_megabyte_arrives_as_it_was(gateway: bed.Gateway) -> None:
    rest = b',"prompt":[%s],"text":"%s"' % (b",".join(b"%d" % n for n in range(90_000)), "\u00e9".encode() * 250_000)
    assert sent(gateway, b"{" + rest[1:] + b"}") == HEAD + b", " + rest[1:] + b"}"
