# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The modules that change a host: what they accept, refuse, and never do in check mode."""
# pylint: disable=unreachable

from __future__ import annotations

import contextlib
import importlib
import json
from collections.abc import Iterator
from typing import Any

import pytest

from ansible_collections.llmhost.hardening.plugins.module_utils.kv import (
    access,
    datamap,
    host,
    preflight,
    preflight_expiry,
    system,
    tables,
    volume,
    volume_make,
)
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.preflight import Facts

PREFIX = "ansible_collections.llmhost.hardening.plugins.modules."
CHANGING = ("kv_volume", "kv_host", "kv_access")
PROBLEM = datamap.Problem("gpu1", "chat", "path", "in use", "move it")
CHAT = {
    "name": "chat",
    "store": "vllm_fs",
    "path": "/srv/kv",
    "owner": "vllm",
    "services": ["vllm.service"],
    "volume": {"backend": "dmcrypt", "source": {"file": "/var/lib/llmhost/chat.img", "size": "1G"}},
}
DOCUMENT = datamap.normalise([CHAT], "gpu1")


class Exit(BaseException):
    def __init__(self, result: dict[str, Any]) -> None:
        self.result = result


def call(monkeypatch: pytest.MonkeyPatch, name: str, data_map: Any, check: bool = False) -> dict[str, Any]:
    """What a module returns."""
    module = importlib.import_module(PREFIX + name)
    said: list[str] = []

    class Fake:
        def __init__(self, argument_spec: dict[str, Any], supports_check_mode: bool) -> None:
            assert argument_spec.pop("data_map") == {"type": "dict", "required": True}
            assert set(argument_spec) <= {"restart", "wipe", "shorten"}
            assert ({"restart", "shorten"} <= set(argument_spec)) == (name == "kv_preflight")
            assert supports_check_mode
            self.params = {"data_map": data_map, "restart": "never", "wipe": [], "shorten": []}
            self.check_mode = check

        def exit_json(self, **result: Any) -> None:
            raise Exit(result)

        def fail_json(self, **result: Any) -> None:
            raise Exit({"failed": True, **result})

        def warn(self, text: str) -> None:
            said.append(text)

    monkeypatch.setattr(module, "AnsibleModule", Fake)
    with pytest.raises(Exit) as caught:
        module.main()
    json.dumps(caught.value.result)
    return {**caught.value.result, "warned": said}


