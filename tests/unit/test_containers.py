# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Containers on a tier: who has it, as whom, and whether it is the volume or the directory below it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.llmhost.hardening.plugins.module_utils.kv import (
    access,
    containers,
    datamap,
    discovery,
    forecast,
    standing,
    system,
    units,
)
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.containers import View
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.discovery import Process

PATH = "/var/lib/vllm-kv"
ROOT = "30 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda rw"
VOLUME = f"90 30 253:0 / {PATH} rw,nodev shared:50 - ext4 /dev/mapper/llmhost_chat rw"
OVERLAY = "200 150 0:60 / / rw - overlay overlay rw"
BOUND = "210 200 253:0 / /kv rw,nodev - ext4 /dev/mapper/llmhost_chat rw"
BARE = f"210 200 254:1 {PATH} /kv rw - ext4 /dev/vda rw"
READS = BOUND.replace(" rw,nodev ", " ro,nodev ")
OF_BELOW = f"210 200 254:1 {PATH}/Qwen_0123456789ab_r0 /kv rw - ext4 /dev/vda rw"
ID = "0123456789abcdef" * 4
TIER = datamap.normalise(
    [
        {
            "name": "chat",
            "store": "vllm_fs",
            "path": PATH,
            "owner": 990,
            "services": ["docker.service"],
            "volume": {"backend": "dmcrypt", "source": {"file": "/var/lib/llmhost/chat.img", "size": "1G"}},
        }
    ],
    "gpu1",
)["tiers"][0]


def table(*lines: str) -> list[system.Mount]:
    return system.parse_mounts("\n".join(lines))


def seen(*inside: str, volume: bool = True) -> list[tuple[str, bool]]:
    outside = table(ROOT, VOLUME) if volume else table(ROOT)
    place = containers.place_of(PATH, outside)
    assert place is not None
    return [(mount.point, bare) for mount, bare in containers.seen_in(place, table(*inside))]


def test_a_container_with_the_volume_has_the_tier() -> None:
    assert seen(OVERLAY, BOUND) == [("/kv", False)]


@pytest.mark.parametrize("line", [BARE, OF_BELOW])
def test_a_container_from_before_the_mount_has_what_lies_below_it(line: str) -> None:
    assert seen(OVERLAY, line) == [("/kv", True)]
    # Before the volume is mounted that directory is the tier itself.
    assert seen(OVERLAY, line, volume=False) == [("/kv", False)]


def test_the_volume_over_the_bare_directory_hides_it() -> None:
    assert seen(OVERLAY, BARE, BOUND.replace("210 200", "211 210"))[0] == ("/kv", False)


@pytest.mark.parametrize(
    "lines",
    [
        (OVERLAY, f"210 200 254:1 {PATH}2 /kv rw - ext4 /dev/vda rw"),
        (OVERLAY, "210 200 254:2 / /kv rw - ext4 /dev/vdb rw"),
        # A service with a private /tmp, monitoring that has the whole host.
        (ROOT, VOLUME, "95 30 0:99 / /tmp rw - tmpfs tmpfs rw"),
        (OVERLAY, "210 200 254:1 / /host ro - ext4 /dev/vda rw", f"211 210 253:0 / /host{PATH} rw - ext4 /dev/dm-0 rw"),
    ],
)
def test_who_has_another_directory_or_the_whole_host_is_not_meant(lines: tuple[str, ...]) -> None:
    assert seen(*lines) == []


def test_a_container_whose_root_is_a_directory_of_the_host_is_one() -> None:
    """podman run --rootfs, systemd-nspawn --directory."""
    assert seen("200 150 254:1 /srv/rootfs / rw - ext4 /dev/vda rw", BOUND) == [("/kv", False)]


# Whole processes


