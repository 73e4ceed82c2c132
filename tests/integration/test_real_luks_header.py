# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Debian's cryptsetup on a header that is whole, torn and erased: what it says is what we go by."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from ansible_collections.llmhost.hardening.plugins.module_utils.kv import luksheader, tpm2
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.devices import Device

MIB = 1 << 20
TIER = {"name": "chat"}


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Device:
    monkeypatch.setattr(luksheader, "HEADERS", str(tmp_path / "headers"))
    disk, key = tmp_path / "disk", tmp_path / "key"
    disk.write_bytes(bytes(32 * MIB))
    key.write_bytes(os.urandom(64))
    make = [
        "cryptsetup",
        "luksFormat",
        "--batch-mode",
        "--type",
        "luks2",
        *tpm2.QUICK,
        "--key-file",
        str(key),
        str(disk),
    ]
    subprocess.run(make, check=True)
    return Device(path=str(disk), real=str(disk), number="7:0", size=32 * MIB)


def tear(device: Device) -> None:
    """As power loss may leave it: the first binary header, and nothing of the rest."""
    with open(device.real, "r+b") as file:
        file.seek(4 << 10)
        file.write(bytes((32 << 10) - (4 << 10)))


def test_a_torn_header_is_not_whole_and_not_an_error(device: Device) -> None:
    assert json.loads(luksheader.read(device) or "{}")["keyslots"]
    tear(device)
    assert luksheader.read(device) is None


def test_the_copy_brings_a_torn_header_back_by_the_command_that_the_refusal_prints(device: Device) -> None:
    luksheader.begin(TIER)
    luksheader.keep(TIER, device)
    whole = luksheader.read(device)
    tear(device)
    problem = luksheader.problem(TIER, device, True)
    assert problem is not None and "damaged" in problem[0]
    command = problem[1].partition("(")[2].partition(")")[0].split()
    subprocess.run([*command[:2], "--batch-mode", *command[2:]], check=True)
    assert luksheader.read(device) == whole and luksheader.problem(TIER, device, True) is None


def test_no_key_material_is_left_whether_the_header_is_whole_or_not(device: Device) -> None:
    area = slice(32 << 10, 16 * MIB)
    before = Path(device.real).read_bytes()[area]
    tear(device)
    luksheader.erase(device)
    after = Path(device.real).read_bytes()[area]
    assert any(before) and not any(after)
