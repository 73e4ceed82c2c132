# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""KV-01, KV-12, KV-15 and KV-16: used, no spill, room left, no copies; each flaw is found and named."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from test_controls import NOW, PATH, STOPPED, both, evidence, judge, proc, put, survey

from ansible_collections.llmhost.hardening.plugins.module_utils.kv import discovery, evidence_spill, orphans
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.encryption import Roots
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.evidence_host import Unit
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.evidence_spill import Spill, Swap
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.evidence_tier import Tree

CLEAR = Swap("/dev/sda2", False, "in the clear")


def spill(**changes):
    def change(given):
        given.spill = replace(given.spill, **changes)

    return change


def tree(**changes):
    return put("", "tree", Tree(survey(**changes)))


NO_UNIT = both(STOPPED, put("", "units", {"vllm.service": Unit("vllm.service", active="inactive")}))
SMALL = both(
    tree(oldest_mtime=NOW - 7200, blocks=1000, dirs=1000, block_bytes=1000),
    spill(free_files=2000, total_files=4000),
)
YOUNG = tree(oldest_mtime=NOW - 7200, block_bytes=1 << 29)

FLAWS = [
    ("KV-01", NO_UNIT, "fail", "none of its units exists"),
    ("KV-01", both(NO_UNIT, put("host", "processes", None)), "unknown", "cannot be told"),
    ("KV-01", STOPPED, "pass", "services not running"),
    ("KV-12", spill(swaps=(CLEAR,)), "fail", "can take pages"),
    ("KV-12", spill(swaps=(CLEAR,), no_swap={78: True}), "fail", "can take pages"),
    ("KV-12", spill(swaps=(CLEAR,), no_swap={77: True}), "pass", "no swap"),
    ("KV-12", both(STOPPED, spill(swaps=(CLEAR,))), "fail", "no process that could be kept off"),
    ("KV-12", spill(swaps=(Swap("/dev/dm-1", True, "plain dm-crypt"),)), "pass", "no swap"),
    ("KV-12", spill(swaps=None), "unknown", "cannot be read"),
    ("KV-12", proc(core_limit="unlimited"), "fail", "may write core files"),
    ("KV-12", proc(core_limit=None), "unknown", "cannot be read"),
    ("KV-12", both(proc(coredump_filter=0x33), spill(core_pattern="|/usr/lib/handler %P")), "fail", "core handler"),
    ("KV-12", proc(coredump_filter=0x33), "pass", "no swap"),
    ("KV-12", spill(crash_kernel=True), "fail", "crash kernel"),
    ("KV-12", spill(hibernates=True), "fail", "hibernate"),
    ("KV-12", spill(orphans=(("/dev/shm/vllm_offload_x", 7),)), "fail", "no process maps, 7 bytes"),
    ("KV-12", spill(orphans=None), "unknown", "/dev/shm"),
    ("KV-15", spill(total_bytes=0), "unknown", "cannot be read"),
    ("KV-15", spill(free_bytes=1 << 20), "fail", "space: only"),
    ("KV-15", spill(free_files=1), "fail", "inodes: only"),
    ("KV-15", spill(free_files=0, total_files=0), "pass", "is free"),
    ("KV-15", YOUNG, "fail", "full in 2 h"),
    ("KV-15", both(YOUNG, lambda given: given.tier.update(max_bytes=1 << 30)), "pass", "is free"),
    ("KV-15", both(YOUNG, lambda given: given.tier.update(retention_minutes=180)), "pass", "is free"),
    ("KV-15", lambda given: given.tier.update(max_bytes=600 << 20), "fail", "the volume is full first"),
    ("KV-15", SMALL, "fail", "out of inodes in"),
    ("KV-15", both(SMALL, lambda given: given.tier.update(max_files=1000)), "pass", "is free"),
    ("KV-16", put("storage", "chain", [{"name": "vg-pool", "uuid": "LVM-x-tpool"}]), "unknown", "thin LVM"),
    ("KV-16", spill(tagged=False), "fail", "CACHEDIR.TAG"),
    ("KV-16", spill(updatedb='PRUNEPATHS="/tmp /srv/k"'), "fail", "locate index"),
    ("KV-16", spill(updatedb='PRUNEPATHS="/tmp /srv/kv/"'), "pass", "tagged"),
    ("KV-16", spill(backups=(("/etc/rsnapshot.conf", False),)), "unknown", "rsnapshot.conf copies"),
    ("KV-16", spill(backups=(("/etc/rsnapshot.conf", True),)), "pass", "tagged"),
    ("KV-16", put("storage", "chain", [{"name": "vg-kv", "uuid": "LVM-x-real"}]), "fail", "snapshots exist"),
    ("KV-16", put("storage", "fstype", "btrfs"), "unknown", "not looked at"),
]


@pytest.mark.parametrize(("control", "flaw", "status", "words"), FLAWS)
def test_each_flaw_is_found_and_named(control, flaw, status, words) -> None:
    given = evidence()
    flaw(given)
    result = judge(given)[control]
    assert (result["status"], words in result["message"]) == (status, True), result["message"]
    assert bool(result["remedy"]) is (status != "pass")


