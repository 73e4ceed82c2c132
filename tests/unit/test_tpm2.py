# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Keys that the TPM seals: nothing else opens the volume, an operator's own slots stay, a killed run loses nothing."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.llmhost.hardening.plugins.module_utils.kv import (
    datamap,
    devices,
    luks,
    luksheader,
    purge,
    tpm2,
    units,
    volume_make,
)
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.devices import Device, Signature
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.system import HostError
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.tpm2 import Header, Tpm

DISK = "/dev/disk/by-id/virtio-bed-0"


def tier(pcrs: Any = (7,), **more: Any) -> dict[str, Any]:
    volume = {"backend": "dmcrypt", "source": {"device": DISK}, "key": "tpm2", "tpm2_pcrs": list(pcrs), **more}
    raw = {
        "name": "chat",
        "store": "vllm_fs",
        "path": "/var/lib/vllm-kv",
        "owner": "vllm",
        "services": ["vllm.service"],
        "volume": volume,
    }
    result: dict[str, Any] = datamap.normalise([raw], "gpu1")["tiers"][0]
    return result


EMPTY = Device(DISK, "/dev/vdb", "254:16", 1 << 30, ("bed-0",))
OURS = replace(EMPTY, blank=False, signatures=(Signature("crypto_LUKS", 0, devices.header_uuid(tier())),))
SEALED = Header(((7,),), ("1",), (), (("0", "TPM2 slot, PCRs 7"),), True)


class Disk:
    """A LUKS2 header that answers as cryptsetup 2.6 and systemd-cryptenroll 252 do; calls: what it was asked."""

    def __init__(self) -> None:
        self.slots: dict[str, str] = {}
        self.tokens: dict[str, dict[str, Any]] = {}
        self.label = ""
        self.calls: list[list[str]] = []
        self.before: Callable[[list[str]], None] = lambda argv: None

    def add(self, key: str, number: str | None = None) -> str:
        number = number or next(str(one) for one in range(32) if str(one) not in self.slots)
        assert number not in self.slots
        self.slots[number] = key
        return number

    def slot(self, key: str) -> dict[str, Any]:
        return {"kdf": {"type": "argon2id"} if key == "mine" else {"type": "pbkdf2", "iterations": 1000}}

    def run(self, argv: Any, _timeout: float = 0) -> subprocess.CompletedProcess[str]:
        argv = list(argv)
        self.calls.append(argv)
        self.before(argv)
        out, rc = "", 0
        if argv[1:2] == ["luksFormat"]:
            self.slots, self.tokens = {"0": Path(argv[argv.index("--key-file") + 1]).read_bytes().hex()}, {}
            self.label = argv[argv.index("--label") + 1]
        elif argv[1:2] == ["luksDump"]:
            out = json.dumps(
                {"keyslots": {slot: self.slot(key) for slot, key in self.slots.items()}, "tokens": self.tokens}
            )
        elif argv[1:2] == ["luksAddKey"]:
            assert "--token-only" in argv
            self.add(Path(argv[-1]).read_bytes().hex(), argv[argv.index("--new-key-slot") + 1])
        elif argv[1:2] == ["luksKillSlot"]:
            del self.slots[argv[-1]]
        elif argv[1:2] == ["config"]:
            self.label = argv[argv.index("--label") + 1]
        elif argv[1:2] == ["luksHeaderBackup"]:
            Path(argv[argv.index("--header-backup-file") + 1]).write_text("header")
        elif argv[1:2] == ["erase"]:
            self.slots = {}
            self.tokens = {number: {**token, "keyslots": []} for number, token in self.tokens.items()}
        elif argv[1:3] == ["token", "remove"]:
            del self.tokens[argv[argv.index("--token-id") + 1]]
        elif argv[0] == "blkid":
            out = self.label + "\n"
        elif argv[0] == "systemd-cryptenroll":
            options = dict(one.split("=", 1) for one in argv[1:-1])
            opens = Path(options["--unlock-key-file"]).read_bytes().hex() in self.slots.values()
            assert opens, "the key opens no slot"
            pcrs = [int(one) for one in options["--tpm2-pcrs"].split("+")]
            slot = self.add("tpm")
            for number in options["--wipe-slot"].split(","):
                del self.slots[number]
                self.tokens = {name: one for name, one in self.tokens.items() if one["keyslots"] != [number]}
            number = next(str(one) for one in range(32) if str(one) not in self.tokens)
            self.tokens[number] = {"type": tpm2.TOKEN, "keyslots": [slot], "tpm2-pcrs": pcrs}
        return subprocess.CompletedProcess(argv, rc, out, "")


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Disk:
    made = Disk()
    for module in (tpm2, luks, devices):
        monkeypatch.setattr(module.system, "run", made.run)
    monkeypatch.setattr(tpm2, "present", lambda *_: True)
    monkeypatch.setattr(tpm2, "measured", lambda *_: True)
    monkeypatch.setattr(devices, "claim", lambda _device: None)
    monkeypatch.setattr(devices, "look", lambda _tier, _tables=(): OURS)

    def take(_tier: Any, device: Any, _wipes: Any, make: Any, begin: Any) -> None:
        begin()
        made.run([device.real if word == "{}" else word for word in make])

    monkeypatch.setattr(devices, "take", take)
    monkeypatch.setattr(luksheader, "HEADERS", str(tmp_path))
    return made


