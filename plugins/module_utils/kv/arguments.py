# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""An engine's command line: whose it is, and what stands behind its options. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

# Of a dotted option: anybody can start a process with a longer one.
_DEEPEST = 32


def is_server(words: Sequence[str]) -> bool:
    """Does a command line start vLLM's server?"""
    programs = any(word.rpartition("/")[2] == "vllm" for word in words[:3])
    return (programs and "serve" in words) or any("vllm.entrypoints" in word for word in words[:6])


def option(words: Sequence[str], *names: str) -> str | None:
    """The last value of an option in a command line; "" if it stands there without one."""
    found = None
    for number, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name in names:
            following = words[number + 1] if number + 1 < len(words) else ""
            found = value if equals else "" if following.startswith("-") else following
    return found


def option_name(word: str) -> str:
    """An option's name as vLLM compares it: dashes and underscores are one up to the first dot."""
    head, dot, rest = word.partition("=")[0].partition(".")
    return head.replace("_", "-") + dot + rest


def set_at(tree: Any, dotted: str, value: Any) -> dict[str, Any]:
    """tree with value at a dotted path."""
    return _set_at(tree, dotted.split(".", _DEEPEST), value)


def _set_at(tree: Any, path: list[str], value: Any) -> dict[str, Any]:
    changed: dict[str, Any] = dict(tree) if isinstance(tree, dict) else {}
    changed[path[0]] = _set_at(changed.get(path[0]), path[1:], value) if path[1:] else value
    return changed
