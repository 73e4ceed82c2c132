# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The playbook harden over several hosts: who is touched, in which order, and what stops it.

Hosts are this machine under four names, and the modules that would look at or change it are replaced by one that notes
what it was asked: the plays, their conditions and the handler are the collection's own.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
HOSTS = ("gpu1", "gpu2", "gpu3", "gpu4")
NOTE = """
import json
from ansible.module_utils.basic import AnsibleModule

TAKEN = "data_map restart wipe shorten waivers buckets name state host".split()
module = AnsibleModule({key: {"type": "raw"} for key in TAKEN}, supports_check_mode=True)
given = json.loads(%r)
args = {key: module.params.get(key) for key in %r}
host = (module.params.get("data_map") or {}).get("host") or module.params.get("host")
line = json.dumps({"module": %r, "host": host, "check": module.check_mode, **args})
with open(%r, "a") as log:
    log.write(line + "\\n")
answer = given.get(host) or given.get("*") or {}
module.fail_json(**answer) if answer.get("failed") else module.exit_json(**answer)
"""
LOSES = {"restarts": [], "caches": [], "destroys": True, "lines": ["loses 512 blocks"]}
KEEPS = {"restarts": [], "caches": [], "destroys": False, "lines": []}


class Fleet:
    """A collection with the real plays in a directory of its own, and four hosts."""

    def __init__(self, place: Path) -> None:
        self.place, self.log = place, place / "log"
        self.root = place / "collections/ansible_collections/llmhost/hardening"
        (self.root / "plugins/modules").mkdir(parents=True)
        for name in ("playbooks", "meta", "galaxy.yml", "plugins/filter", "plugins/lookup", "plugins/module_utils"):
            (self.root / name).symlink_to(ROOT / name)
        self.maps: dict[str, dict[str, Any]] = dict.fromkeys(HOSTS, {})
        self.answers: dict[str, dict[str, Any]] = {
            "kv_preflight": {host: {"forecast": KEEPS, "buckets": []} for host in HOSTS},
            "kv_audit": {"*": {"audit": {"host": "x", "results": []}}},
            "kv_access": {"*": {"changed": False, "restart_pending": ["vllm.service"]}},
            "kv_volume": {},
            "restart": {},
        }
        for role in ("kv_volume", "kv_retention", "kv_access"):
            tasks: list[Any] = [{f"llmhost.hardening.{role}": {"data_map": "{{ data_map }}"}}]
            (self.root / "roles" / role / "tasks").mkdir(parents=True)
            if role == "kv_access":
                tasks = yaml.safe_load((ROOT / "roles/kv_access/tasks/present.yml").read_text())[-2:]
                for part in ("defaults", "vars", "meta"):
                    (self.root / "roles" / role / part).symlink_to(ROOT / "roles" / role / part)
                handlers = (ROOT / "roles/kv_access/handlers/main.yml").read_text()
                assert handlers.count("ansible.builtin.systemd_service:") == 1
                handlers = handlers.replace("ansible.builtin.systemd_service:", "llmhost.hardening.restart:")
                handlers = handlers.replace("    state:", "    host: '{{ inventory_hostname }}'\n    state:")
                (self.root / "roles" / role / "handlers").mkdir()
                (self.root / "roles" / role / "handlers/main.yml").write_text(handlers)
            if role == "kv_retention":
                tasks = [{"ansible.builtin.meta": "noop"}]
            (self.root / "roles" / role / "tasks/main.yml").write_text(yaml.safe_dump(tasks))

    def run(self, *arguments: str, **variables: Any) -> tuple[int, str, list[dict[str, Any]]]:
        """Exit code, output, and what the modules were asked, in order."""
        for module, answers in self.answers.items():
            keys = ("restart", "name", "state", "shorten")
            text = NOTE % (json.dumps(answers), keys, module, str(self.log))
            (self.root / f"plugins/modules/{module}.py").write_text(text)
        self.log.write_text("")
        tier = {"name": "chat", "store": "vllm_fs", "path": "/srv/kv", "owner": "vllm", "services": ["vllm.service"]}
        local = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
        hosts = {host: {**local, "llmhost_tiers": [{**tier, **more}]} for host, more in self.maps.items()}
        inventory = {"all": {"hosts": hosts}}
        (self.place / "hosts.yml").write_text(yaml.dump(inventory, Dumper=_NoAliases))
        playbook = str(self.root / "playbooks/harden.yml")
        beside = Path(sys.executable).parent / "ansible-playbook"
        program = str(beside) if beside.exists() else shutil.which("ansible-playbook") or "ansible-playbook"
        given = ["-e", json.dumps(variables), "-e", "ansible_become=false"]
        done = subprocess.run(
            [program, "-i", "hosts.yml", playbook, *given, *arguments],
            cwd=self.place,
            env={
                **os.environ,
                "ANSIBLE_COLLECTIONS_PATH": str(self.place / "collections"),
                "ANSIBLE_NOCOLOR": "1",
                "ANSIBLE_PIPELINING": "1",
                "ANSIBLE_DEPRECATION_WARNINGS": "0",
                "LC_ALL": "C.UTF-8",
            },
            capture_output=True,
            text=True,
            check=False,
        )
        return (
            done.returncode,
            done.stdout + done.stderr,
            [json.loads(line) for line in self.log.read_text().split("\n") if line],
        )


