# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""KV-10: whoever lists a store learns nothing from its names. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from . import offload_table as table
from .datamap import Tier
from .evidence_names import CANARIES, STORES, Canary, Names
from .evidence_tier import Evidence
from .judge import NOT_APPLICABLE, UNKNOWN, Parts, Verdict

_SEND = "send a canary prompt through the gateway and write it, with its tenant's salt_file, into " + CANARIES


def from_evidence(evidence: Evidence) -> Verdict:
    """KV-10 of one tier."""
    return names_tell_nothing(evidence.tier, evidence.names)


def names_tell_nothing(tier: Tier, names: Names) -> Verdict:
    """KV-10."""
    facts = {
        "gateway": names.gateway,
        "servers": [asdict(one) for one in names.servers],
        "canaries": [asdict(one) for one in names.canaries],
    }
    if tier["store"] not in STORES:
        return Verdict(NOT_APPLICABLE, "names in a store {} are not computed here".format(tier["store"]), facts)
    if not names.servers and not names.canaries and names.gateway is not None and not names.problem:
        return Verdict(NOT_APPLICABLE, "no vLLM server of its services runs and no canary is known", facts)
    parts = Parts()
    if names.gateway is None:
        parts.unknown("processes cannot be seen", "run the audit as root")
    elif names.servers and not names.gateway:
        parts.fail("no gateway that sets the tenant's salt runs on this host", "use the role cache_salt_gateway")
    for one in names.servers:
        if not one.local:
            line = "pid %d listens on %s, past the gateway" % (one.pid, one.listens)
            if one.own_network is False:
                parts.fail(line, "start it with --host 127.0.0.1")
            else:
                parts.unknown(line + ", in a network that is not the host's", "publish its port on 127.0.0.1 only")
        if one.hash_algorithm and one.hash_algorithm not in ("sha256", "sha256_cbor"):
            fix = "use sha256 or sha256_cbor"
            parts.fail("pid %d names blocks by %s" % (one.pid, one.hash_algorithm), fix)
        if table.release_of(one.version) is None:
            parts.unknown(table.why_unknown(one.version), "update this collection, then audit again")
    if names.problem:
        parts.unknown(names.problem, "mend the file")
    elif not names.canaries:
        parts.unknown("no canary prompt is known, so nothing was probed", _SEND)
    _judge_canaries(names.canaries, parts)
    return parts.verdict("%d canaries are found with their salt only" % len(names.canaries), facts)


def _judge_canaries(canaries: Sequence[Canary], parts: Parts) -> None:
    for canary in canaries:
        label = "canary %d" % canary.number
        if canary.unsalted:
            line = "%s: %d of its blocks are found without any salt" % (label, canary.unsalted)
            parts.fail(line, "let clients reach the engine through the gateway only, then purge the tier")
        elif canary.problem:
            parts.unknown(f"{label}: {canary.problem}", "mend its entry in the file of canaries")
        elif not canary.salted:
            # A canary that nobody sent is never found: its absence proves nothing.
            parts.unknown(
                label + ": not found with its tenant's salt, so it was never sent or has expired since", _SEND
            )


def in_bucket(answer: Mapping[str, Any]) -> Verdict | None:
    """KV-10 of a bucket, from what bucket_lifecycle_info found of canaries in its listing; None: it knew of none.

    Who can reach the engine is judged on the engine's host, where it has a tier with files or runs for this one.
    """
    given = answer.get("canaries")
    if not isinstance(given, list) or not given:
        return None
    parts = Parts()
    try:
        canaries = [Canary(**one) for one in given]
        _judge_canaries(canaries, parts)
    except TypeError:
        return Verdict(UNKNOWN, "the canaries are none of bucket_lifecycle_info's", {}, "run the playbook audit")
    facts = {"canaries": [asdict(one) for one in canaries]}
    return parts.verdict("%d canaries are found in the bucket with their salt only" % len(canaries), facts)
