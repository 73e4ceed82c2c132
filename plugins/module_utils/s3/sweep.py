# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""One pass over one tier's keys: list a page, delete what is too old, forget the page.

Age is LastModified against the Date header of the page that it came with: one clock, the server's. In a versioned
bucket versions are deleted by their id, so nothing stays behind and no delete marker is made.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any

from . import errors, evidence, proof
from .client import Answer, next_page
from .errors import S3Error
from .keys import Keys

# Servers delete the keys of one call one after the other: several smaller calls at once end sooner.
BATCH = 250
WORKERS = 8
MAX_SKEW = 3600
MAX_MESSAGES = 20
# Where a whole batch is refused: so many alone show whether the right is missing.
MAX_TRIED = 5
# A record of how far the pass came is written that often.
SAVE_SECONDS = 30.0

Entry = dict[str, str]
Result = tuple[list[str], list[bool], list[str]]


class ClockJumped(Exception):
    """The server's clock cannot be believed."""


class TimeUp(Exception):
    """The pass may not take longer."""


class Sweep:
    """record: filled while the pass goes on; note: called with kind and key of everything that is due."""

    def __init__(
        self,
        bucket: Any,
        keys: Keys,
        retention_seconds: float,
        record: dict[str, Any],
        *,
        delete: bool = True,
        rate: int = 0,
        max_seconds: float = 3000.0,
        trust_clock: bool = False,
        note: Callable[[str, str], None] | None = None,
        save: Callable[[dict[str, Any]], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.bucket, self.keys, self.retention, self.record = bucket, keys, retention_seconds, record
        self.delete, self.rate, self.trust_clock, self.note, self.save = delete, rate, trust_clock, note, save
        self.clock, self.sleep = clock, sleep
        self.begun = self.saved = clock()
        self.deadline = self.begun + max_seconds
        self.sent = 0
        self.batch: list[Entry] = []
        self.kinds: list[str] = []
        self.running: set[Future[Result]] = set()
        self.single = False
        self.refusal: S3Error | None = None

    def run(self) -> None:
        """The whole pass; S3Error, ClockJumped or TimeUp end it early, with the record filled so far."""
        resume = self.record["resume"] or {}
        self.record["resume"] = None
        versioned = self._versioned()
        operation = proof.VERSIONS if versioned else proof.OBJECTS
        asked = proof.listed_prefix(self.bucket, self.keys, operation)
        with ThreadPoolExecutor(WORKERS) as pool:
            self.pool = pool
            try:
                if resume.get("operation") in (None, operation):
                    self._objects(operation, asked, resume.get("position"))
                self._flush()
                self._drain(0)
                self._uploads(asked)
            finally:
                self._drain(0)
                if self.refusal is not None:
                    self.message(f"several objects in one call: {self.refusal} They went one by one, which is slow.")
        self.record["complete"] = True

    def _versioned(self) -> bool:
        try:
            return evidence.versioning_of(self.bucket)[0] != evidence.OFF
        except S3Error as error:
            if error.kind in (errors.NO_BUCKET, errors.UNREACHABLE, errors.USAGE):
                raise
            # Not every server has versions; where they are hidden from us, a listing of objects must do.
            if error.kind != errors.UNSUPPORTED:
                self.message(f"versioning: {error}")
            return False

    def message(self, text: str) -> None:
        if len(self.record["messages"]) < MAX_MESSAGES:
            self.record["messages"].append(proof.printable(text, 500))

    def _now(self, answer: Answer) -> float:
        now = answer.date()
        if now is None:
            raise S3Error(errors.UNKNOWN, "the server sends no Date, so no age is known", "use another server")
        skew = now - time.time()
        if abs(skew) > MAX_SKEW and not self.trust_clock:
            raise ClockJumped(
                f"the server's clock is {round(skew)} s off this host's, so nothing was deleted. "
                "Fix: set the clocks (NTP), or --trust-clock if the server's is right."
            )
        return now

    def _objects(self, operation: str, asked: str, position: dict[str, str] | None) -> None:
        for answer in self.bucket.pages(operation, asked, position):
            now = self._now(answer)
            parsed = answer.parsed
            for entry in parsed.get("Contents", ()):
                self._one("objects", entry, now)
            for entry in parsed.get("Versions", ()):
                self._one("objects" if entry.get("IsLatest") else "versions", entry, now)
            for entry in parsed.get("DeleteMarkers", ()):
                self._one("markers", entry, now)
            self._progress(operation, parsed)

    def _one(self, kind: str, entry: dict[str, Any], now: float) -> None:
        key, record = entry["Key"], self.record
        age = now - proof.seconds(entry["LastModified"])
        if not self.keys.owns(key):
            record["strangers"] += 1
            record["strangers_overdue"] += age >= self.retention
            return
        record["seen"] += 1
        if age < 0:
            # One second is what the header's precision costs.
            record["future"] += age < -1
        if record["oldest_seconds"] is None or age > record["oldest_seconds"]:
            record["oldest_seconds"] = age
        if age < self.retention:
            record["bytes"] += entry.get("Size") or 0
            return
        if self.note is not None:
            self.note(kind, key)
        if not self.delete:
            record["overdue"] += 1
            return
        due = {"Key": key}
        if entry.get("VersionId"):
            due["VersionId"] = entry["VersionId"]
        self.batch.append(due)
        self.kinds.append(kind)
        if len(self.batch) >= BATCH:
            self._flush()

    def _progress(self, operation: str, parsed: dict[str, Any]) -> None:
        """After a page: is there time for another, and where would the next pass go on?"""
        following = next_page(operation, parsed)
        if following is None:
            return
        if operation == proof.OBJECTS:
            # A token is only good for this server process; a key always is.
            following = {"StartAfter": parsed["Contents"][-1]["Key"]} if parsed.get("Contents") else following
        now = self.clock()
        late = now > self.deadline
        if late or (self.save is not None and now - self.saved > SAVE_SECONDS):
            self._flush()
            self._drain(0)
            self.record["resume"] = {"operation": operation, "position": following}
            if self.save is not None:
                self.save(self.record)
            self.saved = now
        if late:
            raise TimeUp
        self.record["resume"] = None

    # Deleting

    def _flush(self) -> None:
        if not self.batch:
            return
        batch, kinds = self.batch, self.kinds
        self.batch, self.kinds = [], []
        self._pace(len(batch))
        self._drain(WORKERS - 1)
        self.running.add(self.pool.submit(self._delete, batch, kinds))

    def _pace(self, number: int) -> None:
        """Keep to so many deletions a second on average."""
        if self.rate:
            ahead = self.sent / self.rate - (self.clock() - self.begun)
            if ahead > 0:
                self.sleep(ahead)
        self.sent += number

    def _drain(self, most: int) -> None:
        """Wait until no more than so many batches run. What went is counted whatever else failed."""
        failure: BaseException | None = None
        while len(self.running) > most:
            ended, self.running = wait(self.running, return_when=FIRST_COMPLETED)
            for one in ended:
                error = one.exception()
                if error is None:
                    self._count(*one.result())
                failure = failure or error
        if failure is not None:
            raise failure

    def _delete(self, batch: list[Entry], kinds: list[str]) -> Result:
        """Delete a batch, in a thread: what it was, whether each entry went, and codes of errors."""
        refusal = None
        if not self.single:
            try:
                parsed = self.bucket.call("DeleteObjects", Delete={"Objects": batch, "Quiet": True}).parsed
                lost = {(one.get("Key"), one.get("VersionId") or ""): one for one in parsed.get("Errors", ())}
                went = [(entry["Key"], entry.get("VersionId", "")) not in lost for entry in batch]
                return kinds, went, [str(one.get("Code") or "unknown") for one in lost.values()]
            except S3Error as error:
                # Some stores delete one object a call only, some judge the call by the bucket instead of by its keys.
                if error.kind not in (errors.UNSUPPORTED, errors.DENIED):
                    raise
                refusal = error
        went, failed = [], []
        for entry in batch:
            try:
                self.bucket.call("DeleteObject", **entry)
                went.append(True)
            except S3Error as error:
                if error.kind in (errors.UNREACHABLE, errors.NO_BUCKET):
                    raise
                went.append(False)
                failed.append(error.code or error.kind)
            if refusal is not None and refusal.kind == errors.DENIED and not any(went) and len(went) == MAX_TRIED:
                break
        if refusal is not None:
            if refusal.kind == errors.DENIED:
                if not any(went):
                    raise refusal
                self.refusal = refusal
            self.single = True
        return kinds, went, failed

    def _count(self, kinds: list[str], went: list[bool], failed: list[str]) -> None:
        record = self.record
        for kind, good in zip(kinds, went):
            if good:
                record["deleted"][kind] += 1
            else:
                record["overdue"] += 1
        for code in failed:
            record["errors"][code] = record["errors"].get(code, 0) + 1

    def _uploads(self, asked: str) -> None:
        """Parts of unfinished uploads are in no listing of objects."""
        try:
            for answer in proof.upload_pages(self.bucket, asked):
                now = self._now(answer)
                for entry in answer.parsed.get("Uploads", ()):
                    if self.keys.owns(entry["Key"]) and now - proof.seconds(entry["Initiated"]) >= self.retention:
                        self._abort(entry)
        except S3Error as error:
            # rclone answers a listing of uploads as if one of them were meant.
            if error.kind != errors.UNSUPPORTED and error.code != "NoSuchUpload":
                raise
            self.message(f"unfinished uploads: {error}")

    def _abort(self, entry: dict[str, Any]) -> None:
        if self.note is not None:
            self.note("uploads", entry["Key"])
        if not self.delete:
            self.record["overdue"] += 1
            return
        try:
            self.bucket.call("AbortMultipartUpload", Key=entry["Key"], UploadId=entry["UploadId"])
            self._count(["uploads"], [True], [])
        except S3Error as error:
            if error.kind in (errors.UNREACHABLE, errors.NO_BUCKET):
                raise
            if error.code == "NoSuchUpload":
                return
            self._count(["uploads"], [False], [error.code or error.kind])
