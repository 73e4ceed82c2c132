# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A text's tokens from the engine's own tokenizer endpoint."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import urlsplit

from .mapkeys import is_loopback

_ANSWER = 1 << 24
_TIMEOUT = 30


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A prompt goes where it was told to go and nowhere else."""

    def redirect_request(self, *_arguments: Any, **_more: Any) -> None:
        return None


def tokenize(url: str, text: str, model: str | None = None) -> list[int]:
    """Token ids of a text by the engine's own tokenizer endpoint (vLLM: POST /tokenize); ValueError if it has none.

    Plain http only on loopback: the text would travel in clear.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username:
        raise ValueError("the tokenizer's URL is no http or https URL of a host")
    if parts.scheme == "http" and not is_loopback(parts.hostname):
        raise ValueError(f"the text would travel in clear to {parts.hostname}: use https, or http on loopback")
    body = {"prompt": text, **({"model": model} if model else {})}
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)  # noqa: S310  http and https only, above
    try:
        # Through no proxy: the environment's would be another party.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect())
        with opener.open(request, timeout=_TIMEOUT) as answer:
            document = json.loads(answer.read(_ANSWER))
    except (OSError, http.client.HTTPException, ValueError, RecursionError) as error:
        raise ValueError(f"the tokenizer at {parts.hostname} did not answer: {error}") from error
    tokens = document.get("tokens") if isinstance(document, dict) else None
    if not isinstance(tokens, list) or not all(isinstance(token, int) and token >= 0 for token in tokens):
        raise ValueError("the tokenizer's answer has no list of tokens")
    return tokens
