# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The data map: one list of tiers per host, checked and completed here and nowhere else.

`normalise` takes what an operator wrote and gives the document that every role, module and kvtier reads; `load` reads
that document back. Both collect every mistake as a Problem (host, tier, key, reason, fix) before they give up, and
whatever they are given, they raise nothing but MapError.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Callable, NamedTuple, cast

from . import fsio
from .mapkeys import (
    KEYS,
    LIB_ROOT,
    MAX_MINUTES,
    Bytes,
    Mistakes,
    key_text,
    plain,
    unknown_key_fix,
    whole,
    within,
)
from .stores import STORES

SCHEMA = 1
PATH = "/etc/llmhost/tiers.json"
STATE_ROOT = LIB_ROOT + "/state"
AUDIT_ROOT = LIB_ROOT + "/audit"
WAIVERS = "/etc/llmhost/waivers.json"

Tier = dict[str, Any]
Document = dict[str, Any]

CAP_PERCENT = 90
# Keys that documents of an earlier form lack: their default is what they meant.
_LATER = ("expire",)


class Problem(NamedTuple):
    """One mistake: where it stands (tier: empty where there are none), why it is one, and what to write instead."""

    host: str
    tier: str
    key: str
    reason: str
    fix: str

    def __str__(self) -> str:
        where = f"tier {self.tier}, key {self.key}" if self.tier else self.key
        return f"host {self.host}, {where}: {self.reason}. Fix: {self.fix}."


class Refused(Exception):
    """Something that must not be done; the text says why and what to do."""


class MapError(Exception):
    """A map that cannot be used; `problems` holds every mistake that was found."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = list(problems)


Wrong = Callable[[str, str, str], None]

_MISSING = {
    "name": "every tier has a name and a store",
    "store": "every tier has a name and a store",
    "path": "name the directory that the engine writes to",
    "owner": "name the system account that the engine runs as",
    "services": "name the units that write it, for example [vllm.service]",
    "bucket": "name the bucket that the engine writes to",
    "endpoint": "write https://HOST[:PORT]",
}
_BUCKET_KEYS = ("bucket", "endpoint", "prefix")
_PLACE_KEYS = ("path", "owner", "volume", "max_bytes", "max_files")


def _keys_of(store: str, state: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Keys that a tier of that store cannot have, and those that it must have."""
    services = ("services",) if state == "present" else ()
    if STORES[store].has_files:
        return (*_BUCKET_KEYS, "peers"), ("path", "owner", *services)
    if store == "vllm_obj":
        return (*_PLACE_KEYS, "services", "peers"), ("bucket", "endpoint")
    return (*_PLACE_KEYS, *_BUCKET_KEYS), services


def _tier(raw: Any, label: str, prompt_log: int, host: str) -> tuple[Tier, list[Problem]]:
    """One tier, complete, and what is wrong with it by itself."""
    problems: list[Problem] = []
    tier: Tier = {key: default for key, (_parse, default) in KEYS.items()}
    tier["services"] = []

    def wrong(key: str, reason: str, fix: str) -> None:
        problems.append(Problem(host, label, key, reason, fix))

    if not isinstance(raw, dict):
        wrong("-", "the entry is not a mapping", "write a tier as {name: ..., store: ..., path: ...}")
        return tier, problems
    for key in raw:
        if key not in KEYS:
            wrong(key_text(key), "unknown key", unknown_key_fix(key, tuple(KEYS)))
    store = raw.get("store")
    foreign: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    if isinstance(store, str) and store in STORES:
        foreign, required = _keys_of(store, raw.get("state") or "present")
    for key, (parse, _default) in KEYS.items():
        if raw.get(key) is None:
            if key in ("name", "store", *required):
                wrong(key, "missing", _MISSING[key])
        elif key in foreign:
            if raw[key] != []:
                wrong(key, f"store {store} has no {key}", "leave it out")
        else:
            try:
                tier[key] = parse(raw[key])
            except Mistakes as mistakes:
                for mistake in mistakes.found:
                    wrong(mistake.key or key, mistake.reason, mistake.fix)
    if "services" in required and raw.get("services") == []:
        wrong("services", "missing", _MISSING["services"])
    if store == "vllm_obj" and tier["prefix"] is None:
        tier["prefix"] = ""
    _judge_numbers(tier, raw, prompt_log, wrong)
    return tier, problems


