#!/usr/bin/env python
# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What salting costs: the gateway against the same nginx, upstream and configuration without it, in turns in one run.

benchmarks/gateway.py [--seconds 60] [--load]     prints a table and, last, one line of JSON
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import socket
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / ".build/pythonpath"), str(ROOT / "tests/integration")]

import gateway_bed as bed  # noqa: E402

WORDS = "The quick brown fox jumps over the lazy dog; \\u00fcber 3,141 \u00e4cker \u2014 and so on. "
# Added median in milliseconds that a change must not exceed.
LIMITS = {"1 KB text": 1.0, "1 MB text": 10.0}


def text(size: int) -> bytes:
    content = (WORDS * (size // len(WORDS) + 1))[: size - 90]
    return ('{"model":"m","messages":[{"role":"user","content":"%s"}],"seed":9223372036854775807}' % content).encode()


def tokens(size: int) -> bytes:
    numbers = ",".join(str(number * 7919 % 150_000) for number in range(size // 6))
    return ('{"model":"m","prompt":[%s]}' % numbers[: size - 40].rpartition(",")[0]).encode()


BODIES = {
    "1 KB text": text(1 << 10),
    "64 KB text": text(1 << 16),
    "1 MB text": text(1 << 20),
    "1 MB tokens": tokens(1 << 20),
}


def plain_conf(gateway: bed.Gateway, port: int, metrics: int) -> str:
    """The gateway's own configuration without the lines that judge and salt."""
    conf = Path(gateway.places.config).read_text()
    judging = ("access_by_lua_block", "body_filter_by_lua_block", "log_by_lua_block", "init_worker_by_lua_block")
    kept = [line for line in conf.splitlines() if not line.strip().startswith(judging)]
    text_ = "\n".join(kept).replace("/run/", "/run-plain/").replace(f":{gateway.port};", f":{port};")
    return text_.replace(f":{gateway.metrics_port};", f":{metrics};").replace("access.log", "access-plain.log")


class Plain:
    """A second nginx beside the gateway's, which only passes on."""

    def __init__(self, gateway: bed.Gateway) -> None:
        self.port = bed.free_port()
        (gateway.home / "run-plain").mkdir()
        path = gateway.home / "plain.conf"
        path.write_text(plain_conf(gateway, self.port, bed.free_port()))
        command = [bed.NGINX or "nginx", "-p", str(gateway.home), "-c", str(path)]
        self.process = subprocess.Popen(command, start_new_session=True, **gateway.account())
        time.sleep(0.5)

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(10)


def once(connection: http.client.HTTPConnection, body: bytes) -> float:
    headers = {"Content-Type": "application/json", "Authorization": "Bearer " + bed.API_KEYS["acme"]}
    began = time.perf_counter()
    connection.request("POST", "/v1/completions", body, headers)
    answer = connection.getresponse()
    answer.read()
    took = time.perf_counter() - began
    assert answer.status == 200, answer.status
    return took * 1000


def processor_time(master: int) -> float:
    """Milliseconds of processor that the workers of an nginx used: unlike the clock it does not count neighbours."""
    total = 0.0
    for worker in Path(f"/proc/{master}/task/{master}/children").read_text().split():
        fields = Path(f"/proc/{worker}/stat").read_text().rpartition(") ")[2].split()
        total += (int(fields[11]) + int(fields[12])) * 1000 / os.sysconf("SC_CLK_TCK")
    return total


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def latency(gateway: bed.Gateway, plain: Plain, seconds: float) -> dict[str, dict[str, float]]:
    """Added median and p99 by body; the two take turns, so that what else the machine does hits both alike."""
    result = {}
    for name, body in BODIES.items():
        connections = [http.client.HTTPConnection("127.0.0.1", port, timeout=30) for port in (plain.port, gateway.port)]
        times: list[list[float]] = [[], []]
        for _turn in range(20):
            for connection in connections:
                once(connection, body)
        masters = (plain.process.pid, gateway.process.pid if gateway.process else 0)
        used = [processor_time(master) for master in masters]
        end = time.monotonic() + seconds / len(BODIES)
        while time.monotonic() < end:
            for connection, of in zip(connections, times, strict=True):
                of.append(once(connection, body))
        base, salted = times
        used = [(processor_time(master) - before) / len(base) for master, before in zip(masters, used, strict=True)]
        result[name] = {
            "bytes": len(body),
            "requests": len(base),
            "plain_median": statistics.median(base),
            "plain_p99": percentile(base, 0.99),
            "added_median": statistics.median(salted) - statistics.median(base),
            "added_p99": percentile(salted, 0.99) - percentile(base, 0.99),
            "added_processor": used[1] - used[0],
        }
        for connection in connections:
            connection.close()
    return result


def throughput(port: int, seconds: float, clients: int = 16) -> tuple[float, int]:
    """Requests of 1 KB a second over kept connections, and how many failed."""
    counts, failed = [0] * clients, [0] * clients
    end = time.monotonic() + seconds
    body = BODIES["1 KB text"]
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {bed.API_KEYS['acme']}\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode()

    def client(number: int) -> None:
        with socket.create_connection(("127.0.0.1", port), 30) as sock:
            while time.monotonic() < end:
                sock.sendall(head + body)
                data = b""
                while b"\r\n\r\n" not in data or not data.endswith(b"{}"):
                    chunk = sock.recv(65536)
                    if not chunk:
                        failed[number] += 1
                        return
                    data += chunk
                counts[number] += 1
                failed[number] += not data.startswith(b"HTTP/1.1 200")

    threads = [threading.Thread(target=client, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / seconds, sum(failed)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--load", action="store_true", help="measure requests a second, too")
    options = parser.parse_args()
    with bed.gateway() as gateway:
        gateway.upstream.keep = False
        plain = Plain(gateway)
        try:
            load = os.getloadavg()[0]
            print(f"load average before: {load:.2f}; one worker; milliseconds")
            result = latency(gateway, plain, options.seconds)
            print(f"{'body':<14}{'requests':>9}{'plain p50':>11}{'p99':>9}{'added p50':>12}{'p99':>9}{'processor':>11}")
            for name, row in result.items():
                print(
                    f"{name:<14}{row['requests']:>9.0f}{row['plain_median']:>11.2f}{row['plain_p99']:>9.2f}"
                    f"{row['added_median']:>12.2f}{row['added_p99']:>9.2f}{row['added_processor']:>11.2f}"
                )
            rates = {}
            if options.load:
                for name, port in (("plain", plain.port), ("salted", gateway.port)):
                    rate, failed = throughput(port, 8)
                    rates[name] = {"per_second": round(rate), "failed": failed}
                    print(f"{name}: {rate:.0f} requests/s of 1 KB, {failed} failed")
        finally:
            plain.stop()
    print(json.dumps({"load": load, "latency_ms": result, "rate": rates}))
    over = [name for name, limit in LIMITS.items() if result[name]["added_median"] > limit]
    if over:
        print("over the limit: " + ", ".join(over), file=sys.stderr)
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
