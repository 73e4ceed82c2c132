# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A LUKS2 header that power loss cut off is made again; one that was whole is never given up by itself."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_devices import EMPTY
from test_devices import tier as tier_of

from ansible_collections.llmhost.hardening.plugins.module_utils.kv import luks, luksheader, system, tpm2, volume
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.devices import Device, Signature, header_uuid
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.system import HostError

MIB = 1 << 20


def tier(key: str) -> dict[str, Any]:
    return tier_of(key, **({"tpm2_pcrs": [7]} if key == "tpm2" else {}))


class Tool:
    """cryptsetup, as far as it is asked here."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, disk: str, code: int = 1, out: str = "", error: str | None = None
    ) -> None:
        self.code, self.out = code, out
        self.error = f"Device {disk} is not a valid LUKS device.\n" if error is None else error
        self.calls: list[list[str]] = []
        monkeypatch.setattr(system, "run", self.run)

    def run(self, argv: Any, timeout: float = 0) -> subprocess.CompletedProcess[str]:
        self.calls.append(list(argv))
        return subprocess.CompletedProcess(argv, self.code, self.out, self.error)


@pytest.fixture(autouse=True)
def headers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    directory = tmp_path / "headers"
    directory.mkdir()
    monkeypatch.setattr(luksheader, "HEADERS", str(directory))
    monkeypatch.setattr(system, "make_dirs", lambda path: None)
    return directory


@pytest.fixture
def disk(tmp_path: Path) -> str:
    path = tmp_path / "disk"
    path.write_bytes(b"x" * 20 * MIB)
    return str(path)


def ours(key: str, path: str) -> Device:
    signatures = (Signature("crypto_LUKS", 0, header_uuid(tier(key))),)
    return replace(EMPTY, real=path, size=20 * MIB, blank=False, signatures=signatures)


def key_file() -> luks.KeyFile:
    return luks.KeyFile(True, True, 64, True, "")


def test_a_header_that_was_being_made_is_made_again(monkeypatch: pytest.MonkeyPatch, disk: str, headers: Path) -> None:
    Tool(monkeypatch, disk)
    luksheader.begin(tier("keyfile"))
    assert luksheader.problem(tier("keyfile"), ours("keyfile", disk), True) is None
    found = luks.tried(tier("keyfile"), key_file(), ours("keyfile", disk))
    assert found.unfinished and found.opens
    header = tpm2.look(tier("tpm2"), ours("tpm2", disk)).header
    assert header is not None and not header.finished
    assert (tpm2.step(tier("tpm2"), tpm2.Tpm(True, header, True)) or "").startswith("seal the key")


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("key", ["keyfile", "tpm2"])
def test_a_damaged_header_is_never_made_again_with_a_copy_or_without(
    monkeypatch: pytest.MonkeyPatch, disk: str, headers: Path, key: str, kept: bool
) -> None:
    Tool(monkeypatch, disk)
    if kept:
        (headers / "chat.luks2").write_bytes(b"copy")
    problem = luksheader.problem(tier(key), ours(key, disk), True)
    assert problem is not None and "damaged" in problem[0] and "kvtier purge chat" in problem[1]
    assert ("luksHeaderRestore" in problem[1]) is kept
    assert not luks.tried(tier(key), key_file(), ours(key, disk)).unfinished
    if key == "tpm2":
        assert tpm2.look(tier(key), ours(key, disk)).header is None


def test_a_device_whose_header_is_gone_is_not_empty_while_a_copy_is_kept(headers: Path) -> None:
    assert luksheader.problem(tier("keyfile"), EMPTY, False) is None
    (headers / "chat.luks2").write_bytes(b"copy")
    problem = luksheader.problem(tier("keyfile"), EMPTY, False)
    assert problem is not None and "is gone" in problem[0]
    assert "luksHeaderRestore" in problem[1] and "kv_volume_wipe" in problem[1]
    seen = volume.Seen(device=EMPTY, key=key_file(), header=problem)
    assert any("is gone" in one.reason for one in volume.judge(tier("keyfile"), seen, "gpu1"))
    given_up = [{"device": EMPTY.path, "serial": EMPTY.serials[0]}]
    assert not any("is gone" in one.reason for one in volume.judge(tier("keyfile"), seen, "gpu1", given_up))


def test_keyslots_that_were_erased_by_hand_are_not_given_up_while_a_copy_is_kept(
    monkeypatch: pytest.MonkeyPatch, disk: str, headers: Path
) -> None:
    Tool(monkeypatch, disk, 0, '{"keyslots": {}}')
    assert luksheader.problem(tier("keyfile"), ours("keyfile", disk), True) is None
    (headers / "chat.luks2").write_bytes(b"copy")
    problem = luksheader.problem(tier("keyfile"), ours("keyfile", disk), True)
    assert problem is not None and "no keyslot" in problem[0]


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (4, "Device {} does not exist or access denied."),
        (5, "Failed to acquire read lock on device {0}.\nDevice {0} is not a valid LUKS device."),
        (5, "Device {} is not a valid LUKS device."),
    ],
)
def test_a_header_that_cannot_be_asked_is_not_taken_for_one_that_is_not_whole(
    monkeypatch: pytest.MonkeyPatch, disk: str, code: int, error: str
) -> None:
    Tool(monkeypatch, disk, code, error=error.format(disk))
    with pytest.raises(HostError, match="cannot read the header"):
        luksheader.read(ours("keyfile", disk))


def test_a_disk_that_cannot_be_read_is_not_taken_for_one_without_a_header(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # A directory: opening or reading it fails as EIO does, and cryptsetup says no more than that it is not valid.
    Tool(monkeypatch, str(tmp_path))
    with pytest.raises(HostError, match="cannot read the header"):
        luksheader.read(ours("keyfile", str(tmp_path)))


def test_the_copy_is_made_whole_and_ends_the_making(monkeypatch: pytest.MonkeyPatch, disk: str, headers: Path) -> None:
    luksheader.begin(tier("keyfile"))
    assert luks.backup_differs(tier("keyfile"))
    (headers / "chat.luks2.new").write_bytes(b"of a run that was killed")

    def do(*argv: str) -> str:
        assert not (headers / "chat.luks2").exists() and luksheader.is_making(tier("keyfile"))
        Path(argv[argv.index("--header-backup-file") + 1]).write_bytes(b"copy")
        return ""

    monkeypatch.setattr(system, "do", do)
    assert luks.back_up_header(tier("keyfile"), ours("keyfile", disk))
    assert [(path.name, path.stat().st_mode & 0o777) for path in headers.iterdir()] == [("chat.luks2", 0o600)]
    assert not luksheader.is_making(tier("keyfile"))


def test_an_older_copy_beside_the_mark_is_made_anew(monkeypatch: pytest.MonkeyPatch, disk: str, headers: Path) -> None:
    luksheader.begin(tier("keyfile"))
    (headers / "chat.luks2").write_bytes(b"of the volume before")
    monkeypatch.setattr(system, "do", lambda *argv: str(Path(argv[3]).write_bytes(b"copy")))
    assert luks.back_up_header(tier("keyfile"), ours("keyfile", disk))
    assert (headers / "chat.luks2").read_bytes() == b"copy"


def test_key_material_behind_a_damaged_header_is_destroyed_and_no_data(
    monkeypatch: pytest.MonkeyPatch, disk: str
) -> None:
    tool = Tool(monkeypatch, disk)
    luksheader.erase(ours("keyfile", disk))
    left = Path(disk).read_bytes()
    kept = [(0, 4 << 10), (16 << 10, 20 << 10), (16 * MIB, 20 * MIB)]
    assert all(left[begin:end] == b"x" * (end - begin) for begin, end in kept)
    assert left.count(b"x") == sum(end - begin for begin, end in kept)
    assert all("erase" not in call for call in tool.calls)


def test_a_purge_destroys_the_copy_before_the_keyslots(
    monkeypatch: pytest.MonkeyPatch, disk: str, headers: Path
) -> None:
    copy = headers / "chat.luks2"
    copy.write_bytes(b"copy")
    seen: list[bool] = []
    monkeypatch.setattr(luksheader, "erase", lambda device: seen.append(copy.exists()))
    luks.erase(tier("keyfile"), ours("keyfile", disk))
    assert seen == [False]


def test_the_copy_of_an_older_header_goes_only_when_nothing_but_the_new_one_is_left_to_write(
    monkeypatch: pytest.MonkeyPatch, headers: Path
) -> None:
    copy = headers / "chat.luks2"
    copy.write_bytes(b"of the volume before")
    monkeypatch.setattr(luks, "make_key", lambda of: False)
    monkeypatch.setattr(luks.devices, "look", lambda of: EMPTY)

    def held(device: Device) -> None:
        raise HostError("is open in pid 7")

    monkeypatch.setattr(luks.devices, "claim", held)
    with pytest.raises(HostError, match="pid 7"):
        luks.make(tier("keyfile"), EMPTY, [])
    assert copy.exists() and not luksheader.is_making(tier("keyfile"))
    monkeypatch.setattr(luks.devices, "claim", lambda device: None)
    monkeypatch.setattr(luks.devices, "show", lambda device: None)
    monkeypatch.setattr(system, "do", lambda *argv: str(copy.exists()))
    luks.make(tier("keyfile"), EMPTY, [])
    assert not copy.exists() and luksheader.is_making(tier("keyfile"))
