# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""EXAMPLES are tasks that ansible-playbook takes and, in check mode, answers as a person who copies them expects."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
MODULES = sorted(path.stem for path in ROOT.glob("plugins/modules/*.py"))
FILTERS = sorted(path.stem for path in ROOT.glob("plugins/filter/*.yml"))
# What an example leaves to the reader.
VARIABLES = {
    "canary": "A prompt of a canary.",
    "llmhost_restart": "never",
    "llmhost_tiers": [
        {
            "name": "chat",
            "store": "vllm_fs",
            "path": "/srv/no-such-host/kv",
            "owner": "no-such-account",
            "services": ["vllm.service"],
        }
    ],
    "kv": {"audit": {"host": "gpu1", "verdict": "pass", "results": []}},
    "settings": {"cpu_bytes_to_use": "8G", "tiers": {"chat": {}}},
    "vault_salt_key": "8b1f6f0a5d3c47e29ab0c1d2e3f405162738495a6b7c8d9eafb0c1d2e3f4a5b6",
}
# On a machine that nobody hardened these say why they cannot, and a task after them lacks their answer.
SAYS_NO = {
    "audit_table": ["no data map on this host"],
    "bucket_lifecycle": ["/etc/llmhost/s3-credentials", "there is no such profile"],
    "bucket_lifecycle_info": ["/etc/llmhost/s3-credentials"],
    "fleet_report": ["eu/report.json"],
    "kv_access": ["systemctl", "no-such-account", "vllm.service"],
    "kv_audit": ["no data map on this host"],
    "kv_block_expire": ["no data map on this host", "account 'vllm'"],
    "kv_block_info": ["no data map on this host", "account 'vllm'"],
    "kv_engine": ["vllm.service"],
    "kv_preflight": ["systemd", "vllm.service"],
    "kv_prefix_probe": ["127.0.0.1"],
    "salt_gateway": ["/etc/vllm/api-key"],
}


def examples(name: str) -> list[dict]:
    module = ROOT / f"plugins/modules/{name}.py"
    if not module.exists():
        return yaml.safe_load(yaml.safe_load((ROOT / f"plugins/filter/{name}.yml").read_text())["EXAMPLES"])
    for node in ast.parse(module.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "EXAMPLES":
            return yaml.safe_load(ast.literal_eval(node.value))
    raise LookupError(name)


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """What each example answered: all in one run of ansible-playbook, a play each, in check mode."""
    if not shutil.which("ansible-playbook", path=os.path.dirname(sys.executable)):
        pytest.fail("ansible-playbook is not beside the interpreter: run `make setup`")
    tmp = tmp_path_factory.mktemp("examples")
    plays = []
    for name in [*MODULES, *FILTERS]:
        tasks = [{**task, "ignore_errors": True} for task in examples(name)]
        plays.append({"name": name, "hosts": "localhost", "gather_facts": False, "vars": VARIABLES, "tasks": tasks})
    book = tmp / "book.yml"
    book.write_text(yaml.safe_dump(plays, sort_keys=False))
    environment = {
        "PATH": f"{os.path.dirname(sys.executable)}:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": str(tmp),
        "ANSIBLE_HOME": str(tmp),
        "ANSIBLE_COLLECTIONS_PATH": str(ROOT / ".build/pythonpath"),
        "ANSIBLE_NOCOLOR": "1",
        "LANG": "C.UTF-8",
        "LLMHOST_ANSWERS": str(tmp / "answers"),
    }
    callback = tmp / "callbacks/keep.py"
    callback.parent.mkdir()
    callback.write_text(CALLBACK)
    environment |= {"ANSIBLE_CALLBACK_PLUGINS": str(callback.parent), "ANSIBLE_STDOUT_CALLBACK": "keep"}
    inventory = f"localhost ansible_connection=local ansible_python_interpreter={sys.executable}\n"
    (tmp / "hosts").write_text(inventory)
    command = ["ansible-playbook", "-i", str(tmp / "hosts"), "--check", "--diff", str(book)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=tmp, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    lines = (tmp / "answers").read_text().splitlines()
    found: dict[str, list] = {}
    for line in lines:
        play, *answer = json.loads(line)
        found.setdefault(play, []).append(answer)
    return found


CALLBACK = """
import json, os
from ansible.plugins.callback import CallbackBase
DOCUMENTATION = '''
name: keep
type: stdout
short_description: keeps answers
description: keeps answers
'''
class CallbackModule(CallbackBase):
    CALLBACK_VERSION, CALLBACK_TYPE, CALLBACK_NAME = 2.0, "stdout", "keep"
    def v2_playbook_on_play_start(self, play):
        self.play = play.get_name()
    def keep(self, result, failed=False, **_more):
        with open(os.environ["LLMHOST_ANSWERS"], "a") as file:
            task = getattr(result, "task", None) or result._task
            answer = getattr(result, "result", None) or result._result
            file.write(json.dumps([self.play, task.get_name(), answer, failed], default=str) + chr(10))
    v2_runner_on_ok = v2_runner_on_skipped = keep
    def v2_runner_on_failed(self, result, **_more):
        self.keep(result, failed=True)
    v2_runner_on_unreachable = v2_runner_on_failed
"""


@pytest.mark.parametrize("name", [*MODULES, *FILTERS])
def test_examples_run_in_check_mode(name, answers) -> None:
    given = answers[name]
    assert [task for task, _result, _failed in given] == [task["name"] for task in examples(name)]
    said_no = False
    for task, result, failed in given:
        text = json.dumps(result)
        assert "Traceback" not in text and "MODULE FAILURE" not in text, f"{task}: {text}"
        assert "Unsupported parameters" not in text and "missing required arguments" not in text, f"{task}: {text}"
        if failed and not said_no:
            assert name in SAYS_NO and any(word in text for word in SAYS_NO[name]), f"{task}: {text}"
            said_no = True
