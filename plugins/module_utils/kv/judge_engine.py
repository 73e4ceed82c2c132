# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""KV-13: the offload settings of the engines that use a tier. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import discovery, offload_found
from .datamap import Tier
from .evidence_engine import Running
from .judge import FAIL, NOT_APPLICABLE, Parts, Verdict
from .offload_engines import ENGINES as OTHERS
from .offload_model import Engine, Finding
from .stores import ENGINES, STORES


def _declared(running: Running, records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return next((one for one in records if discovery.is_of(running.unit, [one["unit"]])), {})


def _vllm(running: Running, tiers: Sequence[Tier], records: Sequence[dict[str, Any]]) -> list[Finding] | None:
    """Findings of one vLLM process, None if it shows no settings."""
    settings = offload_found.settings_of(running.words, running.config)
    if not settings.offloads:
        return None
    # The largest part of what judges, and only for vLLM.
    from . import offload_judge, offload_render

    record = _declared(running, records)
    modules = record.get("allow_modules")
    engine = Engine(
        version=running.version,
        python=offload_render.python_of(running.python),
        tiers=tiers,
        model=settings.model,
        hash_algorithm=settings.hash_algorithm,
        events=settings.events,
        prompt_only=record.get("prompt_only") is not False,
        several_tenants=record.get("several_tenants") is not False,
        allow_modules=tuple(one for one in modules if isinstance(one, str)) if isinstance(modules, list) else (),
    )
    found = [*settings.found, *offload_judge.judge(settings.transfer, engine)]
    for piece in running.memory:
        if piece["mode"] is not None and int(piece["mode"], 8) & 0o077:
            reason = "{path} holds blocks and has mode {mode}".format(**piece)
            found.append(Finding(FAIL, "open-memory", "memory", reason, "stop the engine, remove it, start it again"))
    return found


def _other(running: Running, tier: Tier) -> list[Finding] | None:
    """Findings of an engine that is told its directory in its own way."""
    for stores, settings_of in OTHERS.values():
        if tier["store"] in stores and ENGINES[STORES[tier["store"]].engine].programs.search("\0".join(running.words)):
            refusals = settings_of(tier, running.words).refusals
            return [Finding(FAIL, code, "arguments", reason, remedy) for code, reason, remedy in refusals]
    return None


def settings_safe(
    tier: Tier, tiers: Sequence[Tier], processes: Sequence[Running], records: Sequence[dict[str, Any]]
) -> Verdict:
    """KV-13. tiers: the whole data map; records: what the role engine_offload declared."""
    parts = Parts()
    engines = []
    others = any(tier["store"] in stores for stores, _settings in OTHERS.values())
    for running in processes:
        found = _other(running, tier) if others else _vllm(running, tiers, records)
        if found is None:
            continue
        engines.append(
            {
                "pid": running.pid,
                "unit": running.unit,
                "version": running.version,
                "python": running.python,
                "memory": running.memory,
                "findings": [one._asdict() for one in found],
            }
        )
        for one in found:
            line = f"[{one.code}] {one.key}: {one.reason} (pid {running.pid})"
            (parts.fail if one.status == FAIL else parts.unknown)(line, one.remedy)
    if not engines:
        shown = "no process of its services runs"
        if processes:
            shown = "none of %d processes of its services has offload settings in its arguments" % len(processes)
        return Verdict(NOT_APPLICABLE, shown, {"processes": len(processes)})
    return parts.verdict("settings of %d engines are known to be safe" % len(engines), {"engines": engines})