def sealed(disk: Disk, of: dict[str, Any]) -> Disk:
    luks.make(of, EMPTY, ())
    disk.calls.clear()
    return disk


# The map


def test_pcrs_must_be_given_and_only_for_a_key_of_the_tpm() -> None:
    for volume in (
        {"backend": "dmcrypt", "source": {"device": DISK}, "key": "tpm2"},
        {"backend": "dmcrypt", "source": {"device": DISK}, "key": "ephemeral", "tpm2_pcrs": [7]},
        {"backend": "dmcrypt", "source": {"device": DISK}, "key": "keyfile", "keyfile": "/srv/k", "tpm2_pcrs": [7]},
        {"backend": "existing", "tpm2_pcrs": [7]},
    ):
        _document, problems = datamap.check([{**_raw(), "volume": volume}], "gpu1", 1440)
        assert [problem.key for problem in problems] == ["volume.tpm2_pcrs"], volume


def _raw() -> dict[str, Any]:
    return {
        "name": "chat",
        "store": "vllm_fs",
        "path": "/var/lib/vllm-kv",
        "owner": "vllm",
        "services": ["vllm.service"],
    }


@pytest.mark.parametrize("pcrs", [[], 7, "7", [24], [-1], [7, 16], [23], ["7"], [True]])
def test_pcrs_that_bind_to_nothing_are_refused(pcrs: Any) -> None:
    with pytest.raises(datamap.MapError, match="volume.tpm2_pcrs"):
        tier_with = {**_raw(), "volume": {"backend": "dmcrypt", "source": {"device": DISK}, "key": "tpm2"}}
        tier_with["volume"]["tpm2_pcrs"] = pcrs
        datamap.normalise([tier_with], "gpu1")


def test_pcrs_are_a_set() -> None:
    assert tier((7, 0, 7))["volume"]["tpm2_pcrs"] == [0, 7]


def test_a_sealed_key_needs_a_device_and_is_not_renewed_by_the_clock() -> None:
    volume = {"backend": "dmcrypt", "source": {"file": "/var/lib/llmhost/c.img", "size": "1G"}, "key": "tpm2"}
    _document, problems = datamap.check(
        [{**_raw(), "volume": {**volume, "tpm2_pcrs": [7], "rekey_at": "03:30"}}], "gpu1", 1440
    )
    assert {problem.key for problem in problems} == {"volume.key", "volume.rekey_at"}


def test_the_boot_asks_the_tpm_and_nobody_else() -> None:
    name, source, key, options = units.crypttab_line(tier()).split()
    assert (name, source, key) == ("llmhost_chat", "UUID=" + devices.header_uuid(tier()), "none")
    assert {"luks", "tpm2-device=auto", "headless=true", "nofail"} <= set(options.split(","))


# The host


def refusals(found: Tpm, device: Device | None = OURS) -> list[str]:
    said: list[str] = []
    tpm2.judge(tier(), found, device, lambda key, reason, fix: said.append(f"{key}: {reason}; {fix}"))
    return said


def test_a_host_without_a_tpm_is_refused(tmp_path: Path) -> None:
    assert not tpm2.present(str(tmp_path))
    (tmp_path / "class/tpmrm/tpmrm0").mkdir(parents=True)
    assert tpm2.present(str(tmp_path))
    assert "no TPM 2.0" in refusals(Tpm(False), EMPTY)[0]
    assert refusals(Tpm(True), EMPTY) == [] and refusals(Tpm(True, SEALED)) == []