class _NoAliases(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(tmp_path)


def of(asked: list[dict[str, Any]], module: str) -> list[str]:
    return [one["host"] for one in asked if one["module"] == module]


def test_a_mistake_in_one_data_map_stops_all_hosts_and_is_said_with_its_remedy(fleet: Fleet) -> None:
    fleet.maps["gpu2"] = {"retention_minuts": 5}
    disk = {"backend": "dmcrypt", "source": {"device": "/dev/sdx"}}
    fleet.maps["gpu3"] = {"volume": disk}
    code, text, asked = fleet.run("--check")
    said = " ".join(text.replace("\\n", " ").split())
    assert code != 0 and asked == [], text
    assert "host gpu2, tier chat, key retention_minuts" in said and "did you mean retention_minutes" in said
    assert '"msg": "Nothing was touched."' in said
    assert "/dev/sdx on this host is not known by a stable name. Nothing was touched." in said


def test_no_host_is_touched_if_too_many_would_lose_a_cache(fleet: Fleet) -> None:
    fleet.answers["kv_preflight"].update(
        gpu1={"forecast": LOSES, "buckets": []}, gpu3={"forecast": LOSES, "buckets": []}
    )
    code, text, asked = fleet.run()
    assert code != 0 and {one["module"] for one in asked} == {"kv_preflight"}, text
    assert sorted(of(asked, "kv_preflight")) == sorted(HOSTS)
    for words in ("2 hosts would lose a cache (gpu1, gpu3)", "llmhost_max_hosts_destroying_cache is 1", "Nothing was"):
        assert words in " ".join(text.split()), text
    # Check mode says the same, and shows what else is ahead of each host.
    code, text, asked = fleet.run("--check", "--diff", "--limit=gpu1,gpu3")
    assert code == 0 and "2 hosts would lose a cache (gpu1, gpu3)" in " ".join(text.split()), text
    assert text.count("loses 512 blocks") == 2
    assert (
        of(asked, "kv_volume") == ["gpu1", "gpu3"] and all(one["check"] for one in asked) and of(asked, "restart") == []
    )


def test_hosts_go_one_after_the_other_and_the_first_failure_stops_the_rest(fleet: Fleet) -> None:
    fleet.answers["kv_preflight"].update(
        gpu1={"forecast": LOSES, "buckets": []}, gpu3={"forecast": LOSES, "buckets": []}
    )
    fleet.answers["kv_volume"] = {"gpu2": {"failed": True, "msg": "no room"}}
    options = {"llmhost_max_hosts_destroying_cache": 2, "llmhost_serial": [1, 2], "llmhost_restart": "when_needed"}
    code, text, asked = fleet.run(**options)
    assert code != 0 and "no room" in text
    # Half of the second batch was well, and the third is not begun all the same.
    assert sorted(of(asked, "kv_volume")) == ["gpu1", "gpu2", "gpu3"]
    # The first host was done, its engine restarted and its audit made, before the second was begun.
    order = [(one["module"], one["host"]) for one in asked]
    assert order.index(("restart", "gpu1")) < order.index(("kv_volume", "gpu2"))
    assert [one for one in order if one[0] == "restart"] == [("restart", "gpu1")]
    (restart,) = [one for one in asked if one["module"] == "restart"]
    assert (restart["name"], restart["state"]) == ("vllm.service", "restarted")
    assert [one["restart"] for one in asked if one["module"] == "kv_preflight"][:4] == ["when_needed"] * 4


def test_one_refusal_stops_all_hosts_and_a_restart_needs_a_word(fleet: Fleet) -> None:
    code, text, asked = fleet.run("--limit=gpu1", llmhost_shorten_retention="chat")
    assert code == 0, text
    assert of(asked, "kv_access") == ["gpu1"] and of(asked, "restart") == []
    assert "llmhost_restart is never, so that is left to you" in " ".join(text.split())
    assert {one["shorten"] for one in asked if one["module"] == "kv_preflight"} == {"chat"}
    fleet.answers["kv_preflight"]["gpu3"] = {"failed": True, "msg": "a used disk"}
    code, text, asked = fleet.run()
    assert code != 0 and "a used disk" in text
    assert {one["module"] for one in asked} == {"kv_preflight"}
