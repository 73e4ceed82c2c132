# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The real nginx with the configuration that the role writes, as a process of this machine on free loopback ports."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from gateway_upstream import Upstream

from ansible_collections.llmhost.hardening.plugins.module_utils.salt import derive, render, tenants
from ansible_collections.llmhost.hardening.plugins.module_utils.salt import settings as settings_

ROOT = Path(__file__).resolve().parents[2]
LUA = ROOT / "roles/cache_salt_gateway/files/lua"
NGINX = shutil.which("nginx", path="/usr/sbin:/usr/bin:/sbin:/bin")
KEY = bytes.fromhex("8b1f6f0a5d3c47e29ab0c1d2e3f405162738495a6b7c8d9eafb0c1d2e3f4a5b6")
NOBODY = 65534
ENGINE_KEY = "engine-key-of-this-test"
API_KEYS = {"acme": "sk-acme-5c1e", "bob": "sk-bob-77aa", "shy": "sk-shy-90cd"}


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def tenant(name: str, epoch: str = "1", **more: Any) -> dict[str, Any]:
    return {"name": name, "epoch": epoch, "key_sha256": [sha256(API_KEYS.get(name, "sk-" + name))], **more}


TENANTS = [tenant("acme"), tenant("bob"), tenant("shy", no_persist=True)]


def salt(name: str, epoch: str = "1", key: bytes = KEY) -> str:
    return derive.salt(key, name, epoch)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def missing() -> str:
    """What this machine lacks, and how to get it."""
    modules = [Path(render.MODULES) / name for name in ("ndk_http_module.so", "ngx_http_lua_module.so")]
    if NGINX and all(module.exists() for module in modules):
        return ""
    return "nginx with Lua is missing: apt-get install -y --no-install-recommends nginx libnginx-mod-http-lua"