def _judge_numbers(tier: Tier, raw: dict[str, Any], prompt_log: int, wrong: Wrong) -> None:
    """The retention against the prompt log's, the cap against the volume."""
    if tier["retention_minutes"] is None:
        tier["retention_minutes"] = prompt_log
    elif tier["retention_minutes"] > prompt_log and raw.get("retention_reason") is None:
        wrong(
            "retention_minutes",
            "%d minutes outlive the prompt log's %d" % (tier["retention_minutes"], prompt_log),
            "lower it to %d or say why in retention_reason" % prompt_log,
        )
    source = tier["volume"]["source"] if tier["volume"] else None
    if source and source["size"] and tier["max_bytes"]:
        room = source["size"] * CAP_PERCENT // 100
        if tier["max_bytes"] > room:
            wrong(
                "max_bytes",
                "the cap is above %d %% of the volume's %d bytes" % (CAP_PERCENT, source["size"]),
                "lower it to at most %dM or enlarge the volume" % (room >> 20),
            )


def _judge_together(tiers: Sequence[Tier], host: str) -> list[Problem]:
    """What is wrong between tiers: names, paths, images and buckets that meet."""
    problems: list[Problem] = []
    names: set[str] = set()
    buckets: dict[tuple[Any, ...], str] = {}
    paths: list[tuple[str, str, str]] = []
    images: list[tuple[str, str, str]] = []
    for tier in tiers:
        name = tier["name"] or "?"
        if name in names:
            problems.append(Problem(host, name, "name", "the name stands twice", "give each tier its own name"))
        if tier["name"]:
            names.add(name)
        if tier["bucket"]:
            other = buckets.setdefault((tier["endpoint"], tier["bucket"], tier["prefix"]), name)
            if other != name:
                reason = f"tier {other} has the same bucket, endpoint and prefix"
                problems.append(Problem(host, name, "prefix", reason, "give each tier a prefix of its own"))
        if tier["path"]:
            paths.append((name, "path", tier["path"]))
        if tier["volume"] and tier["volume"]["source"]:
            source = tier["volume"]["source"]
            kind = next(kind for kind in ("file", "device", "lv") if kind in source)
            place = "/dev/{vg}/{lv}".format(**source) if kind == "lv" else source[kind]
            images.append((name, "volume.source." + kind, place))
    places = paths + images
    for position, (name, key, path) in enumerate(places):
        for other_name, other_key, other in places[:position]:
            if not (within(path, other) or within(other, path)):
                continue
            reason = f"{path} is also the {other_key} of tier {other_name}"
            if path != other:
                reason = f"{path} and the {other_key} of tier {other_name} ({other}) lie one inside the other"
            problems.append(Problem(host, name, key, reason, "give each tier a directory and an image of its own"))
    return problems


def check(tiers: Any, host: str, prompt_log_retention_minutes: Any) -> tuple[Document, list[Problem]]:
    """The normalised document of an operator's map and every mistake in it (the document is only good without any).

    tiers: the list `llmhost_tiers`; prompt_log_retention_minutes: minutes, int >= 1; host: for the messages.
    """
    tiers, host = plain(tiers), plain(host)
    problems: list[Problem] = []
    if not isinstance(host, str) or not host.isprintable() or not 0 < len(host) <= 255:
        host = key_text(host)
        problems.append(
            Problem(host, "-", "host", "not a host name", "use a name of one line and up to 255 characters")
        )
    # Without the one number, no retention is called too long.
    prompt_log = MAX_MINUTES
    try:
        prompt_log = whole(1, MAX_MINUTES, "minutes")(plain(prompt_log_retention_minutes))
    except Mistakes as mistakes:
        key = "llmhost_prompt_log_retention_minutes"
        problems += [Problem(host, "-", key, mistake.reason, mistake.fix) for mistake in mistakes.found]
    result: list[Tier] = []
    if not isinstance(tiers, list):
        problems.append(Problem(host, "-", "llmhost_tiers", "not a list", "write a list of tiers"))
        tiers = []
    for number, raw in enumerate(tiers, 1):
        given = raw.get("name") if isinstance(raw, dict) else None
        label = key_text(given) if isinstance(given, str) and given else "number %d" % number
        tier, wrong = _tier(raw, label, prompt_log, host)
        result.append(tier)
        problems += wrong
    problems += _judge_together(result, host)
    document: Document = {"schema": SCHEMA, "host": host, "prompt_log_retention_minutes": prompt_log, "tiers": result}
    document["memory"] = _memory(result)
    return document, problems


