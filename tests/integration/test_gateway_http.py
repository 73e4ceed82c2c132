# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What HTTP allows a client to try: framing, paths, headers, credentials, time; and what comes back."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator

import gateway_bed as bed
import pytest

MARKER = "prompt-marker-7f3a91"
AUTH = "Authorization: Bearer " + bed.API_KEYS["acme"]


@pytest.fixture(scope="module")
def gateway() -> Iterator[bed.Gateway]:
    with bed.gateway(max_body_bytes=1 << 20) as running:
        yield running


@pytest.fixture(autouse=True)
def only_right_salts(gateway: bed.Gateway) -> Iterator[None]:
    """Whatever a test sends: what reached the engine has its tenant's salt and the engine's key, and no other."""
    gateway.upstream.seen.clear()
    yield
    for seen in gateway.upstream.seen:
        (name,) = seen.header("x-llmhost-tenant")
        assert bed.salts_of(seen.body) == [bed.salt(name)]
        assert seen.header("authorization") == ["Bearer " + bed.ENGINE_KEY]
        assert {key.lower() for key, _value in seen.headers} <= {
            "host", "accept", "content-type", "content-length", "authorization", "x-llmhost-tenant",
        }  # fmt: skip


def request(body: bytes = b"{}", *headers: str, first: str = "POST /v1/chat/completions HTTP/1.1") -> bytes:
    """A request as bytes, closed after its answer, with exactly these headers."""
    lines = [first, "Host: gateway", "Connection: close", *headers]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


def good(body: bytes = b"{}", *headers: str, first: str = "POST /v1/chat/completions HTTP/1.1") -> bytes:
    return request(body, AUTH, "Content-Type: application/json", f"Content-Length: {len(body)}", *headers, first=first)


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/") else 0


def code(answer: bytes) -> str:
    return next((part.split(b'"')[0].decode() for part in answer.split(b'"code":"')[1:]), "")


# Framing


def test_a_chunked_body_is_read_whole(gateway: bed.Gateway) -> None:
    chunks = b'5\r\n{"cac\r\n9\r\nhe_salt":\r\n7\r\n"evil"}\r\n0\r\n\r\n'
    answer = gateway.raw(request(chunks, AUTH, "Content-Type: application/json", "Transfer-Encoding: chunked"))
    assert status(answer) == 200 and len(gateway.upstream.seen) == 1


@pytest.mark.parametrize(
    "headers",
    [
        ("Transfer-Encoding: chunked", "Content-Length: 4"),
        ("Content-Length: 4", "Transfer-Encoding: chunked"),
        ("Content-Length: 2", "Content-Length: 40"),
        ("Content-Length: 2", "Content-Length: 2"),
        ("Content-Length: +2",),
        ("Content-Length: 0x2",),
        ("Transfer-Encoding: chunked, identity",),
        ("Transfer-Encoding: xchunked",),
        ("Transfer-Encoding:\x0bchunked",),
        ("Transfer-Encoding: gzip, chunked",),
        ("Transfer-Encoding: chunked", "Transfer-Encoding: chunked"),
        ("Content-Length : 2",),
    ],
)
def test_lengths_that_parsers_read_differently_are_refused(gateway: bed.Gateway, headers: tuple[str, ...]) -> None:
    smuggled = b'0\r\n\r\nPOST /v2/embed HTTP/1.1\r\nHost: x\r\nContent-Length: 22\r\n\r\n{"cache_salt":"evil"}'
    answer = gateway.raw(request(smuggled, AUTH, "Content-Type: application/json", *headers), 3)
    assert status(answer) in (0, 400, 411, 501)
    assert gateway.upstream.seen == []


def test_pipelined_requests_are_judged_one_by_one(gateway: bed.Gateway) -> None:
    def one(body: bytes, key: str) -> bytes:
        return (
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nAuthorization: Bearer "
            + key.encode()
            + b"\r\nContent-Length: %d\r\n\r\n" % len(body)
            + body
        )

    acme, bob = bed.API_KEYS["acme"], bed.API_KEYS["bob"]
    answer = gateway.raw(
        one(b'{"cache_salt":"x","n":1}', acme)
        + one(b'{"cache_salt":"%s","n":2}' % bed.salt("acme").encode(), bob)
        + one(b"{", acme)
        + one(b'{"n":3}', bob)
        + good(b'{"n":4}')
    )
    assert [int(part[:3]) for part in answer.split(b"HTTP/1.1 ")[1:]] == [200, 200, 400, 200, 200]
    got = [(seen.header("x-llmhost-tenant")[0], seen.document["n"]) for seen in gateway.upstream.seen]
    assert got == [("acme", 1), ("bob", 2), ("bob", 3), ("acme", 4)]


