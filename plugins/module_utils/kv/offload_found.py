# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Offload settings as a running vLLM was given them: out of its arguments and the file that --config names. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from .arguments import option_name, set_at
from .judge import FAIL, UNKNOWN
from .offload_model import Finding
from .offload_units import SECRET_OPTIONS

_TRANSFER, _EVENTS = "--kv-transfer-config", "--kv-events-config"
_SIZE, _BACKEND, _HASH, _MODEL = (
    "--kv-offloading-size",
    "--kv-offloading-backend",
    "--prefix-caching-hash-algo",
    "--model",
)
_OURS = (_TRANSFER, _EVENTS, _SIZE, _BACKEND, _HASH)
_WORDS = re.compile(r"kv[-_](?:transfer|events|offloading)|prefix[-_]caching[-_]hash", re.ASCII)


@dataclass
class Settings:
    """What a process was told. transfer None: nothing is offloaded."""

    transfer: Any = None
    events: Any = None
    hash_algorithm: str | None = None
    model: str | None = None
    found: list[Finding] = field(default_factory=list)

    @property
    def offloads(self) -> bool:
        """Was it told anything that the control judges?"""
        return self.transfer is not None or self.events is not None or bool(self.found)


def config_file(words: Sequence[str]) -> str | None:
    """The file that --config names."""
    for number, word in enumerate(words):
        if word == "--config" and number + 1 < len(words):
            return words[number + 1]
        if word.startswith("--config="):
            return word.partition("=")[2]
    return None


def _value(text: Any) -> Any:
    try:
        return json.loads(text)
    except (TypeError, ValueError, RecursionError):
        return text


def _from_file(text: str | None, given: dict[str, Any], settings: Settings, path: str) -> None:
    """Settings of the file: JSON as we write it. YAML of another hand is only searched for words."""
    if text is None:
        reason = f"{path} cannot be read"
        settings.found.append(Finding(UNKNOWN, "unread-settings", "--config", reason, "run the audit as root"))
        return
    try:
        document = json.loads("\n".join(line for line in text.splitlines() if not line.startswith("#")))
    except (ValueError, RecursionError):
        document = None
    if isinstance(document, dict):
        given.update({option_name("--" + str(key)): value for key, value in document.items()})
    elif _WORDS.search(text):
        reason = f"{path} has offload settings in YAML, which this host's Python cannot read"
        remedy = "let the role engine_offload write them"
        settings.found.append(Finding(UNKNOWN, "unread-settings", "--config", reason, remedy))


def settings_of(words: Sequence[str], config: str | None = None) -> Settings:
    """What a command line says. config: the text of the file that --config names, None if it cannot be read."""
    settings = Settings()
    given: dict[str, Any] = {}
    path = config_file(words)
    if path is not None:
        _from_file(config, given, settings, path)
    for number, word in enumerate(words):
        name, equals, value = option_name(word), "=" in word, word.partition("=")[2]
        following = value if equals else words[number + 1] if number + 1 < len(words) else ""
        if name in SECRET_OPTIONS:
            reason = "everybody who lists processes can read it"
            remedy = "give it by a file or a systemd credential"
            settings.found.append(Finding(FAIL, "inline-credentials", name, reason, remedy))
        elif name in (*_OURS, _MODEL):
            given[name] = _value(following)
        elif name.startswith((_TRANSFER + ".", _EVENTS + ".")):
            option, _dot, rest = name.partition(".")
            given[option] = set_at(given.get(option), rest, _value(following))
        elif word == "serve" and following and not following.startswith("-"):
            given.setdefault(_MODEL, following)
    settings.transfer, settings.events = given.get(_TRANSFER), given.get(_EVENTS)
    if settings.transfer is None and given.get(_SIZE) is not None:
        settings.transfer = _short_form(given)
    for name, key in ((_HASH, "hash_algorithm"), (_MODEL, "model")):
        if given.get(name) is not None:
            setattr(settings, key, str(given[name]))
    return settings


def _short_form(given: dict[str, Any]) -> dict[str, Any]:
    """What --kv-offloading-size and its backend stand for: memory alone."""
    if given.get(_BACKEND) == "lmcache":
        return {"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}
    extra = {"cpu_bytes_to_use": 1}
    return {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": extra}
