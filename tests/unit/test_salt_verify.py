# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The last hop's check, called as an ASGI server calls it."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import sys
import types
from pathlib import Path

import pytest

from ansible_collections.llmhost.hardening.plugins.module_utils.salt import derive, render, settings

FILE = Path(__file__).resolve().parents[2] / "roles/cache_salt_gateway/files/python/llmhost_salt_verify.py"
spec = importlib.util.spec_from_file_location("llmhost_salt_verify", FILE)
verify = importlib.util.module_from_spec(spec)
spec.loader.exec_module(verify)

KEY = bytes.fromhex("8b1f6f0a5d3c47e29ab0c1d2e3f405162738495a6b7c8d9eafb0c1d2e3f4a5b6")


def salt(name, epoch="1"):
    return derive.salt(KEY, name, epoch)


def write(path, **epochs):
    """The file as the role writes it."""
    tenants = [{"name": name, "epoch": epoch} for name, epoch in epochs.items()]
    complete = settings.complete({"engine_version": "0.29.0", "tenants": tenants})
    new = path.with_suffix(".new")
    new.write_text(render.verify(complete, KEY))
    new.replace(path)


class Engine:
    """The application behind the check: remembers bodies, answers 200."""

    def __init__(self):
        self.bodies, self.types, self.more = [], [], []

    async def __call__(self, scope, receive, send):
        self.types.append(scope["type"])
        if scope["type"] != "http":
            return
        body = b""
        while True:
            message = await receive()
            body += message["body"]
            if not message.get("more_body"):
                break
        self.bodies.append(body)
        self.more.append(await receive())
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"ok"})


@pytest.fixture
def hop(tmp_path, monkeypatch):
    monkeypatch.delenv("VLLM_USE_RUST_FRONTEND", raising=False)
    write(tmp_path / "verify.json", acme="1", bob="1")
    engine = Engine()
    checked = verify.SaltVerify(engine, str(tmp_path / "verify.json"))
    return types.SimpleNamespace(engine=engine, app=checked, path=tmp_path / "verify.json")


def call(hop, body, tenant="acme", *, path="/v1/chat/completions", method="POST", kind="http", headers=None, pieces=1):
    """Status and body of the answer."""
    sent = []
    size = max(1, -(-len(body) // pieces))
    parts = [body[at : at + size] for at in range(0, max(len(body), 1), size)]
    messages = [
        {"type": "http.request", "body": part, "more_body": number < len(parts) - 1}
        for number, part in enumerate(parts)
    ]
    messages.append({"type": "http.disconnect"})
    waiting = iter(messages)

    async def receive():
        return next(waiting)

    async def send(message):
        sent.append(message)

    named = [] if tenant is None else [(b"x-llmhost-tenant", tenant.encode())]
    scope = {"type": kind, "method": method, "path": path, "headers": named + (headers or []), "root_path": ""}
    asyncio.run(hop.app(scope, receive, send))
    if kind != "http":
        return sent
    return sent[0]["status"], sent[1]["body"]


def body(value, **more):
    return json.dumps({"model": "m", "cache_salt": value, **more}).encode()


@pytest.mark.parametrize("pieces", [1, 3, 50])
def test_a_request_with_its_tenant_s_salt_passes_to_the_byte(hop, pieces):
    data = b' {"a":12345678901234567890123,"cache_salt":"%s","b":[ ]}\n' % salt("bob").encode()
    assert call(hop, data, "bob", pieces=pieces) == (200, b"ok")
    assert hop.engine.bodies == [data] and hop.engine.more == [{"type": "http.disconnect"}]


@pytest.mark.parametrize(
    "data",
    [
        b"{}",
        b"",
        b"null",
        b"[]",
        b'[{"cache_salt":"%s"}]' % salt("acme").encode(),
        b'{"cache_salt":"%s"' % salt("acme").encode(),
        b'{"a":{"cache_salt":"%s"}}' % salt("acme").encode(),
        body(salt("bob")),
        body(salt("acme", "2")),
        body(salt("acme") + "x"),
        body(""),
        body(None),
        body([salt("acme")]),
        body({"cache_salt": salt("acme")}),
        body("\ud800"),
        # Python takes the last one, other parsers the first: neither may be a stranger's.
        b'{"cache_salt":"%s","cache_salt":"evil"}' % salt("acme").encode(),
        b'{"cache_salt":"evil","cache_salt":"%s"}' % salt("acme").encode(),
        b'{"cache_salt":"%s","cache\\u005fsalt":"evil"}' % salt("acme").encode(),
        b'{"extra_body":{"cache_salt":"%s"}}' % salt("acme").encode(),
        b'{"a":' * 100_000,
    ],
)
def test_any_other_request_is_refused(hop, data):
    status, answer = call(hop, data)
    assert status == 403 and hop.engine.types == []
    assert not any(salt(name) in answer.decode() for name in ("acme", "bob"))


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
def test_a_body_is_read_as_the_engine_reads_it(hop, encoding):
    assert call(hop, body("evil").decode().encode(encoding))[0] == 403
    assert call(hop, body(salt("acme")).decode().encode(encoding))[0] == 200


def test_the_tenant_is_named_once_and_known(hop):
    good = body(salt("acme"))
    assert call(hop, good, None)[0] == 403
    assert call(hop, good, "acme", headers=[(b"X-Llmhost-Tenant", b"bob")])[0] == 403
    assert call(hop, good, "mallory")[0] == 403
    assert call(hop, good, "")[0] == 403
    # Who names another tenant needs that one's salt.
    assert call(hop, good, "bob")[0] == 403


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/chat/completions"),
        ("GET", "/v1/responses/resp_1"),
        ("POST", "/v2/embed"),
        ("POST", "/generative_scoring"),
        ("POST", "/tokenize"),
        ("POST", "/v1/chat/completions/"),
        ("POST", "/health"),
        ("DELETE", "/v1/responses/resp_1"),
        ("GET", "/docs"),
    ],
)
def test_nothing_else_is_answered(hop, method, path):
    assert call(hop, body(salt("acme")), path=path, method=method)[0] == 403
    assert hop.engine.types == []