def test_a_body_shorter_than_it_said_reaches_nobody(gateway: bed.Gateway) -> None:
    with socket.create_connection(("127.0.0.1", gateway.port)) as sock:
        sock.sendall(request(b'{"cache_salt":"evil"}', AUTH, "Content-Type: application/json", "Content-Length: 900"))
        time.sleep(0.3)
    time.sleep(0.2)
    assert gateway.upstream.seen == []


def test_a_slow_body_arrives_whole_or_not_at_all(gateway: bed.Gateway) -> None:
    body = b'{"cache_salt":"evil","a":1}'
    with socket.create_connection(("127.0.0.1", gateway.port)) as sock:
        sock.sendall(good(body)[: -len(body)])
        for byte in body:
            sock.sendall(bytes([byte]))
            time.sleep(0.02)
        assert b" 200 " in sock.recv(4096)
    assert len(gateway.upstream.seen) == 1


def test_a_body_that_is_too_large_is_refused(gateway: bed.Gateway) -> None:
    fits = b'{"a":"' + b"x" * ((1 << 20) - 8) + b'"}'
    assert len(fits) == 1 << 20
    assert gateway.post(fits)[0] == 200
    assert gateway.post(fits + b" ")[0] == 413
    assert gateway.post(b'{"a":"' + b"x" * 9_000_000 + b'"}')[0] == 413
    chunked = b"%x\r\n%s\r\n0\r\n\r\n" % (len(fits) + 1, fits + b" ")
    answer = gateway.raw(request(chunked, AUTH, "Content-Type: application/json", "Transfer-Encoding: chunked"))
    assert status(answer) in (0, 413)
    assert len(gateway.upstream.seen) == 1


def test_a_body_that_would_need_a_file_is_refused_and_leaves_none(gateway: bed.Gateway) -> None:
    """In chunks of one byte the framing alone is more than the memory that a body may take."""
    body = b'{"a":"' + b"x" * 500_000 + b'"}'
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
    answer = gateway.raw(request(chunks, AUTH, "Content-Type: application/json", "Transfer-Encoding: chunked"))
    assert (status(answer), code(answer)) == (413, "too_large")
    end = time.monotonic() + 10
    # Removed with the request, which ends a moment after its answer.
    while any(path.is_file() for path in (gateway.home / "run/client_body").rglob("*")):
        assert time.monotonic() < end, "the file stays"
        time.sleep(0.05)


# Paths and methods


@pytest.mark.parametrize(
    "target",
    [
        "/", "/v1", "/v1/", "/v1/chat/completions/", "/v1/chat/completions/batch", "/v1//chat/completions",
        "//v1/chat/completions", "/v1/./chat/completions", "/v1/x/../chat/completions", "/v1/chat/%63ompletions",
        "/v1/chat%2Fcompletions", "/v1/chat/completions%00", "/v1/chat/completions%20", "/v1/chat/completions;x",
        "/V1/chat/completions", "/v1/chat/completions?", "/v1/chat/completions?cache_salt=evil",
        "/v1/chat/completions#x", "/v1/chat/completions/render", "/v1/messages/count_tokens", "/v1/responses",
        "/v2/embed", "/generative_scoring", "/cohere/v2/chat", "/inference/v1/generate", "/invocations", "/tokenize",
        "/detokenize", "/v1/audio/transcriptions", "/v1/realtime", "/v1/models", "/metrics", "/health", "/docs",
        "/slots", "/slots/0?action=save", "/slots/0?action=restore", "/slots/0?action=erase",
        "/%73lots/0?action=restore", "/v1/../slots/0?action=restore", "/openapi.json", "/v1/load_lora_adapter",
        "/reset_prefix_cache", "/llmhost-auth", "/v1/chat/../../v2/embed",
    ],
)  # fmt: skip
def test_what_is_not_on_the_list_letter_for_letter_is_not_there(gateway: bed.Gateway, target: str) -> None:
    answer = gateway.raw(good(b'{"cache_salt":"evil"}', first=f"POST {target} HTTP/1.1"))
    assert status(answer) in (400, 404)
    assert gateway.upstream.seen == []


