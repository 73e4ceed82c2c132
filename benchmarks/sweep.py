#!/usr/bin/env python
# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""kvsweep against `rclone delete --min-age` on one SeaweedFS: two equal buckets, half of the keys due.

PYTHONPATH=.build/pythonpath:tests/integration:tests/unit python benchmarks/sweep.py --objects 2000
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import s3_servers
from module_runner import run
from s3_servers import KEY, SECRET, Weed, block, program


def filled(server: Weed, objects: int) -> str:
    """A bucket whose first half is three days old."""
    bucket = server.bucket("bench")
    half = objects // 2
    server.fill(bucket, [block(number) for number in range(half)])
    server.age(bucket, 3)
    server.fill(bucket, [block(number) for number in range(half, objects)])
    return bucket


def kvsweep(server: Weed, bucket: str, place: Path) -> tuple[float, int]:
    """Seconds and largest resident set (KiB) of one pass, the start of the interpreter included."""
    paths = {"program": "kvsweep", "config_dir": "jobs", "state_dir": "state", "cron_file": "cron"}
    options = server.options(bucket, tier="h/t", retention_minutes=1440, python=sys.executable)
    run("bucket_sweeper", **options, **{name: str(place / path) for name, path in paths.items()})
    command = [str(place / "kvsweep"), f"--config={place}/jobs", f"--state={place}/state", "run", "--json"]
    seconds, memory, output = timed(command, {})
    record = json.loads(output)[0]
    if record["exit"] != 0:
        raise SystemExit(f"kvsweep: {record}")
    return seconds, memory


def rclone(server: Weed, bucket: str) -> tuple[float, int]:
    """The same of rclone, by the server's own times (else it asks for each object), with a list in one go."""
    environment = {
        "RCLONE_CONFIG_W_TYPE": "s3",
        "RCLONE_CONFIG_W_PROVIDER": "SeaweedFS",
        "RCLONE_CONFIG_W_ENDPOINT": server.endpoint,
        "RCLONE_CONFIG_W_ACCESS_KEY_ID": KEY,
        "RCLONE_CONFIG_W_SECRET_ACCESS_KEY": SECRET,
    }
    flags = ["--min-age", "1d", "--use-server-modtime", "--fast-list", "--checkers", "8", "--transfers", "8"]
    seconds, memory, _output = timed([program("rclone"), "delete", f"W:{bucket}/qwen", *flags], environment)
    return seconds, memory


def timed(command: list[str], environment: dict[str, str]) -> tuple[float, int, str]:
    with tempfile.TemporaryFile("w+") as output:
        began = time.monotonic()
        process = subprocess.Popen(command, env={**os.environ, **environment}, stdout=output)
        _pid, status, usage = os.wait4(process.pid, 0)
        seconds = time.monotonic() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise SystemExit(f"{command[0]} ended with {process.returncode}")
        output.seek(0)
        return seconds, usage.ru_maxrss, output.read()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--objects", type=int, default=2000)
    objects = parser.parse_args().objects
    with s3_servers.weed() as server, tempfile.TemporaryDirectory() as place:
        buckets = [filled(server, objects) for _turn in range(2)]
        load = os.getloadavg()[0]
        ours, our_memory = kvsweep(server, buckets[0], Path(place))
        theirs, their_memory = rclone(server, buckets[1])
        left = [len(server.keys(bucket)) for bucket in buckets]
    if left != [objects - objects // 2] * 2:
        raise SystemExit(f"not the same was deleted: {left} objects are left")
    print(f"{objects} objects, {objects // 2} due, load {load:.1f}")
    print(f"kvsweep            {ours:7.2f} s   {our_memory >> 10:5} MiB")
    print(f"rclone delete      {theirs:7.2f} s   {their_memory >> 10:5} MiB")
    print(f"rclone / kvsweep   {theirs / ours:7.2f}")


if __name__ == "__main__":
    main()