class Proc:
    """A /proc of the host and of processes in namespaces of their own."""

    def __init__(self, root: Path) -> None:
        self.root, self.processes = root, []  # type: Path, list[Process]
        self.put("self", 1, ROOT, VOLUME)

    def put(self, pid: int | str, namespace: int, *lines: str) -> None:
        (self.root / str(pid) / "ns").mkdir(parents=True)
        (self.root / str(pid) / "mountinfo").write_text("\n".join(lines) + "\n")
        os.symlink(f"mnt:[{namespace}]", self.root / str(pid) / "ns" / "mnt")

    def add(self, pid: int, uid: int, *lines: str, comm: str = "python3", unit: str | None = None, namespace: int = 0):
        self.put(pid, namespace or pid, *lines)
        container = ID[:12] if lines and lines[0] == OVERLAY else None
        one = Process(pid, uid, comm, ("python3",), unit, 1, 0o22, "0", 0, container)
        self.processes.append(one)

    def find(self) -> list[View]:
        return containers.find(TIER, self.processes, str(self.root))


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path)


def test_every_process_of_a_container_is_found_and_none_of_the_host(proc: Proc) -> None:
    proc.add(7, 0, ROOT, VOLUME, namespace=1)
    proc.add(8, 990, OVERLAY, BOUND, unit=f"docker-{ID}.scope")
    proc.add(9, 0, OVERLAY, BOUND, unit=f"docker-{ID}.scope", namespace=8)
    assert [(view.pid, view.uid, view.at, view.bare, view.container) for view in proc.find()] == [
        (8, 990, "/kv", False, ID[:12]),
        (9, 0, "/kv", False, ID[:12]),
    ]


@pytest.mark.parametrize("comm", discovery.RUNTIMES)
def test_what_watches_containers_writes_nothing(proc: Proc, comm: str) -> None:
    proc.add(8, 0, "200 150 254:1 /srv/rootfs / rw - ext4 /dev/vda rw", BOUND, comm=comm, unit="vllm.service")
    assert proc.find() == []


def test_a_container_that_runs_as_root_is_named_with_what_to_write(proc: Proc) -> None:
    proc.add(8, 0, OVERLAY, BOUND)
    (view,) = proc.find()
    wrong = containers.wrong_user(TIER, view, 990, 990)
    assert wrong is not None
    assert f"pid 8 (python3, container {ID[:12]}) runs as root and has the tier at /kv" in wrong[0]
    assert 'user: "990:990" (compose), User=990 and Group=990 (quadlet)' in wrong[1]


@pytest.mark.parametrize(("uid", "line", "good"), [(990, BOUND, True), (991, BOUND, False), (0, READS, True)])
def test_only_the_account_may_write(proc: Proc, uid: int, line: str, good: bool) -> None:
    proc.add(8, uid, OVERLAY, line)
    (view,) = proc.find()
    assert (containers.wrong_user(TIER, view, 990, 990) is None) is good


def test_one_view_for_each_container_below_the_mount(proc: Proc) -> None:
    proc.add(8, 990, OVERLAY, BARE, unit=f"docker-{ID}.scope")
    proc.add(9, 990, OVERLAY, BARE, unit=f"docker-{ID}.scope", namespace=8)
    proc.add(10, 990, OVERLAY, BOUND)
    (view,) = containers.bare(TIER, proc.processes, str(proc.root))
    assert view.pid == 8 and f"docker restart {ID[:12]}" in containers.restart_of(view)


# What comes of it

QUADLET = View(8, 990, "python3", "vllm.service", ID[:12], "/kv", True, True)
DOCKER = QUADLET._replace(unit=f"docker-{ID}.scope")


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> list[View]:
    found: list[View] = []
    monkeypatch.setattr(containers, "bare", lambda tier: found)
    monkeypatch.setattr(discovery, "of_services", lambda services: [])
    return found


def test_a_container_of_a_unit_is_restarted_with_it_and_any_other_is_left_to_its_owner(bare: list[View]) -> None:
    bare += [QUADLET, DOCKER]
    document: Any = {"tiers": [TIER]}
    assert access.restarts(document) == {"vllm.service": [f"it still has the directory below the mount at {PATH}"]}
    apart = access.apart(document)
    who = next(iter(apart))
    assert len(apart) == 1
    why = apart[who]
    assert "python3" in who and "docker restart" in why[0]
    told = forecast.tell(forecast.Forecast("gpu1", (forecast.Restart(who, tuple(why), by_hand=True),)), "when_needed")
    assert "left to you, as it has no unit of its own" in told[0]