def test_an_absolute_target_is_judged_by_its_path(gateway: bed.Gateway) -> None:
    assert status(gateway.raw(good(first="POST http://engine/v2/embed HTTP/1.1"))) == 404
    gateway.raw(good(first="POST http://engine/v1/completions HTTP/1.1"))
    assert {seen.target for seen in gateway.upstream.seen} <= {"/v1/completions"}


@pytest.mark.parametrize(
    "method", ["GET", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "post", "FOO"]
)
def test_only_post_is_answered(gateway: bed.Gateway, method: str) -> None:
    answer = gateway.raw(good(first=f"{method} /v1/chat/completions HTTP/1.1"), 5)
    assert status(answer) in (400, 405)
    assert gateway.upstream.seen == []


# Headers


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "identity", "gzip, gzip"])
def test_an_encoded_body_is_refused(gateway: bed.Gateway, encoding: str) -> None:
    assert code(gateway.raw(good(b"{}", "Content-Encoding: " + encoding))) == "content_encoding"


@pytest.mark.parametrize(
    ("headers", "passes"),
    [
        (["Content-Type: application/json"], True),
        (["Content-Type: Application/JSON; charset=UTF-8"], True),
        (['Content-Type: application/json;charset="utf-8"'], True),
        ([], False),
        (["Content-Type: application/json; charset=utf-16"], False),
        (["Content-Type: application/json; charset=utf-8; charset=utf-16"], False),
        (["Content-Type: text/plain"], False),
        (["Content-Type: multipart/form-data; boundary=x"], False),
        (["Content-Type: application/x-www-form-urlencoded"], False),
        (["Content-Type: application/json", "Content-Type: text/plain"], False),
        (["Content-Type: application/json", "Content-Type: application/json"], False),
    ],
)
def test_only_json_in_utf8_is_taken(gateway: bed.Gateway, headers: list[str], passes: bool) -> None:
    answer = gateway.raw(request(b"{}", AUTH, "Content-Length: 2", *headers))
    assert status(answer) in ((200,) if passes else (400, 415))
    assert len(gateway.upstream.seen) == passes


def test_no_header_of_the_client_reaches_the_engine(gateway: bed.Gateway) -> None:
    """The fixture above lists those that may; Accept is the client's only one."""
    spoofed = (
        "X-data-parallel-rank: 1", "X-Session-ID: s", "X-Vllm-Priority: 9", "X-Request-Id: r", "X-Tenant-Id: bob",
        "X-Llmhost-Tenant: bob", "X_Llmhost_Tenant: bob", "X-Forwarded-For: 1.2.3.4", "Cookie: a=b", "Accept: text/x",
        "Upgrade: websocket", "Expect: 100-continue", "Proxy-Authorization: Basic eDp5", "Forwarded: for=x",
    )  # fmt: skip
    answer = gateway.raw(good(b'{"cache_salt":"evil"}', *spoofed))
    assert b" 200 OK" in answer
    (seen,) = gateway.upstream.seen
    assert seen.header("accept") == ["text/x"] and seen.header("x-llmhost-tenant") == ["acme"]


def test_a_guarded_header_behind_hundreds_of_others_is_not_overlooked(gateway: bed.Gateway) -> None:
    many = [f"X-{number}: y" for number in range(150)]
    assert code(gateway.raw(good(b"{}", *many, "Content-Encoding: gzip"))) == "content_encoding"
    assert code(gateway.raw(good(b"{}", *many, "x-api-key: " + bed.API_KEYS["bob"]))) == "credential_repeated"


