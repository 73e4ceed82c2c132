# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tenants by client certificate and by a service that nginx asks; nginx and the filter derive the same salts."""

from __future__ import annotations

import hashlib
import http.client
import http.server
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import gateway_bed as bed
import pytest


def openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)


class Authority:
    """A certificate authority in a directory."""

    def __init__(self, home: Path, name: str) -> None:
        self.home, self.name = home, name
        openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
                "-subj", f"/CN={name}", "-keyout", home / f"{name}.key", "-out", home / f"{name}.crt")  # fmt: skip

    def issue(self, name: str) -> Path:
        """Certificate and key of a name in one file."""
        base = self.home / f"{self.name}-{name}"
        openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", f"/CN={name}",
                "-addext", "subjectAltName=DNS:localhost", "-keyout", f"{base}.key", "-out", f"{base}.csr")  # fmt: skip
        openssl("x509", "-req", "-in", f"{base}.csr", "-CA", self.home / f"{self.name}.crt", "-days", "2",
                "-CAkey", self.home / f"{self.name}.key", "-CAcreateserial", "-copy_extensions", "copy",
                "-out", f"{base}.crt")  # fmt: skip
        both = Path(f"{base}.pem")
        both.write_text(Path(f"{base}.crt").read_text() + Path(f"{base}.key").read_text())
        return both


def digest(certificate: Path) -> str:
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(certificate.read_text().split("-----BEGIN PRIV")[0])).hexdigest()


