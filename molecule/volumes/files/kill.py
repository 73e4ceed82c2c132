# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ends a purge by SIGKILL after each of its stages and runs it again; writes down how each second run went."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

tier, mapper, out = sys.argv[1:]
RECEIPTS = pathlib.Path("/var/lib/llmhost/receipts")
PURGE = ["/usr/local/sbin/kvtier", "purge", tier, "--confirm", tier, "--json"]
STAGES = [
    "key destroyed",
    "caches dropped",
    "writers stopped",
    "holders stopped",
    "mapping removed",
    "volume made anew",
]


def stages(path):
    try:
        return [one["stage"] for one in json.loads(path.read_text())["stages"]]
    except (OSError, ValueError):
        return []


def again():
    done = subprocess.run(PURGE, capture_output=True, text=True, check=False)
    return {"rc": done.returncode, "out": done.stdout, "err": done.stderr}


results = {}
# Between suspension and wipe there is no receipt to watch: the state itself is made by hand.
subprocess.run(["dmsetup", "suspend", "--noflush", "--nolockfs", mapper], check=True)
results["suspended"] = again()
subprocess.run(["dmsetup", "suspend", "--noflush", "--nolockfs", mapper], check=True)
subprocess.run(["dmsetup", "message", mapper, "0", "key", "wipe"], check=True)
results["key wiped"] = again()
subprocess.run(["systemctl", "stop", f"systemd-cryptsetup@{mapper}"], check=False)
results["closed by hand"] = again()
for stage in STAGES:
    known = set(RECEIPTS.glob("*.json"))
    run = subprocess.Popen(PURGE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    until, seen = time.monotonic() + 90, []
    while time.monotonic() < until and run.poll() is None:
        new = set(RECEIPTS.glob("*.json")) - known
        seen = stages(new.pop()) if new else []
        if stage in seen:
            break
        time.sleep(0.01)
    killed = run.poll() is None
    if killed:
        os.killpg(run.pid, signal.SIGKILL)
    run.wait()
    results[stage] = {"killed": killed, "reached": seen, **again()}
pathlib.Path(out).write_text(json.dumps(results))
