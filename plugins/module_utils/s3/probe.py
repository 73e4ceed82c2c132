# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Names in a bucket: which blocks does a listing of the tier's keys show? Reads no object."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from ..kv import evidence_names
from ..kv.stores_places import block_of_key
from . import errors, proof
from .errors import S3Error
from .keys import Keys

# Names that are kept in memory at most.
MAX_NAMES = 1_000_000


def names_in(bucket: Any, keys: Keys, max_seconds: float) -> Iterator[str]:
    """Hashes of the tier's blocks, page by page; S3Error if the listing takes longer than that."""
    end = time.monotonic() + max_seconds
    seen = 0
    for answer in bucket.pages(proof.OBJECTS, proof.listed_prefix(bucket, keys)):
        for entry in answer.parsed.get("Contents", ()):
            seen += 1
            block = block_of_key(entry["Key"]) if keys.owns(entry["Key"]) else None
            if block is not None:
                yield block
        if time.monotonic() > end:
            reason = "the listing was not done after %d seconds and %d keys" % (max_seconds, seen)
            raise S3Error(errors.UNKNOWN, reason, "raise max_seconds")


def canaries(bucket: Any, keys: Keys, tiers: tuple[str, ...], path: str, max_seconds: float) -> list[dict[str, Any]]:
    """What the listing shows of each canary prompt in that file which is one of the tier's.

    tiers: the names by which the file may call the tier.
    """
    entries, problem = evidence_names.entries_in(path)
    if problem is not None:
        return [asdict(evidence_names.Canary(0, problem=problem))]
    mine = [(number, entry) for number, entry in enumerate(entries, 1) if entry.get("tier") in tiers]
    if not mine:
        return []
    found: set[str] = set()
    trouble = None
    try:
        for block in names_in(bucket, keys, max_seconds):
            found.add(block)
            if len(found) >= MAX_NAMES:
                raise S3Error(errors.UNKNOWN, "it has more than %d blocks" % MAX_NAMES, "use kv_prefix_probe")
    except S3Error as error:
        trouble = str(error)
    there = found.__contains__
    looked = [evidence_names.canary(number, entry, (), lambda names: list(map(there, names))) for number, entry in mine]
    # What was found is there, however much of the listing is missing.
    return [{**asdict(one), "problem": one.problem or trouble} for one in looked]
