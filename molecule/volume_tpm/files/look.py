# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes down what a host looks like whose TPM did not open the volume."""

import json
import os
import pathlib
import subprocess
import sys
import time

(out,) = sys.argv[1:]
PATH = "/var/lib/vllm-kv"


def run(*argv):
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    return done.stdout.strip()


until = time.monotonic() + 240
while time.monotonic() < until and run("systemctl", "is-system-running") in ("starting", "initializing"):
    time.sleep(1)
# Long enough for an engine that would start.
time.sleep(10)
units = [
    "vllm.service",
    "vllm-python.service",
    "llmhost-tier@sealed.service",
    "systemd-cryptsetup@llmhost_sealed.service",
]
subprocess.run(["systemctl", "start", "vllm.service"], check=False, capture_output=True)
os.makedirs("/run/below", exist_ok=True)
subprocess.run(["mount", "--bind", "/var/lib", "/run/below"], check=True)
below = pathlib.Path("/run/below/vllm-kv")
info = below.stat()
result = {
    "boot": pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
    "state": run("systemctl", "is-system-running"),
    "units": {unit: run("systemctl", "show", "-P", "ActiveState", unit) for unit in units},
    "mounted": run("findmnt", "-n", "-o", "SOURCE", "--mountpoint", PATH),
    "mapping": os.path.exists("/dev/mapper/llmhost_sealed"),
    "below": sorted(os.listdir(below)),
    "mode": [info.st_uid, info.st_mode & 0o7777],
    "asked": run("systemctl", "is-active", "systemd-ask-password-console.service", "systemd-ask-password-wall.service"),
    "audit": json.loads(run("/usr/local/sbin/kvtier", "audit", "--json") or "{}"),
    "journal": run("journalctl", "-b", "--no-pager", "-o", "cat", "-u", "systemd-cryptsetup@llmhost_sealed.service"),
}
subprocess.run(["umount", "/run/below"], check=True)
pathlib.Path(out).write_text(json.dumps(result))