def normalise(tiers: Any, host: str, prompt_log_retention_minutes: Any = 1440) -> Document:
    """check(), raising MapError if there is any mistake."""
    document, problems = check(tiers, host, prompt_log_retention_minutes)
    if problems:
        raise MapError(problems)
    return document


def given_or_own(document: Any) -> Document:
    """The data map that a module was given, checked; without one the host's own."""
    return load() if document is None else validate(document, "data_map")


def _memory(tiers: Sequence[Tier]) -> list[dict[str, Any]]:
    """One entry for each service that fills its tiers through files in memory, which no directory of a tier covers."""
    found: dict[str, dict[str, Any]] = {}
    for tier in tiers:
        store = STORES.get(tier["store"]) if isinstance(tier["store"], str) else None
        if store is None or store.memory is None or tier["state"] not in ("present", "vanished"):
            continue
        for service in tier["services"]:
            entry = found.setdefault(service, {"service": service, "path": store.memory, "tiers": []})
            entry["tiers"].append(tier["name"])
    return [found[service] for service in sorted(found)]


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def validate(document: Any, source: str = PATH) -> Document:
    """A normalised document (as `normalise` gave it) checked again; MapError if anything in it is not as it would be.

    A tier may have the state `vanished`, which only merge() gives.
    """
    fix = "write it again with the harden playbook"
    document = plain(document, 8)
    if (
        not isinstance(document, dict)
        or not _is_int(document.get("schema"))
        or document["schema"] != SCHEMA
        or not isinstance(document.get("host"), str)
        or not isinstance(document.get("tiers"), list)
    ):
        raise MapError([Problem("-", "-", source, "not a data map of schema %d" % SCHEMA, fix)])
    host = document["host"]
    raw_tiers: list[Any] = []
    for tier in document["tiers"]:
        for key in _LATER if isinstance(tier, dict) else ():
            tier.setdefault(key, KEYS[key][1])
        if not isinstance(tier, dict) or set(tier) != set(KEYS):
            raise MapError([Problem(key_text(host), "-", source, "a tier does not have the keys of this version", fix)])
        raw_tiers.append(_as_written(tier))
    again, problems = check(raw_tiers, host, document.get("prompt_log_retention_minutes"))
    for tier, given in zip(again["tiers"], document["tiers"]):
        if given["state"] == "vanished":
            tier["state"] = "vanished"
    if problems:
        raise MapError(problems)
    # It follows from the tiers, so a document without it says as much.
    document.setdefault("memory", again["memory"])
    if again != document:
        raise MapError([Problem(host, "-", source, "it is not in the form that this version writes", fix)])
    return again


def _as_written(tier: Tier) -> Tier:
    """A normalised tier as the checks of an operator's tier take it."""
    raw = dict(tier)
    if raw["state"] == "vanished":
        raw["state"] = "present"
    if _is_int(raw["max_bytes"]):
        raw["max_bytes"] = Bytes(raw["max_bytes"])
    volume = raw["volume"]
    source = volume.get("source") if isinstance(volume, dict) else None
    if isinstance(source, dict) and _is_int(source.get("size")):
        raw["volume"] = dict(volume, source=dict(source, size=Bytes(source["size"])))
    return raw


def load(path: str = PATH) -> Document:
    """The host's data map; MapError if it is missing, not root's, or broken."""
    try:
        return validate(fsio.read_json(path, owner=0), path)
    except FileNotFoundError as error:
        raise MapError([Problem("-", "-", path, "no data map on this host", "run the harden playbook")]) from error
    except (OSError, ValueError, fsio.UnsafePath) as error:
        raise MapError([Problem("-", "-", path, str(error), "write it again with the harden playbook")]) from error


def installed_map(path: str) -> tuple[Document | None, str | None]:
    """The data map that the host's jobs read, or why there is none."""
    try:
        return load(path), None
    except MapError as error:
        return None, error.problems[0].reason


# States of a tier whose blocks are kept to its retention.
_LIVING = ("present", "vanished")
_GIVE_UP = (
    "once the old blocks are gone, name the old tier with `state: absent` in one run and change the map in the next"
)