# Credentials


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ([], "credential_missing"),
        (["Authorization: "], "credential_missing"),
        (["Authorization: Bearer "], "credential_missing"),
        (["Authorization: Basic YTpi"], "credential_missing"),
        (["Authorization: " + bed.API_KEYS["acme"]], "credential_missing"),
        (["Authorization: Bearer a b"], "credential_missing"),
        (["x-api-key: "], "credential_missing"),
        (["Authorization: Bearer wrong"], "credential_unknown"),
        (["Authorization: Bearer " + bed.sha256(bed.API_KEYS["acme"])], "credential_unknown"),
        (["Authorization: Bearer " + bed.ENGINE_KEY], "credential_unknown"),
        (["x-api-key: wrong"], "credential_unknown"),
        ([AUTH, "x-api-key: " + bed.API_KEYS["bob"]], "credential_repeated"),
        ([AUTH, "x-api-key: " + bed.API_KEYS["acme"]], "credential_repeated"),
        (["x-api-key: " + bed.API_KEYS["acme"], "x-api-key: " + bed.API_KEYS["bob"]], "credential_repeated"),
        ([AUTH, "Authorization: Bearer " + bed.API_KEYS["bob"]], ""),
    ],
)
def test_no_one_tenant_no_answer(gateway: bed.Gateway, headers: list[str], reason: str) -> None:
    answer = gateway.raw(request(b"{}", "Content-Type: application/json", "Content-Length: 2", *headers))
    assert status(answer) in (400, 401)
    # nginx itself refuses Authorization twice.
    assert code(answer) == reason or not reason
    assert gateway.upstream.seen == []


@pytest.mark.parametrize("header", ["Authorization: bearer {}", "Authorization: BEARER  {}", "X-Api-Key: {}"])
def test_a_key_in_any_usual_header_names_its_tenant(gateway: bed.Gateway, header: str) -> None:
    key = bed.API_KEYS["bob"]
    answer = gateway.raw(request(b"{}", "Content-Type: application/json", "Content-Length: 2", header.format(key)))
    assert status(answer) == 200
    assert gateway.upstream.seen[0].header("x-llmhost-tenant") == ["bob"]


# Answers


def test_an_answer_streams_as_it_is_made(gateway: bed.Gateway) -> None:
    with socket.create_connection(("127.0.0.1", gateway.port), 10) as sock:
        began = time.monotonic()
        sock.sendall(good(b'{"x_answer":"stream"}'))
        arrived, data = [], b""
        while chunk := sock.recv(4096):
            data += chunk
            arrived += [time.monotonic() - began] * chunk.count(b"data: ")
    assert [line for line in data.split(b"\r\n") if line.startswith(b"data")] == [b"data: %d\n\n" % n for n in range(5)]
    # One every 0.2 s; buffering would bring them all at the end, 1 s after the request.
    assert arrived[0] < 0.19 and arrived[3] < 0.79
    assert all(later - sooner > 0.1 for sooner, later in zip(arrived, arrived[1:]))


@pytest.mark.parametrize("how", ["echo", "echo-cut", "echo-200"])
def test_no_answer_holds_the_salt(gateway: bed.Gateway, how: str) -> None:
    before = gateway.metric("scrubbed_total", tenant="acme")
    text = "-" * 200 + bed.salt("acme")[:20]
    code_, answer = gateway.post({"x_answer": how, "text": text})
    (seen,) = gateway.upstream.seen
    assert bed.no_salt_in(answer) and code_ == (200 if how == "echo-200" else 400)
    # The rest of it is the engine's, to the byte.
    assert answer == (b'{"error":' + seen.body + b"}").replace(bed.salt("acme").encode(), b"x" * 43)
    assert gateway.metric("scrubbed_total", tenant="acme") == before + 1


def test_an_engine_that_is_down_is_an_error_and_nothing_else(gateway: bed.Gateway) -> None:
    with bed.gateway(upstream=f"127.0.0.1:{bed.free_port()}") as alone:
        code_, answer = alone.post({"a": MARKER})
        assert code_ == 502 and bed.no_salt_in(answer) and MARKER not in alone.errors()
        assert bed.no_salt_in(alone.errors())


# Metrics and logs


