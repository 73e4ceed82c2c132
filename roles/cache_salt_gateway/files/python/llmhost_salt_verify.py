# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The last hop: refuses a request whose cache_salt is not its tenant's. Never adds one.

    PYTHONPATH=/usr/local/lib/llmhost/python vllm serve ... --middleware llmhost_salt_verify.SaltVerify

Reads the body as vLLM does (json.loads of the bytes), so there is no difference to hide a salt in. Knows digests of
the salts only; LLMHOST_SALT_VERIFY names another file than /etc/llmhost/gateway/verify.json. A file that cannot be
used lets nothing through.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import os
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

Scope = dict[str, Any]
Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

FILE = "/etc/llmhost/gateway/verify.json"
TENANT_HEADER = b"x-llmhost-tenant"
MAX_BODY = 64 << 20
# A request that was salted before an epoch rolled may still be on its way.
GRACE = 60.0
# Without a prompt, without blocks.
OPEN = {"/health", "/ping", "/load", "/version", "/v1/models", "/metrics"}

log = logging.getLogger("llmhost_salt_verify")


def check_process() -> None:
    """Raise if this process has a way in that no middleware sees; under a Rust front end this is not even loaded."""
    rust = os.environ.get("VLLM_USE_RUST_FRONTEND", "").strip().lower()
    if rust not in ("", "0", "false", "no", "off"):
        raise RuntimeError(
            "llmhost_salt_verify: VLLM_USE_RUST_FRONTEND is on; its requests pass no middleware. Unset it."
        )
    if "--grpc" in sys.argv or any(name.startswith("vllm.entrypoints.grpc_server") for name in sys.modules):
        raise RuntimeError("llmhost_salt_verify: this process answers gRPC, which carries no salt. Start it without.")


class Salts:
    """Digests of the tenants' salts, read again when their file changes."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.stamp: tuple[int, int, int] | None = None
        self.paths: frozenset[str] = frozenset()
        self.now: dict[str, str] = {}
        self.before: dict[str, str] = {}
        self.changed = 0.0
        self.load()

    def load(self) -> None:
        """Take up the file if it is another one; raises if it cannot be used."""
        info = os.stat(self.path)
        stamp = (info.st_ino, info.st_mtime_ns, info.st_size)
        if stamp == self.stamp:
            return
        with open(self.path, encoding="utf-8") as file:
            document = json.load(file)
        tenants, paths = document["tenants"], document["paths"]
        if document["schema"] != 1 or not isinstance(tenants, dict) or not isinstance(paths, list):
            raise ValueError(f"{self.path} is not of this version")
        if not all(isinstance(digest, str) and len(digest) == 64 for digest in tenants.values()):
            raise ValueError(f"{self.path} holds something else than digests")
        self.before, self.now = self.now, dict(tenants)
        self.paths, self.stamp, self.changed = frozenset(paths), stamp, time.monotonic()

    def match(self, tenant: str, salt: Any) -> bool:
        """True if this is the salt of that tenant, or was until a moment ago."""
        if not isinstance(salt, str) or tenant not in self.now:
            return False
        digest = hashlib.sha256(salt.encode("utf-8", "surrogatepass")).hexdigest()
        accepted = [self.now[tenant]]
        if time.monotonic() - self.changed < GRACE and tenant in self.before:
            accepted.append(self.before[tenant])
        return any(hmac.compare_digest(digest, one) for one in accepted)


class SaltVerify:
    """An ASGI middleware as vLLM's --middleware loads it."""

    def __init__(self, app: Callable[[Scope, Receive, Send], Awaitable[None]], path: str | None = None) -> None:
        check_process()
        self.app = app
        self.salts = Salts(path or os.environ.get("LLMHOST_SALT_VERIFY") or FILE)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            # A WebSocket has no body that could hold a salt.
            await send({"type": "websocket.close", "code": 1008})
            return
        path = scope["path"]
        if scope["method"] in ("GET", "HEAD") and path in OPEN:
            await self.app(scope, receive, send)
            return
        try:
            self.salts.load()
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.error("llmhost_salt_verify: %s", error)
            await _refuse(send, 503, "the tenants' salts cannot be read")
            return
        if scope["method"] != "POST" or path not in self.salts.paths:
            await _refuse(send, 403, "nothing but salted requests to the declared endpoints is answered here")
            return
        tenants = [value for name, value in scope["headers"] if name.lower() == TENANT_HEADER]
        if len(tenants) != 1:
            await _refuse(send, 403, "the request names no tenant, or several")
            return
        body = await _read(receive)
        if body is None:
            await _refuse(send, 413, "the body is too large or was cut off")
            return
        why = self._judge(tenants[0].decode("latin-1"), body)
        if why:
            log.warning("llmhost_salt_verify: refused a request to %s: %s", path, why)
            await _refuse(send, 403, why)
            return
        await self.app(scope, _again(body, receive), send)

    def _judge(self, tenant: str, body: bytes) -> str:
        """Why this body may not pass, empty if it may."""
        try:
            members = _members(body)
        except (ValueError, RecursionError):
            return "the body is no JSON"
        if members is None:
            return "the body is no JSON object"
        salts = [value for name, value in members if name == "cache_salt"]
        if len(salts) != 1:
            return "the request has not exactly one cache_salt"
        if not self.salts.match(tenant, salts[0]):
            return "the request's cache_salt is not its tenant's"
        return ""


def _members(body: bytes) -> list[tuple[str, Any]] | None:
    """The members of the outermost object, duplicates kept; None if the document is something else."""
    last: list[list[tuple[str, Any]]] = [[]]

    def keep(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        # The outermost object is closed last.
        last[0] = pairs
        return dict(pairs)

    return last[0] if isinstance(json.loads(body, object_pairs_hook=keep), dict) else None


async def _read(receive: Receive) -> bytes | None:
    parts, size = [], 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > MAX_BODY:
            return None
        if not message.get("more_body"):
            return b"".join(parts)


def _again(body: bytes, receive: Receive) -> Receive:
    """The body that was judged, once; then whatever the server says (a client that goes away)."""
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


async def _refuse(send: Send, status: int, why: str) -> None:
    text = json.dumps({"error": {"message": why, "type": "llmhost_salt_verify", "code": status}}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(text))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text})
