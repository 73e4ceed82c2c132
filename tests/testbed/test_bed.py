# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The pure parts of the test bed; its guests are tested by everything that runs on them."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import bed
import bed_guest
import bed_host
import bed_image
import bed_time


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LLMHOST_CACHE", str(tmp_path))
    return tmp_path / "testbed"


def guest(name: str, **meta: object) -> bed_guest.Guest:
    made = bed_guest.Guest(name)
    made.meta = {"release": "bookworm", "image": "/images/x", "accel": "tcg", "port": 2222, **meta}
    return made


def value_after(command: list[str], option: str) -> str:
    return command[command.index(option) + 1]


def test_same_recipe_same_image() -> None:
    assert bed_image.base_path("bookworm") == bed_image.base_path("bookworm")
    assert bed_image.base_path("bookworm") != bed_image.base_path("trixie")


@pytest.mark.parametrize("name", ["DISK", "OFFER", "FINISH", "INSTALLED", "FILES", "EARLY_FILES"])
def test_every_part_of_the_recipe_changes_the_image(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = bed_image.base_path("bookworm")
    value = getattr(bed_image, name)
    changed = [*value, "more"] if isinstance(value, list) else {**value, "more": ""} if isinstance(value, dict) else "x"
    monkeypatch.setattr(bed_image, name, changed)
    assert bed_image.base_path("bookworm") != before


def test_snapshot_depends_on_qemu_and_under_kvm_on_the_cpu() -> None:
    def key(*args: str) -> str:
        return bed_host.digest(bed_image.snapshot_recipe(*args))

    assert key("tcg", "7.2", "a") == key("tcg", "7.2", "b")
    assert len({key("tcg", "7.2", "a"), key("tcg", "8.0", "a"), key("kvm", "7.2", "a"), key("kvm", "7.2", "b")}) == 4


def test_virgin_host_lacks_what_the_roles_install() -> None:
    for release in bed_image.RELEASES:
        assert not set(bed_image.OFFERED[release]) & set(bed_image.INSTALLED)
    assert "systemd-cryptsetup" in bed_image.OFFERED["trixie"]


def test_guest_configuration_has_no_way_out() -> None:
    network = bed_image.FILES["etc/systemd/network/10-testbed.network"]
    assert "Gateway" not in network and "DNS" not in network and "DHCP" not in network


def test_qemu_listens_on_loopback_only() -> None:
    command = bed_guest.qemu_command("a", "/image", "tcg", 2222, load=True)
    assert "hostfwd=tcp:127.0.0.1:2222-" in value_after(command, "-netdev")
    assert value_after(command, "-qmp").startswith("unix:")
    assert value_after(command, "-display") == "none"


def test_guest_boots_by_uuid_because_device_names_swap() -> None:
    append = value_after(bed_guest.qemu_command("a", "/image", "tcg", 2222, load=False), "-append")
    assert f"root=UUID={bed_guest.ROOT_UUID}" in append and "/dev/vd" not in append
    assert bed_guest.ROOT_UUID in bed_image.FILES["etc/fstab"] and bed_guest.ROOT_UUID in bed_image.DISK_SCRIPT


def test_only_a_load_resumes_the_snapshot() -> None:
    assert value_after(bed_guest.qemu_command("a", "/image", "tcg", 2222, load=True), "-loadvm") == "ready"
    assert "-loadvm" not in bed_guest.qemu_command("a", "/image", "tcg", 2222, load=False)


@pytest.mark.parametrize(("accel", "option"), [("tcg", "tcg,thread=multi"), ("kvm", "kvm")])
def test_accelerator_is_the_probed_one(accel: str, option: str) -> None:
    assert value_after(bed_guest.qemu_command("a", "/image", accel, 2222, load=False), "-accel") == option


def test_inventory_reaches_the_guest_without_touching_known_hosts() -> None:
    yaml = pytest.importorskip("yaml")
    text = bed_guest.inventory([guest("a"), guest("b-2", port=2223)], "gpu")
    hosts = yaml.safe_load(text)["all"]["children"]["gpu"]["hosts"]
    assert {name: hosts[name]["ansible_port"] for name in hosts} == {"a": 2222, "b-2": 2223}
    one = hosts["a"]
    assert one["ansible_host"] == "127.0.0.1" and one["ansible_user"] == "root"
    assert one["ansible_ssh_private_key_file"] == "/images/x/id_ed25519"
    assert one["ansible_python_interpreter"] == "/usr/bin/python3" and one["ansible_ssh_pipelining"] is True
    for option in ("StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "ControlPersist=60s"):
        assert f"-o{option}" in one["ansible_ssh_args"]


def test_too_long_a_socket_path_turns_multiplexing_off(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert "-oControlMaster=no" in bed_guest.ssh_options("key", None)
    monkeypatch.setenv("LLMHOST_CACHE", str(tmp_path / ("x" * 100)))
    assert guest("a").control is None


def test_missing_commands_name_the_command_that_installs_them() -> None:
    text = bed_host.prereq_message({"qemu-utils": ["qemu-img"], "mmdebstrap": ["mmdebstrap"]}, root=False)
    assert "sudo apt-get install -y --no-install-recommends mmdebstrap qemu-utils" in text
    assert "qemu-img" in text


def test_every_command_ends_with_the_missing_packages(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr(bed_host.shutil, "which", lambda _name: None)
    assert bed.main(["list"]) == 2
    assert "apt-get install" in capsys.readouterr().err


def test_a_taken_lock_is_seen_and_freed_by_the_end_of_its_holder(own_cache: Path) -> None:
    bed_host.cache_dir()
    script = "import bed_host,time\nwith bed_host.lock('x'):\n print('held', flush=True)\n time.sleep(60)"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent
    ) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        with bed_host.lock("x", wait=False) as free:
            assert free is False
        holder.kill()
    with bed_host.lock("x", wait=False) as free:
        assert free is True


def test_a_reused_pid_is_not_a_running_guest() -> None:
    started = bed_host.start_time(os.getpid())
    assert guest("a", pid=os.getpid(), started=started).running
    assert not guest("a", pid=os.getpid(), started="1").running


def test_a_qemu_that_ended_at_once_is_not_a_running_guest() -> None:
    with subprocess.Popen(["true"]) as gone:
        gone.wait()
    assert bed_host.start_time(gone.pid) is None
    ended = guest("a", pid=gone.pid, started=None)
    assert not ended.running
    ended.end()


def test_names_cannot_leave_the_cache(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("../x", "a/b", "_build-bookworm", "", "-x"):
        with pytest.raises(SystemExit):
            bed.main(["kill", name])
    capsys.readouterr()


def test_failed_build_leaves_no_image(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(command: list[str], work: Path) -> None:
        if command[0] == "setpriv":
            raise bed_host.BedError("no mirror")
        (work / "id_ed25519.pub").write_text("key", encoding="ascii")

    monkeypatch.setattr(bed_image, "call", broken)
    with pytest.raises(bed_host.BedError):
        bed_image.image("bookworm")
    assert list((own_cache / "images").iterdir()) == []


def test_time_server_answers_clients_only() -> None:
    request = bytes([0x23]) + bytes(39) + b"clientts"
    reply = bed_time.answer(request, 1000.25, 1000.5)
    assert reply is not None and len(reply) == 48
    assert reply[0] == 0x24 and reply[1] == 2 and reply[24:32] == b"clientts"
    assert struct.unpack("!II", reply[40:48]) == (1000 + 2_208_988_800, 2**31)
    assert bed_time.answer(bytes([0x24]) + bytes(47), 1.0, 1.0) is None
    assert bed_time.answer(b"\x23short", 1.0, 1.0) is None


def test_state_of_a_guest_survives_as_json(own_cache: Path) -> None:
    made = guest("a")
    made.path.mkdir(parents=True)
    made.save()
    assert json.loads((own_cache / "instances/a/instance.json").read_text(encoding="utf-8"))["port"] == 2222
    assert bed_guest.Guest("a").port == 2222


def test_more_disks_have_stable_names_and_sane_sizes() -> None:
    args = bed.parser().parse_args(["up", "x", "--disk", "1G", "--disk", "512M"])
    assert args.disk == ["1G", "512M"]
    drive, device = bed_guest.disk_arguments(1)
    assert "id=data1,file=data1.qcow2" in drive and device.endswith("serial=bed-1")
    for size in ("1", "1T", "0G", "1G,file=/etc/shadow"):
        with pytest.raises(SystemExit):
            bed.parser().parse_args(["up", "x", "--disk", size])


def test_a_guest_has_a_tpm_only_if_asked_and_its_state_is_its_own(
    monkeypatch: pytest.MonkeyPatch, own_cache: Path
) -> None:
    calls: list[list[str]] = []
    done = subprocess.CompletedProcess([], 0, "", "")
    monkeypatch.setattr(bed_guest.subprocess, "run", lambda command, **_more: calls.append(command) or done)
    plain, sealed = guest("a", tpm=False), guest("b", tpm=True)
    sealed.path.mkdir(parents=True)
    assert plain.start_tpm() == [] and calls == []
    assert "tpm-crb,tpmdev=tpm0" in sealed.start_tpm()
    (command,) = calls
    assert value_after(command, "--tpmstate") == f"dir={sealed.path}/tpm" and (sealed.path / "tpm").is_dir()
    assert "--terminate" in command


def test_a_missing_tpm_emulator_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bed_host.shutil, "which", lambda _name: None)
    with pytest.raises(bed_host.BedError, match="install -y --no-install-recommends swtpm"):
        bed_host.check_tpm()
    assert bed.parser().parse_args(["up", "x", "--tpm"]).tpm is True
