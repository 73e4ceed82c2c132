# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Renders vLLM's offload settings from tiers of the data map, for one release, and refuses what is unsafe. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from . import offload_judge, offload_table
from .datamap import Document, Problem, Tier
from .mapkeys import key_text, parse_size, plain, show, unknown_key_fix
from .offload_model import NOTHING_TOLD, Engine, Finding, Told

# Store of the data map -> the tier type that renders it.
_TYPES = {"vllm_fs": "fs", "vllm_obj": "obj", "vllm_p2p": "p2p", "kvcr": "kvcr"}
# What an operator may say of an engine; everything below `tiers` and `extra` is the engine's own.
SETTINGS = {
    "tiers": dict,
    "cpu_bytes_to_use": (str, int),
    "offload_prompt_only": bool,
    "extra": dict,
    "kv_events": dict,
    "prefix_caching_hash_algo": str,
    "model": str,
    "tenants": str,
    "allow_modules": list,
    "environment": dict,
}
_PYTHON = re.compile(r"(\d{1,2})\.(\d{1,3})(?:\.\d{1,3})?[a-z0-9+]*", re.ASCII)


class Rendered(NamedTuple):
    """The engine's settings; config is what stands in the file that --config reads."""

    transfer: dict[str, Any]
    config: dict[str, Any]
    problems: list[Problem]
    findings: list[Finding]


def python_of(text: Any) -> tuple[int, int] | None:
    """Major and minor of a Python version, None if that says none."""
    match = _PYTHON.fullmatch(text) if isinstance(text, str) else None
    return (int(match.group(1)), int(match.group(2))) if match else None


def _shape(settings: Any, host: str) -> tuple[dict[str, Any], list[Problem]]:
    settings = plain(settings)
    if not isinstance(settings, dict):
        return {}, [Problem(host, "-", "settings", "they are no mapping", "write tiers: and cpu_bytes_to_use:")]
    problems = []
    for key, value in settings.items():
        if key not in SETTINGS:
            fix = unknown_key_fix(key, tuple(SETTINGS))
            problems.append(Problem(host, "-", key_text(key), "unknown key", fix))
        elif not isinstance(value, SETTINGS[key]) or (isinstance(value, bool) and SETTINGS[key] is not bool):  # type: ignore[arg-type]
            problems.append(
                Problem(host, "-", key, f"{show(value, 30)} has the wrong type", "see docs/engine-settings.md")
            )
    if settings.get("tenants", "several") not in ("one", "several"):
        problems.append(Problem(host, "-", "tenants", "it is neither", "write one or several"))
    return settings, problems


def _named(settings: dict[str, Any], document: Document) -> tuple[list[tuple[Tier, dict[str, Any]]], list[Problem]]:
    """The tiers that the engine shall write, with the engine's own keys for each."""
    found: list[tuple[Tier, dict[str, Any]]] = []
    problems = []
    host = document["host"]
    there = {tier["name"]: tier for tier in document["tiers"]}
    wanted = settings.get("tiers")
    if not wanted:
        problems.append(
            Problem(host, "-", "tiers", "no tier is named", "write tiers: {NAME: {}} with names of llmhost_tiers")
        )
    for name, options in (wanted or {}).items():
        tier = there.get(name) if isinstance(name, str) else None
        label = key_text(name)
        if tier is None:
            fix = "name one of llmhost_tiers: {}".format(", ".join(there) or "there are none")
            problems.append(Problem(host, label, "tiers", "the data map has no such tier", fix))
        elif tier["store"] not in _TYPES:
            reason = "store {} is no tier of vLLM's OffloadingConnector".format(tier["store"])
            problems.append(Problem(host, label, "store", reason, "name a tier of store {}".format(", ".join(_TYPES))))
        elif tier["state"] not in ("present", "planned"):
            problems.append(Problem(host, label, "state", "the tier is {}".format(tier["state"]), "make it present"))
        elif options is not None and not isinstance(options, dict):
            problems.append(
                Problem(host, label, "tiers", "its options are no mapping", "write key: value pairs, or {}")
            )
        else:
            found.append((tier, dict(options or {})))
    return found, problems


def _tier_entry(tier: Tier, options: dict[str, Any], release: str) -> dict[str, Any]:
    """One entry of secondary_tiers: what the data map says, then what the operator adds."""
    kind = _TYPES[tier["store"]]
    if kind == "fs" and not offload_table.within(offload_table.TIER_TYPES["fs"], release):
        kind = "fs_python"
    entry: dict[str, Any] = {"type": kind}
    if tier["store"] == "vllm_fs":
        entry["root_dir"] = tier["path"]
    elif tier["store"] == "vllm_obj":
        scheme = tier["endpoint"].partition("://")[0]
        store = {"bucket": tier["bucket"], "endpoint_override": tier["endpoint"], "scheme": scheme}
        own = options.get("store_config")
        store.update({key: value for key, value in (own if isinstance(own, dict) else {}).items() if key not in store})
        entry["store_config"] = store
        if tier["prefix"]:
            entry["prefix"] = tier["prefix"]
    # The data map is the only place that says where blocks lie.
    entry.update({key: value for key, value in options.items() if key not in entry})
    return entry


def _overridden(tier: Tier, options: dict[str, Any], host: str) -> list[Problem]:
    taken = {"vllm_fs": ("type", "root_dir"), "vllm_obj": ("type", "prefix")}.get(tier["store"], ("type",))
    wrong = [key for key in taken if key in options]
    store = options.get("store_config")
    if tier["store"] == "vllm_obj" and isinstance(store, dict):
        wrong += [f"store_config.{key}" for key in ("bucket", "endpoint_override", "scheme") if key in store]
    fix = "leave it out here and change the tier in llmhost_tiers"
    return [Problem(host, tier["name"], key, "the data map says this", fix) for key in wrong]


