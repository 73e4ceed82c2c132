# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""An absent tier: refused while anything would be lost that is not the tier's, else nothing of ours is left."""

from __future__ import annotations

import os
import signal
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fixtures import Tree
from held import see_only_what_can_be_seen
from test_volume import HARDENED, IMAGE, MAPPER, PATH, VIRGIN
from test_volume import tier as chat

from ansible_collections.llmhost.hardening.plugins.module_utils.kv import (
    absent,
    access,
    controls,
    datamap,
    holders,
    leftover,
    lvm,
    prepare,
    purge,
    receipt,
    state,
    system,
    tables,
    units,
    volume,
)
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.absent import Left
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.devices import Device, Signature, header_uuid

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="owners, attributes and processes are root's to look at")
CHAT = dict(chat(), state="absent")
LUKS = datamap.normalise(
    [
        {
            "name": "kept",
            "store": "vllm_fs",
            "path": "/srv/kept",
            "owner": "vllm",
            "state": "absent",
            "volume": {
                "backend": "dmcrypt",
                "source": {"device": "/dev/disk/by-id/x"},
                "key": "keyfile",
                "keyfile": "/srv/keys/kept",
            },
        }
    ],
    "gpu1",
)["tiers"][0]
DISK = Device(
    "/dev/disk/by-id/x", "/dev/sdb", "8:16", 1 << 30, signatures=(Signature("crypto_LUKS", 0, header_uuid(LUKS)),)
)
EPHEMERAL = {**LUKS, "volume": {**LUKS["volume"], "key": "ephemeral", "keyfile": None}}
OWN = replace(DISK, signatures=(Signature("ext2", 1080, header_uuid(EPHEMERAL)),))
OPEN = Left(CHAT, HARDENED, open=True, bare=True)


def reasons(left: Left) -> list[str]:
    problems = absent.judge(left, "gpu1")
    for problem in problems:
        assert problem.host == "gpu1" and problem.tier == left.tier["name"] and problem.key and problem.fix
    return [problem.reason for problem in problems]


def test_a_tier_that_nobody_uses_may_go() -> None:
    assert reasons(OPEN) == []
    assert reasons(Left(CHAT, VIRGIN)) == []
    assert reasons(Left(CHAT, plain=True)) == []


@pytest.mark.parametrize(
    ("left", "words"),
    [
        (replace(OPEN, held=("pid 7 (python3, vllm.service) has it open: /x",)), "still used: pid 7"),
        (replace(OPEN, held=tuple("abcdefg")), "and 2 more"),
        (replace(OPEN, untold="only root can look at all processes"), "cannot be told"),
        (replace(OPEN, foreign=("letter.txt",)), "letter.txt"),
        (replace(OPEN, seen=replace(HARDENED, mounted=None)), "open but not mounted"),
        (replace(OPEN, seen=replace(HARDENED, mapper=MAPPER._replace(files=["/other"]))), "not the tier's volume"),
        (replace(OPEN, seen=replace(HARDENED, tables_unsafe="/etc/fstab is a symlink")), "symlink"),
        (Left(EPHEMERAL, volume.Seen(device=replace(OWN, in_use=("/dev/sdb is swap",)))), "is swap"),
        (Left(EPHEMERAL, volume.Seen(device=replace(OWN, twins=("/dev/sdc",)))), "carries the tier's header too"),
        (Left(LUKS, volume.Seen(device=DISK)), "is closed, so what lies in it cannot be seen"),
        (Left(LUKS, volume.Seen(), keys=("/srv/keys/kept",)), "is not there"),
    ],
)
def test_a_tier_that_is_used_or_not_seen_whole_stays(left: Left, words: str) -> None:
    (reason,) = reasons(left)
    assert words in reason


def test_a_disk_that_is_gone_with_its_key_keeps_nobody_from_going_on() -> None:
    assert reasons(Left(LUKS, volume.Seen())) == []


