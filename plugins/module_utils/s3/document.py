# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A bucket's lifecycle document: read from the server's own bytes into one canonical form, and written from it.

The bytes are read, not what a client library made of them: a library drops elements that it does not know, and what is
dropped would be lost with the next write. Forms of the first protocol version, filters that a server spells its own
way, and filters in an And all become the same Rule.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any
from xml.etree import ElementTree

ROOT = "LifecycleConfiguration"
# A thousand rules with ten tags each stay below it.
MAX_BYTES = 4 << 20
_SPACE = re.compile(r"\{[^}]*\}")


class NotALifecycle(Exception):
    """The bytes are no lifecycle document; `root` is what they are (empty: nothing, or no XML)."""

    def __init__(self, root: str, reason: str) -> None:
        super().__init__(reason)
        self.root = root


@dataclass(frozen=True)
class Rule:
    """One rule. None is "not there"; `more` names what this form does not hold, so that nobody writes it away."""

    id: str | None = None
    enabled: bool = True
    prefix: str = ""
    tags: tuple[tuple[str, str], ...] = ()
    above: int | None = None
    below: int | None = None
    days: int | None = None
    date: str | None = None
    markers: bool = False
    noncurrent_days: int | None = None
    noncurrent_keep: int | None = None
    abort_days: int | None = None
    transitions: tuple[tuple[tuple[str, str], ...], ...] = ()
    noncurrent_transitions: tuple[tuple[tuple[str, str], ...], ...] = ()
    more: tuple[str, ...] = field(default=())

    @property
    def filtered(self) -> bool:
        """True if tags or sizes keep the rule from some keys under its prefix."""
        return bool(self.tags) or self.above is not None or self.below is not None

    def meaning(self) -> Rule:
        """The rule without its name."""
        return replace(self, id=None)


def root_of(body: bytes) -> str:
    """Local name of the root element of an answer, empty if it is no XML."""
    try:
        return _SPACE.sub("", tree(body).tag)
    except NotALifecycle:
        return ""


def tree(body: bytes) -> ElementTree.Element:
    """The XML of an answer; NotALifecycle if it is none that can be trusted."""
    if not body.strip():
        raise NotALifecycle("", "the answer is empty")
    if len(body) > MAX_BYTES:
        raise NotALifecycle("", "the answer is longer than any lifecycle document")
    # No S3 answer has one, and without it no entity can be defined.
    if b"<!DOCTYPE" in body[:4096].upper() or b"<!ENTITY" in body.upper():
        html = re.match(rb"\s*(?:<\?[^>]*>\s*)?<!doctype\s+html|\s*<html", body, re.IGNORECASE)
        raise NotALifecycle("html" if html else "", "the answer is no S3 document")
    try:
        return ElementTree.fromstring(body)  # noqa: S314 - no document type, bounded size
    except ElementTree.ParseError as error:
        html = re.match(rb"\s*<html", body, re.IGNORECASE)
        raise NotALifecycle("html" if html else "", "the answer is no XML") from error


def parse(body: bytes) -> list[Rule]:
    """The rules of a lifecycle document; NotALifecycle for anything else, an empty answer included."""
    found = tree(body)
    root = _SPACE.sub("", found.tag)
    if root != ROOT:
        raise NotALifecycle(root, f"the answer is a {root}, not a {ROOT}")
    if any(_SPACE.sub("", child.tag) != "Rule" for child in found):
        other = sorted({_SPACE.sub("", child.tag) for child in found} - {"Rule"})
        raise NotALifecycle(root, "the document holds {} beside its rules".format(", ".join(other)))
    return [_rule(child) for child in found]


def _text(element: ElementTree.Element) -> str:
    return element.text or ""