def _transfer(settings: dict[str, Any], tiers: Sequence[tuple[Tier, dict[str, Any]]], release: str) -> dict[str, Any]:
    extra = dict(settings.get("extra") or {})
    extra["spec_name"] = extra.get("spec_name", "TieringOffloadingSpec")
    extra["cpu_bytes_to_use"] = settings.get("cpu_bytes_to_use")
    if offload_table.within(offload_table.EXTRA["offload_prompt_only"], release):
        extra["offload_prompt_only"] = settings.get("offload_prompt_only", True)
    extra["secondary_tiers"] = [_tier_entry(tier, options, release) for tier, options in tiers]
    return {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": extra}


def _size(settings: dict[str, Any], host: str) -> list[Problem]:
    value = settings.get("cpu_bytes_to_use")
    if isinstance(value, str):
        try:
            settings["cpu_bytes_to_use"] = int(value) if value.isdecimal() and len(value) < 19 else parse_size(value)
        except ValueError as error:
            return [Problem(host, "-", "cpu_bytes_to_use", str(error), "write a size like 8G (G = 2^30)")]
    return []


def render(settings: Any, document: Document, version: Any, python: Any = None, told: Told = NOTHING_TOLD) -> Rendered:
    """The engine's settings for these tiers and this release, and every reason not to use them.

    A reason that nobody can judge is a problem too: what is rendered is known to be safe, or is not rendered.
    told: what the engine's own command and unit say beside the settings; a command wins over the settings' file.
    """
    host = document["host"]
    settings, problems = _shape(settings, host)
    if problems:
        return Rendered({}, {}, problems, [])
    tiers, problems = _named(settings, document)
    problems += _size(settings, host)
    for tier, options in tiers:
        problems += _overridden(tier, options, host)
    for key in ("secondary_tiers", "offload_prompt_only", "cpu_bytes_to_use"):
        if key in (settings.get("extra") or {}):
            fix = f"leave it out of extra, and write {'tiers' if key == 'secondary_tiers' else key} beside it"
            problems.append(Problem(host, "-", f"extra.{key}", "it has a place of its own", fix))
    version = version if isinstance(version, str) else None
    release = offload_table.release_of(version)
    transfer = _transfer(settings, tiers, release or offload_table.NEWEST)
    environment = settings.get("environment") or {}
    seed = environment.get("PYTHONHASHSEED")
    engine = Engine(
        version=version,
        python=python_of(python),
        tiers=document["tiers"],
        model=settings.get("model") or told.model,
        hash_algorithm=told.hash_algorithm or settings.get("prefix_caching_hash_algo"),
        hash_seed=told.hash_seed if seed is None else str(seed),
        events=settings.get("kv_events"),
        prompt_only=settings.get("offload_prompt_only", True),
        several_tenants=settings.get("tenants", "several") == "several",
        allow_modules=tuple(one for one in settings.get("allow_modules") or () if isinstance(one, str)),
    )
    findings = offload_judge.judge(transfer, engine)
    problems += _environment(environment, host)
    if engine.hash_seed is None and release and offload_table.within(offload_table.P2P_NEEDS_SEED, release):
        for tier, _options in tiers:
            if tier["store"] == "vllm_p2p":
                reason = f"[missing-key] a p2p tier of vLLM {release} does not start without PYTHONHASHSEED"
                fix = 'write environment: {PYTHONHASHSEED: "0"}, which claims no secrecy, or use vLLM 0.29 or later'
                problems.append(Problem(host, tier["name"], "environment.PYTHONHASHSEED", reason, fix))
    problems += [Problem(host, one.tier, one.key, f"[{one.code}] {one.reason}", one.remedy) for one in findings]
    config: dict[str, Any] = {"kv-transfer-config": transfer}
    if settings.get("kv_events") is not None:
        config["kv-events-config"] = settings["kv_events"]
    if settings.get("prefix_caching_hash_algo"):
        config["prefix-caching-hash-algo"] = settings["prefix_caching_hash_algo"]
    return Rendered(transfer, config, problems, findings)


_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}", re.ASCII)
_SECRET = re.compile(r"(?i)(?:^|_)(?:secret|password|passwd|token|api_?key|access_?key|credentials?)(?:_|$)", re.ASCII)


def _environment(environment: dict[Any, Any], host: str) -> list[Problem]:
    """Environment of the engine: plain settings only, no secret, which every child and a core dump would carry."""
    problems = []
    for name, value in environment.items():
        label = f"environment.{key_text(name)}"
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            problems.append(Problem(host, "-", label, "no name of a variable", "use letters, digits and _"))
        elif isinstance(value, (dict, list)) or value is None or not str(value).isprintable():
            problems.append(Problem(host, "-", label, "its value is no line of text", "write one line of text"))
        elif _SECRET.search(name) and not name.endswith("_FILE"):
            reason = "[inline-credentials] unit files and the process's environment show it"
            fix = "give a file: credentials_file, or a variable that ends in _FILE"
            problems.append(Problem(host, "-", label, reason, fix))
    return problems


def config_text(config: dict[str, Any]) -> str:
    """The file that `--config` reads: YAML in its JSON form, so that this host's Python can read it back."""
    return json.dumps(config, indent=2, sort_keys=True) + "\n"