def test_a_volume_without_a_key_is_the_next_runs_work() -> None:
    """Killed after the key was destroyed: there is nothing left to be seen in it."""
    left = replace(OPEN, open=False, seen=replace(HARDENED, mounted=None, mapper=MAPPER._replace(files=[])))
    assert reasons(left) == []
    assert "destroy the key of llmhost_chat and close it" in absent.steps(left)


# Planning


def test_what_is_taken_away_is_told_in_order() -> None:
    assert absent.steps(OPEN) == [
        "destroy the key of llmhost_chat and close it",
        "remove llmhost_chat from /etc/crypttab",
        "remove llmhost_chat from /etc/fstab",
        f"remove {IMAGE}",
        f"give up the directory below the mount at {PATH}",
    ]
    assert absent.steps(Left(CHAT, VIRGIN)) == []


@pytest.mark.parametrize(
    "seen",
    [
        replace(VIRGIN, image=volume.Image(True, None, 1, 1, 0, 0o600)),
        replace(VIRGIN, image=volume.Image(True, "other", 1, 1, 0, 0o600)),
        replace(VIRGIN, image=volume.Image(False, "chat", 1, 1, 0, 0o600)),
        replace(VIRGIN, crypttab=(("llmhost_chat", "/dev/sdb", "none"),)),
        replace(VIRGIN, crypttab=(("swap", IMAGE, "none"),)),
        replace(VIRGIN, fstab=(("/dev/sdb1", PATH, "xfs"),)),
        replace(VIRGIN, device=replace(DISK, signatures=(Signature("ext4", 0, "f00"),))),
    ],
)
def test_what_others_made_is_not_taken(seen: volume.Seen) -> None:
    assert absent.steps(Left(CHAT, seen)) == []


@pytest.mark.parametrize("ours", [True, False])
def test_a_logical_volume_goes_only_if_this_collection_made_it(ours: bool) -> None:
    source = {"vg": "data", "lv": "chat", "size": 1 << 30}
    tier = dict(CHAT, volume={**CHAT["volume"], "source": source})
    left = Left(tier, replace(VIRGIN, group=lvm.Group(0, 4 << 20, 1 << 30, ours, True)))
    assert absent.steps(left) == (["remove the logical volume /dev/data/chat"] if ours else [])


def test_a_logical_volume_is_removed_by_its_tag(host: Host) -> None:
    source = {"vg": "data", "lv": "chat", "size": 1 << 30}
    tier = dict(CHAT, volume={**CHAT["volume"], "source": source})
    absent.apply([Left(tier, replace(VIRGIN, group=lvm.Group(0, 4 << 20, 1 << 30, True, True)))], {"host": "gpu1"})
    (removed,) = [call for call in host.calls if call[0] == "lvremove"]
    assert removed[-1] == "vg_name=data && lv_name=chat && lv_tags={llmhost.tier.chat}"


def test_lines_of_others_stay_in_a_table() -> None:
    line = units.crypttab_line(CHAT).encode()
    mine = ("llmhost_chat", IMAGE)
    others = b"# a comment\nllmhost_chat2 /x none\nllmhost_chat /dev/sdb none\n"
    assert tables.without_line(others + line + b"\n", mine) == others
    assert tables.without_line(line + b"\n" + others, mine) == others
    assert tables.without_line(others, mine) == others


def test_the_volume_that_the_host_knows_goes_even_if_the_absent_entry_does_not_name_it(monkeypatch) -> None:
    document = datamap.normalise(
        [{"name": "chat", "store": "vllm_fs", "path": PATH, "owner": "vllm", "state": "absent"}], "gpu1"
    )
    monkeypatch.setattr(datamap, "load", lambda: {"tiers": [chat()]})
    (tier,) = absent.known(document)
    assert tier["volume"] == chat()["volume"] and tier["state"] == "absent"
    # Who may still write it is for the operator to say.
    assert tier["services"] == []


