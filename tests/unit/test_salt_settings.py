# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is refused before a host is touched, and why."""

from __future__ import annotations

import pytest
import yaml

from ansible_collections.llmhost.hardening.plugins.filter import tenant_salt as plugin
from ansible_collections.llmhost.hardening.plugins.module_utils.salt import derive, endpoints, settings, tenants

DIGEST = "a3" * 32


def tenant(**changes):
    return {"name": "acme", "epoch": "1", "key_sha256": [DIGEST], **changes}


def given(**changes):
    return {"engine_version": "0.29.0", "engine_key_file": "/etc/vllm/key", "tenants": [tenant()], **changes}


def why(**changes):
    return "\n".join(map(str, settings.problems(given(**changes), "gpu1")))


def test_plain_settings_are_taken():
    assert why() == ""
    tls = {"tls_certificate": "/etc/ssl/gw.pem", "tls_key": "/etc/ssl/gw.key"}
    assert why(listen="0.0.0.0:443", **tls) == ""
    assert why(listen="[::1]:8100", upstream="[::1]:8000") == ""
    assert (
        why(identity="auth_request", auth_url="http://127.0.0.1:9000/who", tenants=[{"name": "a", "epoch": "1"}]) == ""
    )


def test_numbers_that_a_template_made_texts_of_are_numbers():
    assert why(max_body_bytes="1048576", workers="2") == "" and "it is no int" in why(workers="two")
    assert settings.complete(given(workers="2"))["workers"] == 2


def test_a_problem_names_host_key_reason_and_fix():
    text = why(listen="0.0.0.0:8100")
    assert text.startswith("host gpu1, cache_salt_gateway_listen: 0.0.0.0:8100 is open to the network")
    assert "Fix: set tls_certificate" in text


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"listen": "8100"}, "is no IP address with a port"),
        ({"listen": "127.0.0.1:0"}, "is no IP address with a port"),
        ({"listen": "localhost:8100"}, "is no IP address with a port"),
        ({"listen": "127.0.0.1:8000"}, "is listen already"),
        ({"upstream": "10.0.0.5:8000"}, "is not on this host"),
        ({"upstream": "unix:/run/vllm.sock"}, "would close its socket"),
        ({"metrics_listen": "0.0.0.0:9413"}, "metrics tell tenants' names"),
        ({"engine_key_file": ""}, "could ask the engine past the gateway"),
        ({"engine_key_file": "key"}, "no absolute path"),
        ({"engine_key_file": "/etc/k; include /x"}, "no absolute path"),
        ({"tls_certificate": "/a"}, "go together"),
        ({"max_body_bytes": 1}, "out of range"),
        ({"max_body_bytes": 1 << 30}, "out of range"),
        ({"max_body_bytes": True}, "it is no int"),
        ({"workers": -1}, "out of range"),
        ({"label": 'x"'}, "it is not 1 to 64"),
        ({"identity": "cookie"}, "is unknown"),
        ({"identity": "client_certificate"}, "need TLS and their CA"),
        ({"identity": "auth_request"}, "goes with identity auth_request"),
        ({"auth_url": "http://127.0.0.1/x"}, "goes with identity auth_request"),
        ({"identity": "auth_request", "auth_url": "http://sso.example/x"}, "credentials would cross the network"),
        ({"identity": "auth_request", "auth_url": "ftp://x"}, "no plain http or https URL"),
        ({"identity": "auth_request", "auth_url": "https://x/$host"}, "no plain http or https URL"),
        ({"auth_header": "X Y"}, "no name of a header"),
        ({"tenants": {}}, "it is no list"),
        ({"paths": [1]}, "it is no list of texts"),
        ({"colour": 1}, "there is no such setting"),
    ],
)
def test_settings_that_open_something_or_mean_nothing_are_refused(changes, reason):
    assert reason in why(**changes)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"name": "Acme"}, "1 to 64 of a-z"),
        ({"name": None}, "1 to 64 of a-z"),
        ({"epoch": 1}, 'write epoch: "1"'),
        ({"epoch": "a b"}, "is not a text of"),
        ({"key_sha256": []}, "nobody can be this tenant"),
        ({"key_sha256": DIGEST}, "is not a list of SHA-256 digests"),
        ({"key_sha256": ["sk-clear"]}, "is not a list of SHA-256 digests"),
        ({"key_sha256": [DIGEST, DIGEST]}, "names a digest twice"),
        ({"key_sha256": [derive.hashlib.sha256(b"").hexdigest()]}, "is the digest of nothing"),
        ({"api_key": "sk-clear"}, "holds a key in clear in the inventory"),
        ({"no_persist": "yes"}, "neither true nor false"),
        ({"weight": 3}, "is no key of a tenant"),
    ],
)
def test_a_tenant_that_nobody_or_anybody_could_be_is_refused(changes, reason):
    text = why(tenants=[tenant(**changes)])
    assert reason in text and "sk-clear" not in text