def test_pcrs_into_which_nothing_was_measured_bind_to_nothing_and_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "class/tpm/tpm0/pcr-sha256"
    folder.mkdir(parents=True)
    assert tpm2.measured([7], str(tmp_path)) is None
    for number, value in ((0, "3D45" * 16), (7, "0" * 64), (17, "F" * 64)):
        (folder / str(number)).write_text(value + "\n")
    assert tpm2.measured([7], str(tmp_path)) is False
    assert tpm2.measured([17, 7], str(tmp_path)) is False
    assert tpm2.measured([0, 7], str(tmp_path)) is True
    (said,) = refusals(Tpm(True, None, False), EMPTY)
    assert said.startswith("volume.tpm2_pcrs: nothing was measured into PCR 7 at this boot")
    assert refusals(Tpm(True, None, None), EMPTY) == refusals(Tpm(True, None, True), EMPTY) == []


def test_a_volume_that_no_tpm_opens_any_more_is_never_formatted() -> None:
    (said,) = refusals(Tpm(True, replace(SEALED, seals=(), sealed=(), others=("0",))))
    assert "no slot of a TPM" in said and "kvtier purge chat" in said


def test_libraries_that_systemd_does_not_find_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(volume_make.packages, "missing", lambda _needs: [])
    for answer, missing in ((0, []), (1, ["tpm2-tools"])):
        done = subprocess.CompletedProcess([], answer, "", "TPM2 support is not installed.")
        monkeypatch.setattr(tpm2.system, "run", lambda *_args, done=done: done)
        assert volume_make.missing_packages([tier()]) == missing


# Making


def test_only_the_tpm_opens_what_was_made(disk: Disk) -> None:
    assert luks.make(tier(), EMPTY, ()) == [f"formatted {DISK} as LUKS2, sealed by the TPM"]
    assert list(disk.slots.values()) == ["tpm"]
    assert tpm2.read(OURS) == replace(SEALED, sealed=tuple(disk.slots))
    assert disk.label == "llmhost-chat"


def test_the_passing_key_is_in_no_argument_and_no_file(disk: Disk) -> None:
    seen: list[str] = []
    disk.before = lambda argv: seen.extend(one for one in argv if "/fd/" in one)
    luks.make(tier(), EMPTY, ())
    assert seen and all(one.split("=")[-1].startswith(f"/proc/{os.getpid()}/fd/") for one in seen)
    (key,) = {path.split("=")[-1] for path in seen}
    assert not os.path.exists(key)
    with tpm2.passing_key() as path:
        text = Path(path).read_bytes()
        assert len(text) == 64 and os.readlink(path).startswith("/memfd:")
    assert not any(text.hex() in word for call in disk.calls for word in call)


@pytest.mark.parametrize("at", ["systemd-cryptenroll", "config"])
def test_a_format_that_was_killed_before_its_end_is_made_again_by_the_next_run(disk: Disk, at: str) -> None:
    kill_at(disk, at)
    with pytest.raises(Killed):
        luks.make(tier(), EMPTY, ())
    disk.before = lambda argv: None
    found = tpm2.look(tier(), OURS)
    assert tpm2.step(tier(), found) and refusals(found) == []
    luks.make(tier(), OURS, ())
    assert list(disk.slots.values()) == ["tpm"]
    assert luks.make(tier(), OURS, ()) == []


def test_other_pcrs_are_sealed_without_a_format_and_an_operator_s_slot_stays(disk: Disk) -> None:
    sealed(disk, tier())
    mine = disk.add("mine")
    backup = Path(luksheader.backup_path(tier()))
    backup.write_text("the seal of before")
    assert luks.make(tier((0, 7)), OURS, ()) == ["seal the key of chat to PCRs 0+7"]
    assert sorted(disk.slots.values()) == ["mine", "tpm"] and disk.slots[mine] == "mine"
    assert tpm2.read(OURS).seals == ((0, 7),)
    assert not any(call[1:2] == ["luksFormat"] for call in disk.calls)
    assert not backup.exists()


class Killed(BaseException):
    pass


def kill_at(disk: Disk, word: str, number: int = 1) -> None:
    """Ends the run before the call with that number which has this word."""
    left = [number]

    def kill(argv: list[str]) -> None:
        left[0] -= any(word in one for one in argv)
        if left[0] == 0:
            raise Killed

    disk.before = kill