class Gateway:
    """A running gateway, its upstream and the files between them."""

    def __init__(self, home: Path, upstream: Upstream, given: dict[str, Any]) -> None:
        self.home, self.upstream, self.given = home, upstream, given
        self.port, self.metrics_port = free_port(), free_port()
        self.places = render.Places(
            config=str(home / "nginx.conf"),
            tenants=str(home / "tenants"),
            lua=str(home / "lua"),
            run=str(home / "run"),
            credentials=str(home / "credentials"),
            access_log=str(home / "access.log"),
            error_log=str(home / "error.log"),
        )
        for name in ("run", "credentials"):
            (home / name).mkdir(exist_ok=True)
        shutil.copytree(LUA, home / "lua", dirs_exist_ok=True)
        self.write_key(KEY)
        (home / "credentials/engine.key").write_text(ENGINE_KEY + "\n")
        self.write(given.get("tenants", TENANTS))
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def settings(self) -> dict[str, Any]:
        return settings_.complete(
            {
                "engine_version": "0.29.0",
                "engine_key_file": str(self.home / "credentials/engine.key"),
                "listen": f"127.0.0.1:{self.port}",
                "metrics_listen": f"127.0.0.1:{self.metrics_port}",
                "upstream": f"127.0.0.1:{self.upstream.port}",
                "workers": 1,
                **self.given,
            }
        )

    def write_key(self, key: bytes) -> None:
        (self.home / "credentials/salt.key").write_text(key.hex() + "\n")

    def write(self, who: list[dict[str, Any]]) -> None:
        """The files that a run of the role would write for these tenants."""
        self.given = {**self.given, "tenants": who}
        problems = settings_.problems(self.settings, "test")
        assert not problems, "\n".join(map(str, problems))
        self.replace("tenants", tenants.render(who))
        self.replace("nginx.conf", render.nginx_conf(self.settings, self.places))

    def replace(self, name: str, text: str) -> None:
        """Put a file in place as the role does: whole or not at all."""
        (self.home / "new").write_text(text)
        (self.home / "new").rename(self.home / name)

    def command(self, *more: str) -> list[str]:
        return [NGINX or "nginx", "-e", "stderr", "-p", str(self.home), "-c", self.places.config, *more]

    def check(self) -> subprocess.CompletedProcess[str]:
        return subprocess.run(self.command("-t"), capture_output=True, text=True, check=False)

    def start(self) -> None:
        with (self.home / "said").open("wb") as said:
            self.process = subprocess.Popen(
                self.command(), stdout=said, stderr=said, start_new_session=True, **self.account()
            )
        end = time.monotonic() + 15
        while time.monotonic() < end:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", self.metrics_port), 1).close()
                return
            if self.process.poll() is not None:
                break
            time.sleep(0.02)
        raise AssertionError("nginx did not start:\n" + self.errors() + (self.home / "said").read_text())

    def account(self) -> dict[str, Any]:
        """As on a host, nginx never is root."""
        if os.getuid():
            return {}
        for path in (self.home, *self.home.rglob("*")):
            os.chown(path, NOBODY, NOBODY)
        return {"user": NOBODY, "group": NOBODY, "extra_groups": []}

    def stop(self) -> None:
        if self.process and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGTERM)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait(10)

    def reload(self) -> None:
        """What `systemctl reload` does."""
        assert self.process
        self.process.send_signal(signal.SIGHUP)

    def wait_for_tenants(self) -> None:
        """Until the worker serves the tenants of the file."""
        wanted = derive.text_id((self.home / "tenants").read_bytes())
        self.wait_for(f'tenants="{wanted}"')

    def wait_for(self, text: str) -> None:
        """Until the metrics hold this text."""
        end = time.monotonic() + 15
        while text not in self.metrics():
            assert time.monotonic() < end, f"never came: {text}\n" + self.errors()
            time.sleep(0.02)

    def errors(self) -> str:
        log = self.home / "error.log"
        return log.read_text(errors="replace") if log.exists() else ""

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)

    def post(
        self,
        body: bytes | str | dict[str, Any],
        who: str | None = "acme",
        path: str = "/v1/chat/completions",
        connection: http.client.HTTPConnection | None = None,
        **headers: str,
    ) -> tuple[int, bytes]:
        """Status and body of the answer to one request."""
        data = json.dumps(body).encode() if isinstance(body, dict) else body.encode() if isinstance(body, str) else body
        sent = {"Content-Type": "application/json"}
        if who:
            sent["Authorization"] = "Bearer " + API_KEYS.get(who, "sk-" + who)
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        conn = connection or self.connect()
        try:
            conn.request("POST", path, data, sent)
            answer = conn.getresponse()
            return answer.status, answer.read()
        finally:
            if connection is None:
                conn.close()

    def raw(self, data: bytes, seconds: float = 10) -> bytes:
        """What comes back for these bytes until the gateway closes or falls silent."""
        with socket.create_connection(("127.0.0.1", self.port), seconds) as sock:
            sock.settimeout(seconds)
            answer = b""
            # A refusal may come, and the connection close, before all is sent.
            with contextlib.suppress(TimeoutError, ConnectionResetError, BrokenPipeError):
                sock.sendall(data)
            with contextlib.suppress(TimeoutError, ConnectionResetError):
                while chunk := sock.recv(65536):
                    answer += chunk
        return answer

    def metrics(self) -> str:
        conn = http.client.HTTPConnection("127.0.0.1", self.metrics_port, timeout=10)
        try:
            conn.request("GET", "/metrics")
            return conn.getresponse().read().decode()
        finally:
            conn.close()

    def metric(self, name: str, **labels: str) -> int:
        total = 0
        for line in self.metrics().splitlines():
            if line.startswith(f"llmhost_gateway_{name}{{") and all(f'{k}="{v}"' in line for k, v in labels.items()):
                total += int(line.rsplit(" ", 1)[1])
        return total


@contextlib.contextmanager
def home() -> Iterator[Path]:
    """A directory that an account other than the tests' can reach."""
    with tempfile.TemporaryDirectory(prefix="llmhost-gateway-", dir="/tmp") as directory:
        yield Path(directory)


@contextlib.contextmanager
def gateway(prepare: Callable[[Gateway], None] | None = None, /, **given: Any) -> Iterator[Gateway]:
    """A gateway that runs, with an upstream that answers; prepare adds to its files before it starts."""
    assert not missing(), missing()
    upstream = Upstream()
    with home() as directory:
        running = Gateway(directory, upstream, given)
        try:
            if prepare:
                prepare(running)
            running.start()
            yield running
        finally:
            running.stop()
            upstream.close()


def no_salt_in(text: str | bytes) -> bool:
    """True if none of the tenants' salts stands in the text."""
    data = text if isinstance(text, str) else text.decode("latin-1")
    return not any(salt(name) in data for name in API_KEYS) and not re.search(KEY.hex(), data)


def salts_of(body: bytes) -> list[object]:
    """The value of every top-level key of a document that Python reads as cache_salt, in order."""
    objects: list[list[tuple[str, object]]] = []

    def keep(pairs: list[tuple[str, object]]) -> dict[str, object]:
        objects.append(pairs)
        return dict(pairs)

    json.loads(body, object_pairs_hook=keep)
    # The outermost object is closed last.
    return [value for key, value in objects[-1] if key == "cache_salt"]


def config_id(running: Gateway) -> str:
    """What a gateway with this configuration calls it."""
    return render.config_id(running.settings, running.places)
