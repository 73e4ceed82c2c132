# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Judges vLLM's offload settings for one release: what it would accept in silence and harm, or not understand. Pure.

The same judge decides what is rendered and what the audit says of settings that it finds on a host (KV-13). Reasons
never quote a value that may be a secret.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from . import offload_table as table
from .judge import FAIL, PASS, UNKNOWN
from .mapkeys import is_loopback, key_text, show, unknown_key_fix
from .offload_model import Engine, Finding, is_every, is_local_endpoint
from .offload_table import within

_DENIED = {
    "ExampleConnector": "its key ignores cache_salt and LoRA, and a file that expires ends the forward pass",
    "SharedStorageConnector": "its key ignores cache_salt and LoRA, and a file that expires ends the forward pass",
    "HF3FSKVConnector": "its files are 0755 and cannot expire, and its metadata server asks nobody for a key",
}
_LLMD_MODULE = "llmd_fs_backend.spec"
_BOOLEANS = {
    "enable_kv_events",
    "offload_prompt_only",
    "self_describing_kv_events",
    "canonical_layout",
    "enable_telemetry",
    "eager_ctrl_connect",
    "opportunistic_query",
    "enable_kv_cache_events",
    "allow_custom_save_path",
    "enable_permute_local_kv",
    "use_page_cache",
    "lazy_offload",
}
_COUNTS = {
    "cpu_bytes_to_use": 1 << 62,
    "block_size": 1 << 20,
    "blocks_per_chunk": 1 << 20,
    "n_read_threads": 1024,
    "n_write_threads": 1024,
    "io_threads": 1024,
    "num_threads": 1024,
    "port": 65535,
    "disk_capacity_bytes": 1 << 62,
}
_CHOICES = {"locality": (None, "LOCAL", "REMOTE"), "kv_role": ("kv_both", "kv_producer", "kv_consumer")}
_CREDENTIALS = ("access_key", "secret_key", "session_token")
_ENDPOINT = re.compile(r"(?:(https?)://)?(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::\d{1,5})?(/.*)?", re.ASCII)


