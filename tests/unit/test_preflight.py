# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Preflight: every reason not to touch a host, all at once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.llmhost.hardening.plugins.module_utils.kv import datamap, encryption, preflight
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.absent import Left
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.containers import View
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.datamap import Problem
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.preflight import Facts, Unit
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.system import Account
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.volume import Bare, Place, Seen

GIB = 1 << 30
CHAT = {
    "name": "chat",
    "store": "vllm_fs",
    "path": "/var/lib/vllm-kv",
    "owner": "vllm",
    "services": ["vllm.service"],
    "volume": {"backend": "dmcrypt", "source": {"file": "/var/lib/llmhost/chat.img", "size": "1G"}},
}
SLOTS = {
    "name": "slots",
    "store": "llamacpp_slots",
    "path": "/srv/slots",
    "owner": "llama",
    "services": ["llama.service"],
    "max_bytes": "10G",
}
GOOD = Facts(
    python=(3, 11),
    kernel=(6, 1, 0),
    init="systemd",
    dm_crypt=True,
    accounts={"vllm": Account(997, 997), "llama": None},
    units={"vllm.service": Unit("loaded", "vllm"), "llama.service": Unit("loaded", "llama")},
    volumes={"chat": Seen(place=Place("ext4", 1, 100 * GIB, 50 * GIB))},
    paths={"slots": Seen(exists=True)},
    totals={"slots": 100 * GIB},
)


def document(*tiers: dict[str, Any]) -> dict[str, Any]:
    return datamap.normalise(list(tiers) or [CHAT, SLOTS], "gpu1")


def refusals(facts: Facts, *tiers: dict[str, Any]) -> list[Problem]:
    problems = preflight.judge(document(*tiers), facts)
    for problem in problems:
        assert problem.host == "gpu1" and problem.tier and problem.key and problem.reason and problem.fix
    return problems


def test_a_container_that_runs_as_root_on_a_tier_is_refused_with_the_remedy() -> None:
    view = View(8, 0, "python3", "docker-x.scope", "0123456789ab", "/kv", False, True)
    (problem,) = refusals(replace(GOOD, containers={"chat": [view, view._replace(pid=9)]}))
    assert (problem.tier, problem.key) == ("chat", "services")
    assert "container 0123456789ab) runs as root" in problem.reason and "(compose)" in problem.fix
    assert refusals(replace(GOOD, containers={"chat": [view._replace(writable=False)]})) == []


def test_an_absent_tier_that_may_not_go_is_refused_and_one_that_may_is_planned() -> None:
    left = Left(dict(datamap.normalise([CHAT], "gpu1")["tiers"][0], state="absent"), plain=True)
    assert preflight.plan(document(SLOTS), replace(GOOD, gone=(left,)))[-1]["tier"] == "chat"


def test_a_quadlet_sets_its_account_inside_the_container(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight.host, "old_map", lambda document: (None, [], []))
    plain = replace(GOOD, units={"vllm.service": Unit("loaded")})
    made = replace(GOOD, units={"vllm.service": Unit("loaded", source="/etc/containers/systemd/vllm.container")})
    assert "sets no User=" in preflight.warnings(document(CHAT), plain)[0]
    assert preflight.warnings(document(CHAT), made) == []


def test_a_good_host_is_not_refused() -> None:
    assert refusals(GOOD) == []


UNITS = dict(GOOD.units)


