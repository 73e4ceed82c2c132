# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Can whoever lists a store recognise a known prompt prefix? Looks for names only, reads no block."""

from __future__ import annotations

import errno
import http.client
import json
import os
import stat
import urllib.error
import urllib.request
from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import urlsplit

from . import fsio
from .mapkeys import is_loopback
from .stores_places import block_of_key, block_place, is_namespace

_ANSWER = 1 << 24
_TIMEOUT = 30
# A directory that went away, or a symlink or file where one belongs: no block of the engine's lies there.
_NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


def in_keys(wanted: Sequence[str], keys: Iterable[str]) -> list[bool]:
    """Which of the wanted names stand in a listing of paths or object keys."""
    return in_names(wanted, map(block_of_key, keys))


def in_names(wanted: Sequence[str], names: Iterable[str | None]) -> list[bool]:
    """Which of the wanted names stand in others, of which no more is read than needed."""
    missing, there = set(wanted), set()
    for name in names:
        if name in missing:
            missing.discard(name)
            there.add(name)
            if not missing:
                break
    return [name in there for name in wanted]


def in_directory(wanted: Sequence[str], root: str) -> list[bool]:
    """Which of the wanted names are files of blocks below a tier's root, in any namespace and group."""
    with fsio.opened(root) as top:
        spaces = [name for name in sorted(os.listdir(top)) if is_namespace(name)]
        return [any(_has(top, space, name) for space in spaces) for name in wanted]


def _has(top: int, space: str, block: str) -> bool:
    """Does a namespace hold a block? Symlinks are never followed: the tree is not ours."""
    first, second, file = block_place(block)
    opened: list[int] = []
    try:
        opened.append(os.open(space, fsio.OPEN_DIR, dir_fd=top))
        opened.append(os.open(first, fsio.OPEN_DIR, dir_fd=opened[0]))
        groups = [name for name in os.listdir(opened[1]) if name.startswith(second)]
        return any(_is_file(f"{group}/{file}", opened[1]) for group in groups)
    except OSError as error:
        if error.errno in _NOT_THERE:
            return False
        raise
    finally:
        for fd in opened:
            os.close(fd)


def _is_file(path: str, at: int) -> bool:
    """A regular file two levels down, reached through no symlink."""
    directory, name = path.split("/")
    try:
        fd = os.open(directory, fsio.OPEN_DIR, dir_fd=at)
    except OSError as error:
        if error.errno in _NOT_THERE:
            return False
        raise
    try:
        return stat.S_ISREG(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False
    finally:
        os.close(fd)


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