@pytest.fixture(scope="module")
def authorities(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    home = tmp_path_factory.mktemp("ca")
    ours, foreign = Authority(home, "ours"), Authority(home, "foreign")
    return {
        "ca": home / "ours.crt",
        **{name: ours.issue(name) for name in ("gateway", "acme", "bob", "nobody")},
        "stranger": foreign.issue("acme"),
    }


@pytest.fixture(scope="module")
def tls(authorities: dict[str, Path]) -> Iterator[bed.Gateway]:
    def prepare(gateway: bed.Gateway) -> None:
        credentials = gateway.home / "credentials"
        certificate, key = authorities["gateway"].read_text().split("-----BEGIN PRIV")
        (credentials / "tls.crt").write_text(certificate)
        (credentials / "tls.key").write_text("-----BEGIN PRIV" + key)
        (credentials / "client-ca.crt").write_text(authorities["ca"].read_text())

    who = [{"name": name, "epoch": "1", "certificate_sha256": [digest(authorities[name])]} for name in ("acme", "bob")]
    files = {"tls_certificate": "/x/tls.crt", "tls_key": "/x/tls.key", "client_ca": "/x/client-ca.crt"}
    with bed.gateway(prepare, identity="client_certificate", tenants=who, **files) as running:
        yield running


def ask(gateway: bed.Gateway, ca: Path, certificate: Path | None) -> tuple[int, bytes]:
    context = ssl.create_default_context(cafile=str(ca))
    if certificate:
        context.load_cert_chain(certificate)
    conn = http.client.HTTPSConnection("localhost", gateway.port, context=context, timeout=10)
    try:
        conn.request("POST", "/v1/completions", b'{"cache_salt":"evil"}', {"Content-Type": "application/json"})
        answer = conn.getresponse()
        return answer.status, answer.read()
    finally:
        conn.close()


@pytest.mark.parametrize("name", ["acme", "bob"])
def test_a_client_certificate_names_its_tenant(tls: bed.Gateway, authorities: dict[str, Path], name: str) -> None:
    tls.upstream.seen.clear()
    assert ask(tls, authorities["ca"], authorities[name])[0] == 200
    assert [bed.salts_of(seen.body) for seen in tls.upstream.seen] == [[bed.salt(name)]]


@pytest.mark.parametrize("name", ["nobody", "stranger", None])
def test_any_other_certificate_names_nobody(tls: bed.Gateway, authorities: dict[str, Path], name: str | None) -> None:
    tls.upstream.seen.clear()
    status = 400
    try:
        status, _answer = ask(tls, authorities["ca"], authorities[name] if name else None)
    except (ssl.SSLError, ConnectionError):
        pass
    assert status in (400, 401, 495, 496) and tls.upstream.seen == []


def test_an_api_key_does_not_stand_in_for_a_certificate(tls: bed.Gateway, authorities: dict[str, Path]) -> None:
    context = ssl.create_default_context(cafile=str(authorities["ca"]))
    context.check_hostname = False
    conn = http.client.HTTPSConnection("127.0.0.1", tls.port, context=context, timeout=10)
    headers = {"Content-Type": "application/json", "Authorization": "Bearer " + bed.API_KEYS["acme"]}
    conn.request("POST", "/v1/completions", b"{}", headers)
    assert conn.getresponse().status in (400, 401)
    conn.close()


class Who(http.server.BaseHTTPRequestHandler):
    """A service that knows users by cookie and says which tenant they are."""

    USERS = {"session=1": "acme", "session=2": "bob", "session=3": "mallory", "session=4": "acme, bob", "session=5": ""}
    asked: list[tuple[str | None, str | None, str | None]] = []

    def do_GET(self) -> None:
        self.asked.append((self.headers["Cookie"], self.headers["X-Tenant"], self.headers["Content-Length"]))
        known = self.headers["Cookie"] in self.USERS
        self.send_response(200 if known else 401)
        if known:
            self.send_header("X-Tenant", self.USERS[self.headers["Cookie"]])
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_POST = do_GET

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def asking() -> Iterator[bed.Gateway]:
    service = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Who)
    threading.Thread(target=service.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{service.server_port}/who"
    who = [{"name": name, "epoch": "1"} for name in ("acme", "bob")]
    try:
        with bed.gateway(identity="auth_request", auth_url=url, auth_header="X-Tenant", tenants=who) as running:
            yield running
    finally:
        service.shutdown()
        service.server_close()


@pytest.mark.parametrize(("session", "name"), [(1, "acme"), (2, "bob")])
def test_the_service_that_is_asked_names_the_tenant(asking: bed.Gateway, session: int, name: str) -> None:
    asking.upstream.seen.clear()
    # What the client says of itself reaches neither the service nor the engine.
    status, _answer = asking.post({"cache_salt": "evil"}, None, Cookie=f"session={session}", X_Tenant="acme")
    assert status == 200 and Who.asked[-1] == (f"session={session}", None, None)
    (seen,) = asking.upstream.seen
    assert bed.salts_of(seen.body) == [bed.salt(name)] and seen.header("cookie") == []


@pytest.mark.parametrize(("session", "status"), [(3, 403), (4, 403), (5, 503), (9, 401)])
def test_no_tenant_from_the_service_no_answer(asking: bed.Gateway, session: int, status: int) -> None:
    asking.upstream.seen.clear()
    assert asking.post({}, "acme", Cookie=f"session={session}", X_Tenant="acme")[0] == status
    assert asking.post({}, None, path="/llmhost-auth", Cookie="session=1")[0] == 404
    assert asking.upstream.seen == []


def test_a_service_that_is_down_opens_nothing() -> None:
    url = f"http://127.0.0.1:{bed.free_port()}/who"
    who = [{"name": "acme", "epoch": "1"}]
    with bed.gateway(identity="auth_request", auth_url=url, tenants=who) as running:
        assert running.post({}, None, X_Llmhost_Tenant="acme")[0] == 500
        assert running.upstream.seen == []


def test_nginx_and_the_filter_derive_the_same_salts() -> None:
    epochs = ["1", "2026-11", "a.b_c-D", "x" * 64]
    names = ["a", "z9-", "a" * 64, "0"]
    who = [bed.tenant(name, epoch) for name, epoch in zip(names, epochs)]
    with bed.gateway(tenants=who, label="another-cluster") as running:
        for one in who:
            running.upstream.seen.clear()
            assert running.post({}, one["name"])[0] == 200
            expected = bed.derive.salt(bed.KEY, one["name"], one["epoch"], "another-cluster")
            assert bed.salts_of(running.upstream.seen[0].body) == [expected]
