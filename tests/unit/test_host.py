# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The program, the map, unit files and drop-ins on a host; what systemd and the kernel say is read correctly."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.llmhost.hardening.plugins.module_utils.kv import access, datamap, host, prepare, system, units
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.discovery import Process
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.system import Account, HostError

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="owners are root's to set")


def document(*names: str, **more: Any) -> dict[str, Any]:
    raw = [
        {
            "name": name,
            "store": "vllm_fs",
            "path": f"/srv/kv/{name}",
            "owner": os.geteuid() or 1,
            "services": ["vllm.service"],
            **more,
        }
        for name in names
    ]
    return datamap.normalise(raw, "gpu1")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every path that the code writes to, moved below a scratch directory."""
    monkeypatch.setattr(datamap, "PATH", str(tmp_path / "etc/llmhost/tiers.json"))
    monkeypatch.setattr(host, "LIB_ROOT", str(tmp_path / "lib"))
    monkeypatch.setattr(host, "STATE_ROOT", str(tmp_path / "lib/state"))
    monkeypatch.setattr(host, "state_dir", lambda tier: str(tmp_path / "lib/state" / tier["name"]))
    monkeypatch.setattr(units, "KVTIER", str(tmp_path / "sbin/kvtier"))
    unit_dir = tmp_path / "systemd"
    unit_dir.mkdir()
    monkeypatch.setattr(units, "UNIT_DIR", str(unit_dir))
    for function in (host.prepared_names, access.our_files):
        monkeypatch.setattr(function, "__defaults__", (str(unit_dir),))
    monkeypatch.setattr(access.link_changes, "__defaults__", (str(unit_dir),))
    monkeypatch.setattr(datamap.load, "__defaults__", (str(tmp_path / "etc/llmhost/tiers.json"),))
    return tmp_path


# The map and the program


@ROOT_ONLY
def test_a_host_gets_program_map_and_state_once(root: Path) -> None:
    todo = host.plan(document("chat"))
    assert host.result(todo)["changed"]
    host.apply(todo)
    assert stat.S_IMODE((root / "sbin/kvtier").stat().st_mode) == 0o755
    assert datamap.load(str(root / "etc/llmhost/tiers.json")) == document("chat")
    state = (root / "lib/state/chat").stat()
    assert (state.st_uid, stat.S_IMODE(state.st_mode)) == (1, 0o700)
    assert stat.S_IMODE((root / "lib/state").stat().st_mode) == 0o755
    assert not host.result(host.plan(document("chat")))["changed"]


@ROOT_ONLY
def test_modes_and_owners_that_drifted_are_put_right(root: Path) -> None:
    host.apply(host.plan(document("chat")))
    (root / "lib/state/chat").chmod(0o755)
    os.chown(root / "etc/llmhost/tiers.json", 1, 1)
    todo = host.plan(document("chat"))
    assert {path.rsplit("/", 1)[1] for path in host.result(todo)["written"]} == {"chat", "tiers.json"}
    host.apply(todo)
    assert not host.result(host.plan(document("chat")))["changed"]


@ROOT_ONLY
def test_a_tier_that_left_the_map_stays_as_vanished(root: Path) -> None:
    host.apply(host.plan(document("chat", "code")))
    todo = host.plan(document("chat"))
    assert host.result(todo)["vanished"] == ["code"]
    host.apply(todo)
    assert [tier["state"] for tier in datamap.load(str(root / "etc/llmhost/tiers.json"))["tiers"]] == [
        "present",
        "vanished",
    ]
    assert not host.result(host.plan(document("chat")))["changed"]


@ROOT_ONLY
def test_a_broken_map_is_replaced_only_if_no_tier_is_forgotten(root: Path) -> None:
    broken = root / "etc/llmhost/tiers.json"
    broken.parent.mkdir(parents=True)
    broken.write_text(json.dumps({"tiers": [{"name": "chat"}, {"name": "code", "state": "absent"}]}), encoding="ascii")
    (problem,) = host.plan(document("other")).problems
    assert problem.tier == "chat" and "state: absent" in problem.fix
    todo = host.plan(document("chat"))
    assert not todo.problems and "written anew" in todo.warnings[0]


@ROOT_ONLY
@pytest.mark.parametrize("content", [None, b"\0garbage"])
def test_a_lost_map_does_not_make_prepared_tiers_forgotten(root: Path, content: bytes | None) -> None:
    if content is not None:
        path = root / "etc/llmhost/tiers.json"
        path.parent.mkdir(parents=True)
        path.write_bytes(content)
    tier = document("chat")["tiers"][0]
    (root / "systemd/llmhost-tier@chat.service").write_text(units.prepare_unit(tier), encoding="ascii")
    assert [problem.tier for problem in host.plan(document("other")).problems] == ["chat"]
    assert host.plan(document("chat")).problems == []


@ROOT_ONLY
def test_check_mode_tolerates_an_account_that_is_not_there_yet(root: Path) -> None:
    todo = host.plan(document("chat", owner="llmhost-nobody"))
    assert host.result(todo)["changed"] and todo.diffs()
    with pytest.raises(HostError, match="account does not exist"):
        host.apply(todo)


@ROOT_ONLY
def test_the_diff_shows_the_map_as_text_and_the_program_as_its_digest(root: Path) -> None:
    diffs = {os.path.basename(diff["after_header"]): diff for diff in host.plan(document("chat")).diffs()}
    assert '"name": "chat"' in diffs["tiers.json"]["after"]
    assert diffs["kvtier"]["after"].startswith("sha256 ")


@ROOT_ONLY
def test_a_symlink_in_a_directorys_place_is_refused(root: Path) -> None:
    (root / "elsewhere").mkdir()
    (root / "lib").symlink_to(root / "elsewhere")
    with pytest.raises(HostError, match="symlink"):
        host.plan(document("chat"))


# Unit files and drop-ins


@ROOT_ONLY
def test_units_are_written_once_and_enabled_where_they_belong(root: Path) -> None:
    doc = document("chat", "code")
    changes = access.file_changes(doc)
    assert {os.path.basename(change.path) for change in changes} == {
        "llmhost-tier@chat.service", "llmhost-tier@code.service", "50-llmhost.conf",
    }  # fmt: skip
    for change in changes:
        change.make()
    assert access.file_changes(doc) == []
    make, remove = access.link_changes(doc)
    assert [os.path.relpath(path, root / "systemd") for path in make] == [
        "multi-user.target.wants/llmhost-tier@chat.service",
        "multi-user.target.wants/llmhost-tier@code.service",
    ]
    assert remove == []


@ROOT_ONLY
def test_only_what_is_ours_and_unwanted_is_removed(root: Path) -> None:
    for change in access.file_changes(document("chat", "code")):
        change.make()
    drop_in = root / "systemd/other.service.d/50-llmhost.conf"
    drop_in.parent.mkdir()
    drop_in.write_text("[Service]\nUMask=0022\n", encoding="ascii")
    gone = [change.path for change in access.file_changes(document("chat")) if change.after is None]
    assert gone == [str(root / "systemd/llmhost-tier@code.service")]
    assert access.our_files().keys() >= set(gone)


@ROOT_ONLY
def test_vanished_tiers_keep_their_units(root: Path) -> None:
    merged = datamap.merge(document("chat", "code"), document("chat"))
    assert set(access.wanted_files(merged)) == set(access.wanted_files(document("chat", "code")))


@ROOT_ONLY
def test_a_file_of_others_in_our_place_is_refused(root: Path) -> None:
    (root / "systemd/llmhost-tier@chat.service").symlink_to("/dev/null")
    with pytest.raises(HostError, match="symlink"):
        access.foreign_units(document("chat"))
    (root / "systemd/llmhost-tier@chat.service").unlink()
    (root / "systemd/llmhost-tier@chat.service").write_text("[Unit]\n", encoding="ascii")
    with pytest.raises(HostError, match="not written by this collection"):
        access.file_changes(document("chat"))


@ROOT_ONLY
def test_links_of_an_earlier_target_are_removed(root: Path) -> None:
    stale = root / "systemd/old.mount.wants/llmhost-tier@chat.service"
    stale.parent.mkdir()
    stale.symlink_to("/etc/systemd/system/llmhost-tier@chat.service")
    assert access.link_changes(document("chat"))[1] == [str(stale)]


# The tier's root


@ROOT_ONLY
def test_every_way_in_is_named(tmp_path: Path) -> None:
    tier = dict(document("chat")["tiers"][0], path=str(tmp_path / "kv"))
    assert "cannot be opened" in access.shortcomings(tier)[0]
    (tmp_path / "kv").mkdir(mode=0o755)
    said = "\n".join(access.shortcomings(tier))
    for words in ("belongs to 0:0", "mode 0755", "no closed default ACL", "no CACHEDIR.TAG"):
        assert words in said
    prepare.prepare(tier)
    assert access.shortcomings(tier) == []
    subprocess.run(["setfacl", "-d", "-m", "u:nobody:rx", tier["path"]], check=True)
    assert access.shortcomings(tier) == [f"{tier['path']} has no closed default ACL"]
    tier["volume"] = {"backend": "dmcrypt"}
    assert "not the mount of its volume" in access.shortcomings(tier)[0]


# Restarts


def process(**changes: Any) -> Process:
    good: dict[str, Any] = {
        "pid": os.getpid(), "uid": 1, "comm": "vllm", "cmdline": ("vllm",), "unit": "vllm.service", "start_time": 1,
        "umask": 0o077, "core_limit": "0", "coredump_filter": 0,
    }  # fmt: skip
    return Process(**{**good, **changes})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, None),
        ({"umask": 0o177}, None),
        ({"umask": None, "core_limit": None, "coredump_filter": None}, None),
        ({"umask": 0o022}, "umask is 0022"),
        ({"umask": 0o027}, "umask is 0027"),
        ({"core_limit": "unlimited"}, "core files"),
        ({"coredump_filter": 0x33}, "0x33"),
    ],
)
def test_a_writer_without_the_drop_ins_effect_is_pending(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], words: str | None
) -> None:
    monkeypatch.setattr(access.discovery, "of_services", lambda services: [process(**changes)])
    found = access.restarts(document("chat"))
    if words is None:
        assert found == {}
    else:
        assert list(found) == ["vllm.service"] and words in found["vllm.service"][0]


@pytest.mark.parametrize(
    ("began", "mounted", "ended", "state", "pending"),
    [
        (5, 9, 10, "failed", True),
        # Failed before there was a volume, started again since, ended by its operator, still at work.
        (5, 9, 8, "failed", False),
        (9, 8, 10, "failed", False),
        (5, 9, 10, "inactive", False),
        (5, 9, 0, "active", False),
        (5, 0, 10, "failed", False),
    ],
)
def test_a_writer_that_failed_because_its_directory_was_closed_is_started_again(
    monkeypatch: pytest.MonkeyPatch, began: int, mounted: int, ended: int, state: str, pending: bool
) -> None:
    of = document("chat", volume={"backend": "dmcrypt", "source": {"file": "/var/lib/llmhost/chat.img", "size": "64M"}})
    mount = units.mount_unit(of["tiers"][0]["path"])
    monkeypatch.setattr(access.discovery, "of_services", lambda services: [])
    times = {
        mount: {"ActiveState": "active" if mounted else "inactive", "ActiveEnterTimestampMonotonic": str(mounted)},
        "vllm.service": {
            "ActiveState": state,
            "ExecMainStartTimestampMonotonic": str(began),
            "ExecMainExitTimestampMonotonic": str(ended),
        },
    }
    monkeypatch.setattr(access.system, "show", lambda names, _properties: {name: times[name] for name in names})
    found = access.restarts(of)
    assert list(found) == (["vllm.service"] if pending else [])


# Reading the host

MOUNTINFO = r"""21 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw
40 21 253:0 / /var/lib/vllm-kv rw,nosuid shared:7 master:3 - ext4 /dev/mapper/llmhost_chat rw
41 21 0:40 /sub /mnt/a\040b\134c rw - cifs //nas/x\040y rw
short line
"""


def test_mounts_are_read_with_and_without_optional_fields() -> None:
    mounts = system.parse_mounts(MOUNTINFO)
    assert [mount.point for mount in mounts] == ["/", "/var/lib/vllm-kv", "/mnt/a b\\c"]
    assert mounts[1].device == "253:0" and mounts[1].fstype == "ext4" and mounts[1].source == "/dev/mapper/llmhost_chat"
    assert mounts[2].root == "/sub" and mounts[2].source == "//nas/x y"


def test_a_mapping_is_found_by_name_with_the_file_behind_its_loop(tmp_path: Path) -> None:
    dm, loop = tmp_path / "block/dm-3", tmp_path / "block/dm-3/slaves/loop0/loop"
    (dm / "dm").mkdir(parents=True)
    loop.mkdir(parents=True)
    (dm / "dm/name").write_text("llmhost_chat\n", encoding="ascii")
    (dm / "dm/uuid").write_text("CRYPT-PLAIN-llmhost_chat\n", encoding="ascii")
    (dm / "dev").write_text("253:3\n", encoding="ascii")
    (dm / "size").write_text("2048\n", encoding="ascii")
    (loop / "backing_file").write_text("/var/lib/llmhost/chat.img\n", encoding="ascii")
    (loop.parent / "dev").write_text("7:0\n", encoding="ascii")
    found = system.mapper("llmhost_chat", str(tmp_path))
    assert found == ("253:3", "CRYPT-PLAIN-llmhost_chat", ["/var/lib/llmhost/chat.img"], ("7:0",), ("loop0",), 1 << 20)
    assert system.mapper("llmhost_other", str(tmp_path)) is None


def answer(monkeypatch: pytest.MonkeyPatch, *answers: tuple[int, str, str]) -> list[list[str]]:
    """Commands get these answers, in this order; returns the list of what was called."""
    left, called = list(answers), []

    def run(argv: list[str], timeout: float = 0) -> subprocess.CompletedProcess[str]:
        called.append(argv)
        return subprocess.CompletedProcess(argv, *left.pop(0))

    monkeypatch.setattr(system, "run", run)
    return called


def test_properties_of_several_units_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    answer(monkeypatch, (0, "LoadState=loaded\nUser=vllm\n\nLoadState=not-found\nUser=\n", ""))
    found = system.show(["a.service", "b.service"], ("LoadState", "User"))
    assert found == {
        "a.service": {"LoadState": "loaded", "User": "vllm"},
        "b.service": {"LoadState": "not-found", "User": ""},
    }


def test_a_missing_answer_of_systemd_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    answer(monkeypatch, (0, "LoadState=loaded\n", ""))
    with pytest.raises(HostError, match="1 of 2"):
        system.show(["a.service", "b.service"], ("LoadState",))


@pytest.mark.parametrize(
    ("text", "needed"),
    [
        ("LoadState=loaded\nNeedDaemonReload=no\nWantedBy=x.mount y.mount\n", False),
        ("LoadState=loaded\nNeedDaemonReload=yes\nWantedBy=x.mount\n", True),
        ("LoadState=not-found\nNeedDaemonReload=no\nWantedBy=x.mount\n", True),
        ("LoadState=loaded\nNeedDaemonReload=no\nWantedBy=\n", True),
    ],
)
def test_files_that_systemd_has_not_read_are_noticed(monkeypatch: pytest.MonkeyPatch, text: str, needed: bool) -> None:
    answer(monkeypatch, (0, text, ""))
    assert system.reload_needed(["a.service", "b@.service"], {"a.service": "x.mount"}) is needed


def test_a_unit_that_does_not_start_is_one_message_with_its_log(monkeypatch: pytest.MonkeyPatch) -> None:
    called = answer(monkeypatch, (1, "", "Job failed.\nSee more.\n"), (0, "wrong key\n", ""), (0, "no device\n", ""))
    with pytest.raises(HostError) as caught:
        system.start("x.mount", also=["y.service"])
    assert str(caught.value) == "x.mount did not start: Job failed.\n  x.mount: wrong key\n  y.service: no device"
    assert called[0] == ["systemctl", "start", "--", "x.mount"]


def test_a_program_that_is_missing_or_hangs_is_said() -> None:
    with pytest.raises(HostError, match="not installed"):
        system.run(["llmhost-no-such-program"])
    with pytest.raises(HostError, match="did not end"):
        system.run(["sleep", "5"], timeout=0.1)


def test_directories_are_never_made_through_a_symlink(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(HostError, match="symlink"):
        system.make_dirs(str(tmp_path / "link/below"))
    assert os.listdir(tmp_path / "real") == []
    umask = os.umask(0o077)
    try:
        system.make_dirs(str(tmp_path / "real/a/b"))
    finally:
        os.umask(umask)
    assert stat.S_IMODE((tmp_path / "real/a").stat().st_mode) == 0o755


@ROOT_ONLY
def test_two_plays_do_not_change_one_host_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "LOCK", str(tmp_path))
    with system.exclusive(), pytest.raises(HostError, match="another play"), system.exclusive(wait=0):
        pass
    with system.exclusive(wait=0):
        pass


def test_accounts_are_found_by_name_and_number() -> None:
    assert system.account_of("root") == Account(0, 0)
    assert system.account_of(54321) == Account(54321, 54321)
    assert system.account_of("llmhost-nobody") is None