def test_metrics_count_by_tenant_and_reason_and_tell_no_salt(gateway: bed.Gateway) -> None:
    def numbers() -> list[int]:
        return [
            gateway.metric("injections_total", tenant="bob"),
            gateway.metric("overrides_total", tenant="bob"),
            gateway.metric("refusals_total", tenant="bob", reason="guarded_field"),
            gateway.metric("refusals_total", tenant="-", reason="credential_unknown"),
            gateway.metric("refusals_total", tenant="-", reason="path"),
            gateway.metric("forwarded_total", tenant="bob", path="/v1/completions", code="200"),
        ]

    before = numbers()
    gateway.post({"a": 1}, "bob", "/v1/completions")
    gateway.post({"cache_salt": "x"}, "bob", "/v1/completions")
    gateway.post({"vllm_xargs": {}}, "bob")
    gateway.post({}, "nobody")
    gateway.post({}, "bob", "/v1/models")
    gateway.post({}, "bob", "/v1/models?x=1")
    assert [now - then for then, now in zip(before, numbers())] == [2, 1, 1, 1, 2, 2]
    text = gateway.metrics()
    assert bed.no_salt_in(text) and "llmhost_gateway_tenants 3" in text
    assert not any(key in text for key in bed.API_KEYS.values())
    assert status(gateway.raw(good(first="GET /metrics HTTP/1.1"))) == 404


def test_what_nginx_itself_refuses_is_counted(gateway: bed.Gateway) -> None:
    before = [
        gateway.metric("refusals_total", tenant="-", reason=why) for why in ("bad_request", "too_long", "too_large")
    ]
    gateway.raw(b"POST x\r\n\r\n", 3)
    gateway.raw(b"GARBAGE\r\n\r\n", 3)
    gateway.raw(request(b"", "Content-Length: 2", "Content-Length: 3"), 3)
    gateway.raw(good(first="POST /" + "x" * 40_000 + " HTTP/1.1"), 3)
    gateway.raw(good(b"", "Content-Length: 99999999").replace(b"Content-Length: 0\r\n", b""), 3)
    after = [
        gateway.metric("refusals_total", tenant="-", reason=why) for why in ("bad_request", "too_long", "too_large")
    ]
    assert [now - then for then, now in zip(before, after)] == [3, 1, 1]


def test_no_prompt_key_or_salt_is_logged_or_left_on_disk(gateway: bed.Gateway) -> None:
    prompt = {"messages": [{"content": MARKER}], "cache_salt": MARKER}
    gateway.post(prompt)
    gateway.post({**prompt, "x_answer": "echo"})
    gateway.post({**prompt, "priority": 1})
    gateway.post(json.dumps(prompt)[:-1])
    gateway.post(prompt, "nobody")
    gateway.post(prompt, path="/v1/chat/completions?q=" + MARKER)
    gateway.post(prompt, path="/" + MARKER)
    gateway.raw(good(json.dumps(prompt).encode(), first=f"POST /v1/completions?q={MARKER} HTTP/1.1"))
    for target in ("/v1/chat/completions?q=" + MARKER, "/" + MARKER):
        gateway.raw(request(b"", AUTH, "Content-Length: 99999999", first=f"POST {target} HTTP/1.1"), 2)
    gateway.raw(b"POST " + MARKER.encode() + b"\r\n\r\n")
    big = b'{"a":"' + MARKER.encode() + b"x" * 2_000_000 + b'"}'
    assert gateway.post(big)[0] == 413
    files = [path for path in gateway.home.rglob("*") if path.is_file() and "credentials" not in path.parts]
    assert {"access.log", "error.log"} <= {path.name for path in files}
    for path in files:
        data = path.read_bytes()
        assert MARKER.encode() not in data, f"{path}: {data[-500:]!r}"
        assert bed.no_salt_in(data) and bed.ENGINE_KEY.encode() not in data
        assert not any(key.encode() in data for key in bed.API_KEYS.values())
    log = (gateway.home / "access.log").read_text()
    assert "tenant=acme path=/v1/chat/completions status=200 reason=- " in log
    assert "tenant=acme path=/v1/chat/completions status=400 reason=guarded_field " in log


# Load


