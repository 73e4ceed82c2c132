# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ways out of memory are closed only if asked for and undone when no longer asked for; nobody else loses a line."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from ansible_collections.llmhost.hardening.plugins.module_utils.kv import (
    datamap,
    spill,
    spill_swap,
    system,
    tables,
    units,
)
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.encryption import Roots

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="the files are root's")
DOCUMENT = datamap.normalise(
    [
        {"name": "chat", "store": "vllm_fs", "path": "/srv/kv", "owner": "vllm", "services": ["vllm.service"]},
        {"name": "docs", "store": "vllm_fs", "path": "/srv/docs", "owner": "vllm", "services": ["docker.service"]},
    ],
    "gpu1",
)
FSTAB = b"# mine\nUUID=1 / ext4 defaults 0 1\nUUID=2 none swap sw 0 0\n/swap.img none swap sw 0 0\n"


def test_swap_entries_are_kept_as_comments_and_come_back() -> None:
    off = spill_swap.fstab_after(FSTAB, spill_swap.OFF)
    assert [row[2] for row in tables.rows(off)] == ["ext4"] and off.count(spill_swap.TAKEN) == 2
    on = spill_swap.fstab_after(off, spill_swap.ENCRYPTED)
    assert [row[0] for row in tables.rows(on) if row[2] == "swap"] == [spill_swap.DEVICE]
    for text in (off, on, FSTAB):
        assert spill_swap.fstab_after(text, spill_swap.LEAVE) == FSTAB
    for text, mode in ((off, spill_swap.OFF), (on, spill_swap.ENCRYPTED)):
        assert spill_swap.fstab_after(text, mode) == text


@pytest.mark.parametrize("text", [b"", b"a /dev/x none luks\n", b"# only\n"])
def test_crypttab_gets_one_entry_and_loses_it_again(text) -> None:
    made = spill_swap.crypttab_after(text, spill_swap.ENCRYPTED)
    assert tables.rows(made)[-1][0] == spill_swap.NAME
    assert spill_swap.crypttab_after(made, spill_swap.ENCRYPTED) == made
    assert spill_swap.crypttab_after(made, spill_swap.LEAVE) == text


def test_no_tier_can_be_called_like_the_swap() -> None:
    with pytest.raises(datamap.MapError):
        datamap.normalise([{**DOCUMENT["tiers"][0], "name": "_swap"}], "gpu1")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('PRUNEPATHS="/tmp /srv"\n', 'PRUNEPATHS="/tmp /srv"\n'),
        ('A=1\nPRUNEPATHS="/tmp"\nB="x"\n', 'A=1\nPRUNEPATHS="/tmp /srv/docs /srv/kv"\nB="x"\n'),
        ("PRUNEPATHS = /tmp\n", 'PRUNEPATHS = "/tmp /srv/docs /srv/kv"\n'),
        ("A=1\n", 'A=1\nPRUNEPATHS="/srv/docs /srv/kv"\n'),
    ],
)
def test_the_locate_index_gets_the_tiers_and_loses_only_them(before, after) -> None:
    paths = ["/srv/docs", "/srv/kv"]
    assert spill.pruned(before, paths, []) == after
    assert spill.pruned(after, paths, paths) == after
    if "/srv/kv" in after and 'PRUNEPATHS="' in before:
        assert spill.pruned(after, [], paths) == before


def test_what_an_operator_prunes_stays() -> None:
    assert spill.pruned('PRUNEPATHS="/srv/kv"\n', [], []) == 'PRUNEPATHS="/srv/kv"\n'


