# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Random documents against Python's own parser: no wrong salt, no altered value. LLMHOST_DOCUMENTS sets how many."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
from collections.abc import Iterator
from typing import Any

import gateway_bed as bed
import pytest

COUNT = int(os.environ.get("LLMHOST_DOCUMENTS") or 5_000)
SEED = int(os.environ.get("LLMHOST_DOCUMENTS_SEED") or 8)
NAMES = ("acme", "bob", "shy")
GUARDED = ("cache_salt", "cache_salt", "cache_salt", "kv_transfer_params", "vllm_xargs", "uuid", "content", "priority")
LETTERS = 'abz"\\/{}[],:0 \n\t\u00e9\u2028\U0001f600\x7f'
PIECES = (
    b'"cache_salt":"evil",',
    b"{",
    b"}",
    b"[",
    b"]",
    b'"',
    b"\\",
    b",",
    b":",
    b"\x00",
    b"\xff",
    b"\xef\xbb\xbf",
    b"NaN",
    b"\\u",
)


@pytest.fixture(scope="module")
def gateway() -> Iterator[bed.Gateway]:
    with bed.gateway() as running:
        yield running


@pytest.fixture
def connection(gateway: bed.Gateway) -> Iterator[http.client.HTTPConnection]:
    with contextlib.closing(gateway.connect()) as opened:
        yield opened


class Source:
    """Documents in every spelling that JSON allows, and damaged ones."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def space(self) -> str:
        return "".join(self.random.choices(" \t\r\n", k=self.random.choice((0, 0, 0, 1, 3))))

    def string(self, text: str) -> str:
        out = []
        for letter in text:
            how = self.random.random()
            if how < 0.2 and ord(letter) < 0x10000:
                out.append(self.random.choice(("\\u%04x", "\\u%04X")) % ord(letter))
            elif letter in '"\\' or letter < " ":
                out.append({'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t"}[letter])
            else:
                out.append("\\/" if letter == "/" and how < 0.6 else letter)
        return '"' + "".join(out) + '"'

    def key(self, top: bool) -> str:
        if self.random.random() < (0.35 if top else 0.1):
            name = self.random.choice(GUARDED if not top or self.random.random() < 0.1 else GUARDED[:3])
            return self.string(name) if self.random.random() < 0.9 else self.string(name.title())
        return self.string("".join(self.random.choices(LETTERS, k=self.random.randrange(12))))

    def value(self, depth: int) -> str:
        kind = self.random.randrange(9 if depth else 6)
        if kind == 0:
            return self.string("".join(self.random.choices(LETTERS, k=self.random.randrange(30))))
        if kind == 1:
            return str(self.random.choice((0, -1, 2**63 - 1, -(2**64), 10**40, self.random.randrange(200_000))))
        if kind == 2:
            return self.random.choice(
                ("0.0", "-0.0", "1e5", "1E+300", "-2.5e-7", "3.14159265358979323846264338327950288")
            )
        if kind == 3:
            return self.random.choice(("true", "false", "null"))
        if kind == 4:
            return self.string("cache_salt")
        if kind == 5:
            return (
                "[" + ",".join(str(self.random.randrange(150_000)) for _turn in range(self.random.randrange(60))) + "]"
            )
        if kind == 6:
            items = (self.space() + self.value(depth - 1) + self.space() for _turn in range(self.random.randrange(5)))
            return "[" + (",".join(items) or self.space()) + "]"
        return self.object(depth - 1)

    def object(self, depth: int, top: bool = False) -> str:
        members = (
            self.space() + self.key(top) + self.space() + ":" + self.space() + self.value(depth) + self.space()
            for _turn in range(self.random.randrange(7))
        )
        return "{" + (",".join(members) or self.space()) + "}"

    def document(self) -> bytes:
        text = self.space() + self.object(4, top=True) + self.space()
        data = bytearray(text.encode())
        for _turn in range(self.random.choice((0, 0, 0, 0, 1, 2, 6))):
            at = self.random.randrange(len(data) + 1)
            how = self.random.randrange(4)
            if how == 0:
                data[at:at] = self.random.choice(PIECES)
            elif how == 1:
                del data[at : at + self.random.randrange(1, 4)]
            elif how == 2 and at < len(data):
                data[at] = self.random.randrange(256)
            else:
                data = data[:at] if self.random.random() < 0.3 else data
        if self.random.random() < 0.02:
            return text.encode(self.random.choice(("utf-16", "utf-16-le", "utf-32", "utf-8-sig")))
        return bytes(data)


def plain(pairs: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Members in order, duplicates kept: nothing may be lost or moved."""
    return pairs


def parse(data: bytes) -> Any:
    """As Python reads it, numbers as they are written; None if it does not."""
    try:
        return json.loads(data, object_pairs_hook=plain, parse_int=str, parse_float=str)
    except (ValueError, RecursionError):
        return None


def expected(data: bytes, name: str) -> list[tuple[str, Any]] | None:
    """The members that the engine shall see, None where the document is no object."""
    members = parse(data)
    if not isinstance(members, list) or data.lstrip()[:1] != b"{":
        return None
    head: list[tuple[str, Any]] = [("cache_salt", bed.salt(name))]
    dropped = {"cache_salt"}
    if name == "shy":
        head.append(("kv_transfer_params", [("max_offload_tokens", "0")]))
        dropped.add("kv_transfer_params")
    return head + [(key, value) for key, value in members if key not in dropped]


def test_no_wrong_salt_and_no_altered_value(gateway: bed.Gateway, connection: http.client.HTTPConnection) -> None:
    source = Source(SEED)
    passed = refused = readable = 0
    for number in range(COUNT):
        data, name = source.document(), source.random.choice(NAMES)
        gateway.upstream.seen.clear()
        status, answer = gateway.post(data, name, connection=connection)
        say = f"seed {SEED}, document {number}: {data!r} -> {status} {answer!r}"
        if status == 200:
            passed += 1
            (seen,) = gateway.upstream.seen
            assert seen.document["cache_salt"] == bed.salt(name), say
            assert parse(seen.body) == expected(data, name), say
        else:
            refused += 1
            assert 400 <= status < 500 and gateway.upstream.seen == [], say
            # A plain document is only refused for what is on the list.
            if json.loads(answer)["error"]["code"] == "not_json":
                strict = data.isascii() and b"NaN" not in data and b"Infinity" not in data and b"\x00" not in data
                readable += strict and expected(data, name) is not None
    # The generator reaches both sides, and nothing that is plain JSON is refused as none.
    assert passed > COUNT / 4 and refused > COUNT / 20
    assert readable == 0