@pytest.fixture
def nothing(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A host on which nothing may be changed: what tries is listed."""
    done: list[str] = []

    @contextlib.contextmanager
    def exclusive() -> Iterator[None]:
        done.append("lock")
        yield

    monkeypatch.setattr(system, "exclusive", exclusive)
    monkeypatch.setattr(system, "mounts", list)
    monkeypatch.setattr(volume, "look", lambda tier, table: volume.Seen())
    monkeypatch.setattr(tables, "changes", lambda tiers: [])
    monkeypatch.setattr(volume_make, "apply", lambda tiers, seen, wipes: done.append("volume") or ["x"])
    monkeypatch.setattr(volume_make, "clean", lambda tier: volume_make.Cleaned(2, 10, True, False))
    monkeypatch.setattr(volume_make, "missing_packages", lambda tiers: [])
    monkeypatch.setattr(host, "plan", host.Plan)
    monkeypatch.setattr(host, "apply", lambda todo: done.append("host"))
    monkeypatch.setattr(access, "plan", lambda document: access.Plan(document, links=["/x"]))
    monkeypatch.setattr(access, "apply", lambda todo: done.append("access") or ["x"])
    monkeypatch.setattr(access, "restarts", lambda document: {"vllm.service": ["umask"]})
    return done


@pytest.mark.parametrize("name", CHANGING)
def test_check_mode_plans_and_touches_nothing(monkeypatch: pytest.MonkeyPatch, nothing: list[str], name: str) -> None:
    result = call(monkeypatch, name, DOCUMENT, check=True)
    assert "failed" not in result and "diff" in result
    assert nothing == []


@pytest.mark.parametrize("name", CHANGING)
def test_changes_are_made_under_the_hosts_lock(monkeypatch: pytest.MonkeyPatch, nothing: list[str], name: str) -> None:
    result = call(monkeypatch, name, DOCUMENT)
    assert "failed" not in result
    assert nothing == ["lock", name[3:]]


@pytest.mark.parametrize("name", ("kv_preflight", *CHANGING))
def test_a_map_that_is_not_normalised_is_refused(
    monkeypatch: pytest.MonkeyPatch, nothing: list[str], name: str
) -> None:
    result = call(monkeypatch, name, {"tiers": [CHAT]})
    assert result["failed"] and "data_map" in result["msg"]
    assert nothing in ([], ["lock"])


def test_preflight_fails_with_every_problem_one_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "gather", lambda document: Facts())
    monkeypatch.setattr(preflight_expiry, "gather", lambda document, systemd: preflight_expiry.Ahead())
    monkeypatch.setattr(preflight, "judge", lambda document, facts, wipes: [PROBLEM])
    other = PROBLEM._replace(tier="code")
    monkeypatch.setattr(preflight_expiry, "judge", lambda document, ahead, allowed: [other])
    result = call(monkeypatch, "kv_preflight", DOCUMENT)
    assert result["failed"]
    assert result["msg"].splitlines() == [
        "host gpu1, tier chat, key path: in use. Fix: move it.",
        "host gpu1, tier code, key path: in use. Fix: move it.",
    ]
    assert result["problems"][1]["tier"] == "code"


def test_preflight_passes_with_warnings_and_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "gather", lambda document: Facts(volumes={"chat": volume.Seen()}))
    monkeypatch.setattr(preflight_expiry, "gather", lambda document, systemd: preflight_expiry.Ahead())
    monkeypatch.setattr(preflight, "judge", lambda document, facts, wipes: [])
    monkeypatch.setattr(preflight, "warnings", lambda document, facts: ["mind the gap"])
    monkeypatch.setattr(access, "restarts", lambda document: {})
    result = call(monkeypatch, "kv_preflight", DOCUMENT)
    assert result["changed"] is False and result["warned"] == ["mind the gap"]
    assert result["volumes"][0]["tier"] == "chat" and result["volumes"][0]["steps"]


def test_volume_refuses_by_itself_what_preflight_would(monkeypatch: pytest.MonkeyPatch, nothing: list[str]) -> None:
    monkeypatch.setattr(volume, "judge", lambda tier, seen, host, wipes: [PROBLEM])
    result = call(monkeypatch, "kv_volume", DOCUMENT)
    assert result["failed"] and result["problems"][0]["key"] == "path"
    assert "volume" not in nothing


def test_volume_says_what_it_destroyed(monkeypatch: pytest.MonkeyPatch, nothing: list[str]) -> None:
    result = call(monkeypatch, "kv_volume", DOCUMENT)
    assert result["changed"] and result["destroyed"] == {"files": 2, "bytes": 10}
    assert result["volumes"] == [
        {
            "tier": "chat",
            "mapper": "llmhost_chat",
            "image": "/var/lib/llmhost/chat.img",
            "device": None,
            "mounted": True,
        }
    ]
    assert any("immutable" in text for text in result["warned"])
    assert any("fstrim" in text for text in result["warned"])


def test_volume_names_what_is_not_installed(monkeypatch: pytest.MonkeyPatch, nothing: list[str]) -> None:
    monkeypatch.setattr(volume_make, "missing_packages", lambda tiers: ["systemd-cryptsetup"])
    result = call(monkeypatch, "kv_volume", DOCUMENT)
    assert result["failed"] and result["msg"] == "not installed: systemd-cryptsetup"
    assert "volume" not in nothing


def test_access_says_which_writers_wait_for_a_restart(monkeypatch: pytest.MonkeyPatch, nothing: list[str]) -> None:
    result = call(monkeypatch, "kv_access", DOCUMENT)
    assert result["restart_pending"] == ["vllm.service"] and result["restart_reasons"] == {"vllm.service": ["umask"]}


def test_a_host_that_would_forget_a_tier_is_refused(monkeypatch: pytest.MonkeyPatch, nothing: list[str]) -> None:
    monkeypatch.setattr(volume_make, "missing_packages", lambda tiers: [])
    monkeypatch.setattr(host, "plan", lambda document: host.Plan(document, problems=[PROBLEM]))
    result = call(monkeypatch, "kv_host", DOCUMENT)
    assert result["failed"] and "host" not in nothing


@pytest.mark.parametrize("name", CHANGING)
def test_what_the_host_answers_is_one_message(monkeypatch: pytest.MonkeyPatch, nothing: list[str], name: str) -> None:
    @contextlib.contextmanager
    def busy() -> Iterator[None]:
        raise system.HostError("another play is changing this host")
        yield

    monkeypatch.setattr(system, "exclusive", busy)
    result = call(monkeypatch, name, DOCUMENT)
    assert result["failed"] and result["msg"] == "another play is changing this host"
