# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""How vLLM names the blocks of a prompt: whoever knows the tokens, the release and the salt knows the names. Pure.

Every full block is named by a hash over its parent's hash, its tokens and, for the first block, the salt. The first
parent comes from a seed; what that seed is depends on the release and on PYTHONHASHSEED.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Sequence
from typing import Any, Callable

from . import offload_table as table


class Unpredictable(Exception):
    """Nobody outside the engine can know the names; the text says why."""


def cbor(value: Any) -> bytes:
    """Canonical CBOR of the few types that stand in a block's key."""
    if value is None:
        return b"\xf6"
    if isinstance(value, bool):
        raise TypeError("no truth values in block keys")
    if isinstance(value, int):
        return _head(0, value) if value >= 0 else _head(1, -1 - value)
    if isinstance(value, bytes):
        return _head(2, len(value)) + value
    if isinstance(value, str):
        data = value.encode()
        return _head(3, len(data)) + data
    if isinstance(value, (tuple, list)):
        return _head(4, len(value)) + b"".join(cbor(item) for item in value)
    raise TypeError(f"no {type(value).__name__} in block keys")


def _head(major: int, number: int) -> bytes:
    """The shortest form of a type and its number."""
    if number < 24:
        return bytes([major << 5 | number])
    for code, size in ((24, 1), (25, 2), (26, 4), (27, 8)):
        if number < 1 << (8 * size):
            return bytes([major << 5 | code]) + number.to_bytes(size, "big")
    raise OverflowError("a number of more than 64 bits")


def _sha256(value: Any) -> bytes:
    # The engine pickles with the highest protocol, which is 5 in every Python that it runs on.
    return hashlib.sha256(pickle.dumps(value, protocol=5)).digest()


def _sha256_cbor(value: Any) -> bytes:
    return hashlib.sha256(cbor(value)).digest()


HASHES: dict[str, Callable[[Any], bytes]] = {"sha256": _sha256, "sha256_cbor": _sha256_cbor}


def seed_of(version: str | None, hash_seed: str | None = None) -> tuple[str, str]:
    """The release and the seed of its first parent. hash_seed: PYTHONHASHSEED of the engine, None if it is not set."""
    release = table.release_of(version)
    if release is None:
        raise Unpredictable(table.why_unknown(version))
    if hash_seed is not None:
        return release, hash_seed
    if not table.within(table.SEED_FIXED, release):
        raise Unpredictable(f"vLLM {release} makes a random first parent at every start unless PYTHONHASHSEED is set")
    return release, table.SEED


def names(
    tokens: Sequence[int],
    block_size: int,
    version: str | None,
    algorithm: str = "sha256",
    salt: str | None = None,
    hash_seed: str | None = None,
    blocks_per_chunk: int = 1,
) -> list[str]:
    """Hexadecimal names of the blocks that a prompt of these tokens fills, in order; Unpredictable if nobody can say.

    blocks_per_chunk: blocks in one file; a file is named by its last block, and a chunk that is not full has none.
    """
    if algorithm not in HASHES:
        raise Unpredictable(f"{algorithm} is not computed here, only {' and '.join(HASHES)}")
    if block_size < 1 or blocks_per_chunk < 1:
        raise ValueError("block_size and blocks_per_chunk are whole numbers from 1")
    release, seed = seed_of(version, hash_seed)
    digest = HASHES[algorithm]
    tagged = table.within(table.SALT_TAGGED, release)
    parent = digest(seed)
    found = []
    for start in range(0, len(tokens) - block_size + 1, block_size):
        extra: Any = None
        # The engine takes an empty salt for none.
        if salt and start == 0:
            extra = (("cache_salt", salt),) if tagged else (salt,)
        parent = digest((parent, tuple(int(token) for token in tokens[start : start + block_size]), extra))
        found.append(parent.hex())
    return found[blocks_per_chunk - 1 :: blocks_per_chunk]