@pytest.mark.parametrize(
    ("facts", "key", "words"),
    [
        (replace(GOOD, init="init"), "-", "not systemd"),
        (replace(GOOD, python=(3, 8)), "-", "3.8"),
        (replace(GOOD, python=()), "-", "missing"),
        (replace(GOOD, dm_crypt=False), "volume.backend", "dm_crypt"),
        (replace(GOOD, kernel=(5, 4)), "volume.backend", "nosymfollow"),
        (replace(GOOD, accounts={"vllm": Account(0, 0)}), "owner", "root under another name"),
        (replace(GOOD, accounts={"vllm": Account(1500, 1500)}), "owner", "uid 1500"),
        (replace(GOOD, can_add_accounts=False), "owner", "no useradd"),
        (replace(GOOD, units={**UNITS, "vllm.service": Unit("not-found")}), "services", "no unit vllm.service"),
        (replace(GOOD, units={**UNITS, "vllm.service": Unit("masked")}), "services", "masked"),
        (replace(GOOD, units={**UNITS, "vllm.service": Unit("loaded", "vllm", True)}), "services", "DynamicUser"),
        (replace(GOOD, units={**UNITS, "vllm.service": Unit("loaded", "bob")}), "services", "runs as bob"),
        (replace(GOOD, volumes={"chat": Seen(foreign=("x",))}), "path", "does not know"),
        (
            replace(GOOD, volumes={"chat": Seen(place=Place("ext4", 1, GIB, GIB))}),
            "volume.source.size",
            "no volume fits",
        ),
        (replace(GOOD, paths={"slots": Seen(foreign=("x",))}), "path", "does not know"),
        (replace(GOOD, paths={"slots": Seen(bare=Bare(1, ("x",), 0, 0, 0, True))}), "path", "below the mount"),
        (replace(GOOD, paths={"slots": Seen(unsafe="/srv is a symlink")}), "path", "symlink"),
        (replace(GOOD, totals={"slots": 11 * GIB}), "max_bytes", "90 %"),
        (replace(GOOD, blocked=(Problem("gpu1", "old", "name", "lost", "name it"),)), "name", "lost"),
    ],
)
def test_every_mistake_is_refused(facts: Facts, key: str, words: str) -> None:
    found = refusals(facts)
    assert any(problem.key == key and words in problem.reason + problem.fix for problem in found), found


def test_all_problems_of_all_tiers_come_in_one_refusal() -> None:
    bad = replace(
        GOOD,
        accounts={"vllm": Account(1500, 1500)},
        units={"vllm.service": Unit("not-found"), "llama.service": Unit("not-found")},
        volumes={"chat": Seen(foreign=("x",))},
    )
    assert [(problem.tier, problem.key) for problem in refusals(bad)] == [
        ("chat", "owner"), ("chat", "services"), ("chat", "path"), ("slots", "services"),
    ]  # fmt: skip


def test_a_user_account_is_refused_with_both_remedies() -> None:
    (problem,) = refusals(replace(GOOD, accounts={"vllm": Account(1000, 1000)}), CHAT)
    assert "useradd --system" in problem.fix and "RemoveIPC=no" in problem.fix
    assert refusals(replace(GOOD, accounts={"vllm": Account(1000, 1000)}, remove_ipc=False), CHAT) == []
    assert refusals(replace(GOOD, accounts={"vllm": Account(999, 999)}), CHAT) == []


def test_a_unit_that_is_not_there_yet_may_be_planned() -> None:
    (problem,) = refusals(replace(GOOD, units={"vllm.service": Unit("not-found")}), CHAT)
    assert "state: planned" in problem.fix
    planned = {**CHAT, "state": "planned"}
    assert refusals(replace(GOOD, units={"vllm.service": Unit("not-found")}), planned) == []


def test_an_owner_by_number_is_the_unit_user_of_that_number() -> None:
    by_number = {**CHAT, "owner": 997}
    facts = replace(GOOD, accounts={997: Account(997, 997), "vllm": Account(997, 997)})
    assert refusals(facts, by_number) == []
    assert refusals(replace(facts, units={"vllm.service": Unit("loaded", "997")}), by_number) == []
    other = replace(facts, accounts={997: Account(997, 997), "vllm": Account(996, 996)})
    assert [problem.key for problem in refusals(other, by_number)] == ["services"]


