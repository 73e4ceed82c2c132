# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Debian's prometheus and node_exporter read the metrics of an audit, and an alert fires and ends."""

from __future__ import annotations

import json
import socket
import subprocess
import time
import urllib.request
from pathlib import Path

import pytest

from ansible_collections.llmhost.hardening.plugins.module_utils.kv import metrics

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.integration
CONFIG = """
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: [rules.yml]
scrape_configs:
  - job_name: node
    static_configs: [{{targets: ["127.0.0.1:{port}"]}}]
"""


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def audit(loose: int) -> str:
    """The metrics that kvtier audit would write."""
    evidence = {"loose": loose, "reachable": 0, "blocks": 5, "block_bytes": 80}
    result = {"control": "KV-04", "tier": "chat", "severity": "high", "status": "pass", "evidence": evidence}
    now = time.time()
    return metrics.render({"verdict": "pass", "time": now, "results": [result]}, {}, now, {}, (0, 0))


def firing(port: int) -> set[str]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/alerts", timeout=5) as answer:
        alerts = json.load(answer)["data"]["alerts"]
    return {one["labels"]["alertname"] for one in alerts if one["state"] == "firing"}


def until(port: int, expected: set[str], seconds: float = 30) -> None:
    end, seen = time.monotonic() + seconds, None
    while time.monotonic() < end:
        try:
            seen = firing(port)
        except OSError:
            seen = None
        if seen == expected:
            return
        time.sleep(0.3)
    pytest.fail(f"firing: {seen}, not {expected}")


def test_an_alert_fires_when_a_block_can_be_read_and_ends_when_none_can(tmp_path: Path) -> None:
    done = subprocess.run([ROOT / "tests/tools/prometheus.sh"], capture_output=True, text=True, check=True)
    binaries = Path(done.stdout.strip())
    node, web = free_port(), free_port()
    textfiles = tmp_path / "textfile"
    textfiles.mkdir()
    (textfiles / "llmhost.prom").write_text(audit(loose=3))
    rules = (ROOT / "roles/kv_retention/files/llmhost.rules.yml").read_text()
    # The waiting times are promtool's to test.
    (tmp_path / "rules.yml").write_text("\n".join(line for line in rules.splitlines() if " for: " not in line))
    (tmp_path / "prometheus.yml").write_text(CONFIG.format(port=node))
    commands = (
        [
            binaries / "prometheus-node-exporter",
            "--collector.disable-defaults",
            "--collector.textfile",
            f"--collector.textfile.directory={textfiles}",
            f"--web.listen-address=127.0.0.1:{node}",
        ],
        [
            binaries / "prometheus",
            f"--config.file={tmp_path}/prometheus.yml",
            f"--storage.tsdb.path={tmp_path}/data",
            f"--web.listen-address=127.0.0.1:{web}",
        ],
    )
    started = [subprocess.Popen(one, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for one in commands]
    try:
        until(web, {"LlmhostReadableBlocks"})
        (textfiles / "llmhost.prom").write_text(audit(loose=0))
        until(web, set())
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait(10)
