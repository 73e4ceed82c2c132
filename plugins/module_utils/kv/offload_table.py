# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Store registry, part: which offload settings each vLLM release knows.

Every entry was read in the releases' own wheels on PyPI; tests/tools/claims.json is what was read, and a test holds the
two against each other. A span names the releases that know a thing: `0.23.0-` is to the newest of the table. A release
that is not in RELEASES was not read, so nobody knows what it accepts.
"""

from __future__ import annotations

import re
from functools import cache

RELEASES = tuple(
    "0.22.0 0.22.1 0.23.0 0.24.0 0.25.0 0.25.1 0.26.0 0.27.0 0.27.1 0.28.0 0.29.0 0.30.0 0.31.0 0.32.0 0.33.0".split()
)
NEWEST = RELEASES[-1]

Spans = dict[str, str]


def _all(span: str, names: str) -> Spans:
    return dict.fromkeys(names.split(), span)


# v1/kv_offload/tiering/factory.py
TIER_TYPES: Spans = {
    "example": "0.22.0-",
    "fs_python": "0.22.0-0.22.1",
    "fs": "0.23.0-",
    "obj": "0.23.0-",
    "p2p": "0.25.0-",
    "kvcr": "0.30.0-",
}
# The constructors of the tiers, v1/kv_offload/tiering/*/manager.py
TIER_KEYS: dict[str, Spans] = {
    "example": {"custom_param": "0.22.0-", "backpressure": "0.31.0-"},
    "fs_python": _all("0.22.0-0.22.1", "root_dir n_read_threads n_write_threads"),
    "fs": {
        **_all("0.23.0-", "root_dir n_read_threads n_write_threads"),
        **_all("0.26.0-", "enable_kv_events locality"),
        "backpressure": "0.31.0-",
    },
    "obj": {
        **_all("0.23.0-", "store_config prefix io_threads"),
        **_all("0.26.0-", "enable_kv_events locality"),
        "backpressure": "0.31.0-",
    },
    "p2p": {
        **_all("0.25.0-", "host port backends num_threads"),
        "unbound_store_timeout_s": "0.30.0-",
    },
    "kvcr": {
        **_all(
            "0.30.0-",
            "router_capabilities control_host control_ports control_advertise_host eager_ctrl_connect "
            "opportunistic_query enable_telemetry operation_timeout_ms abandon_timeout_ms metadata_retry_interval_ms "
            "secondary_g2_slots kvcr_service_socket_path compatibility_digest policy g3 local_dram_backend "
            "remote_fw_dram_backend",
        ),
        "backpressure": "0.32.0-",
    },
}
# What the factory takes out of every tier's entry
EVERY_TIER: Spans = {"type": "0.22.0-", "module_path": "0.28.0-"}
REQUIRED = {"fs_python": ("root_dir",), "fs": ("root_dir",), "obj": ("store_config",)}
# v1/kv_offload/tiering/obj/config.py
STORE_CONFIG: Spans = {
    **_all("0.23.0-", "bucket endpoint_override access_key secret_key scheme ca_bundle"),
    **_all("0.26.0-", "region session_token"),
}
# Before, the engine has no other way to get them than out of its configuration.
OBJ_WITHOUT_INLINE_KEYS = "0.26.0-"
# v1/kv_offload/tiering/backpressure.py
BACKPRESSURE: Spans = {
    **_all(
        "0.31.0-",
        "backpressure_cls policy_cls high_water_s low_water_s alpha warmup_completions decay_half_life_s cooldown_s",
    ),
    "failure_threshold": "0.33.0-",
}
# kv_connector_extra_config of OffloadingConnector
EXTRA: Spans = {
    **_all(
        "0.22.0-",
        "spec_name spec_module_path cpu_bytes_to_use block_size eviction_policy secondary_tiers store_threshold "
        "max_tracker_size",
    ),
    "offload_prompt_only": "0.23.0-",
    "self_describing_kv_events": "0.24.0-",
    "blocks_per_chunk": "0.26.0-",
    "cache_policy_module_path": "0.27.0-",
    "canonical_layout": "0.28.0-",
    "enable_telemetry": "0.30.0-",
    "backpressure": "0.31.0-",
    **_all("0.33.0-", "tier_poll_interval_s sync_load_budget_bytes"),
}
# The same of SimpleCPUOffloadConnector
SIMPLE: Spans = {
    **_all("0.22.0-", "cpu_bytes_to_use cpu_bytes_to_use_per_rank lazy_offload"),
    **_all("0.28.0-", "kv_offload_backend disk_path disk_capacity_bytes disk_buffer_slots use_page_cache"),
    "num_cpu_blocks": "0.33.0-",
}
# config/kv_transfer.py
TRANSFER: Spans = {
    **_all(
        "0.22.0-",
        "kv_connector engine_id kv_buffer_device kv_role kv_port kv_connector_extra_config kv_connector_module_path "
        "enable_permute_local_kv kv_load_failure_policy",
    ),
    **_all("0.22.0-0.31.0", "kv_buffer_size kv_rank kv_parallel_size kv_ip"),
}
# config/kv_events.py
EVENTS: Spans = _all(
    "0.22.0-", "enable_kv_cache_events publisher endpoint replay_endpoint buffer_steps hwm max_queue_size topic"
)
EVENTS_DEFAULT_ENDPOINT = "tcp://*:5557"
# kv_transfer_params of a request: the only way to keep one request from being stored
PER_REQUEST: Spans = {
    "do_remote_decode": "0.22.0-0.22.1",
    "max_offload_tokens": "0.23.0-",
    "max_load_tokens": "0.31.0-",
}
SPECS: Spans = _all("0.22.0-", "CPUOffloadingSpec TieringOffloadingSpec")
CONNECTORS: Spans = {
    **_all(
        "0.22.0-",
        "DecodeBenchConnector ExampleConnector ExampleHiddenStatesConnector FlexKVConnectorV1 HF3FSKVConnector "
        "LMCacheConnectorV1 LMCacheMPConnector MoRIIOConnector MooncakeConnector MooncakeStoreConnector MultiConnector "
        "NixlConnector OffloadingConnector SimpleCPUOffloadConnector",
    ),
    "P2pNcclConnector": "0.22.0-0.23.0",
    **_all("0.24.0-", "NixlPullConnector NixlPushConnector"),
    "HiSparseConnector": "0.30.0-",
}
# fs_io_C stores and loads itself from here on; before, it only looks names up, or there is none.
COMPILED_WRITER = "0.27.0-"
# It gives back a reference to None that it never took, at every call; Python 3.12 does not count those of None.
COMPILED_WRITER_PYTHON = (3, 12)
# The tier binds all addresses unless told otherwise.
P2P_BINDS_ALL = "0.25.0-0.25.1"
# The tier ends the start unless PYTHONHASHSEED is set.
P2P_NEEDS_SEED = "0.27.0-0.28.0"
# v1/core/kv_cache_utils.py: seed of the first parent's hash when PYTHONHASHSEED is not set; before, it is random.
SEED = "vllm-none-hash"
SEED_FIXED = "0.29.0-"
# A salt stands in the first block's keys as ("cache_salt", salt); before, as the bare text.
SALT_TAGGED = "0.31.0-"
HASHES = ("sha256", "sha256_cbor")
WEAK_HASHES = ("xxhash", "xxhash_cbor")

_LEADING = re.compile(r"\d{1,4}(?:\.\d{1,4}){0,3}", re.ASCII)
_RELEASE = re.compile(r"(\d{1,4}(?:\.\d{1,4}){1,3})(?:\+[A-Za-z0-9.]{1,40})?", re.ASCII)


def _numbers(release: str) -> tuple[int, ...]:
    numbers = [int(part) for part in release.split(".")]
    while len(numbers) < 3:
        numbers.append(0)
    return tuple(numbers)


def release_of(version: str | None) -> str | None:
    """The release in the table that a version is (`0.29.0+cpu` is 0.29.0), None if the table does not have it.

    A pre-release or a build of a fork's own is none: nobody read what it accepts.
    """
    match = _RELEASE.fullmatch(version or "")
    if match is None:
        return None
    wanted = _numbers(match.group(1))
    return next((release for release in RELEASES if _numbers(release) == wanted), None)


def is_newer(version: str | None) -> bool:
    """Is a version newer than every release that was read?"""
    match = _LEADING.match(version or "")
    return match is not None and _numbers(match.group()) > _numbers(NEWEST)


def why_unknown(version: str | None) -> str:
    """Why the table says nothing about a version."""
    if not version:
        return "the engine's version is unknown"
    if is_newer(version):
        return f"vLLM {version[:40]} is newer than {NEWEST}, the newest that was read"
    match = _RELEASE.fullmatch(version)
    if match is None:
        return f"vLLM {version[:40]} is no release that was read"
    numbers = _numbers(match.group(1))
    if numbers < _numbers(RELEASES[0]):
        return f"vLLM {version} is older than {RELEASES[0]}, the first with tiers"
    return f"vLLM {version} is not among the releases that were read"


@cache
def _span(text: str) -> frozenset[str]:
    first, dash, last = text.partition("-")
    start = RELEASES.index(first)
    end = RELEASES.index(last) if last else len(RELEASES) - 1 if dash else start
    return frozenset(RELEASES[start : end + 1])


def within(span: str, release: str) -> bool:
    """Does a span cover a release of the table?"""
    return release in _span(span)


def known(spans: Spans, release: str) -> list[str]:
    """The names that a release knows."""
    return [name for name, span in spans.items() if within(span, release)]


def span_text(span: str) -> str:
    """A span for people."""
    first, _dash, last = span.partition("-")
    return f"vLLM {first} to {last}" if last else f"vLLM {first} and later"
