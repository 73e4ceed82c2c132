# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Store registry, part: where a block of a known hash lies in vLLM's tree of directories, or in a bucket."""

from __future__ import annotations

import re

HASH = r"[0-9a-f]{32,64}"
NAMESPACE = r".+_[0-9a-f]{12}_r\d+"


def block_place(block: str) -> tuple[str, str, str]:
    """Where a block of that hash lies below MODEL_DIGEST_rRANK: directory, beginning of the next one's name, file."""
    return block[:3], block[3:5] + "_g", block + ".bin"


def is_namespace(directory: str) -> bool:
    """Is that the name of a directory of blocks at the root of a tier?"""
    return re.fullmatch(NAMESPACE, directory, re.ASCII) is not None


def block_of_key(key: str) -> str | None:
    """The hash of a block in a path or an object key, None if it is no block."""
    parts = key.rsplit("/", 3)
    match = re.fullmatch(rf"({HASH})\.bin", parts[-1], re.ASCII)
    if match is None or len(parts) < 3:
        return None
    first, second, _file = block_place(match.group(1))
    return match.group(1) if parts[-3] == first and parts[-2].startswith(second) else None