@pytest.mark.parametrize("mine", [0, 1])
@pytest.mark.parametrize(
    "at", [("--label", 1), ("luksAddKey", 1), ("systemd-cryptenroll", 1), ("luksDump", 4), ("--label", 2)]
)
def test_a_sealing_to_other_pcrs_that_was_killed_leaves_no_slot_of_a_key_that_nobody_has(
    disk: Disk, at: tuple[str, int], mine: int
) -> None:
    sealed(disk, tier())
    for _one in range(mine):
        disk.add("mine")
    backup = Path(luksheader.backup_path(tier()))
    backup.write_text("the seal of before")
    kill_at(disk, *at)
    with pytest.raises(Killed):
        luks.make(tier((0, 7)), OURS, ())
    disk.before = lambda argv: None
    assert tpm2.step(tier((0, 7)), tpm2.look(tier((0, 7)), OURS)) == "seal the key of chat to PCRs 0+7"
    luks.make(tier((0, 7)), OURS, ())
    assert sorted(disk.slots.values()) == ["mine"] * mine + ["tpm"]
    assert tpm2.read(OURS).seals == ((0, 7),) and not backup.exists()
    assert disk.label == "llmhost-chat" and luks.make(tier((0, 7)), OURS, ()) == []


def test_a_map_that_went_back_after_a_killed_sealing_leaves_no_such_slot_either(disk: Disk) -> None:
    sealed(disk, tier())
    kill_at(disk, "systemd-cryptenroll")
    with pytest.raises(Killed):
        luks.make(tier((0, 7)), OURS, ())
    disk.before = lambda argv: None
    luks.make(tier(), OURS, ())
    assert list(disk.slots.values()) == ["tpm"] and tpm2.read(OURS).seals == ((7,),)


def test_a_slot_that_an_operator_added_in_the_meantime_stays(disk: Disk) -> None:
    sealed(disk, tier())
    kill_at(disk, "luksAddKey")
    with pytest.raises(Killed):
        luks.make(tier((0, 7)), OURS, ())
    disk.before = lambda argv: None
    mine = disk.add("mine")
    assert disk.label == tpm2.SEALING + mine
    luks.make(tier((0, 7)), OURS, ())
    assert disk.slots[mine] == "mine" and len(disk.slots) == 2
    # A recovery key of systemd's has a derivation as quick as ours, and a token.
    recovery = disk.add("recovery")
    disk.label = tpm2.SEALING + recovery
    disk.tokens["9"] = {"type": "systemd-recovery", "keyslots": [recovery]}
    luks.make(tier((0, 7)), OURS, ())
    assert disk.slots[recovery] == "recovery" and disk.label == "llmhost-chat"


def test_a_sealing_that_leaves_another_slot_is_a_failure(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = disk.run

    def keeps(argv: Any, timeout: float = 0) -> Any:
        done = plain(argv, timeout)
        if argv[0] == "systemd-cryptenroll":
            disk.slots["0"] = "the passing key"
        return done

    monkeypatch.setattr(tpm2.system, "run", keeps)
    with pytest.raises(HostError, match="other slots"):
        luks.make(tier(), EMPTY, ())


# Purging


def test_a_purge_removes_the_sealed_key_and_names_it(disk: Disk) -> None:
    sealed(disk, tier((0, 7)))
    Path(luksheader.backup_path(tier())).write_text("header")
    destroyed, elsewhere = luks.erase(tier((0, 7)), OURS)
    assert disk.slots == {} and disk.tokens == {}
    kinds = [one["kind"] for one in destroyed]
    assert kinds == ["header backup", "LUKS2 keyslots", "TPM2 slot, PCRs 0+7"]
    assert elsewhere == ["copies of the header that were made by others: this host's TPM opens them"]


def test_a_purge_that_was_killed_before_the_tokens_went_removes_them(disk: Disk) -> None:
    sealed(disk, tier())
    disk.run(["cryptsetup", "erase", "--batch-mode", "--", "/dev/vdb"])
    destroyed, _elsewhere = luks.erase(tier(), OURS)
    assert disk.tokens == {} and "TPM2 slot, PCRs 7" in [one["kind"] for one in destroyed]


def test_a_dry_run_names_the_keys_that_outlive_a_boot() -> None:
    assert luks.keys(tier()) == [f"LUKS2 keyslots of {DISK}", luksheader.backup_path(tier()), "TPM2 slot"]


def test_a_disk_that_is_away_is_named_with_what_opens_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(devices, "look", lambda _tier, _tables=(): None)
    monkeypatch.setattr(luksheader, "HEADERS", str(tmp_path))
    made = purge.receipt.Receipt("chat", "gpu1", {}, "key", str(tmp_path / "receipts"))
    monkeypatch.setattr(made, "write", lambda: None)
    purge._erase(tier(), made)
    assert "its keyslots open with this host's TPM" in made.content["keys_elsewhere"][0]