def test_an_existing_volume_has_to_exist() -> None:
    existing = {**SLOTS, "volume": {"backend": "existing"}}
    (problem,) = refusals(replace(GOOD, paths={"slots": Seen()}), existing)
    assert problem.key == "path" and "mount it first" in problem.fix
    assert refusals(replace(GOOD, paths={"slots": Seen()}), SLOTS) == []


HIDDEN = encryption.Storage("/srv/slots", encrypted=False, problems=["no layer below it encrypts"])
SEEN = encryption.Storage("/srv/slots", encrypted=True, key=encryption.Key("passphrase", "good", "asked for"))


@pytest.mark.parametrize(
    ("storage", "words"),
    [
        (HIDDEN, "is not encrypted: no layer"),
        (replace(HIDDEN, encrypted=None), "cannot be told to be encrypted"),
        (replace(SEEN, local=False), "is not local"),
        (replace(SEEN, key=encryption.Key("keyfile", "bad", "key file /k is 0644")), "protects nothing: key file /k"),
        (SEEN, ""),
    ],
)
def test_an_existing_volume_has_to_be_encrypted_and_local(storage: encryption.Storage, words: str) -> None:
    existing = {**SLOTS, "volume": {"backend": "existing"}}
    problems = refusals(replace(GOOD, storages={"slots": storage}), existing)
    assert [problem.key for problem in problems] == (["volume.backend"] if words else [])
    assert words in "".join(problem.reason for problem in problems)


def test_an_attestation_stands_for_encryption_until_its_day() -> None:
    def attested(until: str) -> dict[str, Any]:
        return {**SLOTS, "volume": {"backend": "existing", "attested": {"reason": "EBS", "until": until}}}

    hidden = replace(GOOD, storages={"slots": HIDDEN})
    assert refusals(hidden, attested("9999-12-31")) == []
    (problem,) = refusals(hidden, attested("2020-01-01"))
    assert problem.key == "volume.attested" and "2020-01-01" in problem.reason


def test_a_unit_without_user_is_a_warning_unless_it_runs_containers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight.host, "old_map", lambda document: (None, [], []))
    facts = replace(GOOD, units={"vllm.service": Unit("loaded"), "docker.service": Unit("loaded")})
    tier = {**CHAT, "services": ["vllm.service", "docker.service"]}
    (text,) = preflight.warnings(document(tier), facts)
    assert "vllm.service sets no User=" in text


@pytest.mark.parametrize(
    ("text", "value"),
    [("", 999), ("SYS_UID_MAX 499\n", 499), ("#SYS_UID_MAX 499\n", 999), ("UID_MAX 60000\n\tSYS_UID_MAX\t799\n", 799)],
)
def test_the_largest_system_uid_is_login_defs(text: str, value: int) -> None:
    assert preflight.sys_uid_max(text) == value


@pytest.mark.parametrize(
    ("texts", "value"),
    [
        ([], True),
        (["[Login]\n#RemoveIPC=no\n"], True),
        (["[Login]\nRemoveIPC=no\n"], False),
        (["[Login]\nRemoveIPC=no\n", "[Login]\nRemoveIPC=yes\n"], True),
        (["[Login]\nRemoveIPC = false\n"], False),
    ],
)
def test_logind_deletes_shared_memory_unless_told_not_to(texts: list[str], value: bool) -> None:
    assert preflight.remove_ipc(texts) is value


def test_logind_drop_ins_rank_by_name_and_etc_hides_usr(tmp_path: Path) -> None:
    for name in ("usr/lib/systemd/logind.conf.d/50-a.conf", "etc/systemd/logind.conf.d/50-a.conf",
                 "run/systemd/logind.conf.d/60-b.conf", "etc/systemd/logind.conf"):  # fmt: skip
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    found = [path[len(str(tmp_path)) + 1 :] for path in preflight.logind_files(str(tmp_path))]
    assert found == [
        "etc/systemd/logind.conf", "etc/systemd/logind.conf.d/50-a.conf", "run/systemd/logind.conf.d/60-b.conf",
    ]  # fmt: skip
