#!/usr/bin/env python
# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""kvsweep against `rclone delete --min-age` and `aws s3 rm --recursive` on one SeaweedFS, each on a bucket of its own.

Half of the keys are due for the first two. `aws s3 rm` knows no age: all three also empty a bucket that is due whole.

PYTHONPATH=.build/pythonpath:tests/integration:tests/unit python benchmarks/sweep.py --objects 20000
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import s3_servers
from module_runner import run
from s3_servers import KEY, SECRET, Weed, block, program

AWSCLI = "1.46.2"
CACHE = Path(os.environ.get("LLMHOST_CACHE", Path.home() / ".cache/llmhost"))
Timed = tuple[float, int]


def remote(server: Weed) -> dict[str, str]:
    """Rclone's way to the server."""
    return {
        "RCLONE_CONFIG_W_TYPE": "s3",
        "RCLONE_CONFIG_W_PROVIDER": "SeaweedFS",
        "RCLONE_CONFIG_W_ENDPOINT": server.endpoint,
        "RCLONE_CONFIG_W_ACCESS_KEY_ID": KEY,
        "RCLONE_CONFIG_W_SECRET_ACCESS_KEY": SECRET,
    }


def filled(server: Weed, due: int, young: int) -> str:
    """A bucket with so many keys of three days ago and so many of now."""
    bucket = server.bucket("bench")
    for first, number in ((0, due), (due, young)):
        with tempfile.TemporaryDirectory() as place:
            for name in (block(one).replace("//", "/") for one in range(first, first + number)):
                path = Path(place) / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(b"k" * 16)
            flags = ["--transfers", "16", "--no-check-dest", "--s3-no-check-bucket"]
            timed([program("rclone"), "copy", place, f"W:{bucket}", *flags], remote(server))
        if first == 0:
            server.age(bucket, 3)
    return bucket


def kvsweep(server: Weed, bucket: str) -> Timed:
    """Seconds and largest resident set (KiB) of one pass, the start of the interpreter included."""
    with tempfile.TemporaryDirectory() as place:
        paths = {"program": "kvsweep", "config_dir": "jobs", "state_dir": "state", "cron_file": "cron"}
        options = server.options(bucket, tier="h/t", retention_minutes=1440, python=sys.executable)
        run("bucket_sweeper", **options, **{name: str(Path(place) / path) for name, path in paths.items()})
        command = [f"{place}/kvsweep", f"--config={place}/jobs", f"--state={place}/state"]
        # A distribution's packages are compiled; those of a fresh environment are by their first use.
        timed([*command, "run", "--dry-run", "--max-seconds=0", "--json"], {}, (0, 6))
        seconds, memory, output = timed([*command, "run", "--json"], {})
    record = json.loads(output)[0]
    if record["exit"] != 0:
        raise SystemExit(f"kvsweep: {record}")
    return seconds, memory


def rclone(server: Weed, bucket: str) -> Timed:
    """The same of rclone, by the server's own times (else it asks for each object), with a list in one go."""
    flags = ["--min-age", "1d", "--use-server-modtime", "--fast-list", "--checkers", "8", "--transfers", "8"]
    return timed([program("rclone"), "delete", f"W:{bucket}/qwen", *flags], remote(server))[:2]


def awscli() -> Path:
    """The aws program, compiled, in an environment of its own; made once."""
    place = CACHE / f"awscli-{AWSCLI}"
    if not (place / "bin/aws").exists():
        subprocess.run([program("uv"), "venv", "-q", "--clear", place], check=True)
        wanted = ["--python", str(place / "bin/python"), "--compile-bytecode", f"awscli=={AWSCLI}"]
        subprocess.run([program("uv"), "pip", "install", "-q", *wanted], check=True)
    return place / "bin/aws"


def aws(server: Weed, bucket: str) -> Timed:
    """The same of `aws s3 rm`."""
    environment = {
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_CONFIG_FILE": os.devnull,
    }
    target = ["--endpoint-url", server.endpoint, "--only-show-errors", f"s3://{bucket}/qwen/"]
    return timed([str(awscli()), "s3", "rm", "--recursive", *target], environment)[:2]


def timed(command: list[str], environment: dict[str, str], good: tuple[int, ...] = (0,)) -> tuple[float, int, str]:
    with tempfile.TemporaryFile("w+") as output:
        began = time.monotonic()
        process = subprocess.Popen(command, env={**os.environ, **environment}, stdout=output)
        _pid, status, usage = os.wait4(process.pid, 0)
        seconds = time.monotonic() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode not in good:
            raise SystemExit(f"{command[0]} ended with {process.returncode}")
        output.seek(0)
        return seconds, usage.ru_maxrss, output.read()


def compare(server: Weed, due: int, young: int, tools: dict[str, Callable[[Weed, str], Timed]]) -> None:
    print(f"{due + young} objects, {due} due, load {os.getloadavg()[0]:.1f}", flush=True)
    ours = 0.0
    for name, tool in tools.items():
        bucket = filled(server, due, young)
        seconds, memory = tool(server, bucket)
        left = len(server.keys(bucket))
        if left != young:
            raise SystemExit(f"{name} left {left} objects, not {young}")
        ours = ours or seconds
        print(f"  {name:20} {seconds:7.2f} s  {memory >> 10:5} MiB  {seconds / ours:6.2f} x kvsweep's time", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--objects", type=int, default=2000)
    objects = parser.parse_args().objects
    with s3_servers.weed() as server:
        compare(server, objects // 2, objects - objects // 2, {"kvsweep": kvsweep, "rclone delete": rclone})
        compare(server, objects, 0, {"kvsweep": kvsweep, "rclone delete": rclone, "aws s3 rm": aws})


if __name__ == "__main__":
    main()