class Clients:
    """Eight clients that ask without a pause, and what went wrong for them."""

    def __init__(self, gateway: bed.Gateway, each: int) -> None:
        self.gateway, self.each = gateway, each  # requests of one connection
        self.stop, self.wrong, self.asked = threading.Event(), list[str](), [0] * 8
        self.threads = [threading.Thread(target=self.ask, args=(number,)) for number in range(8)]

    def ask(self, number: int) -> None:
        name = ("acme", "bob")[number % 2]
        while not self.stop.is_set():
            connection = self.gateway.connect()
            try:
                for _turn in range(self.each):
                    if self.stop.is_set():
                        break
                    code_, answer = self.gateway.post({"cache_salt": "evil", "n": number}, name, connection=connection)
                    self.asked[number] += 1
                    if code_ != 200:
                        self.wrong.append(f"{code_} {answer!r}")
            except OSError as error:
                self.wrong.append(repr(error))
            finally:
                connection.close()

    def __enter__(self) -> Clients:
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        for thread in self.threads:
            thread.join()

    def wait_for_all(self) -> None:
        """Until each client was answered a request that it sent after this call."""
        before, end = list(self.asked), time.monotonic() + 60
        while not all(now > then + 1 for now, then in zip(self.asked, before)):
            assert time.monotonic() < end, f"clients stand still: {before} -> {self.asked}, {self.wrong}"
            time.sleep(0.02)


def test_tenants_come_and_go_under_load_and_no_request_is_lost_or_gets_another_s_salt() -> None:
    with bed.gateway() as busy:
        with Clients(busy, each=1_000_000) as clients:
            for epoch in ("2", "3", "4"):
                clients.wait_for_all()
                busy.write([bed.tenant("acme"), bed.tenant("bob", epoch), bed.tenant("guest" + epoch)])
                busy.wait_for_tenants()
            clients.wait_for_all()
        assert clients.wrong == []
        assert busy.post({}, "guest4")[0] == 200 and busy.post({}, "guest2")[0] == 401
        used: dict[int, list[object]] = {number: [] for number in range(8)}
        for seen in busy.upstream.seen:
            (found,) = bed.salts_of(seen.body)
            of = used.get(seen.document.get("n"), [])
            if of[-1:] != [found]:
                of.append(found)
        # For each client every epoch follows the one before it and none comes back.
        for number, found in used.items():
            assert found == ([bed.salt("bob", epoch) for epoch in "1234"] if number % 2 else [bed.salt("acme")]), number


def test_a_reload_under_load_answers_every_request() -> None:
    with bed.gateway() as busy:
        # What is sent on an idle connection while a worker closes it is lost with every nginx of Debian 12 and 13.
        with Clients(busy, each=1) as clients:
            for megabytes in (2, 3, 4):
                clients.wait_for_all()
                busy.given = {**busy.given, "max_body_bytes": megabytes << 20}
                busy.write(bed.TENANTS)
                busy.reload()
        assert clients.wrong == []
        busy.wait_for(f'config="{bed.config_id(busy)}"')


def test_a_tenants_file_that_cannot_be_read_leaves_the_old_tenants(gateway: bed.Gateway) -> None:
    good_text = (gateway.home / "tenants").read_text()
    for bad in ("acme\n", "acme epoch=1 key=abc\n", good_text + good_text, "Acme epoch=1\n", "acme epoch=1 epoch=2\n"):
        gateway.replace("tenants", bad)
        gateway.wait_for("llmhost_gateway_tenants_file_ok 0")
        assert gateway.post({})[0] == 200
        gateway.replace("tenants", good_text)
        gateway.wait_for("llmhost_gateway_tenants_file_ok 1")
    gateway.replace("tenants", "acme\n")
    gateway.reload()
    time.sleep(0.5)
    assert "init_by_lua error" in gateway.errors() and gateway.post({})[0] == 200
    gateway.replace("tenants", good_text)
    gateway.reload()
    gateway.wait_for("llmhost_gateway_tenants_file_ok 1")


@pytest.mark.parametrize("key", ["", "00" * 31, "zz" * 32, "ab" * 32 + "\nab"])
def test_a_gateway_without_its_key_does_not_start(key: str) -> None:
    upstream = bed.Upstream()
    try:
        with bed.home() as home:
            broken = bed.Gateway(home, upstream, {})
            (home / "credentials/salt.key").write_text(key)
            with pytest.raises(AssertionError, match="is not 64 hexadecimal digits"):
                try:
                    broken.start()
                finally:
                    broken.stop()
    finally:
        upstream.close()