@dataclass
class _Judge:
    engine: Engine
    release: str
    found: list[Finding] = field(default_factory=list)

    def fail(self, code: str, key: str, reason: str, remedy: str, tier: str = "-") -> None:
        self.found.append(Finding(FAIL, code, key, reason, remedy, tier))

    def unknown(self, code: str, key: str, reason: str, remedy: str, tier: str = "-") -> None:
        self.found.append(Finding(UNKNOWN, code, key, reason, remedy, tier))

    # Shapes, keys and values

    def mapping(self, value: Any, where: str, tier: str = "-") -> dict[str, Any]:
        if isinstance(value, dict):
            return value
        self.fail("not-a-mapping", where, f"{show(value, 20)} is no mapping", "write key: value pairs", tier)
        return {}

    def keys(self, value: dict[str, Any], spans: table.Spans, where: str, tier: str = "-") -> None:
        for key in value:
            label = f"{where}.{key_text(key)}" if where else key_text(key)
            span = spans.get(key) if isinstance(key, str) else None
            if span is None:
                names = table.known(spans, self.release)
                self.fail(
                    "unknown-key", label, f"vLLM {self.release} has no such key", unknown_key_fix(key, names), tier
                )
            elif not within(span, self.release):
                reason = f"vLLM {self.release} has no such key, only {table.span_text(span)}"
                self.fail("unknown-key", label, reason, "leave it out or change the engine's version", tier)
            else:
                self.value(key, value[key], label, tier)

    def value(self, key: str, value: Any, label: str, tier: str) -> None:
        if key in _BOOLEANS and not isinstance(value, bool):
            # The engine asks for truth: the text "false" is true.
            self.fail("value", label, f"{show(value, 20)} is neither true nor false", "write true or false", tier)
        elif key in _COUNTS and value is not None:
            if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= _COUNTS[key]:
                text = f"{show(value, 30)} is not a whole number from 1 to {_COUNTS[key]}"
                self.fail("value", label, text, "write a number", tier)
        elif key in _CHOICES and value not in _CHOICES[key]:
            choices = ", ".join(str(choice) for choice in _CHOICES[key] if choice)
            self.fail("value", label, f"{show(value, 30)} is not allowed", f"choose one of {choices}", tier)

    def module(self, value: Any, label: str, tier: str = "-") -> None:
        """A module that the engine would import by that name. Whoever declares an llm-d tier wants llm-d's."""
        if value is None or value in self.engine.allow_modules:
            return
        if value == _LLMD_MODULE and any(one["store"] == "llmd_fs" for one in self.engine.tiers or ()):
            return
        reason = f"the engine imports {show(value, 60)} and runs what it finds there"
        self.fail("outside-import", label, reason, "leave it out, or name the module in allow_modules", tier)

    # Connectors

    def transfer(self, config: Any, where: str = "") -> None:
        config = self.mapping(config, where or "kv-transfer-config")
        self.keys(config, table.TRANSFER, where)
        prefix = where + "." if where else ""
        self.module(config.get("kv_connector_module_path"), prefix + "kv_connector_module_path")
        connector, extra = config.get("kv_connector"), config.get("kv_connector_extra_config") or {}
        key = prefix + "kv_connector"
        if config.get("kv_role") is None:
            self.fail("missing-key", prefix + "kv_role", "the engine does not start without it", "write kv_both")
        extra = self.mapping(extra, prefix + "kv_connector_extra_config")
        if extra.get("allow_custom_save_path"):
            reason = "the client of a request chooses where the server writes"
            self.fail("custom-save-path", prefix + "allow_custom_save_path", reason, "leave it out")
        if connector in _DENIED:
            self.fail("denied-connector", key, f"{connector}: {_DENIED[connector]}", "use OffloadingConnector")
        elif connector == "LMCacheConnectorV1" and self.engine.several_tenants:
            reason = "LMCache inside the engine drops cache_salt: one tenant is served another's blocks"
            self.fail("denied-connector", key, reason, "use LMCacheMPConnector, or declare `tenants: one`")
        elif connector == "MultiConnector":
            connectors = extra.get("connectors")
            if not isinstance(connectors, list) or not connectors:
                self.fail("missing-key", prefix + "connectors", "a MultiConnector without connectors", "name them")
                connectors = []
            for number, one in enumerate(connectors):
                self.transfer(one, f"{prefix}connectors[{number}]")
        elif connector == "OffloadingConnector":
            self.offloading(extra, prefix + "kv_connector_extra_config")
        elif connector == "SimpleCPUOffloadConnector":
            self.simple(extra, prefix + "kv_connector_extra_config")
        else:
            span = table.CONNECTORS.get(connector) if isinstance(connector, str) else None
            if span is not None and not within(span, self.release):
                reason = f"vLLM {self.release} has no {connector}, only {table.span_text(span)}"
                self.fail("unknown-key", key, reason, "use another connector")
            else:
                reason = f"what {show(connector, 40)} does with its settings is not known here"
                self.unknown("unjudged-connector", key, reason, "use OffloadingConnector, or waive KV-13 with a reason")

    def simple(self, extra: dict[str, Any], where: str) -> None:
        self.keys(extra, table.SIMPLE, where)
        if extra.get("kv_offload_backend") == "disk":
            place = os.path.dirname(str(extra.get("disk_path") or ""))
            self.place(place, ("vllm_simple_disk",), f"{where}.disk_path", "its directory is")

    def offloading(self, extra: dict[str, Any], where: str) -> None:
        spec = extra.get("spec_name", "CPUOffloadingSpec")
        for key in ("spec_module_path", "cache_policy_module_path"):
            self.module(extra.get(key), f"{where}.{key}")
        if spec not in table.SPECS:
            self.foreign_spec(extra, where)
            return
        self.keys(extra, table.EXTRA, where)
        if not extra.get("cpu_bytes_to_use"):
            reason = "the engine does not start without it"
            self.fail("missing-key", f"{where}.cpu_bytes_to_use", reason, "give the size of the memory tier, e.g. 8G")
        if "block_size" in extra and "blocks_per_chunk" in extra:
            self.fail("value", f"{where}.block_size", "it stands beside blocks_per_chunk", "give one of the two")
        self.generated(extra, where)
        self.pressure(extra.get("backpressure"), f"{where}.backpressure")
        tiers = extra.get("secondary_tiers", [])
        if not isinstance(tiers, list):
            self.fail("not-a-mapping", f"{where}.secondary_tiers", "it is no list", "write a list of tiers")
            return
        if tiers and spec != "TieringOffloadingSpec":
            reason = f"{spec} ignores secondary tiers in silence"
            self.fail("value", f"{where}.spec_name", reason, "write TieringOffloadingSpec")
        threshold = extra.get("store_threshold", 0)
        if spec == "TieringOffloadingSpec" and (not isinstance(threshold, int) or threshold >= 2):
            reason = "the engine does not start with it and tiers"
            self.fail("value", f"{where}.store_threshold", reason, "leave it out: every block is stored")
        for number, tier in enumerate(tiers):
            self.tier(tier, f"{where}.secondary_tiers[{number}]")

    def foreign_spec(self, extra: dict[str, Any], where: str) -> None:
        """A spec that is not vLLM's own: of llm-d's, the place and the events are known."""
        if extra.get("spec_module_path") is None:
            reason = f"vLLM {self.release} has no spec {show(extra.get('spec_name'), 40)}"
            self.fail("value", f"{where}.spec_name", reason, "write TieringOffloadingSpec")
        elif extra.get("spec_module_path") == _LLMD_MODULE:
            self.place(extra.get("shared_storage_path"), ("llmd_fs",), f"{where}.shared_storage_path")
            if extra.get("enable_events") and not is_local_endpoint(extra.get("storage_events_endpoint")):
                self.open_events(f"{where}.storage_events_endpoint", "its default example is every address")
        elif extra.get("spec_module_path") in self.engine.allow_modules:
            reason = "what an allowed module does with its settings is not known here"
            self.unknown("unjudged-connector", f"{where}.spec_name", reason, "waive KV-13 with a reason")

    def generated(self, extra: dict[str, Any], where: str) -> None:
        """Is what the engine stores of the answers what was declared?"""
        if not within(table.EXTRA["offload_prompt_only"], self.release):
            if self.engine.prompt_only:
                reason = f"vLLM {self.release} stores generated text as well and has no key against it"
                remedy = "declare offload_prompt_only: false, or use vLLM 0.23 or later"
                self.fail("generated-text", f"{where}.offload_prompt_only", reason, remedy)
            return
        if extra.get("offload_prompt_only", True) is not self.engine.prompt_only:
            reason = "it says {}, declared is {}".format(
                *(
                    "only prompts" if flag else "answers too"
                    for flag in (extra.get("offload_prompt_only", True), self.engine.prompt_only)
                )
            )
            self.fail("generated-text", f"{where}.offload_prompt_only", reason, "make the two agree")

    def pressure(self, value: Any, where: str, tier: str = "-") -> None:
        if value is None:
            return
        value = self.mapping(value, where, tier)
        self.keys(value, table.BACKPRESSURE, where, tier)
        for key in ("backpressure_cls", "policy_cls"):
            if isinstance(value.get(key), str) and "." in value[key]:
                self.module(value[key].rpartition(".")[0], f"{where}.{key}", tier)

    # Tiers

    def tier(self, tier: Any, where: str) -> None:
        tier = self.mapping(tier, where)
        kind = tier.get("type")
        span = table.TIER_TYPES.get(kind) if isinstance(kind, str) else None
        if tier.get("module_path") is not None:
            self.module(tier["module_path"], f"{where}.module_path")
        if span is None and tier.get("module_path") in self.engine.allow_modules and self.engine.allow_modules:
            self.unknown("unjudged-connector", f"{where}.type", "an out-of-tree tier", "waive KV-13 with a reason")
            return
        if span is None or kind == "example":
            names = ", ".join(name for name in table.known(table.TIER_TYPES, self.release) if name != "example")
            self.fail("tier-type", f"{where}.type", f"{show(kind, 30)} is no type of tier", f"choose one of {names}")
            return
        if not within(span, self.release):
            names = ", ".join(name for name in table.known(table.TIER_TYPES, self.release) if name != "example")
            reason = f"vLLM {self.release} has no tier {kind}, only {table.span_text(span)}"
            self.fail("tier-type", f"{where}.type", reason, f"it has {names}")
            return
        name = self.declared_name(kind, tier)
        self.keys(tier, {**table.EVERY_TIER, **table.TIER_KEYS[kind]}, where, name)
        for key in table.REQUIRED.get(kind, ()):
            if tier.get(key) is None:
                self.fail("missing-key", f"{where}.{key}", "the engine does not start without it", "give it", name)
        self.pressure(tier.get("backpressure"), f"{where}.backpressure", name)
        if kind in ("fs", "fs_python"):
            self.fs(tier, where, name)
        elif kind == "obj":
            self.obj(tier, where, name)
        elif kind == "p2p":
            self.p2p(tier, where, name)
        else:
            self.kvcr(tier, where, name)

    def declared_name(self, kind: str, tier: dict[str, Any]) -> str:
        """The data map's name of a tier, for the messages."""
        for one in self.engine.tiers or ():
            if kind in ("fs", "fs_python") and one["path"] and one["path"] == tier.get("root_dir"):
                return str(one["name"])
            store = tier.get("store_config")
            if not isinstance(store, dict) or kind != "obj" or one["store"] != "vllm_obj":
                continue
            if one["bucket"] == store.get("bucket"):
                return str(one["name"])
        return "-"

    def place(self, path: Any, stores: Sequence[str], key: str, what: str = "it is", tier: str = "-") -> None:
        """A directory that must be one of the data map's."""
        if self.engine.tiers is None:
            self.unknown("undeclared-place", key, "there is no data map to compare it with", "give the data map")
            return
        declared = [
            one for one in self.engine.tiers if one["store"] in stores and one["state"] in ("present", "planned")
        ]
        if isinstance(path, str) and any(os.path.normpath(path) == one["path"] for one in declared if path):
            return
        names = ", ".join("{} ({})".format(one["path"], one["name"]) for one in declared) or "none"
        reason = f"{what} {show(path, 80)}, which is no {' or '.join(stores)} tier of the data map"
        self.fail("undeclared-place", key, reason, f"declare it in llmhost_tiers, or use a declared one: {names}", tier)

    def fs(self, tier: dict[str, Any], where: str, name: str) -> None:
        self.place(tier.get("root_dir"), ("vllm_fs",), f"{where}.root_dir", tier=name)
        model = self.engine.model
        if isinstance(model, str) and model.startswith("."):
            reason = f"the model {show(model, 60)} makes directories that begin with a dot, which scans pass over"
            self.fail("hidden-model", "model", reason, "give the model's absolute path or its repository name", name)
        if within(table.COMPILED_WRITER, self.release):
            needed = table.COMPILED_WRITER_PYTHON
            text = ".".join(map(str, needed))
            remedy = f"run the engine with Python {text} or later, or without this tier"
            if self.engine.python is None:
                self.unknown("old-python", f"{where}.type", "the engine's Python is unknown", remedy, name)
            elif self.engine.python < needed:
                reason = "the compiled writer loses a reference to None at every call, which ends Python {}.{}".format(
                    *self.engine.python
                )
                self.fail("old-python", f"{where}.type", reason, remedy, name)

    def obj(self, tier: dict[str, Any], where: str, name: str) -> None:
        where = f"{where}.store_config"
        store = self.mapping(tier.get("store_config") or {}, where, name)
        self.keys(store, table.STORE_CONFIG, where, name)
        for key in ("bucket", "endpoint_override"):
            if not store.get(key):
                self.fail("missing-key", f"{where}.{key}", "the engine does not start without it", "give it", name)
        for key in _CREDENTIALS:
            if store.get(key):
                reason = "everybody who lists processes can read it"
                remedy = "leave it out and give the engine a credentials file (AWS_SHARED_CREDENTIALS_FILE)"
                self.fail("inline-credentials", f"{where}.{key}", reason, remedy, name)
        if not within(table.OBJ_WITHOUT_INLINE_KEYS, self.release):
            reason = f"vLLM {self.release} takes credentials from its settings only"
            remedy = f"use {table.span_text(table.OBJ_WITHOUT_INLINE_KEYS)}"
            self.fail("inline-credentials", where, reason, remedy, name)
        self.endpoint(store, where, name)
        if self.engine.tiers is None:
            self.unknown(
                "undeclared-place", where, "there is no data map to compare it with", "give the data map", name
            )
            return
        for one in self.engine.tiers:
            same = one["store"] == "vllm_obj" and one["bucket"] == store.get("bucket")
            if same and (one["prefix"] or "") == (tier.get("prefix") or ""):
                return
        reason = f"bucket {show(store.get('bucket'), 70)} with this prefix is no vllm_obj tier of the data map"
        self.fail("undeclared-place", f"{where}.bucket", reason, "declare it in llmhost_tiers", name)

    def endpoint(self, store: dict[str, Any], where: str, name: str) -> None:
        endpoint = store.get("endpoint_override") or ""
        match = _ENDPOINT.fullmatch(endpoint) if isinstance(endpoint, str) else None
        if match is None:
            if endpoint:
                reason = "it is no plain URL of a host and a port"
                self.fail("value", f"{where}.endpoint_override", reason, "write https://HOST[:PORT]", name)
            return
        if is_loopback(match.group(2)):
            return
        scheme, remedy = store.get("scheme", "http"), "write scheme: https and an https endpoint"
        if scheme != "https":
            default = "" if "scheme" in store else ", the engine's default,"
            reason = f"scheme {show(scheme, 20)}{default} sends blocks in clear to {match.group(2)}"
            self.fail("http-endpoint", f"{where}.scheme", reason, remedy, name)
        elif match.group(1) == "http":
            reason = f"blocks go in clear to {match.group(2)}"
            self.fail("http-endpoint", f"{where}.endpoint_override", reason, remedy, name)

    def p2p(self, tier: dict[str, Any], where: str, name: str) -> None:
        self.declared("vllm_p2p", where, name)
        host = tier.get("host")
        if is_every(host) or (host is None and within(table.P2P_BINDS_ALL, self.release)):
            default = f", which is what vLLM {self.release} does without it" if host is None else ""
            reason = f"peers are asked for no key, and it listens on every address{default}"
            self.fail("open-peer", f"{where}.host", reason, "give the one address that the peers use", name)

    def kvcr(self, tier: dict[str, Any], where: str, name: str) -> None:
        host = tier.get("control_host")
        if host is None or is_every(host):
            default = ", which is its default" if host is None else ""
            reason = f"peers are asked for no key, and it listens on every address{default}"
            self.fail("open-peer", f"{where}.control_host", reason, "give the one address that the peers use", name)
        policy = tier.get("policy")
        if isinstance(policy, str) and "." in policy:
            self.module(policy.rpartition(".")[0], f"{where}.policy", name)
        if tier.get("g3") is not None:
            g3 = self.mapping(tier["g3"], f"{where}.g3", name)
            for path in g3.get("paths") or ["-"]:
                self.place(os.path.dirname(str(path)), ("kvcr",), f"{where}.g3.paths", "its directory is", name)

    def declared(self, store: str, where: str, name: str) -> None:
        """A tier without files must stand in the data map all the same."""
        if self.engine.tiers is not None and not any(one["store"] == store for one in self.engine.tiers):
            reason = f"the data map has no {store} tier"
            self.fail("undeclared-place", f"{where}.type", reason, "declare it in llmhost_tiers", name)

    # Around the connector

    def open_events(self, key: str, more: str) -> None:
        reason = f"events tell which blocks were asked for, to everybody who connects; {more}"
        self.fail("open-events", key, reason, "write tcp://127.0.0.1:PORT or ipc:///run/NAME")

    def events(self, config: Any) -> None:
        if config is None:
            return
        config = self.mapping(config, "kv-events-config")
        self.keys(config, table.EVENTS, "kv-events-config")
        if not config.get("enable_kv_cache_events") and config.get("publisher") != "zmq":
            return
        endpoint = config.get("endpoint", table.EVENTS_DEFAULT_ENDPOINT)
        if not is_local_endpoint(endpoint):
            default = " is the default" if "endpoint" not in config else " is not loopback"
            self.open_events("kv-events-config.endpoint", show(endpoint, 60) + default)
        replay = config.get("replay_endpoint")
        if replay is not None and not is_local_endpoint(replay):
            self.open_events("kv-events-config.replay_endpoint", show(replay, 60) + " is not loopback")

    def naming(self) -> None:
        algorithm = self.engine.hash_algorithm
        if algorithm in table.WEAK_HASHES:
            reason = f"{algorithm} is not collision resistant: a tenant can make another's blocks collide with its own"
            self.fail("weak-hash", "prefix-caching-hash-algo", reason, "use sha256 (the default) or sha256_cbor")
        elif algorithm is not None and algorithm not in table.HASHES:
            reason = f"{show(algorithm, 30)} is no hash algorithm of vLLM"
            self.fail("value", "prefix-caching-hash-algo", reason, "use sha256 (the default) or sha256_cbor")
        if self.engine.hash_seed is not None and self.engine.hash_seed != "0":
            reason = (
                "it holds 32 bits at most, which one known prompt and a few hours give away, and stands in the "
                "environment of the process; `random` is a constant, the engine hashes the word"
            )
            remedy = "let the gateway set a cache_salt for each tenant; 0 is allowed, it claims nothing"
            self.fail("seed-as-secret", "PYTHONHASHSEED", reason, remedy)


