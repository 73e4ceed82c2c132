# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The engines that an operator declares, checked: which key means what for which engine and target. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .datamap import Problem
from .mapkeys import KEYS as MAP_KEYS
from .mapkeys import Mistakes, clean_path, key_text, plain, show, unknown_key_fix
from .offload_engines import ENGINES, NAME
from .offload_units import SECRET_OPTIONS

TARGETS = ("systemd", "quadlet", "compose", "files")
_TYPES: dict[str, Any] = {
    "name": str,
    "state": str,
    "engine": str,
    "target": str,
    "unit": str,
    "exec": list,
    "image": str,
    "user": (str, int),
    "version": (str, int, float),
    "python": (str, int, float),
    "credentials_file": str,
    "tier": str,
    "settings": dict,
}
_NEEDED = {
    "systemd": ["unit"],
    "quadlet": ["image", "exec"],
    "compose": ["image", "exec"],
    "files": ["version", "python"],
}
_VLLM_ONLY = ("settings", "version", "python", "image", "credentials_file")


@dataclass(frozen=True)
class Entry:
    """One engine of a host."""

    name: str
    state: str = "present"
    engine: str = "vllm"
    target: str = "systemd"
    unit: str = ""
    command: tuple[str, ...] = ()
    image: str | None = None
    user: str | int | None = None
    version: str | None = None
    python: str | None = None
    credentials_file: str | None = None
    tier: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)


def parse(entries: Any, host: str) -> tuple[list[Entry], list[Problem]]:
    """The entries of `engine_offload_engines`, and every mistake in them."""
    found: list[Entry] = []
    problems: list[Problem] = []
    entries = plain(entries, 9)
    if not isinstance(entries, list):
        return [], [Problem(host, "-", "engine_offload_engines", "it is no list", "write a list of engines")]
    for number, raw in enumerate(entries):
        entry = _parse(raw, number, host, problems)
        if entry is not None and any(entry.name == other.name for other in found):
            problems.append(Problem(host, entry.name, "name", "two engines have this name", "name each once"))
        elif entry is not None and entry.unit and any(entry.unit == other.unit for other in found):
            problems.append(Problem(host, entry.name, "unit", "two engines have this unit", "one entry for each unit"))
        elif entry is not None:
            found.append(entry)
    return found, problems


def _parse(raw: Any, number: int, host: str, problems: list[Problem]) -> Entry | None:
    before = len(problems)
    if not isinstance(raw, dict):
        problems.append(Problem(host, f"engine {number}", "-", "it is no mapping", "write name:, unit:, settings:"))
        return None
    label = key_text(raw.get("name", f"engine {number}"))

    def wrong(key: str, reason: str, fix: str) -> None:
        problems.append(Problem(host, label, key, reason, fix))

    raw = {key: value for key, value in raw.items() if value is not None}
    for key, value in raw.items():
        if key not in _TYPES:
            wrong(key_text(key), "unknown key", unknown_key_fix(key, tuple(_TYPES)))
        elif not isinstance(value, _TYPES[key]) or isinstance(value, bool):
            wrong(key, f"{show(value, 30)} has the wrong type", "see docs/engine-settings.md")
    if len(problems) > before:
        return None
    if not NAME.fullmatch(raw.get("name", "")):
        wrong("name", "it is no name", "use 1 to 32 of a-z, 0-9 and -, beginning and ending with a letter or digit")
    if raw.get("state", "present") not in ("present", "absent"):
        wrong("state", "it is neither", "write present or absent")
    if raw.get("state") == "absent":
        return Entry(raw["name"], "absent") if len(problems) == before else None
    _combine(raw, wrong)
    if len(problems) > before:
        return None
    return Entry(
        name=raw["name"],
        engine=raw.get("engine", "vllm"),
        target=raw.get("target", "systemd"),
        unit=raw.get("unit", ""),
        command=tuple(raw.get("exec", ())),
        image=raw.get("image"),
        user=raw.get("user"),
        version=str(raw["version"]) if "version" in raw else None,
        python=str(raw["python"]) if "python" in raw else None,
        credentials_file=raw.get("credentials_file"),
        tier=raw.get("tier"),
        settings=raw.get("settings", {}),
    )


def _combine(raw: dict[str, Any], wrong: Any) -> None:
    """What the keys mean together."""
    engine, target = raw.get("engine", "vllm"), raw.get("target", "systemd")
    if engine != "vllm" and engine not in ENGINES:
        wrong("engine", f"{show(engine, 30)} is not known", "choose one of vllm, {}".format(", ".join(ENGINES)))
    if target not in TARGETS or (engine != "vllm" and target != "systemd"):
        wrong("target", f"{show(target, 30)} is not possible for {show(engine, 30)}", "write systemd")
    for key in _VLLM_ONLY if engine != "vllm" else ("tier",):
        if key in raw:
            wrong(key, f"engine {engine} has no {key}", "leave it out")
    needed = ["settings"] if engine == "vllm" else ["tier"]
    needed += _NEEDED.get(target, [])
    for key in needed:
        if key not in raw:
            wrong(key, f"missing for engine {engine} and target {target}", "see docs/engine-settings.md")
    if "unit" in raw:
        try:
            MAP_KEYS["services"][0]([raw["unit"]])
        except Mistakes as mistakes:
            wrong("unit", mistakes.found[0].reason, mistakes.found[0].fix)
    if "user" in raw:
        try:
            MAP_KEYS["owner"][0](raw["user"])
        except Mistakes as mistakes:
            wrong("user", mistakes.found[0].reason, mistakes.found[0].fix)
    for word in raw.get("exec", ()):
        if not isinstance(word, str) or not word.isprintable() or len(word) > 4096:
            wrong("exec", f"{show(word, 30)} is no word of a command", "write a list of words, each on one line")
    words = [word for word in raw.get("exec", ()) if isinstance(word, str)]
    if words and target == "systemd" and not words[0].startswith("/"):
        wrong("exec", f"{show(words[0], 30)} is no absolute path", "begin with the program's full path")
    for word in words:
        name = word.partition("=")[0].replace("_", "-")
        if engine == "vllm" and name.partition(".")[0] in ("--config", "--kv-transfer-config", "--kv-events-config"):
            wrong("exec", f"it has {name}, which the role puts there", "leave it out and use settings")
        if name in SECRET_OPTIONS:
            wrong("exec", f"[inline-credentials] {name} shows in the list of processes", "give it by a file")
    if "credentials_file" in raw:
        try:
            clean_path(raw["credentials_file"])
        except ValueError as error:
            wrong("credentials_file", str(error), "write an absolute path")
    if "image" in raw and (not raw["image"].isprintable() or " " in raw["image"]):
        wrong("image", "it is no name of an image", "write REGISTRY/NAME:TAG or @sha256:DIGEST")
