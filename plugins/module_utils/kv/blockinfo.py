# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Counts over one directory of KV blocks, declared or not: the same walk and the same judgements as the audit."""

from __future__ import annotations

import time
from typing import Any

from . import account, fsio, posture, walk
from .judge import clean
from .stores import STORES, Store

FOREIGN_NAMES = 20


def store_named(name: str) -> Store:
    """A store that keeps files, by its name; ValueError with the known names otherwise."""
    known = {store.name: store for store in STORES.values() if store.has_files}
    if name not in known:
        raise ValueError(f"no store {name} that keeps files (known: {', '.join(sorted(known))})")
    return known[name]


def uid_of(owner: str | int) -> int:
    """The uid of an account name or number; ValueError if there is no such account."""
    text = str(owner)
    try:
        return account.uid_of(int(text) if text.isascii() and text.isdigit() else text)
    except (KeyError, ValueError):
        raise ValueError(f"owner: this host has no account {text!r}: name one, or give its uid") from None


def describe(
    path: str,
    store: Store,
    owner: int | None,
    policy: walk.Policy,
    max_offenders: int = 20,
    max_seconds: float = 60.0,
    now: float | None = None,
) -> dict[str, Any]:
    """What lies at path. owner None: whoever owns the directory. Raises OSError or fsio.UnsafePath."""
    now = time.time() if now is None else now
    place = posture.look(path)
    if place.unsafe:
        raise fsio.UnsafePath(place.unsafe)
    result: dict[str, Any] = {"path": path, "store": store.name, "exists": place.exists}
    if place.missing:
        return result
    uid = place.uid if owner is None else owner
    with fsio.opened(path) as fd:
        survey = walk.survey(fd, store, uid, now, policy, time.monotonic() + max_seconds)
        names = walk.foreign(fd, store, min(max_offenders, FOREIGN_NAMES)) if survey.strangers else []
    files = survey.blocks + survey.temps + survey.configs
    result.update(
        owner_uid=uid,
        directory={key: value for key, value in place.evidence().items() if key not in ("exists", "error")},
        complete=survey.complete,
        seconds=round(survey.seconds, 3),
        errors=survey.errors,
        blocks=survey.blocks,
        block_bytes=survey.block_bytes,
        temps=survey.temps,
        temp_bytes=survey.temp_bytes,
        configs=survey.configs,
        dirs=survey.dirs,
        reachable=files if posture.reachable(place, uid) else 0,
        readable=survey.readable if posture.reachable(place, uid) else 0,
        loose=survey.loose,
        loose_dirs=survey.loose_dirs,
        overdue=survey.overdue,
        future=survey.future,
        oldest_age_seconds=None if survey.oldest_mtime is None else max(0, int(now - survey.oldest_mtime)),
        newest_age_seconds=None if survey.newest_mtime is None else max(0, int(now - survey.newest_mtime)),
        ages=[list(pair) for pair in survey.ages],
        stale_temps=survey.stale_temps,
        stale_temp_bytes=survey.stale_temp_bytes,
        strangers=survey.strangers,
        stranger_names=names,
        foreign_owner=survey.foreign_owner,
        hardlinks=survey.hardlinks,
        not_regular=survey.not_regular,
        offenders=survey.offenders[:max_offenders],
    )
    cleaned: dict[str, Any] = clean(result)
    return cleaned
