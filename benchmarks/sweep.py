#!/usr/bin/env python
# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""kvsweep against `rclone delete --min-age` and `aws s3 rm --recursive` on one SeaweedFS, each on a bucket of its own.

Half of the keys are due for the first two. `aws s3 rm` knows no age: all three also empty a bucket that is due whole.
The tools take turns, and a figure is the median of a tool's runs. Time on the processor says more than the clock where
others use the machine: the tool's own, and the server's meanwhile.

PYTHONPATH=.build/pythonpath:tests/integration:tests/unit python benchmarks/sweep.py --objects 4000 --runs 3
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import s3_servers
from module_runner import run
from s3_servers import KEY, SECRET, Weed, block, program

AWSCLI = "1.46.2"
CACHE = Path(os.environ.get("LLMHOST_CACHE", Path.home() / ".cache/llmhost"))


class Timed(NamedTuple):
    """One run: seconds by the clock and on the processor, largest resident set (KiB), and what it said."""

    seconds: float
    processor: float
    memory: int
    output: str


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
    """One pass, the start of the interpreter included."""
    with tempfile.TemporaryDirectory() as place:
        paths = {"program": "kvsweep", "config_dir": "jobs", "state_dir": "state", "cron_file": "cron"}
        options = server.options(bucket, tier="h/t", retention_minutes=1440, python=sys.executable)
        run("bucket_sweeper", **options, **{name: str(Path(place) / path) for name, path in paths.items()})
        command = [f"{place}/kvsweep", f"--config={place}/jobs", f"--state={place}/state"]
        # A distribution's packages are compiled; those of a fresh environment are by their first use.
        timed([*command, "run", "--dry-run", "--max-seconds=0", "--json"], {}, (0, 6))
        found = timed([*command, "run", "--json"], {})
    record = json.loads(found.output)[0]
    if record["exit"] != 0:
        raise SystemExit(f"kvsweep: {record}")
    return found


def rclone(server: Weed, bucket: str) -> Timed:
    """The same of rclone, by the server's own times (else it asks for each object), with a list in one go."""
    flags = ["--min-age", "1d", "--use-server-modtime", "--fast-list", "--checkers", "8", "--transfers", "8"]
    return timed([program("rclone"), "delete", f"W:{bucket}/qwen", *flags], remote(server))


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
    return timed([str(awscli()), "s3", "rm", "--recursive", *target], environment)


def timed(command: list[str], environment: dict[str, str], good: tuple[int, ...] = (0,)) -> Timed:
    with tempfile.TemporaryFile("w+") as output:
        began = time.monotonic()
        process = subprocess.Popen(command, env={**os.environ, **environment}, stdout=output)
        _pid, status, usage = os.wait4(process.pid, 0)
        seconds = time.monotonic() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode not in good:
            raise SystemExit(f"{command[0]} ended with {process.returncode}")
        output.seek(0)
        return Timed(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss, output.read())


def busy(server: Weed) -> float:
    """Seconds on the processor that the server has used."""
    text = Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(text[11]) + int(text[12])) / os.sysconf("SC_CLK_TCK")


Tool = Callable[[Weed, str], Timed]


def compare(server: Weed, due: int, young: int, tools: dict[str, Tool], runs: int) -> None:
    print(f"{due + young} objects, {due} due, load {os.getloadavg()[0]:.1f}", flush=True)
    found: dict[str, list[tuple[float, ...]]] = {name: [] for name in tools}
    for _turn in range(runs):
        for name, tool in tools.items():
            bucket = filled(server, due, young)
            before = busy(server)
            one = tool(server, bucket)
            found[name].append((one.seconds, one.processor, busy(server) - before, one.memory / 1024))
            left = len(server.keys(bucket))
            if left != young:
                raise SystemExit(f"{name} left {left} objects, not {young}")
    ours = 0.0
    for name, figures in found.items():
        seconds, own, theirs, memory = (statistics.median(column) for column in zip(*figures, strict=True))
        ours = ours or seconds
        spread = " ".join(f"{figure[0]:.1f}" for figure in sorted(figures))
        print(
            f"  {name:14} {seconds:6.2f} s ({spread}), {seconds / ours:.2f} x kvsweep's; on the processor {own:.2f} s, "
            f"the server {theirs:.2f} s; {memory:.0f} MiB",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--objects", type=int, default=2000)
    parser.add_argument("--runs", type=int, default=3)
    given = parser.parse_args()
    objects, runs = given.objects, given.runs
    with s3_servers.weed() as server:
        compare(server, objects // 2, objects - objects // 2, {"kvsweep": kvsweep, "rclone delete": rclone}, runs)
        compare(server, objects, 0, {"kvsweep": kvsweep, "rclone delete": rclone, "aws s3 rm": aws}, runs)


if __name__ == "__main__":
    main()
