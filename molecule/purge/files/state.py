# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Prints what a purge changes: digests of the keys, the writers' processes, blocks, receipts."""

import hashlib
import json
import pathlib
import subprocess

TIERS = {"chat": "vllm-kv", "kept": "kept-kv", "plain": "plain-kv"}
UNITS = ["vllm.service", "vllm-python.service", "kept-writer.service", "plain-writer.service"]


def out(*argv):
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


print(
    json.dumps(
        {
            "digests": [
                hashlib.sha256(path.read_bytes()).hexdigest()
                for path in map(pathlib.Path, ("/srv/keys/kept.key", "/var/lib/llmhost/headers/kept.luks2"))
            ]
            + [hashlib.sha256(out("dmsetup", "table", "--showkeys", "llmhost_chat").encode()).hexdigest()],
            "pids": {unit: out("systemctl", "show", "-P", "MainPID", unit).strip() for unit in UNITS},
            "blocks": {
                tier: sorted(str(path) for path in pathlib.Path("/var/lib", name).rglob("*.bin"))
                for tier, name in TIERS.items()
            },
            "receipts": sorted(path.name for path in pathlib.Path("/var/lib/llmhost").glob("receipts/*")),
        }
    )
)