def make(root: Path, **files: str) -> Roots:
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Roots(proc=str(root / "proc"), sys=str(root / "sys"), etc=str(root / "etc"), root=True)


def test_swap_is_safe_only_with_a_key_that_dies_with_the_boot(tmp_path: Path) -> None:
    names = ("sda2", "dm-1", "dm-2", "dm-3", "dm-4", "zram0")
    table = "Filename Type Size Used Priority\n" + "".join(f"/dev/{name} partition 1 0 -2\n" for name in names)
    roots = make(tmp_path, proc__swaps=table + "/swap.img file 1 0 -3\n")
    kinds = {"dm-1": "PLAIN-random", "dm-2": "LUKS2-x-luks", "dm-3": "PLAIN-kept", "dm-4": "PLAIN-nowhere"}
    for name, uuid in kinds.items():
        (tmp_path / f"sys/class/block/{name}/dm").mkdir(parents=True)
        (tmp_path / f"sys/class/block/{name}/dm/uuid").write_text("CRYPT-" + uuid)
        (tmp_path / f"sys/class/block/{name}/dm/name").write_text(uuid.rpartition("-")[2] + "\n")
    make(tmp_path, etc__crypttab="random /dev/a /dev/urandom swap\nkept /dev/b /etc/swap.key swap,plain\n")
    found = {one.name.rpartition("/")[2]: one.safe for one in evidence_spill.swaps(roots) or ()}
    assert [name for name, safe in found.items() if safe] == ["dm-1", "zram0"] and len(found) == 7
    assert evidence_spill.swaps(Roots(proc=str(tmp_path / "none"))) is None


@pytest.mark.parametrize(
    ("states", "resume", "swap", "masked", "can"),
    [
        ("freeze mem disk", "0:0", None, False, False),
        ("freeze mem disk", "8:2", None, False, True),
        ("freeze mem disk", "8:2", None, True, False),
        ("freeze mem", "8:2", None, False, False),
        # systemd looks for a swap of its own.
        ("freeze mem disk", "0:0", CLEAR, False, True),
        ("freeze mem disk", "0:0", Swap("/dev/dm-1", True, "plain dm-crypt"), False, False),
    ],
)
def test_a_host_that_can_write_its_memory_to_disk_is_told(tmp_path, states, resume, swap, masked, can) -> None:
    roots = make(tmp_path, sys__power__state=states + "\n", sys__power__resume=resume + "\n")
    if masked:
        units = tmp_path / "etc/systemd/system"
        units.mkdir(parents=True)
        for name in evidence_spill.HIBERNATION:
            (units / name).symlink_to("/dev/null")
    assert evidence_spill.hibernates((swap,) if swap else (), roots) is can


@pytest.mark.parametrize(
    ("cgroup", "limit", "safe"),
    [("0::/a/b\n", "0", True), ("0::/a/b\n", "max", False), ("4:memory:/a/b\n0::/\n", "0", False)],
)
def test_no_swap_is_read_from_the_running_cgroup_and_not_on_version_1(tmp_path, cgroup, limit, safe) -> None:
    # Set on the slice above: it holds for what is below.
    roots = make(tmp_path, proc__7__cgroup=cgroup, **{"sys__fs__cgroup__a__memory.swap.max": limit})
    process = discovery.Process(7, 1, "x", ("x",), None, 1, 0, "0", 0)
    assert evidence_spill.no_swap(process, roots) is safe


@pytest.mark.parametrize("found", [None, [], [orphans.Orphan("vllm_offload_x.mmap", 7)]])
def test_what_no_process_maps_is_told_with_its_path_or_not_known(tmp_path, monkeypatch, found) -> None:
    monkeypatch.setattr(orphans, "find", lambda proc: found)
    told = evidence_spill.look(str(tmp_path), [], make(tmp_path)).orphans
    assert told == (None if found is None else tuple(("/dev/shm/" + one.name, one.size) for one in found))


@pytest.mark.parametrize(
    ("text", "out"),
    [
        ("exclude_caches: true", True),
        (f"exclude\t{PATH}/", True),
        ("backup\t/srv\tx", False),
        (f"#exclude {PATH}", False),
        (f"exclude {PATH}\nbackup {PATH} x", False),
        (f"exclude {PATH}2", False),
    ],
)
def test_a_backup_leaves_a_tier_out_only_where_it_says_so(tmp_path: Path, text: str, out: bool) -> None:
    make(tmp_path, **{"etc__rsnapshot.conf": text})
    ((name, left_out),) = evidence_spill.backups(PATH, str(tmp_path / "etc"))
    assert os.path.basename(name) == "rsnapshot.conf" and left_out is out


def test_the_tag_must_be_a_valid_one(tmp_path: Path) -> None:
    roots = make(tmp_path, proc__swaps="x\n")
    tag = tmp_path / "CACHEDIR.TAG"
    tag.write_text("Signature: 8a477f597d28d172789f06886806bc55\n")
    found = evidence_spill.look(str(tmp_path), [], roots)
    assert isinstance(found, Spill) and found.tagged and found.total_bytes
    tag.write_text("")
    assert not evidence_spill.look(str(tmp_path), [], roots).tagged
