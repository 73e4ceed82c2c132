# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""An audit in the Prometheus text format, for the textfile collector. The names are documented in docs/controls.md."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .judge import NOT_APPLICABLE, PASS, WAIVED

# Metric: help, the control whose evidence holds the number, and its name there.
TIER_METRICS = {
    "llmhost_tier_blocks": ("Blocks of the tier.", "KV-04", "blocks"),
    "llmhost_tier_block_bytes": ("Bytes in blocks of the tier.", "KV-04", "block_bytes"),
    "llmhost_tier_loose_files": ("Files and directories whose mode or ACL opens them.", "KV-04", "loose"),
    "llmhost_tier_reachable_files": ("Files that another account can get to.", "KV-04", "reachable"),
    "llmhost_tier_oldest_block_age_seconds": ("Age of the oldest block.", "KV-06", "oldest_age_seconds"),
    "llmhost_tier_overdue_blocks": ("Blocks older than retention, interval and grace.", "KV-06", "overdue"),
}
RUN_METRICS = {
    "llmhost_tier_last_run_age_seconds": "Time since the last expiry run ended or, while one runs, began.",
    "llmhost_tier_last_run_timestamp_seconds": "When the last expiry run ended or, while one runs, began.",
}
CONTROL_METRICS = {
    "llmhost_control_status": "1 if the control passes, 0 if it fails or is unknown or waived.",
    "llmhost_control_waived": "1 if the control does not pass and is waived.",
}
SPACE_METRICS = {
    "llmhost_tier_free_bytes": "Bytes that the tier's account can still write to its file system.",
    "llmhost_tier_size_bytes": "Size of the tier's file system.",
}
SHM_METRICS = {
    "llmhost_orphaned_shm_files": "Files of vLLM in /dev/shm that no process maps.",
    "llmhost_orphaned_shm_bytes": "Bytes in them.",
}
AUDIT_METRICS = {
    "llmhost_audit_pass": "1 if no control fails or is unknown.",
    "llmhost_audit_timestamp_seconds": "When the audit was made.",
}


def _label(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _sample(name: str, labels: Mapping[str, str], value: float) -> str:
    inside = ",".join(f'{key}="{_label(str(text))}"' for key, text in labels.items())
    number = str(int(value)) if value == int(value) else repr(float(value))
    return "{}{} {}".format(name, "{" + inside + "}" if inside else "", number)


def render(
    audit: Mapping[str, Any],
    runs: Mapping[str, Mapping[str, Any] | None],
    now: float,
    space: Mapping[str, tuple[int, int]] | None = None,
    orphans: tuple[int, int] | None = None,
) -> str:
    """The metrics of an audit.

    runs: tier name to its last run record (None: no run); now: Unix time in seconds; space: tier name to free bytes and
    size of its file system; orphans: number and bytes of orphaned shared memory, None if that cannot be told.
    """
    lines: list[str] = []

    def family(name: str, text: str, samples: list[str]) -> None:
        if samples:
            lines.extend([f"# HELP {name} {text}", f"# TYPE {name} gauge", *samples])

    results = audit["results"]
    for name, (text, control, key) in TIER_METRICS.items():
        numbers = [(result["tier"], result["evidence"].get(key)) for result in results if result["control"] == control]
        family(name, text, [_sample(name, {"tier": tier}, number) for tier, number in numbers if number is not None])
    ended = {tier: float(run["finished"] or run["started"]) for tier, run in sorted(runs.items()) if run is not None}
    for (name, text), values in zip(RUN_METRICS.items(), ({t: now - at for t, at in ended.items()}, ended)):
        family(name, text, [_sample(name, {"tier": tier}, value) for tier, value in values.items()])
    for number, (name, text) in enumerate(SPACE_METRICS.items()):
        values = {tier: pair[number] for tier, pair in sorted((space or {}).items())}
        family(name, text, [_sample(name, {"tier": tier}, value) for tier, value in values.items()])
    for (name, text), value in zip(SHM_METRICS.items(), orphans or ()):
        family(name, text, [_sample(name, {}, value)])
    judged = [result for result in results if result["status"] != NOT_APPLICABLE]
    for (name, text), status in zip(CONTROL_METRICS.items(), (PASS, WAIVED)):
        samples = [
            _sample(name, {key: result[key] for key in ("control", "severity", "tier")}, result["status"] == status)
            for result in judged
        ]
        family(name, text, sorted(set(samples)))
    for (name, text), value in zip(AUDIT_METRICS.items(), (audit["verdict"] == "pass", float(audit["time"]))):
        family(name, text, [_sample(name, {}, value)])
    return "\n".join(lines) + "\n"