# Taking away


class Host:
    """A host that answers commands, with one open volume of the tier chat."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        self.calls: list[list[str]] = []
        self.done: list[str] = []
        self.unit_dir = tmp_path / "units"
        monkeypatch.setattr(units, "UNIT_DIR", str(self.unit_dir))
        monkeypatch.setattr(system, "run", self.run)
        monkeypatch.setattr(tables, "CRYPTTAB", str(tmp_path / "crypttab"))
        monkeypatch.setattr(tables, "FSTAB", str(tmp_path / "fstab"))
        monkeypatch.setattr(absent, "CRYPTTAB", str(tmp_path / "crypttab"))
        monkeypatch.setattr(absent, "FSTAB", str(tmp_path / "fstab"))
        monkeypatch.setattr(absent, "_remove_image", lambda path, tier: self.done.append(f"unlink {path}"))
        monkeypatch.setattr(absent, "_give_up", lambda path: self.done.append(f"rmdir {path}"))
        monkeypatch.setattr(purge, "purge_unlocked", self.purge)
        self.now = OPEN
        monkeypatch.setattr(absent, "look", lambda tier, table: self.now)
        monkeypatch.setattr(datamap, "load", lambda: {"tiers": [chat(), OTHER]})
        monkeypatch.setattr(access, "our_files", lambda: our_files(self.unit_dir))
        self.result = purge.DESTROYED

    def run(self, argv: list[str], timeout: float = 0) -> subprocess.CompletedProcess[str]:
        self.calls.append(list(argv))
        self.done.append(" ".join(argv[:2]))
        return subprocess.CompletedProcess(argv, 0, "", "")

    def purge(self, tier: dict[str, Any], document: Any, by: Any) -> receipt.Receipt:
        assert tier["state"] == "absent", "the purge would make the volume anew"
        self.done.append("purge")
        made = receipt.Receipt(tier["name"], "gpu1", by, "key", "/nowhere")
        made.content.update(result=self.result, messages=["still held by pid 7"])
        return made


OTHER = dict(chat("docs", "/srv/docs", "/var/lib/llmhost/docs.img"), services=["vllm.service"])


def our_files(unit_dir: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in unit_dir.rglob("*") if path.is_file()}


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Host:
    host = Host(monkeypatch, tmp_path)
    for path, data in access.wanted_files({"tiers": [chat(), OTHER]}).items():
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_bytes(data)
    (tmp_path / "crypttab").write_text(f"# others\n{units.crypttab_line(chat())}\n")
    (tmp_path / "fstab").write_text(f"# others\n{units.fstab_line(chat())}\n")
    return host


def test_writers_are_freed_before_the_mount_goes_and_the_image_goes_last(host: Host, tmp_path: Path) -> None:
    absent.apply([OPEN], {"host": "gpu1"})
    order = [
        host.done.index(step) for step in ("systemctl daemon-reload", "systemctl stop", "purge", f"unlink {IMAGE}")
    ]
    assert order == sorted(order)
    drop_in = (host.unit_dir / "vllm.service.d" / units.DROP_IN).read_text()
    assert "llmhost-tier@docs.service" in drop_in and "chat" not in drop_in
    assert not (host.unit_dir / "llmhost-tier@chat.service").exists()
    assert (host.unit_dir / "llmhost-tier@docs.service").exists()
    assert (tmp_path / "crypttab").read_text() == (tmp_path / "fstab").read_text() == "# others\n"


def test_a_crypttab_that_held_nothing_else_goes_and_fstab_never_does(host: Host, tmp_path: Path) -> None:
    (tmp_path / "crypttab").write_text(f"{units.crypttab_line(chat())}\n")
    (tmp_path / "fstab").write_text(f"{units.fstab_line(chat())}\n")
    absent.apply([OPEN], {"host": "gpu1"})
    assert not (tmp_path / "crypttab").exists()
    assert (tmp_path / "fstab").read_text() == ""


def test_a_volume_that_is_still_held_keeps_its_image_and_its_lines(host: Host, tmp_path: Path) -> None:
    host.result = purge.REMAINS
    with pytest.raises(system.HostError, match="still held by pid 7"):
        absent.apply([OPEN], {"host": "gpu1"})
    assert f"unlink {IMAGE}" not in host.done
    assert "llmhost_chat" in (tmp_path / "crypttab").read_text()


def test_what_came_after_the_judgement_is_not_lost(host: Host) -> None:
    host.now = replace(OPEN, foreign=("letter.txt",))
    with pytest.raises(system.HostError, match="letter.txt"):
        absent.apply([OPEN], {"host": "gpu1"})
    assert "purge" not in host.done and f"unlink {IMAGE}" not in host.done


@pytest.mark.parametrize(
    ("code", "table", "is_open"),
    [(0, "0 8 crypt aes 0 0 7:0 0\n", True), (0, "0 8 error\n", False), (0, "0 8 linear 8:1 0\n", None), (1, "", None)],
)
def test_only_a_volume_that_is_known_to_have_no_key_needs_no_look(
    monkeypatch: Any, code: int, table: str, is_open: Any
) -> None:
    monkeypatch.setattr(volume, "look", lambda tier, table: replace(HARDENED, mounted=None))
    monkeypatch.setattr(absent, "_is_bare", lambda tier: False)
    monkeypatch.setattr(system, "run", lambda argv, timeout: subprocess.CompletedProcess(argv, code, table, ""))
    left = absent.look(CHAT, [])
    assert left.open is bool(is_open) and (left.untold is not None) is (is_open is None)
    assert bool(absent.judge(left, "gpu1")) is (is_open is not False)


def test_prepare_units_without_a_file_are_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[list[str]] = []

    def run(argv: list[str], timeout: float = 0) -> subprocess.CompletedProcess[str]:
        calls.append(argv)
        text = "llmhost-tier@old.service not-found active exited x\nllmhost-tier@new.service loaded active exited x\n"
        return subprocess.CompletedProcess(argv, 0, text, "")

    monkeypatch.setattr(system, "run", run)
    before: dict[str, Any] = {"changed": False, "steps": []}
    assert absent.end_prepared(False, before) == {"changed": True, "steps": ["end llmhost-tier@old.service"]}
    assert len(calls) == 1
    absent.end_prepared(True, before)
    assert calls[-1] == ["systemctl", "stop", "--", "llmhost-tier@old.service"]


@pytest.fixture
def plain(tmp_path: Path) -> tuple[Tree, dict[str, Any]]:
    """A directory that was a tier, with two blocks."""
    tree = Tree(tmp_path / "kv")
    tree.block(1)
    tree.block(2)
    tree.path("CACHEDIR.TAG").write_bytes(prepare.TAG_TEXT)
    raw = {"name": "plain", "store": "vllm_fs", "path": str(tree.root), "owner": "vllm", "state": "absent"}
    tier = {**CHAT, **raw, "volume": None, "services": []}
    return tree, tier


@ROOT_ONLY
def test_without_a_volume_blocks_go_by_name_and_strangers_files_stay(plain: Any, monkeypatch: Any) -> None:
    tree, tier = plain
    tree.put("letter.txt")
    os.setxattr(tree.root, access.DEFAULT_ACL, prepare.CLOSED_ACL)
    monkeypatch.setattr(absent, "_holders", lambda tier, device: ())
    left = absent.look(tier, system.mounts())
    assert left.plain and absent.steps(left)
    absent.apply([left], {"host": "gpu1"})
    assert tree.files() == {"letter.txt"}
    assert access.DEFAULT_ACL not in os.listxattr(tree.root)
    assert absent.steps(absent.look(tier, system.mounts())) == []


@ROOT_ONLY
def test_an_empty_directory_of_a_tier_goes_with_it(plain: Any, monkeypatch: Any) -> None:
    tree, tier = plain
    monkeypatch.setattr(absent, "_holders", lambda tier, device: ())
    absent.apply([absent.look(tier, system.mounts())], {"host": "gpu1"})
    assert not tree.root.exists()


def test_a_directory_that_never_was_a_tier_is_not_touched(plain: Any) -> None:
    tree, tier = plain
    tree.path("CACHEDIR.TAG").write_bytes(b"Signature: 8a477f597d28d172789f06886806bc55\n# somebody's\n")
    left = absent.look(tier, system.mounts())
    assert absent.steps(left) == []
    assert len(tree.files()) == 3


@ROOT_ONLY
def test_who_holds_a_tier_is_asked_before_it_goes(plain: Any, monkeypatch: Any) -> None:
    _tree, tier = plain
    monkeypatch.setattr(holders, "active_units", list)
    found = absent.look(dict(tier, services=["vllm.service", "docker.service"]), system.mounts())
    assert found.held == ("vllm.service",)
    monkeypatch.setattr(holders.os, "listdir", see_only_what_can_be_seen())
    # Our own children are left out, so it has to be an orphan.
    script = f"cd {tier['path']} && {{ sleep 60 >/dev/null 2>&1 & echo $!; }}"
    pid = int(subprocess.run(["sh", "-c", script], check=True, capture_output=True, text=True).stdout)
    try:
        (line,) = absent.look(tier, system.mounts()).held
        assert line.startswith("pid %d " % pid)
    finally:
        os.kill(pid, signal.SIGKILL)


# State


@ROOT_ONLY
def test_what_expiry_remembers_goes_and_what_others_put_there_stays(tmp_path: Path) -> None:
    for name in ("old", "odd"):
        (tmp_path / name / "index").mkdir(parents=True)
        (tmp_path / name / "index" / "abc").write_bytes(b"x")
        (tmp_path / name / state.RECORD).write_text("{}")
    (tmp_path / "odd" / "notes.txt").write_text("mine")
    assert state.remembered(str(tmp_path)) == ["odd", "old"]
    assert state.forget("old", str(tmp_path)) == []
    assert state.forget("odd", str(tmp_path)) == ["notes.txt"]
    assert sorted(os.listdir(tmp_path)) == ["odd"] and os.listdir(tmp_path / "odd") == ["notes.txt"]


def test_a_link_in_place_of_an_index_leads_nowhere(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_text("x")
    (tmp_path / "state" / "old").mkdir(parents=True)
    (tmp_path / "state" / "old" / "index").symlink_to(tmp_path / "precious")
    assert state.forget("old", str(tmp_path / "state")) == ["index"]
    assert (tmp_path / "precious" / "file").exists()


# The audit


def test_a_trace_of_an_absent_tier_is_a_finding(plain: Any, tmp_path: Path, monkeypatch: Any) -> None:
    tree, tier = plain
    assert leftover.traces(tier, str(tmp_path / "none")) == [
        f"{tree.root} is closed as a tier",
        f"blocks lie in {tree.root}",
    ]
    raw = {key: tier[key] for key in ("name", "store", "path", "owner", "state")}
    document = datamap.normalise([dict(raw, path="/srv/plain")], "gpu1")
    monkeypatch.setattr(leftover, "traces", lambda tier: ["/dev/mapper/llmhost_plain is open"])
    found = controls.audit(document, map_path=str(tmp_path / "none.json"))
    (first,) = [one for one in found["results"] if one["status"] != "not_applicable"]
    assert (first["control"], first["status"]) == ("KV-01", "fail")
    assert "llmhost_plain is open" in first["message"]


def test_an_absent_tier_without_a_trace_is_none(tmp_path: Path) -> None:
    tier = {**CHAT, "path": str(tmp_path / "nothing"), "volume": None, "name": "none"}
    assert leftover.traces(tier, str(tmp_path)) == []
