# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The whole vLLM 0.29 on the CPU, started as a service account with rendered settings, on a closed tier.

One server for all tests, in their order: it has to survive each of them. Only the copy between GPU and host is not the
engine's (cpu_tier_spec.py), which is why the rendered spec_name is exchanged before the start.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shutil
import socket
import stat
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from ansible_collections.llmhost.hardening.plugins.module_utils.kv import (
    blocknames,
    datamap,
    discovery,
    evidence_engine,
    fsio,
    judge_engine,
    offload_render,
    prefixprobe,
    walk,
)
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.stores import STORES

HERE = Path(__file__).resolve().parent
VERSION, UID, BLOCK, PAGE = "0.29.0", 4242, 32, 16384
TIER = Path(f"/srv/llmhost-engine-test-{os.getpid()}")
SIZE = 8 << 20
OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "GLOO_SOCKET_IFNAME": "lo",
    "PYTHONDONTWRITEBYTECODE": "1",
}


def run(*command, **more):
    return subprocess.run([str(word) for word in command], check=True, **more)


@contextlib.contextmanager
def mounted(*command, at):
    run("mount", *command, at)
    try:
        yield at
    finally:
        run("umount", "-l", at)


class Server:
    """The running engine, and what a client can do with it."""

    def __init__(self, process, port, log, document):
        self.process, self.port, self.log, self.document = process, port, log, document
        self.dice = random.Random(1)

    def ask(self, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", data, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.read().decode()

    def tokens(self, count=600):
        return [self.dice.randrange(3, 250) for _turn in range(count)]

    def complete(self, tokens, salt=None):
        """Answer to a prompt of these tokens; any error is a failure of the test."""
        body = {"model": "tiny", "prompt": tokens, "max_tokens": 4, "temperature": 0}
        answer = json.loads(self.ask("/v1/completions", body | ({"cache_salt": salt} if salt else {})))
        assert self.process.poll() is None
        return answer["choices"][0]["text"]

    def crowd_out(self):
        """Other prompts, until nothing of the earlier ones is left in both memories."""
        for _turn in range(4):
            self.complete(self.tokens())

    def counter(self, name):
        found = re.findall(rf"^{re.escape(name)}(?:\{{[^}}]*\}})? ([0-9.e+]+)$", self.ask("/metrics"), re.MULTILINE)
        return sum(map(float, found))

    def blocks(self):
        return sorted(TIER.rglob("*.bin"))

    def wait_for(self, condition, seconds=30):
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, "never came"
            time.sleep(0.1)


@pytest.fixture(scope="module")
def engine():
    """A Python with the engine, where the service account can read it."""
    done = subprocess.run([sys.executable, HERE / "build_engine.py"], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.fail(f"no engine to test with:\n{done.stderr[-3000:]}", pytrace=False)
    return Path(done.stdout.strip()).parents[1]


@pytest.fixture(scope="module")
def server(engine, tmp_path_factory):
    if os.geteuid():
        pytest.fail("root is needed: the engine runs as another account and on a mount of its own")
    with contextlib.ExitStack() as stack:
        place = Path("/srv") / f"llmhost-engine-{os.getpid()}"
        for directory in (TIER, place):
            directory.mkdir()
            stack.callback(shutil.rmtree, directory, ignore_errors=True)
        # The cache may lie in a home that the account cannot enter.
        (place / "venv").mkdir()
        stack.enter_context(mounted("--bind", engine, at=place / "venv"))
        stack.enter_context(mounted("-t", "tmpfs", "-o", f"size={SIZE},mode=0700,uid={UID},gid={UID}", "tier", at=TIER))
        python = place / "venv" / "bin" / "python"
        run(python, HERE / "tiny_model.py", place / "tiny")
        for written in (place / "tiny").iterdir():
            written.chmod(0o644)
        shutil.copy(HERE / "cpu_tier_spec.py", place)
        raw = {"name": "chat", "store": "vllm_fs", "path": str(TIER), "owner": UID, "services": ["vllm.service"]}
        document = datamap.normalise([raw], "gpu1")
        settings = {"tiers": {"chat": {"n_read_threads": 2, "n_write_threads": 2}}, "cpu_bytes_to_use": str(40 * PAGE)}
        rendered = offload_render.render(settings, document, VERSION, "3.12")
        assert rendered.problems == []
        extra = rendered.config["kv-transfer-config"]["kv_connector_extra_config"]
        extra.update(spec_name="CpuTieringOffloadingSpec", spec_module_path="cpu_tier_spec")
        config = place / "chat.yaml"
        config.write_text("# as the role writes it\n" + offload_render.config_text(rendered.config))
        os.chown(config, 0, UID)
        config.chmod(0o640)
        home = place / "home"
        home.mkdir()
        os.chown(home, UID, UID)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        command = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", place / "tiny"]
        command += ["--served-model-name", "tiny", "--host", "127.0.0.1", "--port", port, "--block-size", BLOCK]
        command += ["--num-gpu-blocks-override", 40, "--max-model-len", 1024, "--enforce-eager", "--config", config]
        log = tmp_path_factory.mktemp("engine") / "log"
        path = f"{python.parent}:/usr/bin:/bin"
        environment = {**OFFLINE, "PYTHONPATH": str(place), "HOME": str(home), "PATH": path, "TMPDIR": str(home)}
        account = {"user": UID, "group": UID, "extra_groups": [], "umask": 0o077, "cwd": home}
        with log.open("wb") as said:
            process = subprocess.Popen(
                [str(word) for word in command],
                stdout=said,
                stderr=said,
                env=environment,
                start_new_session=True,
                **account,
            )
            try:
                this = Server(process, port, log, document)
                end = time.monotonic() + 300
                while True:
                    assert process.poll() is None, log.read_text()[-4000:]
                    assert time.monotonic() < end, log.read_text()[-4000:]
                    with contextlib.suppress(OSError):
                        this.ask("/health")
                        break
                    time.sleep(0.5)
                yield this
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, 15)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(30)
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, 9)
                for left in Path("/dev/shm").glob("vllm_offload_*"):
                    if left.stat().st_uid == UID:
                        left.unlink()