class _Reader:
    """Collects a rule's fields, and the names of what it does not know."""

    def __init__(self) -> None:
        self.fields: dict[str, Any] = {}
        self.more: list[str] = []

    def number(self, name: str, element: ElementTree.Element, path: str) -> None:
        text = _text(element).strip()
        if re.fullmatch(r"[+-]?\d{1,18}", text, re.ASCII):
            self.once(name, int(text), path)
        else:
            self.more.append(path)

    def once(self, name: str, value: Any, path: str) -> None:
        if name in self.fields and self.fields[name] != value:
            self.more.append(path + " twice")
        self.fields[name] = value

    def children(self, element: ElementTree.Element, path: str) -> list[tuple[str, ElementTree.Element, str]]:
        names = [(_SPACE.sub("", child.tag), child) for child in element]
        return [(name, child, f"{path}{name}") for name, child in names]


def _rule(element: ElementTree.Element) -> Rule:
    reader = _Reader()
    tags: list[tuple[str, str]] = []
    moves: dict[str, list[tuple[tuple[str, str], ...]]] = {"Transition": [], "NoncurrentVersionTransition": []}
    for name, child, path in reader.children(element, ""):
        if name == "ID":
            reader.once("id", _text(child) or None, path)
        elif name == "Status":
            reader.once("enabled", _text(child).strip() == "Enabled", path)
        elif name == "Prefix":
            reader.once("prefix", _text(child), path)
        elif name == "Filter":
            _filter(reader, child, path + "/", tags)
        elif name == "Expiration":
            _expiration(reader, child, path + "/")
        elif name == "NoncurrentVersionExpiration":
            _numbers(
                reader,
                child,
                path + "/",
                {"NoncurrentDays": "noncurrent_days", "NewerNoncurrentVersions": "noncurrent_keep"},
            )
        elif name == "AbortIncompleteMultipartUpload":
            _numbers(reader, child, path + "/", {"DaysAfterInitiation": "abort_days"})
        elif name in moves:
            parts = [(key, _text(one).strip()) for key, one, _path in reader.children(child, "")]
            moves[name].append(tuple(sorted((key, _date(text) if key == "Date" else text) for key, text in parts)))
        else:
            reader.more.append(path)
    if "enabled" not in reader.fields:
        reader.fields["enabled"] = False
        reader.more.append("no Status")
    return Rule(
        tags=tuple(sorted(tags)),
        transitions=tuple(sorted(moves["Transition"])),
        noncurrent_transitions=tuple(sorted(moves["NoncurrentVersionTransition"])),
        more=tuple(sorted(set(reader.more))),
        **reader.fields,
    )


def _filter(reader: _Reader, element: ElementTree.Element, path: str, tags: list[tuple[str, str]]) -> None:
    for name, child, here in reader.children(element, path):
        if name == "And" and not path.endswith("And/"):
            # Ceph echoes Filter{Prefix, And{Tag, Tag}}: both levels count.
            _filter(reader, child, here + "/", tags)
        elif name == "Prefix":
            reader.once("prefix", _text(child), here)
        elif name == "Tag":
            pair = {key: _text(one) for key, one, _path in reader.children(child, "")}
            if set(pair) - {"Key", "Value"}:
                reader.more.append(here)
            tag = (pair.get("Key", ""), pair.get("Value", ""))
            if tag not in tags:
                tags.append(tag)
        elif name in ("ObjectSizeGreaterThan", "ObjectSizeLessThan"):
            reader.number("above" if name == "ObjectSizeGreaterThan" else "below", child, here)
        else:
            reader.more.append(here)


def _expiration(reader: _Reader, element: ElementTree.Element, path: str) -> None:
    for name, child, here in reader.children(element, path):
        if name == "Days":
            reader.number("days", child, here)
        elif name == "Date":
            reader.once("date", _date(_text(child)), here)
        elif name == "ExpiredObjectDeleteMarker":
            reader.once("markers", _text(child).strip().lower() == "true", here)
        else:
            reader.more.append(here)


def _date(text: str) -> str:
    """Servers write one instant with and without fractions and offsets."""
    return re.sub(r"(?:\.0+)?(?:Z|\+00:00)$", "Z", text.strip())


