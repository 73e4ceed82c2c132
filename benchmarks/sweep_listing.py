#!/usr/bin/env python
# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Memory and time of kvsweep over very many keys: a stand-in answers over HTTP as S3 would, and stores nothing.

PYTHONPATH=.build/pythonpath:benchmarks:tests/integration:tests/unit python benchmarks/sweep_listing.py --keys 10000000
"""

from __future__ import annotations

import argparse
import email.utils
import json
import multiprocessing
import os
import sys
import tempfile
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from module_runner import run
from sweep import timed

PAGE = 1000
SPACE = 'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'
ENTRY = (
    "<Contents><Key>{key}</Key><LastModified>{time}</LastModified><ETag>&quot;d41d8cd98f00b204e9800998ecf8427e&quot;</ETag>"
    "<Size>1048576</Size><StorageClass>STANDARD</StorageClass></Contents>"
)


def key(number: int, step: int) -> str:
    """Keys as vLLM names them, in order, over all of its directories."""
    name = f"{number * step:012x}"
    return f"qwen//Qwen_Qwen3-8B_0123456789ab_r0/{name[:3]}/{name[3:5]}_g0/{name}{'0' * 52}.bin"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    keys = due = 0

    def answer(self, root: str, inside: str = "") -> None:
        body = f'<?xml version="1.0"?><{root} {SPACE}>{inside}</{root}>'.encode()
        head = f"HTTP/1.1 200 OK\r\nDate: {email.utils.formatdate(usegmt=True)}\r\nContent-Length: {len(body)}\r\n\r\n"
        self.wfile.write(head.encode() + body)

    def do_GET(self) -> None:
        query = parse_qs(urlsplit(self.path).query, keep_blank_values=True)
        if "versioning" in query:
            self.answer("VersioningConfiguration")
        elif "uploads" in query:
            self.answer("ListMultipartUploadsResult", "<IsTruncated>false</IsTruncated>")
        else:
            size = int(query.get("max-keys", [PAGE])[0])
            first = int(query.get("continuation-token", ["0"])[0])
            end = min(first + size, self.keys)
            step = 16**12 // self.keys
            times = [time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(time.time() - age)) for age in (60, 3 * 86400)]
            inside = "".join(
                ENTRY.format(key=key(one, step), time=times[one % 100 < self.due]) for one in range(first, end)
            )
            if end < self.keys:
                inside += f"<IsTruncated>true</IsTruncated><NextContinuationToken>{end}</NextContinuationToken>"
            self.answer("ListBucketResult", inside)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.answer("DeleteResult")

    def log_message(self, format: str, *arguments: object) -> None:
        pass


def serve(keys: int, due: int, port: multiprocessing.Queue[int]) -> None:
    Handler.keys, Handler.due = keys, due
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    port.put(server.server_address[1])
    server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--due", type=int, default=10, help="how many of a hundred are due")
    given = parser.parse_args()
    port: multiprocessing.Queue[int] = multiprocessing.Queue()
    server = multiprocessing.Process(target=serve, args=(given.keys, given.due, port), daemon=True)
    server.start()
    with tempfile.TemporaryDirectory() as place:
        paths = {"program": "kvsweep", "config_dir": "jobs", "state_dir": "state", "cron_file": "cron"}
        options: dict[str, Any] = {
            "bucket": "many",
            "endpoint": f"http://127.0.0.1:{port.get()}",
            "prefix": "qwen",
            "store": "vllm_obj",
        }
        options.update(access_key="a", secret_key="b", tier="h/t", retention_minutes=1440, python=sys.executable)
        run("bucket_sweeper", **options, **{name: f"{place}/{path}" for name, path in paths.items()})
        command = [f"{place}/kvsweep", f"--config={place}/jobs", f"--state={place}/state", "run", "--json"]
        found = timed([*command, "--max-seconds=86400"], {})
    server.terminate()
    record = json.loads(found.output)[0]
    deleted = record["deleted"]["objects"]
    print(f"{record['seen']} keys, {deleted} due and deleted, exit {record['exit']}, load {os.getloadavg()[0]:.1f}")
    seconds, processor = found.seconds, found.processor
    print(f"{seconds:.1f} s, {processor:.1f} s of it on the processor, {record['seen'] / seconds:.0f} keys/s")
    print(f"at most {found.memory / 1024:.0f} MiB resident")


if __name__ == "__main__":
    main()
