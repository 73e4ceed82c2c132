# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""How old what lies in a bucket really is: the only proof that something is deleted.

Listings are bounded and say how far they came. Ages are the server's own: LastModified against its Date header.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from . import errors
from .errors import S3Error
from .keys import Keys

MAX_SAMPLES = 5
FIRST = 50
OBJECTS, VERSIONS, UPLOADS = "ListObjectsV2", "ListObjectVersions", "ListMultipartUploads"


@dataclass
class Count:
    """What was seen of one kind."""

    seen: int = 0
    bytes: int = 0
    overdue: int = 0
    oldest_seconds: float | None = None
    samples: list[str] = field(default_factory=list)

    def add(self, age: float, allowed: float, name: str, size: int = 0) -> None:
        self.seen += 1
        self.bytes += size
        if self.oldest_seconds is None or age > self.oldest_seconds:
            self.oldest_seconds = age
        if age >= allowed:
            self.overdue += 1
            if len(self.samples) < MAX_SAMPLES:
                self.samples.append(name)


@dataclass
class Proof:
    """What a listing of the tier's keys showed."""

    complete: bool = True
    now: float = 0.0
    objects: Count = field(default_factory=Count)
    versions: Count = field(default_factory=Count)
    markers: Count = field(default_factory=Count)
    uploads: Count = field(default_factory=Count)
    strangers: int = 0
    stranger_samples: list[str] = field(default_factory=list)
    folded: bool = False
    unread: dict[str, str] = field(default_factory=dict)

    @property
    def blind(self) -> bool:
        """True if the keys could not be listed at all, so that no age is known."""
        return any(name in self.unread for name in (OBJECTS, VERSIONS))

    @property
    def empty(self) -> bool:
        """True if no key of the tier was seen, so that nothing tells how the server keeps slashes."""
        return not any(one.seen for one in (self.objects, self.versions, self.markers, self.uploads))

    def note_key(self, key: str, keys: Keys) -> bool:
        """True if the key is the tier's; remembers what is not."""
        if keys.owns(key):
            return True
        self.strangers += 1
        if len(self.stranger_samples) < MAX_SAMPLES:
            self.stranger_samples.append(key)
        return False

    def result(self) -> dict[str, Any]:
        """As a module returns it."""
        kinds = {"objects": self.objects, "versions": self.versions, "delete_markers": self.markers}
        kinds["uploads"] = self.uploads
        return {
            "complete": self.complete,
            "time": int(self.now),
            "strangers": self.strangers,
            "stranger_samples": [printable(key) for key in self.stranger_samples],
            "slashes_folded": self.folded,
            "unread": dict(self.unread),
            **{
                name: {
                    "seen": one.seen,
                    "bytes": one.bytes,
                    "overdue": one.overdue,
                    "oldest_minutes": None if one.oldest_seconds is None else int(one.oldest_seconds // 60),
                    "samples": [printable(key) for key in one.samples],
                }
                for name, one in kinds.items()
            },
        }


def printable(text: str, limit: int = 200) -> str:
    """A key as one harmless piece of a line: anybody with write access chose it."""
    text = "".join(char if char.isprintable() else "\\x%02x" % ord(char) for char in text[: limit + 1])
    return text if len(text) <= limit else text[:limit] + "..."


def seconds(moment: Any) -> float:
    """A time of a listing."""
    return float(moment)


class _Budget:
    def __init__(self, entries: int, deadline: float, clock: Callable[[], float]) -> None:
        self.entries, self.deadline, self.clock = entries, deadline, clock

    def spent(self, more: int) -> bool:
        self.entries -= more
        return self.entries <= 0 or self.clock() > self.deadline


def prove(
    bucket: Any,
    keys: Keys,
    allowed_minutes: float,
    versioned: bool,
    max_entries: int = 100000,
    max_seconds: float = 60.0,
    clock: Callable[[], float] = time.monotonic,
) -> Proof:
    """List the tier's keys up to a bound and count what is older than allowed."""
    proof = Proof()
    allowed = allowed_minutes * 60
    budget = _Budget(max_entries, clock() + max_seconds, clock)
    objects = VERSIONS if versioned else OBJECTS
    asked = listed_prefix(bucket, keys, objects)
    proof.folded = asked != keys.prefix
    for operation in (objects, UPLOADS):
        try:
            _list(bucket, operation, keys, asked, allowed, proof, budget)
        except S3Error as error:
            if error.kind in (errors.UNREACHABLE, errors.NO_BUCKET):
                raise
            proof.unread[operation] = str(error)
            proof.complete = False
    return proof


def look_at_folders(bucket: Any, keys: Keys, proof: Proof) -> None:
    """Find what is not the tier's among the first names under its prefix, where not every key was looked at."""
    try:
        parsed = bucket.folder(keys.folded if proof.folded else keys.prefix).parsed
    except S3Error as error:
        proof.unread["folders"] = str(error)
        return
    seen = set(proof.stranger_samples)
    names = [name for name in parsed.get("CommonPrefixes", ()) if not keys.has_folder(name)]
    names += [one["Key"] for one in parsed.get("Contents", ()) if not keys.owns(one["Key"])]
    # A folder's keys may have been counted one by one already.
    new = [name for name in names if not any(one.startswith(name) for one in seen)]
    proof.strangers += len(new)
    proof.stranger_samples = (proof.stranger_samples + new)[:MAX_SAMPLES]


def listed_prefix(bucket: Any, keys: Keys, operation: str = OBJECTS) -> str:
    """The prefix that the tier's keys really have, which a server that folds slashes made another.

    Asked by a look at the first keys: some such servers fold the prefix of one listing and not of another, so a listing
    by the wrong one would be empty and prove nothing.
    """
    if keys.prefix == keys.folded:
        return keys.prefix
    operations = list(dict.fromkeys((OBJECTS, operation)))
    for one in operations:
        found = _first_keys(bucket, one, keys.prefix)
        if found:
            return keys.prefix if any(key.startswith(keys.prefix) for key in found) else keys.folded
    for one in operations:
        if keys.shape is not None and any(keys.owns(key) for key in _first_keys(bucket, one, keys.folded)):
            return keys.folded
    return keys.prefix


def _first_keys(bucket: Any, operation: str, prefix: str) -> list[str]:
    try:
        parsed = next(iter(bucket.pages(operation, prefix, size=FIRST))).parsed
    except (S3Error, StopIteration):
        return []
    return [entry["Key"] for part in ("Contents", "Versions", "DeleteMarkers") for entry in parsed.get(part, ())]


def upload_pages(bucket: Any, prefix: str) -> Iterator[Any]:
    """Pages of unfinished uploads under a prefix, and where there are none, of the whole bucket.

    MinIO and others take the prefix for a whole key there, and answer that nothing is unfinished.
    """
    found = False
    for answer in bucket.pages(UPLOADS, prefix):
        found = found or bool(answer.parsed.get("Uploads"))
        yield answer
    if not found and prefix:
        yield from bucket.pages(UPLOADS, "")


def _list(bucket: Any, operation: str, keys: Keys, asked: str, allowed: float, proof: Proof, budget: _Budget) -> None:
    pages = upload_pages(bucket, asked) if operation == UPLOADS else bucket.pages(operation, asked)
    for answer in pages:
        date = answer.date()
        if date is None:
            raise S3Error(errors.UNKNOWN, "the server sends no Date, so no age is known", "use another server")
        proof.now = date
        parsed = answer.parsed
        entries = 0
        for entry in parsed.get("Contents", []):
            entries += 1
            if proof.note_key(entry["Key"], keys):
                age = date - seconds(entry["LastModified"])
                proof.objects.add(age, allowed, entry["Key"], entry.get("Size") or 0)
        for entry in parsed.get("Versions", []):
            entries += 1
            if proof.note_key(entry["Key"], keys):
                count = proof.objects if entry.get("IsLatest") else proof.versions
                count.add(date - seconds(entry["LastModified"]), allowed, entry["Key"], entry.get("Size") or 0)
        for entry in parsed.get("DeleteMarkers", []):
            entries += 1
            if proof.note_key(entry["Key"], keys):
                proof.markers.add(date - seconds(entry["LastModified"]), allowed, entry["Key"])
        for entry in parsed.get("Uploads", []):
            entries += 1
            if not entry["Key"].startswith(asked):
                continue
            if proof.note_key(entry["Key"], keys):
                proof.uploads.add(date - seconds(entry["Initiated"]), allowed, entry["Key"])
        if budget.spent(entries) and parsed.get("IsTruncated"):
            proof.complete = False
            return
