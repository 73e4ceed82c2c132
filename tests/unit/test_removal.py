# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a role wrote goes when its state is absent; blocks and evidence only if the operator says so."""

from __future__ import annotations

import json
import os
from types import SimpleNamespace

import pytest

from ansible_collections.llmhost.hardening.plugins.module_utils.kv import (
    absent,
    access,
    datamap,
    history,
    host,
    offload_host,
    offload_units,
    receipt,
    removal,
    system,
    tables,
    units,
    volume,
)
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.removal import Told

IMAGE = "/var/lib/llmhost/chat.img"
CHAT = {
    "name": "chat",
    "store": "vllm_fs",
    "path": "/srv/kv",
    "owner": "vllm",
    "services": ["vllm.service"],
    "volume": {"backend": "dmcrypt", "source": {"file": IMAGE, "size": "1G"}},
}


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A host below tmp_path: every place that removal knows, and what it asks of systemd."""
    asked = []

    def place(module, name, path):
        monkeypatch.setattr(module, name, str(tmp_path / path))
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)

    place(removal, "CRON", "etc/cron.d/llmhost")
    place(removal, "ETC_ROOT", "etc/llmhost")
    place(removal, "LIB_ROOT", "var/lib/llmhost")
    place(datamap, "WAIVERS", "etc/llmhost/waivers.json")
    place(datamap, "PATH", "etc/llmhost/tiers.json")
    place(datamap, "STATE_ROOT", "var/lib/llmhost/state")
    place(history, "DIRECTORY", "var/lib/llmhost/audit")
    place(receipt, "DIRECTORY", "var/lib/llmhost/receipts")
    place(units, "KVTIER", "usr/local/sbin/kvtier")
    place(units, "UNIT_DIR", "etc/systemd/system")
    place(offload_host, "RECORD", "etc/llmhost/engines.json")
    place(offload_units, "DIRECTORY", "etc/llmhost/engine")
    place(offload_units, "QUADLET_DIR", "etc/containers/systemd")
    place(tables, "CRYPTTAB", "etc/crypttab")
    load = datamap.load
    monkeypatch.setattr(datamap, "load", lambda: load(datamap.PATH))
    units_dir = str(tmp_path / "etc/systemd/system")
    names, files, links = host.prepared_names, access.our_files, access.link_changes
    monkeypatch.setattr(host, "prepared_names", lambda: names(units_dir))
    monkeypatch.setattr(access, "our_files", lambda: files(units_dir))
    monkeypatch.setattr(access, "link_changes", lambda document: links(document, units_dir))
    monkeypatch.setattr(absent, "look_all", lambda document, own: [])
    monkeypatch.setattr(removal.discovery, "of_services", lambda names: [])
    monkeypatch.setattr(system, "daemon_reload", lambda: asked.append("daemon-reload"))
    monkeypatch.setattr(system, "run", lambda argv, timeout=0: asked.append(list(argv)))
    return SimpleNamespace(path=tmp_path, asked=asked)


def put(root, path, text=""):
    (root.path / path).parent.mkdir(parents=True, exist_ok=True)
    (root.path / path).write_text(text)


@pytest.fixture
def hardened(root):
    """What the roles leave on a host with one tier in a plain directory, and things of others beside it."""
    put(root, "usr/local/sbin/kvtier", "zip")
    put(root, "etc/llmhost/tiers.json", json.dumps(datamap.normalise([{**CHAT, "volume": None}], "gpu1")))
    put(root, "etc/llmhost/waivers.json", "[]")
    put(root, "etc/cron.d/llmhost", f"* * * * * root {root.path}/usr/local/sbin/kvtier audit\n")
    put(root, "var/lib/llmhost/state/chat/run.json", "{}")
    put(root, "var/lib/llmhost/audit/history.jsonl", "{}")
    put(root, "var/lib/llmhost/receipts/chat-1.json", "{}")
    put(root, "var/lib/metrics/llmhost.prom")
    put(root, "var/lib/metrics/node.prom")
    prepare = "etc/systemd/system/llmhost-tier@chat.service"
    put(root, prepare, units.HEADER + "\n[Unit]\n")
    put(root, "etc/systemd/system/vllm.service.d/50-llmhost.conf", units.HEADER + "\n")
    put(root, "etc/systemd/system/vllm.service.d/10-mine.conf", "[Service]\n")
    (root.path / "etc/systemd/system/local-fs.target.wants").mkdir()
    os.symlink(root.path / prepare, root.path / "etc/systemd/system/local-fs.target.wants/llmhost-tier@chat.service")
    return root


def remove(root, role, act=True, **told):
    given = Told(textfile_dir=str(root.path / "var/lib/metrics"), **told)
    return removal.run(role, datamap.normalise([], "gpu1"), given, act)


def files(root):
    return sorted(str(path.relative_to(root.path)) for path in root.path.rglob("*") if not path.is_dir())


def test_what_both_roles_wrote_goes_and_what_others_wrote_stays(hardened):
    remove(hardened, "kv_retention")
    remove(hardened, "kv_access")
    assert files(hardened) == [
        "etc/systemd/system/vllm.service.d/10-mine.conf",
        "var/lib/llmhost/audit/history.jsonl",
        "var/lib/llmhost/receipts/chat-1.json",
        "var/lib/metrics/node.prom",
    ]
    assert not (hardened.path / "etc/systemd/system/local-fs.target.wants").exists()
    assert (hardened.path / "usr/local/sbin").is_dir(), "a directory of the system went because it was empty"


@pytest.mark.parametrize("first", ["kv_retention", "kv_access"])
def test_the_program_and_its_map_go_with_the_last_role_that_calls_it(hardened, first):
    remove(hardened, first)
    assert {"usr/local/sbin/kvtier", "etc/llmhost/tiers.json"} <= set(files(hardened))
    remove(hardened, {"kv_retention": "kv_access", "kv_access": "kv_retention"}[first])
    assert not {"usr/local/sbin/kvtier", "etc/llmhost/tiers.json"} & set(files(hardened))
    assert not (hardened.path / "etc/llmhost").exists()


def test_evidence_goes_only_if_told(hardened):
    kept = remove(hardened, "kv_retention")["kept"]
    assert len(kept) == 2 and all("evidence" in line for line in kept)
    remove(hardened, "kv_access")
    assert remove(hardened, "kv_retention", evidence=True)["changed"]
    assert not (hardened.path / "var/lib/llmhost").exists()


@pytest.mark.parametrize("role", removal.ROLES)
def test_check_mode_touches_nothing_and_a_second_run_changes_nothing(hardened, role):
    before = files(hardened)
    planned = remove(hardened, role, act=False)
    assert files(hardened) == before and hardened.asked == []
    done = remove(hardened, role)
    assert done["removed"] == planned["removed"]
    assert not remove(hardened, role)["changed"]


@pytest.mark.parametrize("role", removal.ROLES)
def test_a_host_that_was_never_touched_stays_so(root, role):
    assert not remove(root, role)["changed"]
    assert files(root) == [] and root.asked == []


def test_prepare_units_end_only_after_systemd_forgot_who_requires_them(hardened):
    remove(hardened, "kv_access")
    assert hardened.asked == ["daemon-reload", ["systemctl", "stop", "--", "llmhost-tier@chat.service"]]


def test_a_file_of_a_strangers_in_our_places_stays_and_is_named(hardened):
    put(hardened, "etc/cron.d/llmhost", "* * * * * root /usr/bin/mine\n")
    put(hardened, "etc/llmhost/canaries.json", "{}")
    remove(hardened, "kv_access")
    assert "usr/local/sbin/kvtier" in files(hardened), "something of cron's may still call it"
    (hardened.path / "etc/cron.d/llmhost").unlink()
    kept = remove(hardened, "kv_retention")["kept"]
    assert "etc/llmhost/canaries.json" in files(hardened)
    assert any(line.endswith("etc/llmhost/canaries.json") for line in kept)


def test_files_of_engines_go_whatever_engine_they_are_for(root):
    text = offload_units.HEADER + "\n# engine: main\n"
    for path in ("etc/llmhost/engine/main.yaml", "etc/systemd/system/x.service", "etc/containers/systemd/x.container"):
        put(root, path, text)
    put(root, "etc/systemd/system/vllm.service.d/60-llmhost-offload.conf", text)
    put(root, "etc/systemd/system/mine.service", "[Service]\n")
    put(root, "etc/llmhost/engines.json", "{}")
    remove(root, "engine_offload")
    assert files(root) == ["etc/systemd/system/mine.service"]


# Data


def left(volume_of_ours, **change):
    tier = {**datamap.normalise([CHAT], "gpu1")["tiers"][0], **change}
    return absent.Left(tier, volume.Seen() if volume_of_ours else None, open=volume_of_ours, plain=not volume_of_ours)


@pytest.fixture
def tiers(root, monkeypatch):
    """One tier with blocks; what absent is asked to take away."""
    gone = []
    found = []
    monkeypatch.setattr(absent, "look_all", lambda document, own: [one for one in found if bool(one.seen) == own])
    monkeypatch.setattr(absent, "steps", lambda one: ["destroy it"])
    monkeypatch.setattr(absent, "refuse", lambda going, name: None)
    monkeypatch.setattr(absent, "apply", lambda going, document: [one.tier["name"] for one in going] or [])
    monkeypatch.setattr(absent, "diffs", lambda going: [])
    monkeypatch.setattr(removal, "has_blocks", lambda tier: True)
    return SimpleNamespace(found=found, gone=gone)


def test_a_volume_with_blocks_that_no_boot_outlives_is_refused_unless_its_tier_is_named(root, tiers):
    tiers.found.append(left(True))
    with pytest.raises(datamap.MapError, match="tier chat.*blocks lie on a volume.*llmhost_remove_data"):
        remove(root, "kv_volume")
    assert remove(root, "kv_volume", data=["chat"])["removed"] == ["chat"]


def test_the_leave_is_for_the_named_tier_alone(root, tiers):
    tiers.found.append(left(True))
    with pytest.raises(datamap.MapError):
        remove(root, "kv_volume", data=["code"])


def test_an_empty_volume_needs_no_leave(root, tiers, monkeypatch):
    monkeypatch.setattr(removal, "has_blocks", lambda tier: False)
    tiers.found.append(left(True))
    assert remove(root, "kv_volume")["removed"] == ["chat"]


def test_a_volume_that_outlives_a_boot_is_kept_with_its_blocks(root, tiers):
    source = {"device": "/dev/disk/by-id/x"}
    tiers.found.append(left(True, volume={"backend": "dmcrypt", "source": source, "key": "keyfile"}))
    done = remove(root, "kv_volume")
    assert not done["removed"] and "opened at boot as before" in done["kept"][0]


def test_blocks_in_a_plain_directory_stay_unless_named(root, tiers):
    tiers.found.append(left(False))
    done = remove(root, "kv_access")
    assert not done["changed"] and "closed to all but its account" in done["kept"][0]
    assert remove(root, "kv_access", data=["chat"])["removed"] == ["chat"]


def test_access_stays_while_a_volume_is_here_that_each_boot_makes_anew(root):
    put(
        root,
        "etc/crypttab",
        "llmhost_my_chat /var/lib/llmhost/chat.img /dev/urandom plain,nofail\nother /x none luks\n",
    )
    with pytest.raises(datamap.MapError, match="tier my-chat.*after the next boot"):
        remove(root, "kv_access")
    remove(root, "kv_access", act=False)


def test_every_tier_that_host_or_map_know_is_looked_at(root):
    put(root, "etc/llmhost/tiers.json", json.dumps(datamap.normalise([CHAT], "gpu1")))
    other = {**CHAT, "name": "code", "path": "/srv/code", "volume": None}
    found = removal.everything(datamap.normalise([other], "gpu1"))["tiers"]
    assert {tier["name"] for tier in found} == {"chat", "code"}
    assert {tier["state"] for tier in found} == {"absent"}