def judge(config: Any, engine: Engine) -> list[Finding]:
    """Everything that is wrong with a kv-transfer-config (None: there is none) and what stands around it."""
    release = table.release_of(engine.version)
    if release is None:
        # What no release ever may do is told all the same, as the newest known one would take it.
        worst = [one for one in _judge(config, engine, table.NEWEST) if one.code in _ALWAYS]
        remedy = (
            f"name the version, use a release from {table.RELEASES[0]} to {table.NEWEST}, or update this collection"
        )
        return [Finding(UNKNOWN, "unknown-version", "version", table.why_unknown(engine.version), remedy), *worst]
    return _judge(config, engine, release)


# Wrong whatever the release is.
_ALWAYS = {
    "http-endpoint",
    "inline-credentials",
    "outside-import",
    "denied-connector",
    "custom-save-path",
    "open-events",
    "open-peer",
    "weak-hash",
    "seed-as-secret",
    "hidden-model",
}


def _judge(config: Any, engine: Engine, release: str) -> list[Finding]:
    judging = _Judge(engine, release)
    if config is not None:
        judging.transfer(config)
    judging.events(engine.events)
    judging.naming()
    return judging.found


def status(findings: Sequence[Finding]) -> str:
    """The control's status: a failure counts more than what is unknown."""
    found = {one.status for one in findings}
    return FAIL if FAIL in found else UNKNOWN if UNKNOWN in found else PASS
