# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files that hold the API keys of engines, as their command lines name them: looked at, no key is kept."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence
from typing import NamedTuple

from . import fsio
from .arguments import option


class KeyFile(NamedTuple):
    """A file that holds a key: why it cannot be used (None: it can), and whether a key stands in it."""

    problem: str | None
    key: bool = False


# Options that name one.
_KEY_FILES = {"llamacpp": ("--api-key-file",), "sglang": ("--config",)}
_SGLANG_KEY = re.compile(r"^(?:admin[-_])?api[-_]key[ \t]*:[ \t]*(?!\"\"|'')[^\s#]", re.MULTILINE)


def files_of(words: Sequence[str], engine: str) -> dict[str, KeyFile]:
    """The files with keys that a command line names, looked at on this host. No key is kept."""
    named = {name: option(words, name) for name in _KEY_FILES.get(engine, ())}
    return {name: _key_file(name, path) for name, path in named.items() if path is not None}


def _key_file(name: str, path: str) -> KeyFile:
    if not path.startswith("/"):
        return KeyFile("it is named by no absolute path")
    try:
        info = os.stat(path)
        held = fsio.read_small(os.path.realpath(path)).decode("utf-8", "replace")
    except FileNotFoundError:
        return KeyFile("it does not exist")
    except (OSError, fsio.UnsafePath) as error:
        return KeyFile(f"it cannot be read: {error}")
    key = bool(_SGLANG_KEY.search(held))
    if info.st_mode & 0o007 and (key or name != "--config"):
        return KeyFile(f"everybody on the host can open it ({stat.S_IMODE(info.st_mode):04o})", key)
    return KeyFile(None, key)
