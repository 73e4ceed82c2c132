# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the modules which ask a bucket are told: connection, keys and policy, checked before anything is sent."""

from __future__ import annotations

import re
from typing import Any

from ..kv.mapkeys import MAX_MINUTES
from . import arithmetic, merge
from .client import Settings
from .judge import Policy
from .keys import Keys
from .proof import printable

CONNECTION: dict[str, dict[str, Any]] = {
    "bucket": {"type": "str", "required": True},
    "endpoint": {"type": "str"},
    "region": {"type": "str", "default": "us-east-1"},
    "path_style": {"type": "bool", "default": True},
    "ca_bundle": {"type": "path"},
    "profile": {"type": "str"},
    "credentials_file": {"type": "path"},
    "access_key": {"type": "str", "no_log": True},
    "secret_key": {"type": "str", "no_log": True},
    "session_token": {"type": "str", "no_log": True},
    "timeout": {"type": "int", "default": 30},
}
KEYS: dict[str, dict[str, Any]] = {
    "tier": {"type": "str"},
    "prefix": {"type": "str"},
    "key_prefix": {"type": "str", "no_log": False},
    "store": {"type": "str"},
}
RULES: dict[str, dict[str, Any]] = {
    "id_prefix": {"type": "str", "default": merge.ID_PREFIX},
    "lag_minutes": {"type": "int", "default": arithmetic.DEFAULT_LAG},
    "max_seconds": {"type": "int", "default": 60},
}
ONE_OF = [("prefix", "key_prefix")]
TOGETHER = [("access_key", "secret_key")]

_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,253}[A-Za-z0-9]", re.ASCII)
_ENDPOINT = re.compile(r"https?://(?:[A-Za-z0-9.-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::\d{1,5})?(?:/[A-Za-z0-9._~/-]*)?")
_REGION = re.compile(r"[A-Za-z0-9-]{1,64}", re.ASCII)
_ID = re.compile(r"[A-Za-z0-9._-]{1,60}", re.ASCII)


class BadOption(Exception):
    """An option that cannot be; the text names it, why, and what to write instead."""

    def __init__(self, option: str, reason: str, fix: str) -> None:
        super().__init__(f"{option}: {reason}. Fix: {fix}.")


def _number(params: dict[str, Any], name: str, low: int, high: int) -> None:
    value = params.get(name)
    if value is not None and not low <= value <= high:
        raise BadOption(name, f"{value} is not from {low} to {high}", "write a number in that range")


def _match(params: dict[str, Any], name: str, pattern: re.Pattern[str], fix: str) -> None:
    value = params.get(name)
    if value is not None and not pattern.fullmatch(value):
        # Never shown: an endpoint may hold credentials.
        raise BadOption(name, "not a usable value", fix)


def check(params: dict[str, Any]) -> None:
    """Every option by itself."""
    _match(params, "bucket", _BUCKET, "write the bucket's name")
    _match(params, "endpoint", _ENDPOINT, "write https://HOST[:PORT] without credentials")
    _match(params, "region", _REGION, "write letters, digits and -")
    _match(params, "id_prefix", _ID, "write 1 to 60 letters, digits and ._-")
    _number(params, "timeout", 1, 600)
    _number(params, "retention_minutes", 1, MAX_MINUTES)
    _number(params, "lag_minutes", 0, arithmetic.MAX_LAG)
    _number(params, "grace_minutes", 0, arithmetic.MAX_LAG)
    _number(params, "max_entries", 1, 10**9)
    _number(params, "max_seconds", 1, 86400)
    _number(params, "sweep_interval_minutes", 1, 1440)
    for name in ("prefix", "key_prefix"):
        value = params.get(name)
        if value is not None and (not value.isprintable() or len(value.encode()) > 900):
            raise BadOption(name, "not a key prefix", "write the engine's own setting, up to 900 bytes")


def settings(params: dict[str, Any]) -> Settings:
    return Settings(**{name: params[name] for name in CONNECTION})


def keys(params: dict[str, Any]) -> Keys:
    try:
        return Keys(params["prefix"], params["store"], params["key_prefix"])
    except ValueError as error:
        raise BadOption("store", str(error), "correct or leave it out") from None


def policy(params: dict[str, Any]) -> Policy:
    return Policy(params["retention_minutes"], params["lag_minutes"], params.get("grace_minutes") or 0)


def where(params: dict[str, Any]) -> str:
    """How a message names the bucket."""
    tier = f"tier {params['tier']}, " if params.get("tier") else ""
    endpoint = params["endpoint"] or "AWS"
    if params["endpoint"] and not _ENDPOINT.fullmatch(endpoint):
        # It may hold credentials.
        endpoint = "an endpoint that is none"
    return f"{tier}bucket {printable(params['bucket'], 100)} at {endpoint}"