def test_what_has_no_prompt_needs_no_salt(hop):
    assert call(hop, b"", None, path="/health", method="GET")[0] == 200


def test_a_websocket_is_closed_and_a_lifespan_passes(hop):
    assert call(hop, b"", kind="websocket", path="/v1/realtime")[0]["type"] == "websocket.close"
    assert hop.engine.types == []
    call(hop, b"", kind="lifespan", path="")
    assert hop.engine.types == ["lifespan"]


def test_an_epoch_rolls_without_a_restart_and_the_old_salt_is_taken_for_a_moment(hop, monkeypatch):
    write(hop.path, acme="2")
    assert call(hop, body(salt("acme", "2")))[0] == 200
    assert call(hop, body(salt("acme", "1")))[0] == 200
    # A tenant that is gone is gone at once.
    assert call(hop, body(salt("bob")), "bob")[0] == 403
    monkeypatch.setattr(verify, "GRACE", 0.0)
    assert call(hop, body(salt("acme", "1")))[0] == 403
    assert call(hop, body(salt("acme", "2")))[0] == 200


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"schema":2,"paths":[],"tenants":{}}', '{"schema":1,"paths":[],"tenants":{"a":"x"}}']
)
def test_a_file_that_cannot_be_used_lets_nothing_through(hop, text):
    new = hop.path.with_suffix(".new")
    new.write_text(text)
    new.replace(hop.path)
    assert call(hop, body(salt("acme")))[0] == 503
    hop.path.unlink()
    assert call(hop, body(salt("acme")))[0] == 503
    assert hop.engine.types == []
    with pytest.raises((OSError, ValueError, KeyError, TypeError)):
        verify.SaltVerify(hop.engine, str(hop.path))


def test_a_body_without_end_is_cut_off(hop, monkeypatch):
    monkeypatch.setattr(verify, "MAX_BODY", 1000)
    assert call(hop, body(salt("acme"), text="x" * 2000), pieces=5)[0] == 413


def test_the_file_and_the_log_hold_no_salt(hop, caplog):
    call(hop, body("evil-" + salt("bob")))
    assert "refused a request to /v1/chat/completions" in caplog.text
    for text in (hop.path.read_text(), caplog.text):
        assert not any(secret in text for secret in (salt("acme"), salt("bob"), KEY.hex()))


@pytest.mark.parametrize("value", ["1", "true", "TRUE", "yes"])
def test_an_engine_with_the_rust_front_end_does_not_start(tmp_path, monkeypatch, value):
    write(tmp_path / "v", acme="1")
    monkeypatch.setenv("VLLM_USE_RUST_FRONTEND", value)
    with pytest.raises(RuntimeError, match="VLLM_USE_RUST_FRONTEND"):
        verify.SaltVerify(Engine(), str(tmp_path / "v"))
    monkeypatch.setenv("VLLM_USE_RUST_FRONTEND", "0")
    verify.SaltVerify(Engine(), str(tmp_path / "v"))


def test_an_engine_that_answers_grpc_does_not_start(tmp_path, monkeypatch):
    write(tmp_path / "v", acme="1")
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "vllm.entrypoints.grpc_server", types.ModuleType("x"))
        with pytest.raises(RuntimeError, match="gRPC"):
            verify.SaltVerify(Engine(), str(tmp_path / "v"))
    monkeypatch.setattr(sys, "argv", ["vllm", "serve", "--grpc"])
    with pytest.raises(RuntimeError, match="gRPC"):
        verify.SaltVerify(Engine(), str(tmp_path / "v"))


def test_it_is_found_and_loaded_as_the_engine_loads_it(tmp_path, monkeypatch):
    """vLLM imports the module by name, takes the attribute and calls it with the application alone."""
    write(tmp_path / "v", acme="1")
    monkeypatch.setenv("LLMHOST_SALT_VERIFY", str(tmp_path / "v"))
    monkeypatch.syspath_prepend(str(FILE.parent))
    module, _dot, name = "llmhost_salt_verify.SaltVerify".rpartition(".")
    imported = getattr(importlib.import_module(module), name)
    assert isinstance(imported, type) and imported(app=Engine()).salts.now.keys() == {"acme"}
    assert os.path.dirname(sys.modules[module].__file__) == str(FILE.parent)