def _numbers(reader: _Reader, element: ElementTree.Element, path: str, known: dict[str, str]) -> None:
    for name, child, here in reader.children(element, path):
        if name in known:
            reader.number(known[name], child, here)
        else:
            reader.more.append(here)


def render(rule: Rule) -> dict[str, Any]:
    """The rule as the client library takes it, always in the second protocol version."""
    if rule.more:
        raise ValueError("rule {} holds {}, which would be lost".format(rule.id or "without id", ", ".join(rule.more)))
    result: dict[str, Any] = {"Status": "Enabled" if rule.enabled else "Disabled", "Filter": _render_filter(rule)}
    if rule.id is not None:
        result["ID"] = rule.id
    expiration: dict[str, Any] = {}
    if rule.days is not None:
        expiration["Days"] = rule.days
    if rule.date is not None:
        expiration["Date"] = rule.date
    if rule.markers:
        expiration["ExpiredObjectDeleteMarker"] = True
    noncurrent: dict[str, Any] = {}
    if rule.noncurrent_days is not None:
        noncurrent["NoncurrentDays"] = rule.noncurrent_days
    if rule.noncurrent_keep is not None:
        noncurrent["NewerNoncurrentVersions"] = rule.noncurrent_keep
    abort = {} if rule.abort_days is None else {"DaysAfterInitiation": rule.abort_days}
    for name, value in (
        ("Expiration", expiration),
        ("NoncurrentVersionExpiration", noncurrent),
        ("AbortIncompleteMultipartUpload", abort),
        ("Transitions", [_render_move(move) for move in rule.transitions]),
        ("NoncurrentVersionTransitions", [_render_move(move) for move in rule.noncurrent_transitions]),
    ):
        if value:
            result[name] = value
    return result


def _render_filter(rule: Rule) -> dict[str, Any]:
    """Exactly one of Prefix, Tag and size, or an And that holds all of them."""
    parts = len(rule.tags) + (rule.above is not None) + (rule.below is not None)
    sizes = {}
    if rule.above is not None:
        sizes["ObjectSizeGreaterThan"] = rule.above
    if rule.below is not None:
        sizes["ObjectSizeLessThan"] = rule.below
    tags = [{"Key": key, "Value": value} for key, value in rule.tags]
    if not parts:
        return {"Prefix": rule.prefix}
    if parts == 1 and not rule.prefix:
        return {"Tag": tags[0]} if tags else dict(sizes)
    inside: dict[str, Any] = dict(sizes)
    if rule.prefix:
        inside["Prefix"] = rule.prefix
    if tags:
        inside["Tags"] = tags
    return {"And": inside}


def _render_move(move: tuple[tuple[str, str], ...]) -> dict[str, Any]:
    whole = ("Days", "NoncurrentDays", "NewerNoncurrentVersions")
    return {key: int(value) if key in whole else value for key, value in move}


def show(rules: list[Rule]) -> str:
    """The document as text for a diff: one line a rule, in a fixed order."""
    return "".join(sorted(describe(rule) + "\n" for rule in rules))


def describe(rule: Rule) -> str:
    """One rule in one line."""
    words = [rule.id or "(no id)", "enabled" if rule.enabled else "disabled", f"prefix {rule.prefix!r}"]
    words += [f"tag {key}={value}" for key, value in rule.tags]
    for name, value in (
        ("larger than", rule.above),
        ("smaller than", rule.below),
        ("expire after days", rule.days),
        ("expire on", rule.date),
        ("remove delete markers", rule.markers or None),
        ("noncurrent days", rule.noncurrent_days),
        ("newer noncurrent versions kept", rule.noncurrent_keep),
        ("abort uploads after days", rule.abort_days),
    ):
        if value is not None:
            words.append(name if value is True else f"{name} {value}")
    for move in (*rule.transitions, *rule.noncurrent_transitions):
        words.append("move " + " ".join(f"{key}={value}" for key, value in move))
    words += [f"also {name}" for name in rule.more]
    return ", ".join(words)
