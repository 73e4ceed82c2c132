# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The words in which offload settings are judged: engines, findings and their codes, addresses."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from .datamap import Tier
from .mapkeys import is_loopback


class Finding(NamedTuple):
    """One thing that is wrong (FAIL) or that nobody here can judge (UNKNOWN). code: stable, one for each kind."""

    status: str
    code: str
    key: str
    reason: str
    remedy: str
    tier: str = "-"


@dataclass(frozen=True)
class Engine:
    """What is known about the engine and what its operator declared. python, tiers None: not known."""

    version: str | None
    python: tuple[int, int] | None = None
    tiers: Sequence[Tier] | None = None
    model: str | None = None
    hash_algorithm: str | None = None
    hash_seed: str | None = None
    events: Any = None
    prompt_only: bool = True
    several_tenants: bool = True
    allow_modules: tuple[str, ...] = ()


class Told(NamedTuple):
    """What a command line and its unit say of how an engine names its blocks."""

    model: str | None = None
    hash_algorithm: str | None = None
    hash_seed: str | None = None


NOTHING_TOLD = Told()
# What each code refuses; docs/engine-settings.md is held against it.
CODES = {
    "unknown-version": "a release whose settings were not read: newer, older, a pre-release, a fork",
    "not-a-mapping": "settings that are not the mapping they must be",
    "unknown-key": "a key that this release does not have: it ends the start, or is ignored in silence",
    "tier-type": "a tier type that this release does not have",
    "missing-key": "a key that the engine or its safety needs",
    "value": "a value that the engine takes for something else, or refuses at start",
    "http-endpoint": "an object endpoint without TLS that is not on loopback",
    "inline-credentials": "credentials in the settings, which stand in the arguments of the process",
    "outside-import": "a module that is imported by name and is not on the allowlist",
    "denied-connector": "a connector that ignores salts or dies when a block is deleted",
    "unjudged-connector": "a connector whose settings are not known here",
    "custom-save-path": "a path on the server that the client chooses",
    "open-events": "KV events on other than loopback or ipc: they tell what was asked",
    "open-peer": "a peer port on every address, without authentication",
    "weak-hash": "block names by a hash that is not collision resistant",
    "seed-as-secret": "PYTHONHASHSEED as a secret, which it is not",
    "undeclared-place": "blocks outside the tiers of the data map",
    "hidden-model": "a model path that makes hidden directories of blocks",
    "old-python": "the compiled writer under a Python that it ends",
    "open-memory": "the memory tier's file in /dev/shm open to others",
    "unread-settings": "settings that stand where they cannot be read",
    "generated-text": "generated text is stored, or not, against what was declared",
}


def is_every(host: Any) -> bool:
    """Does binding that address open the port on every interface?"""
    if host in ("", "*", "0"):
        return True
    try:
        return isinstance(host, str) and ipaddress.ip_address(host.strip("[]")).is_unspecified
    except ValueError:
        return False


def is_local_endpoint(endpoint: Any) -> bool:
    """A ZMQ endpoint that no other machine can reach."""
    if not isinstance(endpoint, str):
        return False
    scheme, _colon, rest = endpoint.partition("://")
    return scheme in ("ipc", "inproc") or (scheme == "tcp" and is_loopback(rest.rpartition(":")[0]))
