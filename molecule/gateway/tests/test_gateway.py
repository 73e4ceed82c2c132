# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The gateway that the role made, seen with an operator's commands, and hostile requests through it."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import shlex
import sys
from pathlib import Path

import pytest
from on_host import output

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tests/integration"))

import gateway_attacks as attacks

testinfra_hosts = ["ansible://testbed"]

MARKER = "prompt-marker-91c2"


def salt(host, tenant: str, epoch: str = "1", key: str = "/etc/llmhost/gateway/salt.key") -> str:
    secret = bytes.fromhex(output(host, "cat " + key))
    digest = hmac.new(secret, f"llmhost-cache-salt-v1\0{tenant}\0{epoch}".encode(), hashlib.sha256).digest()
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")


def ask(host, *requests: tuple[str, str, str]) -> list[tuple[int, str]]:
    text = shlex.quote(json.dumps(requests))
    return [tuple(pair) for pair in json.loads(output(host, f"printf %s {text} | python3 /opt/engine/ask.py"))]


def seen(host) -> list[tuple[str, str, str]]:
    """What reached the engine since this was last asked."""
    lines = output(host, "cat /var/lib/engine/seen 2>/dev/null; : >/var/lib/engine/seen").splitlines()
    return [tuple(json.loads(line)) for line in lines]


def properties(host, *names: str) -> dict[str, str]:
    shown = output(host, "systemctl show llmhost-gateway.service -p " + ",".join(names))
    return dict(line.split("=", 1) for line in shown.splitlines())


def test_it_runs_and_is_enabled(host):
    service = host.service("llmhost-gateway.service")
    assert service.is_running and service.is_enabled


def test_no_process_of_it_is_root(host):
    pid = properties(host, "MainPID")["MainPID"]
    users = output(host, f"ps -o user:32= -p {pid} --ppid {pid}").split()
    assert set(users) == {"llmhost-gateway"} and len(users) >= 2


def test_debian_s_own_nginx_is_not_started(host):
    assert not host.service("nginx.service").is_running and not host.service("nginx.service").is_enabled
    listening = output(host, "ss -Hltn").splitlines()
    assert not any(line.split()[3].endswith(":80") for line in listening)


def test_it_listens_where_it_shall_and_nowhere_else(host):
    pids = output(host, "ss -Hltnp").splitlines()
    assert {line.split()[3] for line in pids if '"nginx"' in line} == {"127.0.0.1:8100", "127.0.0.1:9413"}


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        ("/etc/llmhost/gateway/salt.key", "root root 400"),
        ("/etc/llmhost/gateway/tenants", "root llmhost-gateway 640"),
        ("/etc/llmhost/gateway/nginx.conf", "root root 644"),
        ("/etc/llmhost/gateway/verify.json", "root root 644"),
        ("/usr/local/lib/llmhost/gateway/llmhost_gateway.lua", "root root 644"),
        ("/usr/local/lib/llmhost/python/llmhost_salt_verify.py", "root root 644"),
    ],
)
def test_files_are_root_s_and_as_closed_as_they_must_be(host, path, wanted):
    assert output(host, f"stat -c '%U %G %a' {path}") == wanted


def test_the_process_has_no_way_to_become_more(host):
    shown = properties(host, "NoNewPrivileges", "CapabilityBoundingSet", "ProtectSystem", "LimitCORE", "MemorySwapMax")
    assert shown == {
        "NoNewPrivileges": "yes",
        "CapabilityBoundingSet": "",
        "ProtectSystem": "strict",
        "LimitCORE": "0",
        "MemorySwapMax": "0",
    }


@pytest.mark.parametrize("tenant", ["acme", "bob", "shy"])
def test_every_request_carries_its_tenant_s_salt_and_no_other(host, tenant):
    seen(host)
    bodies = [body.decode("latin-1") for body, _rest in attacks.SALTED]
    answers = ask(host, *(("sk-" + tenant, "/v1/chat/completions", body) for body in bodies))
    assert [status for status, _text in answers] == [200] * len(bodies)
    own = salt(host, tenant)
    arrived = seen(host)
    assert len(arrived) == len(bodies)
    for (who, path, body), (_sent, rest) in zip(arrived, attacks.SALTED, strict=True):
        pairs = json.loads(body, object_pairs_hook=list)
        assert (who, path) == (tenant, "/v1/chat/completions")
        assert [value for key, value in pairs if key == "cache_salt"] == [own]
        told = [value for key, value in pairs if key == "kv_transfer_params"]
        assert told == ([[("max_offload_tokens", 0)]] if tenant == "shy" else [])
        assert body.rstrip().endswith(rest.decode()[1:] + "}")


def test_what_cannot_be_judged_is_refused(host):
    seen(host)
    guarded = ['{"a":1,"%s":{"x":1}}' % field for field in attacks.GUARDED]
    media = [body for body, reason in attacks.MEDIA if reason]
    bodies = ["", *(body.decode("latin-1") for body in attacks.NOT_JSON), *guarded, *media]
    answers = ask(host, *(("sk-acme", "/v1/completions", body) for body in bodies))
    assert [status for status, _text in answers] == [400] * len(bodies)
    paths = ("/v2/embed", "/v1/models", "/v1/chat/completions?a=b", "/v1/./completions", "/metrics")
    assert [status for status, _text in ask(host, *(("sk-acme", path, "{}") for path in paths))] == [404] * len(paths)
    assert ask(host, ("sk-wrong", "/v1/completions", "{}"))[0][0] == 401
    assert ask(host, ("sk-shy", "/v1/embeddings", "{}"))[0][0] == 403
    assert seen(host) == []


def test_a_quoted_salt_does_not_come_back(host):
    ((status, text),) = ask(host, ("sk-acme", "/v1/completions", '{"quote":1}'))
    assert status == 400 and salt(host, "acme") not in text and "x" * 43 in text


def test_nobody_on_the_host_asks_the_engine_without_its_key(host):
    assert output(host, "python3 /opt/engine/get.py POST 8000 /v1/completions").split()[0] == "401"


def test_no_prompt_key_or_salt_is_logged_or_left(host):
    body = '{"messages":"%s"}' % MARKER
    ask(
        host,
        ("sk-acme", "/v1/completions", body),
        ("sk-acme", "/v1/completions", body[:-1]),
        ("sk-no", "/v1/completions", body),
    )
    journal = output(host, "journalctl --no-pager -o cat -u llmhost-gateway.service")
    assert "tenant=acme path=/v1/completions status=200" in journal
    for secret in (
        MARKER,
        "sk-acme",
        "engine-key",
        salt(host, "acme"),
        output(host, "cat /etc/llmhost/gateway/salt.key"),
    ):
        assert secret not in journal
    # Not the whole journal: Ansible itself writes down what these tests run.
    found = host.run(f"grep -rlF {MARKER} /run/llmhost-gateway /var/log/nginx /var/lib/nginx /tmp /var/tmp")
    assert found.stdout == ""


def test_metrics_tell_counts_and_no_salt(host):
    text = output(host, "python3 /opt/engine/get.py GET 9413 /metrics")
    assert "llmhost_gateway_tenants 3" in text and 'llmhost_gateway_overrides_total{tenant="bob"}' in text
    assert salt(host, "acme") not in text


def test_the_last_hop_s_file_fits_the_salts(host):
    document = json.loads(output(host, "cat /etc/llmhost/gateway/verify.json"))
    assert document["tenants"]["acme"] == hashlib.sha256(salt(host, "acme").encode()).hexdigest()