def merge(old: Document | None, new: Document) -> Document:
    """new, plus every tier that old still had and new no longer names, in state `vanished`.

    Taking a tier out of the map must not stop its expiry in silence: its blocks are still there. A tier lives on under
    another name if place and store are the same, and is given up by `state: absent` at its place. Whatever else would
    leave blocks behind that nothing expires, or would make two tiers of one place, raises MapError. Both documents
    must be valid; then the result is.
    """
    host = new["host"]
    problems: list[Problem] = []
    gone: list[Tier] = []
    for tier in _with_blocks(old) if old else []:
        heir = next((other for other in new["tiers"] if _place(other) == _place(tier)), None)
        if heir is not None:
            problems += _judge_heir(tier, heir, host)
        elif any(other["name"] == tier["name"] for other in new["tiers"]):
            reason = f"this host has the tier at {place_text(tier)}, and its blocks would stay there and expire no more"
            fix = f"give the new place a name of its own; {_GIVE_UP}"
            problems.append(Problem(host, tier["name"], "path" if tier["path"] else "bucket", reason, fix))
        else:
            retention = tier["retention_minutes"]
            if tier["retention_reason"] is None:
                retention = min(retention, new["prompt_log_retention_minutes"])
            gone.append(dict(tier, state="vanished", retention_minutes=retention))
    tiers = new["tiers"] + gone
    for problem in _judge_together(tiers, host):
        reason = problem.reason + "; the tier left the map, but its blocks are still on this host"
        problems.append(problem._replace(reason=reason, fix=f"use another place; {_GIVE_UP}"))
    if problems:
        raise MapError(problems)
    return dict(new, tiers=tiers, memory=_memory(tiers))


def _with_blocks(document: Document) -> list[Tier]:
    """The tiers whose blocks outlive the map's entry: those in files and those in buckets."""
    return [tier for tier in document["tiers"] if (tier["path"] or tier["bucket"]) and tier["state"] in _LIVING]


def _place(tier: Tier) -> tuple[Any, ...]:
    """Where the tier's blocks lie; a tier without a place meets no other."""
    return (tier["path"], tier["endpoint"], tier["bucket"], tier["prefix"])


def place_text(tier: Tier) -> str:
    """The tier's place for a message."""
    if tier["path"]:
        return str(tier["path"])
    return "bucket {}, prefix '{}', at {}".format(tier["bucket"], tier["prefix"], tier["endpoint"])


def _judge_heir(tier: Tier, heir: Tier, host: str) -> list[Problem]:
    """May a tier of the new map take over the place of a tier that the host has?"""
    if heir["name"] != tier["name"] and tier["volume"] and tier["volume"]["backend"] == "dmcrypt":
        reason = "this host has the tier at {} as {}, and its volume carries that name".format(
            tier["path"], tier["name"]
        )
        fix = (
            "write name: {0}; or, as its blocks cannot be kept, name {0} with `state: absent` in one run and {1} "
            "in the next"
        ).format(tier["name"], heir["name"])
        return [Problem(host, heir["name"], "name", reason, fix)]
    if heir["state"] == "absent":
        return []
    if heir["store"] != tier["store"]:
        reason = "{} holds blocks of store {}, which would expire no more".format(place_text(tier), tier["store"])
        return [Problem(host, heir["name"], "store", reason, f"use another place; {_GIVE_UP}")]
    if heir["state"] == "planned":
        reason = "this host has the tier, and a planned tier does not expire"
        return [Problem(host, heir["name"], "state", reason, "write present, or absent once its blocks are gone")]
    return []


def tier_named(document: Document, name: str) -> Tier:
    """The tier of that name; KeyError with the known names otherwise."""
    for tier in document["tiers"]:
        if tier["name"] == name:
            return cast("Tier", tier)
    known = ", ".join(tier["name"] for tier in document["tiers"]) or "none"
    raise KeyError(f"no tier {name} in the data map (known: {known})")


def file_tiers(document: Document, states: Sequence[str] = _LIVING) -> list[Tier]:
    """The tiers with blocks in files that are in one of these states."""
    return [tier for tier in document["tiers"] if tier["path"] and tier["state"] in states]


def mapper_name(tier: Tier) -> str:
    """Device mapper name of a tier's volume; `_` cannot stand in a tier name, so two names never meet."""
    return "llmhost_" + str(tier["name"]).replace("-", "_")


def state_dir(tier: Tier, root: str = STATE_ROOT) -> str:
    """Directory of the tier's run records, owned by its account."""
    return os.path.join(root, str(tier["name"]))
