# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs on the host of volume.py: the engine's writer at full speed on each device in turn, a JSON line for each run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

PATH = "/srv/bench-kv"
DISK = "/dev/disk/by-id/virtio-bed-0"
PLAIN = ["open", "--type", "plain", "--cipher", "aes-xts-plain64", "--key-size", "512", "--key-file", "/dev/urandom"]
NO_QUEUE = ["--perf-no_read_workqueue", "--perf-no_write_workqueue"]
DEVICES = {
    "plain ext4": None,
    "dm-crypt, 512-byte sectors": ["--sector-size", "512"],
    "dm-crypt, 512-byte sectors, no workqueues": ["--sector-size", "512", *NO_QUEUE],
    "dm-crypt, 4096-byte sectors": ["--sector-size", "4096"],
    "dm-crypt, 4096-byte sectors, no workqueues": ["--sector-size", "4096", *NO_QUEUE],
}


def run(*argv: str) -> None:
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)


def measure(device: str, options: list[str] | None, expiry: bool, seconds: int, block_kib: int) -> dict[str, object]:
    run("blkdiscard", "--force", DISK)
    if options is not None:
        run("cryptsetup", *PLAIN, *options, DISK, "bench")
    path = DISK if options is None else "/dev/mapper/bench"
    # At once, not in the background of what is measured.
    run("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0", path, "2G")
    run("mount", "-o", "noatime,nodev,nosuid,noexec", path, PATH)
    run("rmdir", PATH + "/lost+found")
    run("chown", "vllm:", PATH)
    run("chmod", "700", PATH)
    run("sync")
    # Python 3.11 loses references to None in the compiled writer's calls: fs_writer gives them back.
    writer = ["/opt/vllm/bin/python3", "/opt/vllm/fs_writer.py", "--root", PATH, "--rate", "100000", "--threads", "4"]
    writer += ["--block-bytes", str(block_kib << 10), "--duration", str(seconds), "--status", "/tmp/vllm/status"]
    run("install", "-d", "-o", "vllm", "/tmp/vllm")
    began = time.monotonic()
    # With the account's group too, or kvtier, which runs as that account, may not see what the process is.
    process = subprocess.Popen(["setpriv", "--reuid", "vllm", "--regid", "vllm", "--clear-groups", *writer])
    expired = 0
    while process.poll() is None:
        if expiry:
            command = ["/root/kvtier", "--map", "/root/tiers.json", "expire", "many", "--json"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            try:
                answer = json.loads(done.stdout)[0]
                expired += answer["capped"]
                if answer["exit"]:
                    raise ValueError
            except (ValueError, LookupError, TypeError):
                sys.exit(f"expire: {done.returncode} {done.stdout} {done.stderr}")
        time.sleep(1)
    took = time.monotonic() - began
    run("sync")
    with open("/tmp/vllm/status", encoding="utf-8") as file:
        status = json.load(file)
    run("umount", PATH)
    if options is not None:
        run("cryptsetup", "close", "bench")
    if process.returncode or status["errors"] or status["wrong"]:
        sys.exit(f"the writer failed: {status}")
    stored = status["stored"] * block_kib / 1024
    loaded = status["loaded"] * block_kib / 1024
    return {"device": device, "expiry": expiry, "seconds": round(took, 1), "mib_s": round(stored / seconds, 2),
            "read_mib_s": round(loaded / seconds, 2), "expired": expired}  # fmt: skip


def main() -> None:
    seconds, rounds, block_kib = map(int, sys.argv[1:])
    os.umask(0o022)
    for place in (PATH, "/var/lib/llmhost/state/many"):
        run("install", "-d", "-o", "vllm", "-m", "0700", place)
    for _round in range(rounds):
        for device, options in DEVICES.items():
            for expiry in (False, True):
                print(json.dumps(measure(device, options, expiry, seconds, block_kib)), flush=True)


if __name__ == "__main__":
    main()
