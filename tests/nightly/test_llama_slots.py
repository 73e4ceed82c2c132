# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""llama-server as PyPI has it, saving its slots in a tier: rendered arguments, closed files, expiry under it."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import tiny_gguf

from ansible_collections.llmhost.hardening.plugins.module_utils.kv import (
    datamap,
    discovery,
    evidence_engine,
    fsio,
    judge_engine,
    offload_engines,
    walk,
)
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.stores import STORES

BUILD = Path(__file__).with_name("build_llama.py")
PROMPT = "The quick brown fox jumps over the lazy dog. " * 8


@pytest.fixture(scope="module")
def program():
    done = subprocess.run([sys.executable, BUILD], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.fail(f"no llama-server to test with:\n{done.stderr[-3000:]}", pytrace=False)
    return done.stdout.strip()


def a_tier(path):
    """A tier of the map; its directory is a scratch one, which no map would take."""
    raw = {"name": "slots", "store": "llamacpp_slots", "path": "/srv/llmhost-slots", "owner": max(1, os.getuid())}
    document = datamap.normalise([{**raw, "services": ["llama.service"], "max_bytes": "1G"}], "gpu1")
    return dict(document["tiers"][0], path=str(path))


class Server:
    def __init__(self, process, port):
        self.process, self.url = process, f"http://127.0.0.1:{port}"

    def ask(self, path, body=None, seconds=60):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=seconds) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read() or b"{}")

    def complete(self):
        status, answer = self.ask("/completion", {"prompt": PROMPT, "n_predict": 4, "id_slot": 0, "temperature": 0})
        assert status == 200
        return answer

    def slot(self, action, **body):
        return self.ask(f"/slots/0?action={action}", body)


@pytest.fixture
def server(program, tmp_path):
    """A server with the arguments that the role renders, on a closed directory."""
    model, slots = tmp_path / "tiny.gguf", tmp_path / "slots"
    tiny_gguf.write(model)
    slots.mkdir(mode=0o700)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [program, "-m", model, "--host", "127.0.0.1", "--port", port, "-np", 2, "-c", 2048, "-t", 1]
    command = [str(word) for word in command]
    rendered = offload_engines.llamacpp(a_tier(slots), command)
    assert rendered.refusals == []
    log = (tmp_path / "log").open("wb")
    with subprocess.Popen([*command, *rendered.arguments], stdout=log, stderr=log, umask=0o077) as process:
        try:
            this = Server(process, port)
            end = time.monotonic() + 120
            while True:
                assert process.poll() is None, (tmp_path / "log").read_text()[-3000:]
                try:
                    if this.ask("/health", seconds=2)[0] == 200:
                        break
                except OSError:
                    pass
                assert time.monotonic() < end, "the server never came up"
                time.sleep(0.2)
            this.slots = slots
            yield this
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
    log.close()


def expire(slots, age):
    """One pass of the expiry engine; files of at least that age go."""
    with fsio.opened(str(slots)) as fd:
        policy = walk.Policy(age, 3600, 3600)
        return walk.Walk(fd, STORES["llamacpp_slots"], os.getuid(), time.time(), policy, delete=True).run()


def test_a_saved_slot_expires_and_the_server_lives(server):
    first = server.complete()
    assert first["tokens_evaluated"] > 300
    assert server.slot("save", filename="chat")[0] == 200
    file = server.slots / "chat"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    head = file.read_bytes()[:4]
    assert STORES["llamacpp_slots"].layout.file_for("chat").magic == head
    # Any client restores any file, and `erase` leaves it there.
    assert server.slot("restore", filename="chat")[0] == 200
    assert server.slot("erase")[0] == 200 and file.exists()
    young = time.time() - 60
    os.utime(file, (young, young))
    expire(server.slots, 3600)
    assert file.exists()
    old = time.time() - 7200
    os.utime(file, (old, old))
    expire(server.slots, 3600)
    assert not file.exists()
    status, answer = server.slot("restore", filename="chat")
    assert status == 400, answer
    assert server.process.poll() is None
    again = server.complete()
    assert again["content"] == first["content"]
    assert server.slot("save", filename="chat")[0] == 200 and file.exists()


def test_the_audit_finds_the_running_server_and_judges_it(server):
    me = next(one for one in discovery.processes() if one.pid == server.process.pid)
    tier = a_tier(server.slots)
    (found,) = evidence_engine.running([me], [])
    assert judge_engine.settings_safe(tier, [tier], [found], []).status == "pass"
    other = dict(tier, path="/srv/other")
    result = judge_engine.settings_safe(other, [other], [found], [])
    assert result.status == "fail" and "other-place" in result.message
