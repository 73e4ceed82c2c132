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

from ansible_collections.llmhost.hardening.plugins.module_utils.kv import luks, luksheader, system, tpm2
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.devices import Device, Signature, header_uuid
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.system import HostError

MIB = 1 << 20
WHOLE = '{"keyslots": {"0": {}}}'
NOT_VALID = "Device /dev/vdb is not a valid LUKS device."


def tier(key: str) -> dict[str, Any]:
    return tier_of(key, **({"tpm2_pcrs": [7]} if key == "tpm2" else {}))


class Tool:
    """cryptsetup, as far as it is asked here."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, code: int = 1, out: str = "", error: str = NOT_VALID) -> None:
        self.code, self.out, self.error = code, out, error
        self.calls: list[list[str]] = []
        monkeypatch.setattr(system, "run", self.run)

    def run(self, argv: Any, timeout: float = 0) -> subprocess.CompletedProcess[str]:
        self.calls.append(list(argv))
        return subprocess.CompletedProcess(argv, self.code, self.out, self.error)


@pytest.fixture(autouse=True)
def headers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(luksheader, "HEADERS", str(tmp_path))
    return tmp_path


def ours(key: str, path: str = "/dev/vdb", size: int = 32 * MIB) -> Device:
    signatures = (Signature("crypto_LUKS", 0, header_uuid(tier(key))),)
    return replace(EMPTY, real=path, size=size, blank=False, signatures=signatures)


def test_a_header_that_was_never_whole_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    Tool(monkeypatch)
    assert luksheader.cut_off(tier("keyfile"), ours("keyfile"))
    found = luks.tried(tier("keyfile"), luks.KeyFile(True, True, 64, True, ""), ours("keyfile"))
    assert found.unfinished and found.opens
    header = tpm2.look(tier("tpm2"), ours("tpm2")).header
    assert header is not None and not header.finished
    assert (tpm2.step(tier("tpm2"), tpm2.Tpm(True, header, True)) or "").startswith("seal the key")


@pytest.mark.parametrize("key", ["keyfile", "tpm2"])
def test_a_damaged_header_whose_copy_is_kept_is_never_made_again(
    monkeypatch: pytest.MonkeyPatch, headers: Path, key: str
) -> None:
    Tool(monkeypatch)
    (headers / "chat.luks2").write_bytes(b"copy")
    with pytest.raises(HostError, match="luksHeaderRestore .*chat.luks2 .*kvtier purge chat"):
        if key == "tpm2":
            tpm2.look(tier(key), ours(key))
        else:
            luks.tried(tier(key), luks.KeyFile(True, True, 64, True, ""), ours(key))


def test_a_header_that_cannot_be_asked_is_not_taken_for_one_that_was_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    Tool(monkeypatch, 4, error="Device /dev/vdb does not exist or access denied.")
    with pytest.raises(HostError, match="access denied"):
        luksheader.cut_off(tier("keyfile"), ours("keyfile"))


def test_a_whole_header_is_not_cut_off_with_a_copy_or_without(monkeypatch: pytest.MonkeyPatch, headers: Path) -> None:
    Tool(monkeypatch, 0, WHOLE)
    assert not luksheader.cut_off(tier("keyfile"), ours("keyfile"))
    (headers / "chat.luks2").write_bytes(b"copy")
    assert not luksheader.cut_off(tier("keyfile"), ours("keyfile"))


def test_key_material_behind_a_damaged_header_is_destroyed_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tool = Tool(monkeypatch)
    disk = tmp_path / "disk"
    disk.write_bytes(b"x" * 20 * MIB)
    luksheader.erase(ours("keyfile", str(disk), 20 * MIB))
    left = disk.read_bytes()
    assert (left[: 32 << 10], left[16 * MIB :]) == (b"x" * (32 << 10), b"x" * 4 * MIB)
    assert left[32 << 10 : 16 * MIB].count(0) == 16 * MIB - (32 << 10)
    assert all("erase" not in call for call in tool.calls)


def test_keyslots_of_a_whole_header_are_cryptsetup_s_to_erase(monkeypatch: pytest.MonkeyPatch) -> None:
    tool = Tool(monkeypatch, 0, WHOLE)
    luksheader.erase(ours("keyfile"))
    assert tool.calls[-1][:2] == ["cryptsetup", "erase"]


def test_the_copy_of_an_older_header_does_not_outlive_it(monkeypatch: pytest.MonkeyPatch, headers: Path) -> None:
    copy = headers / "chat.luks2"
    copy.write_bytes(b"of the volume before")
    taken: list[bool] = []
    monkeypatch.setattr(luks, "make_key", lambda of: False)
    monkeypatch.setattr(luks.devices, "take", lambda *_: taken.append(copy.exists()))
    luks.make(tier("keyfile"), EMPTY, [])
    assert taken == [False]
