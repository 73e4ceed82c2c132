# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What was so on which day: one line for each audit of a host, each with the hash of the line before it.

A line that was changed, taken out or put in breaks the chain. That the last lines are missing shows as a gap. Who is
root on the host can write a whole new chain: a copy elsewhere (report.json of a fleet) is what tells then.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from . import fsio
from .datamap import AUDIT_ROOT
from .judge import FAIL, PASS, UNKNOWN, clean

DIRECTORY = AUDIT_ROOT
FILE, OLDER = "history.jsonl", "history.1.jsonl"
SCHEMA = 1
ROTATE_BYTES = 32 << 20
MAX_LINE = 1 << 20
# An audit runs each hour unless told otherwise; after two that did not run something is wrong.
GAP_SECONDS = 7200
# A gap is a finding of KV-07 for as long as somebody has to look at it.
GAP_SHOWN_SECONDS = 86400
_NOTHING = "0" * 64


# What goes to the controller: a fleet has a thousand hosts.
MOST_LINES, MOST_GAPS = 200, 100


class History(NamedTuple):
    """The lines that can be believed, and what is wrong with the file."""

    lines: list[dict[str, Any]]
    problems: list[str]


def line_of(audit: Mapping[str, Any], deleted: Mapping[str, int] | None = None) -> dict[str, Any]:
    """What is kept of an audit. deleted: tier name to the blocks that its last expiry deleted."""
    tiers: dict[str, dict[str, Any]] = {}
    for result in audit["results"]:
        facts = tiers.setdefault(result["tier"], {})
        for control, keys in (("KV-04", ("blocks", "block_bytes")), ("KV-06", ("oldest_age_seconds", "overdue"))):
            if result["control"] == control:
                facts.update({key: result["evidence"].get(key) for key in keys})
    for name, count in (deleted or {}).items():
        tiers.setdefault(name, {})["deleted"] = count
    return {
        "schema": SCHEMA,
        "time": audit["time"],
        "host": audit["host"],
        "map_digest": audit["map_digest"],
        "verdict": audit["verdict"],
        "results": {"{control} {tier}".format(**one): one["status"] for one in audit["results"]},
        "tiers": tiers,
    }


def append(line: Mapping[str, Any], directory: str = DIRECTORY) -> None:
    """Put a line at the end (root). OSError or fsio.UnsafePath if that is not possible."""
    os.makedirs(directory, mode=0o700, exist_ok=True)
    with fsio.opened(directory) as place:
        fcntl.flock(place, fcntl.LOCK_EX)
        with contextlib.suppress(FileNotFoundError):
            if os.stat(FILE, dir_fd=place, follow_symlinks=False).st_size > ROTATE_BYTES:
                os.rename(FILE, OLDER, src_dir_fd=place, dst_dir_fd=place)
        last = _last(place, FILE) or _last(place, OLDER)
        text = json.dumps({**line, "before": _hash(last)}, sort_keys=True, separators=(",", ":"))
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        fd = os.open(FILE, flags, 0o600, dir_fd=place)
        try:
            size = os.fstat(fd).st_size
            # What a killed run left without its end stays a line of its own.
            torn = size > 0 and os.pread(fd, 1, size - 1) != b"\n"
            data = (b"\n" if torn else b"") + text.encode("ascii") + b"\n"
            written = os.write(fd, data)
            if written != len(data):
                raise OSError(28, "the line was not written whole")
            os.fsync(fd)
        finally:
            os.close(fd)


def _last(place: int, name: str) -> bytes:
    """The last line of a file in the open directory, b"" if there is none."""
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=place)
    except FileNotFoundError:
        return b""
    try:
        size = os.fstat(fd).st_size
        tail = os.pread(fd, MAX_LINE, max(0, size - MAX_LINE))
    finally:
        os.close(fd)
    return tail.rstrip(b"\n").rpartition(b"\n")[2]


