# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which of vLLM's endpoints name their blocks by the salt, by version."""

from __future__ import annotations

import re
from typing import NamedTuple

Version = tuple[int, int]

# What was read or run; between two of these nothing is known to have taken the salt away.
OLDEST: Version = (0, 22)
NEWEST: Version = (0, 32)


class Endpoint(NamedTuple):
    """An endpoint that takes the salt: since when, since when it can be told to store nothing, and its default."""

    since: Version
    no_persist: Version | None
    default: bool = True


# The first version whose kv_transfer_params.max_offload_tokens was read.
NO_PERSIST: Version = (0, 29)
_POOLING = Endpoint(OLDEST, None)
ENDPOINTS = {
    "/v1/chat/completions": Endpoint(OLDEST, NO_PERSIST),
    "/v1/completions": Endpoint(OLDEST, NO_PERSIST),
    "/v1/embeddings": _POOLING,
    "/pooling": _POOLING,
    "/classify": _POOLING,
    "/score": _POOLING,
    "/v1/score": _POOLING,
    "/rerank": _POOLING,
    "/v1/rerank": _POOLING,
    "/v2/rerank": _POOLING,
    "/v1/messages": Endpoint((0, 29), NO_PERSIST),
    "/v1/responses": Endpoint(OLDEST, NO_PERSIST, default=False),
}

_IGNORES = "the engine ignores cache_salt there"
_MULTIPART = "its body is no JSON object, so no salt can be given to it"
# Why an endpoint is never opened.
CLOSED = {
    "/v1/chat/completions/batch": "its salt is checked for each conversation only, and it has no opt-out from storing",
    "/v2/embed": _IGNORES,
    "/generative_scoring": _IGNORES,
    "/cohere/v2/chat": _IGNORES,
    "/v1/audio/transcriptions": _MULTIPART,
    "/v1/audio/translations": _MULTIPART,
    "/v1/realtime": _MULTIPART,
    "/inference/v1/generate": "sampling_params.extra_args and features.mm_hashes reach other requests' blocks",
    "/invocations": "it stands for every other endpoint, the ones that ignore the salt too",
    "/v1/load_lora_adapter": "an adapter's name is a salt of its own in older versions",
    "/v1/unload_lora_adapter": "it changes the engine for every tenant",
    "/tokenize": "it needs no salt and tells the chat template",
    "/detokenize": "it needs no salt and is no tenant's business",
    "/slots": "llama.cpp: it restores any file of the slot directory for any client",
    "/metrics": "it shows every tenant's traffic; scrape the engine itself",
}
# Prompts that are longer than the model's context are cut into chunks without the salt before this version.
CHUNKED_EMBEDDINGS: Version = (0, 32)
TOOL_TURNS = "follow-up turns of its built-in tools are named without the salt"


def parse_version(text: str) -> Version | None:
    """Major and minor of a vLLM version, None if it is none."""
    match = re.fullmatch(r"(\d{1,4})\.(\d{1,4})(?:\.\d{1,4})?(?:(?:rc|\.post|\.dev)\d+)?(?:\+[A-Za-z0-9.]+)?", text)
    return (int(match.group(1)), int(match.group(2))) if match else None


def version_problem(text: str) -> str | None:
    """Why nothing may be opened for this version, None if something may."""
    version = parse_version(text)
    if version is None:
        return f"{text!r} is no version of vLLM"
    if version < OLDEST:
        return "this version is older than any whose endpoints were checked (%d.%d)" % OLDEST
    if version > NEWEST:
        return "this version is newer than any whose endpoints were checked (%d.%d)" % NEWEST
    return None


def defaults(text: str) -> list[str]:
    """The endpoints that are opened for a version if nobody names any."""
    version = parse_version(text) or (0, 0)
    return [path for path, endpoint in ENDPOINTS.items() if endpoint.default and endpoint.since <= version]


def can_skip_store(path: str, text: str) -> bool:
    """True if a request to this endpoint can be kept from being stored."""
    first = ENDPOINTS[path].no_persist
    return first is not None and first <= (parse_version(text) or (0, 0))


def path_problem(path: str, text: str, no_tool_server: bool) -> str | None:
    """Why this path may not be opened for this version, None if it may."""
    if path.endswith(("/render", "/derender")):
        return "its answer holds the salt"
    if path.startswith("/slots"):
        return CLOSED["/slots"]
    if path in CLOSED:
        return CLOSED[path]
    endpoint = ENDPOINTS.get(path)
    if endpoint is None:
        return "nobody checked whether the engine takes the salt there"
    if endpoint.since > (parse_version(text) or (0, 0)):
        return "vLLM {} ignores cache_salt there; {}.{} is the first that does not".format(text, *endpoint.since)
    if path == "/v1/responses" and not no_tool_server:
        return TOOL_TURNS
    return None
