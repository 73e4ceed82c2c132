# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The store registry: all that is known about engines that leave KV state on a host, one declarative entry each.

No file but this one and its parts stores_*.py knows a file-name pattern, a layout or an engine version. Adding a store
is adding an entry to a part and a fixture tree in tests/unit. Sources name the version and the file in which a fact
was read or the run that showed it.
"""

from __future__ import annotations

import re

from . import stores_lmcache, stores_other, stores_vllm
from .stores_model import (
    BLOCK,
    CONFIG,
    FROM_SOURCE,
    OBSERVED,
    TEMP,
    Danger,
    Dir,
    Engine,
    File,
    Namespaces,
    Store,
    Version,
)

__all__ = [
    "BLOCK",
    "CACHEDIR_TAG",
    "COMMON_DIRS",
    "COMMON_FILES",
    "CONFIG",
    "ENGINES",
    "FROM_SOURCE",
    "OBSERVED",
    "STORES",
    "TEMP",
    "Danger",
    "Dir",
    "Engine",
    "File",
    "Namespaces",
    "Store",
    "Version",
    "key_prefix",
    "live_safe",
    "parse_version",
]

_PARTS = (stores_vllm, stores_lmcache, stores_other)

ENGINES: dict[str, Engine] = {engine.name: engine for part in _PARTS for engine in part.ENGINES}
STORES: dict[str, Store] = {store.name: store for part in _PARTS for store in part.STORES}

# Names that any tier may have at its root and that no store owns: the file system's own and our tag.
COMMON_DIRS = ("lost+found",)
CACHEDIR_TAG = "CACHEDIR.TAG"
COMMON_FILES = (CACHEDIR_TAG,)

_RELEASE = re.compile(r"\d{1,9}(?:\.\d{1,9})*(?!\.?\d)", re.ASCII)
# What may follow the release (PEP 440): a pre-release, or something that is not older than the release.
_PRE = re.compile(r"(?i)[-_.]?(?:a|b|c|rc|alpha|beta|pre|preview|dev)[-_.]?\d*(?:[-_.].*)?(?:\+.*)?", re.ASCII)
_POST = re.compile(r"(?i)(?:[-_.]?post[-_.]?\d*)?(?:\+.*)?", re.ASCII)


def parse_version(text: str) -> Version | None:
    """Leading numeric release of a version string as a tuple (`0.29.0rc1+cpu` is (0, 29, 0)), None if there is none."""
    match = _RELEASE.match(text)
    return tuple(int(part) for part in match.group().split(".")) if match else None


def live_safe(store: Store, version: str | None) -> bool | None:
    """May blocks of store be deleted under an engine of this version? None: the version is unknown, so nobody knows.

    A pre-release of the first safe version counts as unsafe: its fix may not be in it.
    """
    if not store.live:
        return False
    if store.live_from is None:
        return True
    match = _RELEASE.match(version) if version else None
    if match is None or version is None:
        return None
    release = tuple(int(part) for part in match.group().split("."))
    rest = version[match.end() :]
    if _POST.fullmatch(rest):
        return release >= store.live_from
    if not _PRE.fullmatch(rest):
        return None
    return release >= store.live_from and _trimmed(release) != _trimmed(store.live_from)


def key_prefix(prefix: str) -> str:
    """What every object key of a vllm_obj tier with this `prefix` setting begins with (vLLM 0.33.0 obj/manager.py)."""
    return prefix + "//" if prefix else "/"


def _trimmed(release: Version) -> Version:
    """0.28 and 0.28.0 are one release."""
    while release and release[-1] == 0:
        release = release[:-1]
    return release
