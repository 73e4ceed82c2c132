# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Real S3 servers for tests: SeaweedFS, which expires on command, and rclone, whose answers are dangerous.

Both are wheels of the test requirements. Everything listens on loopback and is ended with the session.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import shutil
import signal
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

BIN = Path(sys.executable).parent
KEY, SECRET = "testkey", "testsecret"
DAY = 86400
# Below it SeaweedFS takes a bucket's name out of the host name.
DOMAIN = "llmhost.example"


def program(name: str) -> str:
    """A program of the test requirements: beside this interpreter, or in the PATH that make sets."""
    found = str(BIN / name) if (BIN / name).exists() else shutil.which(name)
    if found is None:
        raise RuntimeError(f"{name} is missing: make setup installs it from tests/requirements.lock")
    return found


def free_ports(number: int) -> list[int]:
    """Ports that were free a moment ago."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _turn in range(number)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def wait_until(check: Callable[[], bool], seconds: float = 60, what: str = "the server") -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(OSError, http.client.HTTPException):
            if check():
                return
        time.sleep(0.1)
    raise RuntimeError(f"{what} did not come up within {seconds} s")


def client(endpoint: str, key: str = KEY, secret: str = SECRET) -> Any:
    """A plain boto3 client, for what tests put and look at."""
    import boto3
    from botocore.config import Config

    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        aws_access_key_id=key,
        aws_secret_access_key=secret,
        region_name="us-east-1",
        config=Config(s3={"addressing_style": "path"}, retries={"max_attempts": 1}),
    )


def block(number: int, prefix: str = "qwen", namespace: str = "Qwen_Qwen3-8B_0123456789ab") -> str:
    """A key as vLLM's object tier names it."""
    name = hashlib.sha256(b"%d" % number).hexdigest()
    start = prefix + "//" if prefix else "/"
    return f"{start}{namespace}_r0/{name[:3]}/{name[3:5]}_g0/{name}.bin"


class Server:
    """A server process and where it answers."""

    def __init__(self, endpoint: str, root: Path, process: subprocess.Popen[bytes]) -> None:
        self.endpoint, self.root, self.process = endpoint, root, process
        self.client = client(endpoint)
        self.made = 0

    def bucket(self, name: str = "kv") -> str:
        """A new bucket."""
        self.made += 1
        name = f"{name}-{self.made}"
        self.client.create_bucket(Bucket=name)
        return name

    def options(self, bucket: str, **more: Any) -> dict[str, Any]:
        """Options of our modules for a bucket of this server."""
        options = {"bucket": bucket, "endpoint": self.endpoint, "access_key": KEY, "secret_key": SECRET}
        options.update({"prefix": "qwen", "store": "vllm_obj", **more})
        return options

    def put(self, bucket: str, *keys: str, size: int = 16) -> None:
        for key in keys:
            self.client.put_object(Bucket=bucket, Key=key, Body=b"k" * size)

    def fill(self, bucket: str, keys: list[str]) -> None:
        """Put many keys."""
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda key: self.put(bucket, key), keys))

    def set_rules(self, bucket: str, *rules: dict[str, Any]) -> None:
        """Another team's rules, put by another client."""
        named = [{"ID": f"theirs-{n}", "Status": "Enabled", **rule} for n, rule in enumerate(rules)]
        self.client.put_bucket_lifecycle_configuration(Bucket=bucket, LifecycleConfiguration={"Rules": named})

    def keys(self, bucket: str) -> list[str]:
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=bucket)
        return [entry["Key"] for page in pages for entry in page.get("Contents", [])]

    def rules(self, bucket: str) -> list[dict[str, Any]]:
        rules: list[dict[str, Any]] = self.client.get_bucket_lifecycle_configuration(Bucket=bucket).get("Rules", [])
        return rules


class Weed(Server):
    """SeaweedFS with what its lifecycle needs."""

    def __init__(self, endpoint: str, root: Path, process: subprocess.Popen[bytes], master: str, grpc: int) -> None:
        super().__init__(endpoint, root, process)
        self.master, self.grpc = master, grpc

    def shell(self, *commands: str) -> str:
        done = subprocess.run(
            [program("weed"), "shell", f"-master={self.master}"],
            input="\n".join(commands) + "\n",
            text=True,
            capture_output=True,
            timeout=60,
            cwd=self.root,
            check=False,
        )
        return done.stdout + done.stderr

    def expire(self) -> None:
        """One pass of the server's own lifecycle worker over everything."""
        self.shell(f"s3.lifecycle.run-shard -shards 0-15 -s3 127.0.0.1:{self.grpc} -runtime 10s")

    def age(self, bucket: str, days: float, prefix: str = "") -> int:
        """Make what lies under a prefix look so many days old, by rewriting the metadata; returns how many entries."""
        with tempfile.TemporaryDirectory(dir=self.root) as place:
            saved, patched = Path(place) / "saved.meta", Path(place) / "patched.meta"
            said = self.shell(f"fs.meta.save -o {saved} /buckets/{bucket}")
            if not saved.exists():
                raise RuntimeError(f"fs.meta.save failed: {said}")
            data, count = _aged(saved.read_bytes(), f"/buckets/{bucket}/", prefix, int(days * DAY))
            patched.write_bytes(data)
            # The load ends in the background: the shell must live on for a moment.
            # A directory that is there keeps the time of its making.
            gone = [f"fs.rm -r /buckets/{bucket}/.uploads"] if b".uploads" in data else []
            self.shell(*gone, f"fs.meta.load {patched}", *[f"fs.tree /buckets/{bucket}"] * 3)
        return count


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at


