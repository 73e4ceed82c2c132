# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Settings files as people write them: JSON, and the part of YAML that needs no library. Pure, bounded, never raises.

Hosts need not have a YAML library. What is not understood is None, so that a caller can say that it could not read it.
"""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

MAX_LINES = 5000
MAX_DEPTH = 40
_KEY = re.compile(r"""("[^"\\]*"|'[^']*'|[^\s'"#\[\]{},&*!|>%@`:-][^#]*?|-[^\s#][^#]*?)\s*:(?:\s+(.*))?""", re.ASCII)


class _NotYaml(Exception):
    """A construct that is not read here."""


class _Line(NamedTuple):
    indent: int
    text: str


def parse(text: str) -> Any:
    """The value of a JSON or YAML text, None if it is not understood."""
    for part in (text, "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))):
        try:
            return json.loads(part)
        except (ValueError, RecursionError):
            continue
    try:
        lines = _lines(text)
        if not lines:
            return None
        value, end = _node(lines, 0, 0)
    except (_NotYaml, RecursionError):
        return None
    return value if end == len(lines) else None


def value_of(text: Any) -> Any:
    """What a JSON text means; any other value as it is."""
    if not isinstance(text, str):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _lines(text: str) -> list[_Line]:
    found: list[_Line] = []
    for raw in text.splitlines():
        stripped = raw.strip()
        if not stripped or stripped.startswith("#") or stripped in ("---", "..."):
            continue
        if "\t" in raw[: len(raw) - len(raw.lstrip())] or len(found) >= MAX_LINES:
            raise _NotYaml
        found.append(_Line(len(raw) - len(raw.lstrip(" ")), stripped))
    return found


def _node(lines: list[_Line], at: int, depth: int) -> tuple[Any, int]:
    if depth > MAX_DEPTH:
        raise _NotYaml
    return (_sequence if lines[at].text == "-" or lines[at].text.startswith("- ") else _mapping)(lines, at, depth)


def _below(lines: list[_Line], at: int, indent: int, depth: int, same: bool) -> tuple[Any, int]:
    """The value of a key or dash that has none on its own line."""
    if at < len(lines):
        deeper = lines[at].indent > indent
        if deeper or (same and lines[at].indent == indent and lines[at].text.startswith("-")):
            return _node(lines, at, depth + 1)
    return None, at


def _mapping(lines: list[_Line], at: int, depth: int) -> tuple[dict[str, Any], int]:
    found: dict[str, Any] = {}
    indent = lines[at].indent
    while at < len(lines) and lines[at].indent == indent:
        match = _KEY.fullmatch(lines[at].text)
        if match is None:
            raise _NotYaml
        key, rest = match.group(1).strip("'\""), (match.group(2) or "").strip()
        at += 1
        if rest and re.fullmatch(r"[|>][-+]?", rest):
            block = []
            while at < len(lines) and lines[at].indent > indent:
                block.append(lines[at].text)
                at += 1
            found[key] = ("\n" if rest[0] == "|" else " ").join(block)
        elif rest and not rest.startswith("#"):
            found[key] = _scalar(rest)
        else:
            found[key], at = _below(lines, at, indent, depth, True)
    if at < len(lines) and lines[at].indent > indent:
        raise _NotYaml
    return found, at


def _sequence(lines: list[_Line], at: int, depth: int) -> tuple[list[Any], int]:
    found: list[Any] = []
    indent = lines[at].indent
    while at < len(lines) and lines[at].indent == indent and (lines[at].text + " ").startswith("- "):
        rest = lines[at].text[1:].strip()
        if not rest:
            value, at = _below(lines, at + 1, indent, depth, False)
        elif rest[0] not in "\"'[{" and _KEY.fullmatch(rest):
            # A mapping that begins beside the dash goes on below it.
            inner = indent + len(lines[at].text) - len(rest)
            lines[at] = _Line(inner, rest)
            value, at = _mapping(lines, at, depth + 1)
        elif rest.startswith("- "):
            raise _NotYaml
        else:
            value, at = _scalar(rest), at + 1
        found.append(value)
    return found, at


def _scalar(text: str) -> Any:
    if text[:1] in "\"'":
        end = text.find(text[0], 1)
        while text[0] == '"' and end > 0 and text[end - 1] == "\\":
            end = text.find('"', end + 1)
        if end < 0:
            raise _NotYaml
        inner = text[: end + 1]
        return value_of(inner) if text[0] == '"' else inner[1:-1]
    text = re.split(r"\s#", text)[0].strip()
    if text[:1] in ("[", "{"):
        value = value_of(text)
        return _flow(text) if isinstance(value, str) else value
    if text[:1] in ("&", "*", "!", "|", ">"):
        raise _NotYaml
    lowered = text.lower()
    if lowered in ("true", "false"):
        return lowered == "true"
    if lowered in ("null", "~", "none"):
        return None
    return text


def _flow(text: str) -> Any:
    """[a, b] and {a: b} of one level without quotes; nothing deeper."""
    if re.search(r"[\[\]{}\"']", text[1:-1]) or text[-1:] != {"[": "]", "{": "}"}[text[0]]:
        raise _NotYaml
    parts = [part.strip() for part in text[1:-1].split(",") if part.strip()]
    if text[0] == "[":
        return [_scalar(part) for part in parts]
    return {key.strip(): _scalar(value.strip()) for key, _colon, value in (part.partition(":") for part in parts)}
