# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes down what an upgrade must leave alone: the volume, its key, blocks, the writers, the lines of older audits."""

import hashlib
import json
import os
import pathlib
import subprocess
import sys


def out(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


table = out("dmsetup", "table", "--showkeys", "llmhost_chat")
blocks = sorted(pathlib.Path("/var/lib/vllm-kv").rglob("*.bin"), key=lambda path: path.stat().st_mtime)
history = pathlib.Path("/var/lib/llmhost/audit/history.jsonl")
record = {
    "opened": os.readlink("/run/systemd/units/invocation:systemd-cryptsetup@llmhost_chat.service"),
    "key": hashlib.sha256(table.split()[4].encode()).hexdigest(),
    "uuid": out("findmnt", "-n", "-o", "UUID", "/var/lib/vllm-kv"),
    # In hex, and only of the newest: the older ones may expire meanwhile.
    "blocks": {str(path): path.read_bytes()[:32].hex() for path in blocks[-20:]},
    "tiers": sorted(tier["name"] for tier in json.loads(pathlib.Path("/etc/llmhost/tiers.json").read_text())["tiers"]),
    "kvtier": hashlib.sha256(pathlib.Path("/usr/local/sbin/kvtier").read_bytes()).hexdigest(),
    "history": history.read_text().splitlines() if history.exists() else [],
    "pids": out("systemctl", "show", "-P", "MainPID", "vllm.service", "vllm-python.service").split(),
}
target = pathlib.Path(sys.argv[1])
target.touch(mode=0o600)
target.write_text(json.dumps(record))