def test_two_tenants_share_neither_name_nor_credential():
    text = why(tenants=[tenant(), tenant(), tenant(name="bob")])
    assert "the name stands twice" in text and "a credential of it is one of tenant acme too" in text


@pytest.mark.parametrize(
    ("version", "reason"),
    [("", "is no version"), ("latest", "is no version"), ("0.21.9", "older than any"), ("0.99.0", "newer than any")],
)
def test_a_version_that_nobody_checked_is_refused(version, reason):
    assert reason in why(engine_version=version)


@pytest.mark.parametrize("version", ["0.22.0", "0.29.0", "0.29.1rc2", "0.30.0.post1", "0.32.0+cu130"])
def test_versions_that_were_checked_are_taken(version):
    assert why(engine_version=version) == ""


@pytest.mark.parametrize(
    "path", [*endpoints.CLOSED, "/v1/chat/completions/render", "/v1/anything", "/v1/chat/completions;x"]
)
def test_an_endpoint_without_a_salt_is_never_opened(path):
    assert f"{path} may not be opened: " in why(paths=[path])


def test_messages_are_open_from_the_version_that_salts_them():
    assert "0.29 is the first that does not" in why(engine_version="0.28.0", paths=["/v1/messages"])
    assert why(paths=["/v1/messages"]) == ""
    assert "/v1/messages" not in endpoints.defaults("0.28.3") and "/v1/messages" in endpoints.defaults("0.29.0")


def test_responses_need_the_operator_s_word_that_there_is_no_tool_server():
    assert endpoints.TOOL_TURNS in why(paths=["/v1/responses"])
    assert why(paths=["/v1/responses"], no_tool_server=True) == ""
    assert "/v1/responses" not in endpoints.defaults("0.32.0")


def test_every_endpoint_that_is_opened_may_be_opened():
    for version in ("0.22.0", "0.29.0", "0.32.0"):
        assert why(engine_version=version, paths=endpoints.defaults(version)) == ""


def test_no_persist_needs_an_engine_that_can_be_told():
    shy = [tenant(no_persist=True)]
    assert "older ones store every prompt" in why(tenants=shy, engine_version="0.28.0")
    assert why(tenants=shy) == ""
    assert endpoints.can_skip_store("/v1/chat/completions", "0.29.0")
    assert not endpoints.can_skip_store("/v1/embeddings", "0.29.0")


def test_a_tenant_is_one_line():
    text = tenants.render([tenant(certificate_sha256=["b" * 64], no_persist=True), {"name": "b", "epoch": "x.1"}])
    assert text.splitlines()[2:] == [f"acme epoch=1 key={DIGEST} certificate={'b' * 64} no_persist", "b epoch=x.1"]


def test_a_key_file_in_clear_is_refused(tmp_path):
    file = tmp_path / "key"
    file.write_text("ab" * 32)
    (line,) = plugin.salt_gateway_problems(given(), "gpu1", str(file))
    assert "holds the key in clear" in line and "ab" * 32 not in line
    file.write_text("$ANSIBLE_VAULT;1.1;AES256\n00\n")
    assert plugin.salt_gateway_problems(given(), "gpu1", str(file)) == []
    (line,) = plugin.salt_gateway_problems(given(), "gpu1", str(tmp_path / "none"))
    assert "cannot be read" in line


def test_the_role_passes_every_setting_and_has_the_same_defaults():
    root = __import__("pathlib").Path(__file__).resolve().parents[2] / "roles/cache_salt_gateway"
    passed = yaml.safe_load((root / "vars/main.yml").read_text())["__cache_salt_gateway_settings"]
    assert passed.keys() == settings.DEFAULTS.keys()
    defaults = yaml.safe_load((root / "defaults/main.yml").read_text())
    assert {f"cache_salt_gateway_{key}": value for key, value in settings.DEFAULTS.items()}.items() <= defaults.items()
    assert defaults.keys() - {f"cache_salt_gateway_{key}" for key in settings.DEFAULTS} == {
        "cache_salt_gateway_state",
        "cache_salt_gateway_key_vault",
    }


@pytest.mark.parametrize("path", ["/slots", "/slots/0", "/slots/0/"])
def test_slots_are_never_opened(path):
    assert "any client" in (endpoints.path_problem(path, "0.29.0", no_tool_server=True) or "")
