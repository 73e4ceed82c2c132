#!/usr/bin/env python
# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Audit of simulated hosts (local connections) against `ansible all -m ping` on the same inventory.

The report is made once, whatever the hosts are asked, so its time is told apart and is not in the ratio.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]

TIER = {"name": "chat", "store": "vllm_fs", "path": "/srv/none", "owner": "vllm", "services": ["vllm.service"]}


def timed(command: list[str], place: str, accepted: tuple[int, ...]) -> float:
    """Seconds that a command takes."""
    began = time.monotonic()
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)
    took = time.monotonic() - began
    if done.returncode not in accepted:
        sys.exit(f"{command[0]} ended with {done.returncode}:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return took


def report_seconds(log: Path) -> float:
    """How long the task took that makes the report, by the times in Ansible's log."""
    times: list[datetime] = []
    for line in log.read_text().splitlines():
        if "TASK [" in line and (times or "TASK [Report of the fleet]" in line):
            times.append(datetime.strptime(line[:23], "%Y-%m-%d %H:%M:%S,%f"))
    return (times[1] - times[0]).total_seconds()


def main() -> None:
    """Print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, default=200)
    parser.add_argument("--forks", type=int, default=20)
    parser.add_argument("--scan-seconds", type=int, default=0, help="search each host for trees that nothing names")
    parser.add_argument("--tier", action="store_true", help="each host has a tier, so that every control is judged")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        common: dict[str, Any] = {"ansible_connection": "local", "ansible_become": False}
        common.update(ansible_python_interpreter=sys.executable, llmhost_scan_seconds=options.scan_seconds)
        common["llmhost_tiers"] = [TIER] if options.tier else []
        names: dict[str, dict[str, str]] = {f"gpu{number:04}": {} for number in range(options.hosts)}
        inventory = Path(place, "inventory.json")
        inventory.write_text(json.dumps({"all": {"vars": common, "hosts": names}}))
        end = ["-i", str(inventory), "--forks", str(options.forks)]
        os.environ.setdefault("ANSIBLE_COLLECTIONS_PATH", str(ROOT / ".build/collections"))
        ping = timed(["ansible", "all", "-m", "ansible.builtin.ping", *end], place, (0,))
        os.environ["ANSIBLE_LOG_PATH"] = str(Path(place, "log"))
        # All hosts are this one: what lies on it may fail the audit, which is not measured here.
        audit = timed(["ansible-playbook", str(ROOT / "playbooks/audit.yml"), *end], place, (0, 2))
        report = json.loads(Path(place, "report/report.json").read_text())
        made = report_seconds(Path(place, "log"))
        page = Path(place, "report/report.html").stat().st_size
    memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    answer = {
        "hosts": options.hosts,
        "forks": options.forks,
        "tiers_on_each": int(options.tier),
        "cores": os.cpu_count(),
        "ping_seconds": round(ping, 1),
        "audit_seconds": round(audit, 1),
        "report_seconds": round(made, 1),
        "ratio": round((audit - made) / ping, 2),
        "largest_process_mib": memory >> 10,
        "page_kib": page >> 10,
        "audited": sum(host["state"] == "audited" for host in report["hosts"]),
    }
    sys.stdout.write(json.dumps(answer, indent=2) + "\n")


if __name__ == "__main__":
    main()
