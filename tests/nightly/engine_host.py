# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A test-bed host with real engines in units of their own, and plays of this collection against it."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
BED = ROOT / "tests/testbed/bed.py"
# The whole of it, as an operator would write it: the playbook harden, then the engines' settings.
PLAY = f"""
- import_playbook: {ROOT}/playbooks/harden.yml
- hosts: all
  gather_facts: false
  become: true
  roles: [llmhost.hardening.engine_offload]
"""
ASK = """
import json, sys, urllib.error, urllib.request
url, body = sys.argv[1], sys.argv[2].encode() or None
try:
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=240) as answer:
        found = answer.status, answer.read().decode()
except urllib.error.HTTPError as error:
    found = error.code, error.read().decode()
print(json.dumps(found))
"""


def bed(*arguments: str) -> str:
    done = subprocess.run([sys.executable, BED, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{arguments}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done.stdout


@contextlib.contextmanager
def up(name: str, *options: str) -> Iterator[None]:
    """A fresh host. LLMHOST_HOST_KEEP: the one that runs already, left running."""
    kept = os.environ.get("LLMHOST_HOST_KEEP")
    if not kept:
        bed("down", name)
        bed("up", name, *options)
    try:
        yield
    finally:
        if not kept:
            bed("down", name)


class Host:
    """The running host. place: a scratch directory here; variables: what the plays are given."""

    def __init__(self, name: str, place: Path, variables: dict[str, Any]) -> None:
        self.name, self.place, self.variables = name, place, variables
        (place / "hosts.yml").write_text(bed("inventory", name))
        (place / "play.yml").write_text(PLAY)
        (place / "ask.py").write_text(ASK)
        self.push(place / "ask.py", "/root/ask.py")

    def do(self, command: str) -> str:
        return bed("ssh", self.name, "--", command).strip()

    def push(self, source: Path, target: str) -> None:
        bed("push", self.name, str(source), target)

    def play(self, playbook: Path | None = None, **more: Any) -> tuple[int, str]:
        """Exit code and output of a play, in one line."""
        (self.place / "vars.yml").write_text(yaml.safe_dump({**self.variables, **more}))
        collections = os.environ.get("ANSIBLE_COLLECTIONS_PATH") or str(ROOT / ".build/pythonpath")
        environment = {**os.environ, "ANSIBLE_COLLECTIONS_PATH": collections, "ANSIBLE_PIPELINING": "1"}
        beside = Path(sys.executable).with_name("ansible-playbook")
        program = str(beside) if beside.exists() else "ansible-playbook"
        command = [program, "-i", "hosts.yml", "-e", "@vars.yml", str(playbook or "play.yml")]
        done = subprocess.run(command, cwd=self.place, env=environment, capture_output=True, text=True, check=False)
        said = done.stdout + done.stderr
        return done.returncode, " ".join(said.replace("\n", " ").replace('",', "").replace('"', "").split())

    def ask(self, url: str, body: object = None) -> tuple[int, Any]:
        """What a client on the host is answered."""
        text = "" if body is None else json.dumps(body)
        status, answer = json.loads(self.do(f"python3 /root/ask.py {url} {shlex.quote(text)}"))
        with contextlib.suppress(ValueError):
            answer = json.loads(answer)
        return status, answer

    def wait_for(self, condition: Callable[[], object], seconds: float, unit: str) -> None:
        end = time.monotonic() + seconds
        while True:
            with contextlib.suppress(AssertionError):
                if condition():
                    return
            assert time.monotonic() < end, self.do(f"journalctl --no-pager -u {unit} -t kvtier | tail -40")
            time.sleep(2)

    def main_pid(self, unit: str) -> str:
        return self.do(f"systemctl show -P MainPID {unit}")

    def verdicts(self, tier: str) -> dict[str, tuple[str, str]]:
        """Status and message of each control of a tier, by the host's own audit."""
        results = json.loads(self.do("/usr/local/sbin/kvtier audit --json || true"))["results"]
        return {one["control"]: (one["status"], one["message"]) for one in results if one["tier"] == tier}