def _hash(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest() if line else _NOTHING


def read(directory: str = DIRECTORY, owner: int | None = 0, most: int | None = None) -> History:
    """The history of this host; most: only so many of its last lines. Empty where none was ever written."""
    lines: list[bytes] = []
    try:
        with fsio.opened(directory) as place:
            for name in (OLDER, FILE):
                with contextlib.suppress(FileNotFoundError):
                    data = fsio.read_small(name, dir_fd=place, owner=owner, limit=2 * ROTATE_BYTES)
                    lines += data.split(b"\n")[:-1] if data.endswith(b"\n") else data.split(b"\n")
    except FileNotFoundError:
        return History([], [])
    except (OSError, fsio.UnsafePath) as error:
        return History([], [f"the history of audits cannot be read: {error}"])
    return _checked(lines, most)


def _checked(lines: Sequence[bytes], most: int | None) -> History:
    kept: list[dict[str, Any]] = []
    problems: list[str] = []
    before: bytes | None = None
    for number, raw in enumerate(lines, 1):
        try:
            line = json.loads(raw)
            sound = isinstance(line, dict) and isinstance(line.get("tiers"), dict) and isinstance(line["results"], dict)
            time = float(line["time"]) if sound else None
        except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
            line, time = None, None
        if line is None or time is None or not 0 <= time < 1 << 40:
            problems.append(f"line {number} of the history of audits is damaged")
        else:
            # Before the first line that is still kept anything may have been.
            if before is not None and line.get("before") != _hash(before):
                problems.append(f"the history of audits is broken before {_utc(time)} (line {number})")
            kept.append(line)
        before = raw
    return History([clean(line) for line in (kept if most is None else kept[-most:])], problems)


def _utc(time: float) -> str:
    return datetime.datetime.fromtimestamp(time, datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")


def gaps(lines: Sequence[Mapping[str, Any]], now: float | None = None) -> list[tuple[float, float]]:
    """From when to when no audit ran; with now also since the last one."""
    times = [float(line["time"]) for line in lines] + ([now] if now is not None and lines else [])
    return [(one, two) for one, two in zip(times, times[1:]) if two - one > GAP_SECONDS]


def summary(past: History) -> dict[str, Any]:
    """The history in little room: every gap counts, but not every line."""
    step = -(-len(past.lines) // MOST_LINES) or 1
    # Backwards, so that the last one is always there.
    thin = past.lines[::-1][::step][::-1]
    return {
        "history": [{key: line.get(key) for key in ("time", "verdict", "tiers")} for line in thin],
        "history_gaps": [{"from": one, "to": two} for one, two in gaps(past.lines)[-MOST_GAPS:]],
        "history_problems": past.problems[:MOST_GAPS],
    }


def judge(results: Sequence[Mapping[str, Any]], history: History, now: float) -> list[dict[str, Any]]:
    """The results with what is wrong with the history added to each KV-07."""
    wrong = list(history.problems[:3])
    wrong += [
        f"no audit from {_utc(one)} to {_utc(two)}"
        for one, two in gaps(history.lines, now)
        if two > now - GAP_SHOWN_SECONDS
    ]
    if not wrong:
        return [dict(result) for result in results]
    remedy = f"see journalctl -t kvtier; a broken history is kept: move {DIRECTORY} away to begin a new one"
    judged = []
    for result in results:
        result = dict(result)
        if result["control"] == "KV-07" and result["status"] in (PASS, FAIL, UNKNOWN):
            said = [result["message"]] if result["status"] != PASS else []
            result["message"] = "; ".join([*said, *wrong])
            result["remedy"] = "; ".join(text for text in (result["remedy"], remedy) if text)
            result["status"] = FAIL
        judged.append(result)
    return judged


def on(lines: Sequence[Mapping[str, Any]], day: str) -> list[Mapping[str, Any]]:
    """The lines of a day (UTC, YYYY-MM-DD); ValueError if that is no date."""
    wanted = datetime.date.fromisoformat(day)
    utc = datetime.timezone.utc
    return [line for line in lines if datetime.datetime.fromtimestamp(float(line["time"]), utc).date() == wanted]


def told(history: History, day: str) -> tuple[list[str], bool]:
    """What was so on that day, for people, and whether an audit of that day says that all was well."""
    lines = on(history.lines, day)
    text = list(history.problems)
    if not lines:
        before = [line for line in history.lines if _utc(float(line["time"]))[:10] < day]
        last = f"; the last audit before it: {_utc(float(before[-1]['time']))}" if before else ""
        return [*text, f"{day}: no audit is on record, so nobody knows{last}"], False
    good = True
    for line in lines:
        bad = sorted(key for key, status in line["results"].items() if status in (FAIL, UNKNOWN))
        waived = sorted(key for key, status in line["results"].items() if status == "waived")
        good = good and line["verdict"] == PASS
        text.append(
            "{}: {}{}{}, data map {}".format(
                _utc(float(line["time"])),
                line["verdict"],
                " ({})".format(", ".join(bad)) if bad else "",
                "; waived: {}".format(", ".join(waived)) if waived else "",
                str(line.get("map_digest"))[:12],
            )
        )
    for start, end in gaps(history.lines):
        if _utc(start)[:10] <= day <= _utc(end)[:10]:
            text.append(f"no audit from {_utc(start)} to {_utc(end)}")
            good = False
    return text, good and not history.problems
