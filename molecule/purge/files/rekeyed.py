# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Waits for the purge that cron begins and writes down what it cost: seconds without the tier, without a new block."""

import calendar
import contextlib
import json
import pathlib
import subprocess
import sys
import time

(out,) = sys.argv[1:]
ROOT = pathlib.Path("/var/lib/vllm-kv")


def receipt():
    for path in pathlib.Path("/var/lib/llmhost/receipts").glob("chat-*.json"):
        found = json.loads(path.read_text())
        if found["by"]["says"] == "cron: rekey_at" and found["finished"]:
            return found
    return None


def newest():
    times = []
    for path in ROOT.rglob("*.bin"):
        with contextlib.suppress(OSError):
            times.append(path.stat().st_mtime)
    return max(times, default=None), min(times, default=None)


until, last, found = time.monotonic() + 900, None, None
while found is None and time.monotonic() < until:
    found = receipt()
    if found is None:
        with contextlib.suppress(OSError):
            last = newest()[0] or last
    time.sleep(1)
assert found, "cron did not purge"
first = None
while first is None and time.monotonic() < until + 120:
    first = newest()[1]
    time.sleep(0.5)
assert first, "no block after the purge"
started = subprocess.run(
    ["systemctl", "show", "-P", "ExecMainStartTimestampMonotonic", "vllm.service"],
    capture_output=True, text=True, check=True,
).stdout  # fmt: skip
boot = time.time() - float(pathlib.Path("/proc/uptime").read_text().split()[0])
begun = calendar.timegm(time.strptime(found["begun"], "%Y-%m-%dT%H:%M:%SZ"))
result = {
    "receipt": found,
    "stages": {one["stage"]: one["seconds"] for one in found["stages"]},
    "engine_started": round(boot + int(started) / 1e6 - begun, 1),
    "first_block": round(first - begun, 1),
    "without_blocks": round(first - last, 1) if last else None,
}
pathlib.Path(out).write_text(json.dumps(result))
print(json.dumps(result))