def _as_varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes(out) + bytes([value])


def _fields(data: bytes) -> Iterator[tuple[int, int, Any]]:
    """Number, wire type and value of each protobuf field."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, wire = tag >> 3, tag & 7
        if wire == 0:
            value, at = _varint(data, at)
            yield number, wire, value
            continue
        length = 8 if wire == 1 else 4
        if wire == 2:
            length, at = _varint(data, at)
        yield number, wire, data[at : at + length]
        at += length


def _joined(fields: list[tuple[int, int, Any]]) -> bytes:
    out = b""
    for number, wire, value in fields:
        out += _as_varint(number << 3 | wire)
        out += _as_varint(value) if wire == 0 else (_as_varint(len(value)) if wire == 2 else b"") + value
    return out


def _aged(data: bytes, root: str, prefix: str, seconds: int) -> tuple[bytes, int]:
    """A metadata dump with mtime (2) and crtime (6) of matching files and unfinished uploads moved into the past."""
    out, count, at = b"", 0, 0
    while at < len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        record = list(_fields(data[at + 4 : at + 4 + length]))
        at += 4 + length
        directory = next((value for number, _wire, value in record if number == 1), b"").decode()
        for place, (number, wire, value) in enumerate(record):
            if number != 2:
                continue
            entry = list(_fields(value))
            name = next((one for field, _w, one in entry if field == 1), b"").decode()
            is_directory = any(field == 2 and one for field, _w, one in entry)
            path = f"{directory}/{name}"
            # An unfinished upload is a directory there.
            if is_directory and directory == root + ".uploads":
                is_directory = False
            if is_directory or not path.startswith(root) or not path[len(root) :].startswith(prefix):
                continue
            count += 1
            moved = [
                (field, w, _moved(one, seconds)) if field == 4 and w == 2 else (field, w, one)
                for field, w, one in entry
            ]
            record[place] = (number, wire, _joined(moved))
        new = _joined(record)
        out += struct.pack(">I", len(new)) + new
    return out, count


def _moved(attributes: bytes, seconds: int) -> bytes:
    return _joined(
        [(n, w, v - seconds if n in (2, 6) and w == 0 else v) for n, w, v in _fields(attributes)],
    )


IDENTITIES = {
    "identities": [
        {
            "name": "admin",
            "credentials": [{"accessKey": KEY, "secretKey": SECRET}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        },
        {
            "name": "reader",
            "credentials": [{"accessKey": "readkey", "secretKey": "readsecret"}],
            "actions": ["Read", "List"],
        },
        {"name": "nobody", "credentials": [{"accessKey": "nokey", "secretKey": "nosecret"}], "actions": ["Read:none"]},
    ]
}


@contextlib.contextmanager
def weed() -> Iterator[Weed]:
    with _place() as root:
        (root / "data").mkdir()
        (root / "admin").mkdir()
        (root / "s3.json").write_text(json.dumps(IDENTITIES))
        names = "master volume filer s3 admin".split()
        ports = dict(zip(names, free_ports(5), strict=True))
        grpc = dict(zip(names, free_ports(5), strict=True))
        flags = [f"-{name}.port={port}" for name, port in ports.items()]
        flags += [f"-{name}.port.grpc={port}" for name, port in grpc.items()]
        flags += [f"-dir={root}/data", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-s3.config={root}/s3.json"]
        flags += [f"-admin.dataDir={root}/admin", "-webdav=false", "-s3.iam=false", "-s3.port.iceberg=0"]
        flags += [f"-s3.domainName={DOMAIN}"]
        flags += [f"-metricsPort={free_ports(1)[0]}"]
        # It writes an option file into its working directory.
        with serving([program("weed"), "-logtostderr=true", "mini", *flags], root) as process:
            wait_until(lambda: status(ports["s3"], "/healthz") == 200, what="SeaweedFS")
            server = Weed(
                f"http://127.0.0.1:{ports['s3']}",
                root,
                process,
                f"127.0.0.1:{ports['master']}.{grpc['master']}",
                grpc["s3"],
            )
            # S3 answers before the volume server can be written to.
            wait_until(lambda: _writable(server), what="SeaweedFS's volume server")
            yield server


@contextlib.contextmanager
def rclone() -> Iterator[Server]:
    with _place() as root:
        (port,) = free_ports(1)
        (root / "data").mkdir()
        command = [program("rclone"), "serve", "s3", "--addr", f"127.0.0.1:{port}", "--config", str(root / "none")]
        command += ["--auth-key", f"{KEY},{SECRET}", str(root / "data")]
        with serving(command, root) as process:
            wait_until(lambda: status(port, "/") > 0, what="rclone")
            yield Server(f"http://127.0.0.1:{port}", root, process)


def status(port: int, path: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    with contextlib.closing(connection):
        connection.request("GET", path)
        return connection.getresponse().status


def _writable(server: Weed) -> bool:
    try:
        server.client.create_bucket(Bucket="ready")
    except server.client.exceptions.ClientError as error:
        if "Already" not in str(error):
            return False
    try:
        server.client.put_object(Bucket="ready", Key="ready", Body=b"x")
    except Exception:
        return False
    return True


@contextlib.contextmanager
def _place() -> Iterator[Path]:
    root = Path(tempfile.mkdtemp(prefix="llmhost-s3-"))
    try:
        yield root
    finally:
        shutil.rmtree(root, ignore_errors=True)


@contextlib.contextmanager
def serving(
    command: list[str], root: Path, environment: dict[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A server process that is ended with the context."""
    with (root / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=root, env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class Between:
    """A proxy in front of a server. `meddle(method, path, body)` gives an answer of its own, CUT, or None to forward.

    answered(method, path, status, body) may change what the server said; date: what it says the time is.
    """

    CUT = object()

    def __init__(self, target: str, certificate: Path | None = None) -> None:
        from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

        host, port = target.removeprefix("http://").split(":")
        self.meddle: Callable[[str, str, bytes], Any] = lambda method, path, body: None
        self.answered: Callable[[str, str, int, bytes], tuple[int, bytes]] = lambda m, p, status, body: (status, body)
        self.date: str | None = None
        self.seen: list[str] = []
        self.headers: dict[str, dict[str, str]] = {}
        between = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                between.seen.append(f"{self.command} {self.path}")
                between.headers[between.seen[-1]] = {name.lower(): value for name, value in self.headers.items()}
                answer = between.meddle(self.command, self.path, body)
                if answer is Between.CUT:
                    self.close_connection = True
                    self.connection.shutdown(socket.SHUT_RDWR)
                    return
                if answer is not None:
                    status, headers, data = answer
                    self.reply(status, headers, data)
                    return
                upstream = http.client.HTTPConnection(host, int(port), timeout=30)
                with contextlib.closing(upstream):
                    upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                    for name, value in self.headers.items():
                        upstream.putheader(name, value)
                    upstream.endheaders(body)
                    response = upstream.getresponse()
                    status, data = between.answered(self.command, self.path, response.status, response.read())
                    headers = {
                        name: value
                        for name, value in response.getheaders()
                        if name.lower() not in ("content-length", "transfer-encoding", "connection")
                    }
                    self.reply(status, headers if between.date is None else {**headers, "Date": between.date}, data)

            def reply(self, status: int, headers: dict[str, str], data: bytes) -> None:
                self.send_response_only(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(data)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_any

            def log_message(self, format: str, *arguments: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self.server.server_address[1]}"
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate, certificate.with_name("key.pem"))
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
            self.endpoint = self.endpoint.replace("http:", "https:")
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def __enter__(self) -> Between:
        return self

    def __exit__(self, *_error: Any) -> None:
        self.server.shutdown()
        self.server.server_close()


def self_signed(place: Path, address: str = "127.0.0.1") -> Path:
    """A certificate for an address that nobody has signed, its key beside it."""
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 1"
    command += f" -subj /CN={address} -addext subjectAltName=IP:{address}"
    files = ["-keyout", str(place / "key.pem"), "-out", str(place / "cert.pem")]
    subprocess.run([*command.split(), *files], check=True, capture_output=True)
    return place / "cert.pem"


def settings(server: Server, bucket: str, **more: Any) -> Any:
    """Settings of our own client for a bucket of a server."""
    from ansible_collections.llmhost.hardening.plugins.module_utils.s3.client import Settings

    given = {"bucket": bucket, "endpoint": server.endpoint, "access_key": KEY, "secret_key": SECRET}
    return Settings(**{**given, **more})


def is_lifecycle(path: str) -> bool:
    return "?lifecycle" in path
