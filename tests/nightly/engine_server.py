# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The whole vLLM (LLMHOST_ENGINE, else 0.29.0) on the CPU, as a service account, with rendered settings, on a tier.

Only the copy between GPU and host is not the engine's: cpu_tier_spec.py puts it there as a plugin of vLLM's, so the
engine reads the settings as they were rendered, byte for byte.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fscrypt

from ansible_collections.llmhost.hardening.plugins.module_utils.kv import datamap, offload_render, prepare

HERE = Path(__file__).resolve().parent
VERSION = os.environ.get("LLMHOST_ENGINE") or "0.29.0"
UID, BLOCK, PAGE = 4242, 32, 16384
TIER = Path(f"/srv/llmhost-engine-test-{os.getpid()}")
# The tier's path begins its name, so expiry recognises the engine by its command line: it has no unit here.
PLACE = Path(f"{TIER}-files")
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


def run(*command: object, **more: Any) -> subprocess.CompletedProcess[Any]:
    return subprocess.run([str(word) for word in command], check=True, **more)


@contextlib.contextmanager
def mounted(*command: object, at: Path) -> Iterator[Path]:
    run("mount", *command, at)
    try:
        yield at
    finally:
        run("umount", "-l", at)


class Server:
    """The running engine, and what a client can do with it."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, log: Path, document: datamap.Document) -> None:
        self.process, self.port, self.log, self.document = process, port, log, document
        self.dice = random.Random(1)

    def ask(self, path: str, body: object = None) -> str:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", data, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=120) as answer:
            text: str = answer.read().decode()
        return text

    def tokens(self, count: int = 600) -> list[int]:
        return [self.dice.randrange(3, 250) for _turn in range(count)]

    def complete(self, tokens: list[int], salt: str | None = None) -> str:
        """Answer to a prompt of these tokens; any error is a failure of the test."""
        body = {"model": "tiny", "prompt": tokens, "max_tokens": 4, "temperature": 0}
        answer = json.loads(self.ask("/v1/completions", body | ({"cache_salt": salt} if salt else {})))
        assert self.process.poll() is None
        text: str = answer["choices"][0]["text"]
        return text

    def crowd_out(self) -> None:
        """Other prompts, until nothing of the earlier ones is left in both memories."""
        for _turn in range(4):
            self.complete(self.tokens())

    def counter(self, name: str) -> float:
        found = re.findall(rf"^{re.escape(name)}(?:\{{[^}}]*\}})? ([0-9.e+]+)$", self.ask("/metrics"), re.MULTILINE)
        return sum(map(float, found))

    def blocks(self) -> list[Path]:
        return sorted(TIER.rglob("*.bin"))

    def wait_for(self, condition: Callable[[], object], seconds: float = 30) -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, "never came"
            time.sleep(0.1)


def plugin(place: Path) -> None:
    """The stand-in for the GPU's copies, where PYTHONPATH finds it and vLLM its entry point."""
    shutil.copy(HERE / "cpu_tier_spec.py", place)
    facts = place / "llmhost_cpu_tier-1.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: llmhost-cpu-tier\nVersion: 1\n")
    (facts / "entry_points.txt").write_text("[vllm.general_plugins]\nllmhost_cpu_tier = cpu_tier_spec:register\n")


def installed() -> Path:
    """The environment that holds the engine; RuntimeError says why there is none."""
    done = subprocess.run([sys.executable, HERE / "build_engine.py"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"no engine to test with:\n{done.stderr[-3000:]}")
    return Path(done.stdout.strip()).parents[1]


@contextlib.contextmanager
def running(
    engine: Path,
    log: Path,
    size: int = SIZE,
    host_bytes: int = 40 * PAGE,
    more: tuple[object, ...] = (),
    environ: dict[str, str] | None = None,
    encrypted: bool = False,
) -> Iterator[Server]:
    """The engine at work, as root's child with an account of its own.

    size: bytes of the tier; host_bytes: of the memory tier; more: of the command line; environ: on top of its own;
    encrypted: the tier is a directory of ext4 under fscrypt that was hardened as at a boot, else a closed tmpfs.
    """
    with contextlib.ExitStack() as stack:
        for directory in (TIER, PLACE):
            directory.mkdir()
            stack.callback(shutil.rmtree, directory, ignore_errors=True)
        # The cache may lie in a home that the account cannot enter.
        (PLACE / "venv").mkdir()
        stack.enter_context(mounted("--bind", engine, at=PLACE / "venv"))
        raw: dict[str, Any] = {"name": "chat", "store": "vllm_fs", "path": str(TIER), "owner": UID}
        raw.update(services=["vllm.service"], volume={"backend": "existing"} if encrypted else None)
        document = datamap.normalise([raw], "gpu1")
        if encrypted:
            inside = stack.enter_context(fscrypt.directory(PLACE, size))
            stack.enter_context(mounted("--bind", inside, at=TIER))
            prepare.prepare(document["tiers"][0])
        else:
            options = f"size={size},mode=0700,uid={UID},gid={UID}"
            stack.enter_context(mounted("-t", "tmpfs", "-o", options, "tier", at=TIER))
        python = PLACE / "venv" / "bin" / "python"
        run(python, HERE / "tiny_model.py", PLACE / "tiny")
        for written in (PLACE / "tiny").iterdir():
            written.chmod(0o644)
        plugin(PLACE)
        settings = {"tiers": {"chat": {"n_read_threads": 2, "n_write_threads": 2}}, "cpu_bytes_to_use": str(host_bytes)}
        rendered = offload_render.render(settings, document, VERSION, "3.12")
        assert rendered.problems == []
        config = PLACE / "chat.yaml"
        config.write_text("# as the role writes it\n" + offload_render.config_text(rendered.config))
        os.chown(config, 0, UID)
        config.chmod(0o640)
        home = PLACE / "home"
        home.mkdir()
        os.chown(home, UID, UID)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        command = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", PLACE / "tiny"]
        command += ["--served-model-name", "tiny", "--host", "127.0.0.1", "--port", port, "--block-size", BLOCK]
        command += ["--num-gpu-blocks-override", 40, "--max-model-len", 1024, "--enforce-eager", "--config", config]
        path = f"{python.parent}:/usr/bin:/bin"
        environment = {**OFFLINE, "PYTHONPATH": str(PLACE), "HOME": str(home), "PATH": path, "TMPDIR": str(home)}
        environment |= environ or {}
        account: dict[str, Any] = {"user": UID, "group": UID, "extra_groups": [], "umask": 0o077, "cwd": home}
        with log.open("wb") as said:
            process = subprocess.Popen(
                [str(word) for word in (*command, *more)],
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