def test_status_says_what_to_restart(bare: list[View], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bare.append(DOCKER)
    now = 1000.0
    record = dict(started=now, finished=now, exit=0, messages=[], oldest_mtime=None, blocks=0, block_bytes=0)
    monkeypatch.setattr(standing.mounts, "problem", lambda tier, fd: None)
    monkeypatch.setattr(standing.state, "read_run", lambda tier: record)
    monkeypatch.setattr(standing, "pending", lambda tier: [])
    found = standing.of_tier(dict(TIER, path=str(tmp_path)), now)
    assert not found.good and "NOT ON THE VOLUME" in found.text and "docker restart" in found.todo


def test_a_daemon_of_containers_starts_after_the_tier_and_lives_without_it() -> None:
    for daemon in units.CONTAINER_DAEMONS:
        text = units.drop_in(daemon, [dict(TIER, services=[daemon])])
        assert "After=llmhost-tier@chat.service" in text and "Wants=llmhost-tier@chat.service" in text
        assert "Requires=" not in text and "[Service]" not in text


def test_an_engine_in_a_container_gates_expiry_whatever_its_path_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its blocks must not be deleted under it if its version does not allow that."""
    one = Process(8, 990, "python3", ("vllm", "serve", "m"), f"docker-{ID}.scope", 1, 0, "0", 0, ID[:12])
    monkeypatch.setattr(discovery, "processes", lambda proc: [one])
    monkeypatch.setattr(discovery, "version_of", lambda process, engine, proc: (None, "its files cannot be seen"))
    assert [found.pid for found in discovery.engines(TIER, 990)] == [8]
    assert discovery.engines(TIER, 991) == []
    assert discovery.live_gate(TIER, discovery.engines(TIER, 990)).allowed is None


CONMON = Process(7, 0, "conmon", ("/usr/bin/conmon",), "vllm.service", 1, 0o22, "unlimited", 0x33)
DOCKERD = Process(6, 0, "dockerd", ("/usr/sbin/dockerd",), "docker.service", 1, 0o22, "unlimited", 0x33)


@pytest.mark.parametrize("one", [CONMON, DOCKERD], ids=["conmon", "dockerd"])
def test_what_runs_a_container_never_waits_for_a_restart(monkeypatch: pytest.MonkeyPatch, one: Process) -> None:
    """podman gives conmon the umask 0022 whatever its unit says, so a restart would be asked for at each run."""
    monkeypatch.setattr(containers, "bare", lambda tier: [])
    monkeypatch.setattr(discovery, "of_services", lambda services: [one])
    monkeypatch.setattr(standing, "_in_our_root", lambda pid: True)
    monkeypatch.setattr(access, "_ended", lambda tier, services: [])
    tier = dict(TIER, services=[one.unit])
    assert access.restarts({"tiers": [dict(tier, state="present")]}) == {}
    assert standing.pending(tier) == []


@pytest.mark.parametrize(
    ("program", "version", "allowed"), [("vllm", "0.29.0", True), ("vllm", "0.27.0", False), ("writer", None, None)]
)
def test_dockers_daemon_is_no_engine_and_the_accounts_containers_are(
    monkeypatch: pytest.MonkeyPatch, program: str, version: str | None, allowed: bool | None
) -> None:
    one = Process(8, 990, program, ("/bin/sh", f"/{program}"), f"docker-{ID}.scope", 1, 0, "0", 0, ID[:12])
    monkeypatch.setattr(discovery, "processes", lambda proc: [DOCKERD, one])
    monkeypatch.setattr(
        discovery, "version_of", lambda process, engine, proc: (version if process is one else None, "its files")
    )
    assert discovery.live_gate(TIER, discovery.engines(TIER, 990)).allowed is allowed
    assert discovery.live_gate(TIER, discovery.engines(TIER, 991)).allowed is True
