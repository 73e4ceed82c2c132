# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The whole vLLM on the CPU behind the real gateway, with the check at the last hop loaded: what a tenant can hit."""

from __future__ import annotations

import http.client
import json
import os
import shutil

import engine_server
import gateway_bed as bed
import pytest
from engine_server import BLOCK, TIER, VERSION

from ansible_collections.llmhost.hardening.plugins.module_utils.kv import blocknames, prefixprobe
from ansible_collections.llmhost.hardening.plugins.module_utils.salt import render, settings

PREFIX_HITS, TIER_HITS = "vllm:prefix_cache_hits_total", "vllm:external_prefix_cache_hits_total"
VERIFY = bed.ROOT / "roles/cache_salt_gateway/files/python/llmhost_salt_verify.py"


class Served:
    """The engine, and the only way to it."""

    def __init__(self, engine: engine_server.Server, gateway: bed.Gateway) -> None:
        self.engine, self.gateway = engine, gateway
        self.tokens = engine.tokens

    def post(self, who, path="/v1/completions", **fields):
        return self.gateway.post({"model": "tiny", "max_tokens": 4, "temperature": 0, **fields}, who, path)

    def hits(self, who, prompt, **fields):
        """Tokens of a prompt found in the engine's memory, and in memory tier or store."""
        before = [self.engine.counter(name) for name in (PREFIX_HITS, TIER_HITS)]
        status, answer = self.post(who, prompt=prompt, **fields)
        assert status == 200, answer
        after = [self.engine.counter(name) for name in (PREFIX_HITS, TIER_HITS)]
        return tuple(now - then for now, then in zip(after, before))

    def crowd_out(self):
        for _turn in range(4):
            assert self.post("bob", prompt=self.tokens())[0] == 200

    def stored(self, prompt, salt=None):
        """Which of the prompt's blocks lie in the tier under this salt."""
        return list(prefixprobe.in_directory(blocknames.names(prompt, BLOCK, VERSION, salt=salt), str(TIER)))

    def direct(self, body, path="/v1/completions", **headers):
        """Answer of the engine to one who knows its key and goes past the gateway."""
        connection = http.client.HTTPConnection("127.0.0.1", self.engine.port, timeout=60)
        headers |= {"Content-Type": "application/json", "Authorization": f"Bearer {bed.ENGINE_KEY}"}
        connection.request("POST", path, json.dumps({"model": "tiny", "max_tokens": 4, **body}), headers)
        answer = connection.getresponse()
        return answer.status, answer.read()


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    if os.geteuid():
        pytest.fail("root is needed: the engine runs as another account and on a mount of its own")
    if bed.missing():
        pytest.fail(bed.missing())
    try:
        engine = engine_server.installed()
    except RuntimeError as error:
        pytest.fail(str(error), pytrace=False)
    with bed.home() as home:
        home.chmod(0o755)
        shutil.copy(VERIFY, home)
        complete = settings.complete({"engine_version": VERSION, "tenants": bed.TENANTS})
        (home / "verify.json").write_text(render.verify(complete, bed.KEY))
        environ = {
            "VLLM_API_KEY": bed.ENGINE_KEY,
            "PYTHONPATH": f"{engine_server.PLACE}:{home}",
            "LLMHOST_SALT_VERIFY": str(home / "verify.json"),
        }
        log = tmp_path_factory.mktemp("engine") / "log"
        more = ("--middleware", "llmhost_salt_verify.SaltVerify")
        with (
            engine_server.running(engine, log, more=more, environ=environ) as server,
            bed.gateway(upstream=f"127.0.0.1:{server.port}", engine_version=VERSION) as gateway,
        ):
            yield Served(server, gateway)


def test_a_tenant_hits_what_it_asked_before_in_memory_and_in_the_store(served):
    prompt = served.tokens()
    assert served.hits("acme", prompt) == (0, 0)
    memory, _tier = served.hits("acme", prompt)
    assert memory >= len(prompt) - 2 * BLOCK
    served.crowd_out()
    served.engine.wait_for(lambda: all(served.stored(prompt, bed.salt("acme"))))
    memory, tier = served.hits("acme", prompt)
    assert memory == 0 and tier >= len(prompt) - 2 * BLOCK


@pytest.mark.parametrize("sent", [{}, {"cache_salt": bed.salt("acme")}], ids=["no salt", "the first one's salt"])
def test_another_tenant_misses_whatever_salt_it_sends(served, sent):
    prompt = served.tokens()
    assert served.hits("acme", prompt) == (0, 0)
    assert served.hits("acme", prompt)[0] > 0
    assert served.hits("bob", prompt, **sent) == (0, 0)
    assert served.hits("bob", prompt, **sent)[0] > 0


def test_the_names_in_the_store_are_the_tenant_s_and_nobody_else_s(served):
    prompt = served.tokens()
    served.post("acme", prompt=prompt)
    served.crowd_out()
    served.engine.wait_for(lambda: all(served.stored(prompt, bed.salt("acme"))))
    assert not any(served.stored(prompt)) and not any(served.stored(prompt, bed.salt("bob")))


def test_a_tenant_that_must_not_be_stored_leaves_no_block_in_the_store(served):
    kept, unkept = served.tokens(), served.tokens()
    assert served.post("acme", prompt=kept)[0] == served.post("shy", prompt=unkept)[0] == 200
    served.crowd_out()
    served.engine.wait_for(lambda: all(served.stored(kept, bed.salt("acme"))))
    assert not any(served.stored(unkept, bed.salt("shy")))


COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
BAD = [
    (COMPLETIONS, {"prompt": [1, 2], "max_tokens": -1}),
    (COMPLETIONS, {"prompt": [1, 2], "n": "x"}),
    (COMPLETIONS, {"prompt": {"a": 1}}),
    (COMPLETIONS, {"prompt": [1] * 5000}),
    (COMPLETIONS, {}),
    (CHAT, {}),
    (CHAT, {"messages": "x"}),
]


def test_the_engine_s_refusals_carry_no_salt(served):
    salt = bed.salt("acme")
    told = [served.direct({**body, "cache_salt": salt}, path, **{"X-Llmhost-Tenant": "acme"})[1] for path, body in BAD]
    # Without the gateway between them it would tell.
    assert any(salt.encode() in answer for answer in told)
    for path, body in BAD:
        status, answer = served.post("acme", path, **body)
        assert status == 400 and bed.no_salt_in(answer), (body, answer)


@pytest.mark.parametrize("sent", [{}, {"cache_salt": "guess"}, {"cache_salt": bed.salt("acme")}])
def test_who_goes_past_the_gateway_with_the_engine_s_key_is_refused_at_the_last_hop(served, sent):
    status, answer = served.direct({"prompt": [1, 2, 3], **sent})
    assert 400 <= status < 500 and b"llmhost" in answer
