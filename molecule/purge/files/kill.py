# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ends purges by SIGKILL after each of their stages and runs them again; writes down how each second run went.

At each kill it looks at the host: table and suspension of the mapping, and what a process that has a block open reads.
"""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

out, *tiers = sys.argv[1:]
RECEIPTS = pathlib.Path("/var/lib/llmhost/receipts")
STAGES = {
    "chat": ["key destroyed", "caches dropped", "writers stopped", "holders stopped", "mapping removed",
             "volume made anew"],
    "kept": ["key destroyed", "keyslots erased", "mapping removed"],
    "plain": ["writers stopped"],
    "sealed": ["keyslots erased"],
}  # fmt: skip
READ = pathlib.Path("/run/reader.log")


def purge(tier):
    return ["/usr/local/sbin/kvtier", "purge", tier, "--confirm", tier, "--json"]


def stages(path):
    try:
        return [one["stage"] for one in json.loads(path.read_text())["stages"]]
    except (OSError, ValueError):
        return []


def output(*argv):
    return subprocess.run(argv, capture_output=True, text=True, check=False).stdout.strip()


def again(tier):
    done = subprocess.run(purge(tier), capture_output=True, text=True, check=False)
    return {"rc": done.returncode, "out": done.stdout, "err": done.stderr}


def hold():
    """A reader of the newest volume; it is stopped by the purge that it is to watch."""
    subprocess.run(["systemctl", "reset-failed", "reader"], check=False, capture_output=True)
    READ.unlink(missing_ok=True)
    run = ["systemd-run", "--quiet", "--unit=reader", "/usr/bin/python3", "/root/reader.py"]
    subprocess.run([*run, "/var/lib/vllm-kv", str(READ)], check=True)
    until = time.monotonic() + 180
    while time.monotonic() < until and not (READ.exists() and " ok" in READ.read_text()):
        time.sleep(0.2)


def killed_at(tier, stage):
    known = set(RECEIPTS.glob("*.json"))
    run = subprocess.Popen(purge(tier), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    until, seen = time.monotonic() + 300, []
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
    result = {"killed": killed, "reached": seen, "table": output("dmsetup", "table", f"llmhost_{tier}")}
    if tier == "chat" and stage in ("key destroyed", "caches dropped"):
        now = time.time()
        time.sleep(1.5)
        result["state"] = output("dmsetup", "info", "-c", "--noheadings", "-o", "suspended", f"llmhost_{tier}")
        lines = [line.split(" ", 1) for line in READ.read_text().splitlines()]
        result["read"] = sorted({said for when, said in lines if float(when) > now})
        raw = subprocess.run(["dd", f"if=/dev/mapper/llmhost_{tier}", "of=/dev/null", "bs=4096", "count=256"],
                             capture_output=True, text=True, check=False)  # fmt: skip
        result["raw"] = raw.returncode
    return result


results = {}
if "chat" in tiers:
    # Between suspension and wipe there is no receipt to watch: the state itself is made by hand.
    subprocess.run(["dmsetup", "suspend", "--noflush", "--nolockfs", "llmhost_chat"], check=True)
    results["chat suspended"] = again("chat")
    subprocess.run(["dmsetup", "suspend", "--noflush", "--nolockfs", "llmhost_chat"], check=True)
    subprocess.run(["dmsetup", "message", "llmhost_chat", "0", "key", "wipe"], check=True)
    results["chat key wiped"] = again("chat")
    subprocess.run(["systemctl", "stop", "systemd-cryptsetup@llmhost_chat"], check=False)
    results["chat closed by hand"] = again("chat")
    # They were stopped with the unit, before that purge began, so it did not start them.
    subprocess.run(["systemctl", "start", "vllm.service", "vllm-python.service"], check=True)
for tier in tiers:
    for stage in STAGES[tier]:
        if tier == "chat":
            hold()
        results[f"{tier} {stage}"] = {**killed_at(tier, stage), **again(tier)}
pathlib.Path(out).write_text(json.dumps(results))