def test_every_writer_but_a_container_daemon_removes_what_it_leaves() -> None:
    files = spill.wanted_files(DOCUMENT, ["orphans"])
    assert sorted(files) == [
        "/etc/systemd/system/llmhost-orphans.service",
        "/etc/systemd/system/vllm.service.d/51-llmhost-orphans.conf",
    ]
    assert spill.wanted_files(DOCUMENT, []) == {}


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A host below tmp_path, whose commands are kept."""
    ran: list[list[str]] = []
    for module, names in (
        (spill, ("RECORD", "EXCLUDES", "UPDATEDB", "COREDUMP")),
        (tables, ("FSTAB", "CRYPTTAB")),
        (units, ("UNIT_DIR", "KVTIER")),
        (spill_swap, ("FILE",)),
    ):
        for name in names:
            monkeypatch.setattr(module, name, str(tmp_path) + getattr(module, name))
    monkeypatch.setattr(system, "do", lambda *argv: ran.append(list(argv)) or "")
    monkeypatch.setattr(system, "daemon_reload", lambda: ran.append(["daemon-reload"]))
    monkeypatch.setattr(system, "start", lambda unit, also=(): ran.append(["start", unit]))
    monkeypatch.setattr(spill, "_unit_there", lambda name: name in ("hibernate.target", "kdump-tools.service"))
    (tmp_path / "etc/systemd/system").mkdir(parents=True)
    (tmp_path / "usr/local/sbin").mkdir(parents=True)
    (tmp_path / "usr/local/sbin/kvtier").write_text("x")
    (tmp_path / "etc/fstab").write_bytes(FSTAB)
    (tmp_path / "etc/updatedb.conf").write_text('PRUNEPATHS="/tmp"\n')
    proc = tmp_path / "proc"
    proc.mkdir()

    def state(swaps: str = "", available: int = 1 << 20) -> Roots:
        (proc / "swaps").write_text("Filename Type Size Used Priority\n" + swaps)
        (proc / "meminfo").write_text(f"MemTotal: 9 kB\nMemAvailable:   {available} kB\n")
        return Roots(proc=str(proc), sys=str(tmp_path / "sys"), etc=str(tmp_path / "etc"), root=True)

    return SimpleNamespace(root=tmp_path, ran=ran, state=state)


def listing(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("etc/**/*") if path.is_file()}


@ROOT_ONLY
def test_every_part_is_done_once_and_undone_whole(host) -> None:
    before, roots = listing(host.root), host.state()
    todo = spill.plan(DOCUMENT, list(spill.PARTS), spill_swap.LEAVE, None, roots)
    assert "mask hibernate.target" in todo.steps and "mask kdump-tools.service" in todo.steps
    spill.apply(todo)
    for name in todo.mask:
        (host.root / "etc/systemd/system" / name).symlink_to("/dev/null")
    assert spill.plan(DOCUMENT, list(spill.PARTS), spill_swap.LEAVE, None, roots).steps == []
    todo = spill.plan(DOCUMENT, [], spill_swap.LEAVE, None, roots)
    assert sorted(todo.free) == ["hibernate.target", "kdump-tools.service"]
    spill.apply(todo)
    for name in todo.free:
        (host.root / "etc/systemd/system" / name).unlink()
    assert listing(host.root) == before
    assert spill.plan(DOCUMENT, [], spill_swap.LEAVE, None, roots).steps == []


@ROOT_ONLY
def test_what_an_operator_masked_stays_masked(host) -> None:
    (host.root / "etc/systemd/system/hibernate.target").symlink_to("/dev/null")
    roots = host.state()
    spill.apply(spill.plan(DOCUMENT, ["hibernation"], spill_swap.LEAVE, None, roots))
    assert spill.plan(DOCUMENT, [], spill_swap.LEAVE, None, roots).free == []


@ROOT_ONLY
def test_a_file_of_somebody_else_is_not_written_over(host) -> None:
    (host.root / "etc/systemd/coredump.conf.d").mkdir()
    (host.root / "etc/systemd/coredump.conf.d/50-llmhost.conf").write_text("[Coredump]\n")
    with pytest.raises(system.HostError, match="not written by this role"):
        spill.plan(DOCUMENT, ["core_dumps"], spill_swap.LEAVE, None, host.state())


@ROOT_ONLY
def test_swap_stays_on_while_memory_has_no_room_for_it(host) -> None:
    before = listing(host.root)
    with pytest.raises(system.HostError, match="would kill processes"):
        spill.plan(DOCUMENT, [], spill_swap.OFF, None, host.state("/dev/sda2 partition 9000 5000 -2\n", 5000))
    assert listing(host.root) == before and host.ran == []


@ROOT_ONLY
def test_swap_in_the_clear_goes_and_what_is_safe_stays(host) -> None:
    roots = host.state("/dev/sda2 partition 9000 10 -2\n/dev/zram0 partition 9 0 5\n/swap.img file 9 0 -3\n")
    todo = spill.plan(DOCUMENT, [], spill_swap.OFF, None, roots)
    assert (todo.swap.off, todo.swap.mask) == (["/dev/sda2", "/swap.img"], ["dev-sda2.swap"])
    spill.apply(todo)
    assert host.ran == [
        ["daemon-reload"],
        ["swapoff", "/dev/sda2"],
        ["swapoff", "/swap.img"],
        ["systemctl", "mask", "--", "dev-sda2.swap"],
    ]
    again = spill.plan(DOCUMENT, [], spill_swap.OFF, None, host.state("/dev/zram0 partition 9 0 5\n"))
    assert again.steps == []
    undone = spill.plan(DOCUMENT, [], spill_swap.LEAVE, None, host.state())
    assert undone.swap.free == ["dev-sda2.swap"]
    spill.apply(undone)
    assert (host.root / "etc/fstab").read_bytes() == FSTAB


@ROOT_ONLY
def test_encrypted_swap_needs_a_size_and_never_changes_it_in_silence(host, monkeypatch) -> None:
    monkeypatch.setattr(spill_swap, "LIB_ROOT", str(host.root / "var/lib/llmhost"))
    with pytest.raises(system.HostError, match="needs a size"):
        spill.plan(DOCUMENT, [], spill_swap.ENCRYPTED, None, host.state())
    (host.root / "var/lib/llmhost").mkdir(parents=True)
    with pytest.raises(system.HostError, match="does not fit"):
        spill.plan(DOCUMENT, [], spill_swap.ENCRYPTED, 1 << 50, host.state())
    (host.root / "var/lib/llmhost/swap.img").write_bytes(b"x")
    with pytest.raises(system.HostError, match="has 1 bytes"):
        spill.plan(DOCUMENT, [], spill_swap.ENCRYPTED, 1 << 20, host.state())


@ROOT_ONLY
def test_a_record_that_cannot_be_read_stops_the_role(host) -> None:
    path = Path(spill.RECORD)
    path.parent.mkdir(parents=True)
    path.write_text("{")
    with pytest.raises(system.HostError, match="cannot be used"):
        spill.plan(DOCUMENT, [], spill_swap.LEAVE, None, host.state())
