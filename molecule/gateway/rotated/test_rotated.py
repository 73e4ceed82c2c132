# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""After a tenant came, one went, an epoch rolled under load, and then the key."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import shlex

from on_host import output

testinfra_hosts = ["ansible://testbed"]


def salt(host, tenant: str, epoch: str, key: str) -> str:
    secret = bytes.fromhex(output(host, "cat " + key))
    digest = hmac.new(secret, f"llmhost-cache-salt-v1\0{tenant}\0{epoch}".encode(), hashlib.sha256).digest()
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")


def test_no_request_was_lost_and_the_gateway_stayed_the_same_process(host):
    asked, failed = output(host, "cat /root/load").split(" ", 1)
    assert int(asked) > 100 and failed == "[]"
    assert output(host, "cat /root/pid-before") == output(host, "cat /root/pid-after")


def test_a_tenant_that_came_was_served_and_one_that_went_was_not(host):
    guest, bob, shy = json.loads(output(host, "cat /root/answers-before"))
    assert (guest[0], bob[0], shy[0]) == (200, 401, 200)
    lines = [json.loads(line) for line in output(host, "cat /var/lib/engine/seen").splitlines()]
    before = {who: json.loads(body)["cache_salt"] for who, _path, body in lines if '"before"' in body}
    old = "/root/salt.key.old"
    assert before == {"guest": salt(host, "guest", "1", old), "shy": salt(host, "shy", "2", old)}


def test_the_key_rolled_and_with_it_every_salt(host):
    new, old = (salt(host, "acme", "1", key) for key in ("/etc/llmhost/gateway/salt.key", "/root/salt.key.old"))
    assert new != old
    request = shlex.quote(
        json.dumps([["sk-acme", "/v1/completions", '{"n":"after"}'], ["sk-guest", "/v1/completions", "{}"]])
    )
    answers = json.loads(output(host, f"printf %s {request} | python3 /opt/engine/ask.py"))
    assert [status for status, _text in answers] == [200, 401]
    last = json.loads(output(host, "tail -n 1 /var/lib/engine/seen"))
    assert json.loads(last[2]) == {"cache_salt": new, "n": "after"}
    assert output(host, "stat -c '%U %a' /etc/llmhost/gateway/salt.key") == "root 400"