def test_blocks_are_written_closed_and_as_the_account(server):
    server.complete(server.tokens())
    server.crowd_out()
    server.wait_for(server.blocks)
    for path in TIER.rglob("*"):
        info = path.lstat()
        assert (info.st_uid, stat.S_IMODE(info.st_mode)) == (UID, 0o700 if path.is_dir() else 0o600), path
    assert all(block.stat().st_size == PAGE for block in server.blocks())
    with fsio.opened(str(TIER)) as fd:
        survey = walk.survey(fd, STORES["vllm_fs"], UID, time.time(), walk.Policy(3600, 600, 600))
    assert (survey.strangers, survey.loose, survey.foreign_owner) == (0, 0, 0) and survey.blocks


def test_blocks_are_read_back_and_the_answer_is_the_same(server):
    prompt = server.tokens()
    first = server.complete(prompt)
    server.crowd_out()
    names = blocknames.names(prompt, BLOCK, VERSION)
    server.wait_for(lambda: all(prefixprobe.in_directory(names, str(TIER))))
    hits = server.counter("vllm:external_prefix_cache_hits_total")
    reads = server.counter("vllm:kv_offload_tiering_read_bytes_total")
    assert server.complete(prompt) == first
    assert server.counter("vllm:external_prefix_cache_hits_total") > hits
    assert server.counter("vllm:kv_offload_tiering_read_bytes_total") > reads


def test_a_salt_hides_the_prompt_and_the_probe_finds_it_with_the_salt_only(server):
    prompt = server.tokens()
    server.complete(prompt, salt="tenant secret")
    server.crowd_out()
    salted = blocknames.names(prompt, BLOCK, VERSION, salt="tenant secret")
    server.wait_for(lambda: all(prefixprobe.in_directory(salted, str(TIER))))
    assert not any(prefixprobe.in_directory(blocknames.names(prompt, BLOCK, VERSION), str(TIER)))


def test_the_engine_s_own_tokenizer_serves_the_probe(server):
    url = f"http://127.0.0.1:{server.port}/tokenize"
    tokens = prefixprobe.tokenize(url, "hello", "tiny")
    assert len(tokens) == 5


def test_the_audit_sees_the_settings_and_the_memory_tier(server):
    me = next(one for one in discovery.processes() if one.pid == server.process.pid)
    version, source = discovery.version_of(me, discovery.ENGINES["vllm"])
    assert version == VERSION
    (one,) = evidence_engine.running([me], [discovery.Found(me.pid, "vllm.service", version, source)])
    assert one.python == "3.11"
    judged = judge_engine.settings_safe(server.document["tiers"][0], server.document["tiers"], [one], [])
    (found,) = judged.evidence["engines"]
    # The one thing that is not as the role rendered it, and that is what is told.
    assert (judged.status, {finding["code"] for finding in found["findings"]}) == ("fail", {"outside-import"})
    everyone = [process for process in discovery.processes() if process.uid == UID]
    memory = [piece for part in evidence_engine.running(everyone, []) for piece in part.memory]
    assert memory and all(piece["mode"] == "0600" for piece in memory)


def test_expiry_under_the_running_engine_is_a_miss_and_nothing_more(server):
    prompt = server.tokens()
    first = server.complete(prompt)
    server.crowd_out()
    names = blocknames.names(prompt, BLOCK, VERSION)
    server.wait_for(lambda: all(prefixprobe.in_directory(names, str(TIER))))
    with fsio.opened(str(TIER)) as fd:
        policy = walk.Policy(0, 0, 0)
        walk.Walk(fd, STORES["vllm_fs"], UID, time.time() + 1, policy, delete=True).run()
    assert not any(prefixprobe.in_directory(names, str(TIER)))
    assert server.complete(prompt) == first
    server.crowd_out()
    server.wait_for(lambda: all(prefixprobe.in_directory(names, str(TIER))))


def test_a_full_disk_costs_no_request(server):
    filler = TIER / "filler"
    with contextlib.suppress(OSError), filler.open("wb") as file:
        while True:
            file.write(b"\0" * (1 << 16))
            file.flush()
    prompt = server.tokens()
    first = server.complete(prompt)
    server.crowd_out()
    assert server.complete(prompt) == first
    assert "ENOSPC" in server.log.read_text() or "No space left" in server.log.read_text()
    assert not list(TIER.rglob("*.tmp")) and all(block.stat().st_size == PAGE for block in server.blocks())
    filler.unlink()
    names = blocknames.names(prompt, BLOCK, VERSION)
    server.complete(prompt)
    server.crowd_out()
    server.complete(prompt)
    server.crowd_out()
    server.wait_for(lambda: any(prefixprobe.in_directory(names, str(TIER))))


def test_a_read_only_remount_costs_no_request(server):
    run("mount", "-o", "remount,ro", TIER)
    try:
        prompt = server.tokens()
        first = server.complete(prompt)
        server.crowd_out()
        assert server.complete(prompt) == first
    finally:
        run("mount", "-o", "remount,rw", TIER)
    server.crowd_out()
    assert server.process.poll() is None
