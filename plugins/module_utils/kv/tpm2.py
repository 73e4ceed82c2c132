# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""LUKS2 volumes whose only keyslot is sealed by the host's TPM 2.0 to the PCRs that the map names.

systemd-cryptenroll seals, systemd-cryptsetup opens. The key that the header is made with exists for seconds, in memory
of this process, and its keyslot goes with the sealing: no passphrase, no key file, no recovery key is left.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Callable

from . import devices, luksheader, system
from .datamap import Tier
from .devices import Device
from .system import HostError

TOKEN = "systemd-tpm2"  # noqa: S105
# In the label of a header from its format to its sealing: a run that was killed there has nothing that could be lost.
UNFINISHED = "llmhost-unsealed"
# In the label while a volume with data is sealed anew, before the number of the keyslot that the passing key opens.
SEALING = "llmhost-sealing-"
_KEY_BYTES = 64
_ITERATIONS = 1000
# 512 random bits need no slow derivation, which would only delay each boot.
QUICK = ("--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "%d" % _ITERATIONS)


@dataclass(frozen=True)
class Header:
    """What opens a LUKS2 header. seals: PCRs of each TPM slot; sealed: their keyslots; others: the other ones.

    tokens: number and what it is, of all, those of destroyed keyslots too. sealing: it is being sealed anew;
    leftover: the keyslots of passing keys of such a run, which nobody has if that was killed.
    """

    seals: tuple[tuple[int, ...], ...]
    sealed: tuple[str, ...]
    others: tuple[str, ...]
    tokens: tuple[tuple[str, str], ...]
    finished: bool
    sealing: bool = False
    leftover: tuple[str, ...] = ()


# Of a format that was cut off.
_NONE_WHOLE = Header((), (), (), (), False)


@dataclass(frozen=True)
class Tpm:
    """The host's TPM 2.0 and the tier's header. header: None if the device does not carry it.

    measured: whether any of the tier's PCRs was measured into since the boot, None if that cannot be told.
    """

    present: bool
    header: Header | None = None
    measured: bool | None = None


def of(tier: Tier) -> bool:
    """True if the tier's key is sealed by the TPM."""
    return bool(tier["volume"]["key"] == "tpm2")


def pcrs_text(pcrs: Sequence[int]) -> str:
    """PCRs as systemd-cryptenroll takes them."""
    return "+".join("%d" % number for number in pcrs)


# Looking


def parse(text: str, label: str = "") -> Header:
    """What `cryptsetup luksDump --dump-json-metadata` prints, and the header's label."""
    data = json.loads(text)
    seals: list[tuple[int, ...]] = []
    guarded: set[str] = set()
    tokens: list[tuple[str, str]] = []
    for number, token in sorted(data.get("tokens", {}).items()):
        kind, pcrs = str(token.get("type")), tuple(sorted(token.get("tpm2-pcrs", ())))
        tokens.append((number, f"TPM2 slot, PCRs {pcrs_text(pcrs)}" if kind == TOKEN else kind))
        if kind == TOKEN and token.get("keyslots"):
            seals.append(pcrs)
            guarded.update(token["keyslots"])
    slots = data.get("keyslots", {})
    others = tuple(sorted(set(slots) - guarded))
    sealing = label.startswith(SEALING)
    # An operator's slot of that number has a token, or a slow derivation.
    named = {slot for token in data.get("tokens", {}).values() for slot in token.get("keyslots", ())}
    leftover = tuple(
        slot
        for slot in others
        if label == SEALING + slot and slot not in named and slots[slot].get("kdf", {}).get("iterations") == _ITERATIONS
    )
    return Header(tuple(seals), tuple(sorted(guarded)), others, tuple(tokens), label != UNFINISHED, sealing, leftover)


def read(device: Device) -> Header:
    """The header on a device that carries the tier's UUID."""
    dump = luksheader.read(device)
    if dump is None:
        raise HostError(f"the LUKS header of {device.path} is not whole")
    label = system.run(["blkid", "-p", "-s", "LABEL", "-o", "value", "--", device.real], 60).stdout.strip()
    return parse(dump, label)


def present(sys_root: str = "/sys") -> bool:
    """True if the kernel has a TPM 2.0."""
    return bool(glob.glob(os.path.join(sys_root, "class/tpmrm/tpmrm*")))


def measured(pcrs: Sequence[int], sys_root: str = "/sys") -> bool | None:
    """False if all these PCRs are as a reset leaves them; the kernel shows them since 5.12."""
    seen = None
    for number in pcrs:
        for path in glob.glob(os.path.join(sys_root, "class/tpm/tpm*/pcr-sha256/%d" % number)):
            with contextlib.suppress(OSError), open(path, encoding="ascii") as file:
                if set(file.read().strip().lower()) not in ({"0"}, {"f"}):
                    return True
                seen = False
    return seen


def look(tier: Tier, device: Device | None) -> Tpm:
    """TPM and header (read-only)."""
    header = None
    if device is not None and devices.is_ours(tier, device):
        if luksheader.read(device) is not None:
            header = read(device)
        elif luksheader.is_making(tier):
            header = _NONE_WHOLE
    return Tpm(present(), header, measured(tier["volume"]["tpm2_pcrs"]))


def missing_packages() -> list[str]:
    """What systemd needs to speak to a TPM and does not find; asking it loads the libraries."""
    try:
        done = system.run(["systemd-cryptenroll", "--tpm2-device=list"], 60)
    except HostError:
        return ["systemd-cryptsetup"]
    return [] if done.returncode == 0 else ["tpm2-tools"]


# Judging


def judge(tier: Tier, found: Tpm, device: Device | None, wrong: Callable[[str, str, str], None]) -> None:
    """Refuse a host without a TPM, and a volume that no TPM opens any more."""
    if not found.present:
        fix = "switch it on in the firmware, or use key: keyfile or ephemeral"
        wrong("volume.key", "the kernel of this host has no TPM 2.0 (/sys/class/tpmrm)", fix)
    if found.measured is False:
        pcrs = pcrs_text(tier["volume"]["tpm2_pcrs"])
        reason = f"nothing was measured into PCR {pcrs} at this boot: sealed to that, whatever boots opens the volume"
        wrong("volume.tpm2_pcrs", reason, "switch measured boot on in the firmware, or name PCRs that it fills")
    if device is not None and found.header is not None and found.header.finished and not found.header.seals:
        reason = f"{device.path} is the tier's volume, but its header has no slot of a TPM"
        wrong("volume.key", reason, "enroll it again, or give the volume up: kvtier purge {}".format(tier["name"]))


def step(tier: Tier, found: Tpm | None) -> str | None:
    """What is left to do at the header, None if nothing."""
    if found is None or found.header is None:
        return None
    header = found.header
    if not header.finished or header.sealing or header.seals != (tuple(tier["volume"]["tpm2_pcrs"]),):
        return "seal the key of {} to PCRs {}".format(tier["name"], pcrs_text(tier["volume"]["tpm2_pcrs"]))
    return None


# Making


@contextlib.contextmanager
def passing_key() -> Iterator[str]:
    """The name of a file that holds a random key, in memory only, until the block ends."""
    fd = os.memfd_create("llmhost", os.MFD_CLOEXEC)
    try:
        os.fchmod(fd, 0o600)
        os.write(fd, os.urandom(_KEY_BYTES))
        yield "/proc/%d/fd/%d" % (os.getpid(), fd)
    finally:
        os.ftruncate(fd, 0)
        os.close(fd)


def seal(tier: Tier, device: Device, key: str, instead: Sequence[str]) -> None:
    """Put a TPM slot in the place of the keyslots `instead`. key: a file with what opens one of these."""
    wanted = tuple(tier["volume"]["tpm2_pcrs"])
    system.do(
        "systemd-cryptenroll",
        "--unlock-key-file=" + key,
        "--tpm2-device=auto",
        "--tpm2-pcrs=" + pcrs_text(wanted),
        "--wipe-slot=" + ",".join(instead),
        device.real,
    )
    now = read(device)
    if now.seals != (wanted,) or set(now.others) & set(instead):
        raise HostError(f"after its sealing the header of {device.path} has other slots than it should")


def settle(tier: Tier, device: Device) -> None:
    """Say in the header that its sealing is complete."""
    _label(device, ("llmhost-" + tier["name"])[:47])


def _label(device: Device, text: str) -> None:
    system.do("cryptsetup", "config", "--label", text, device.real)


def seal_again(tier: Tier, device: Device) -> None:
    """Bind a volume to the PCRs of the map without loss; the TPM has to open it as it is now.

    Until settle() the label says that this goes on, and in which keyslot the passing key is.
    """
    for slot in read(device).leftover:
        system.do("cryptsetup", "luksKillSlot", "--batch-mode", "--", device.real, slot)
    before = read(device)
    if before.seals == (tuple(tier["volume"]["tpm2_pcrs"]),):
        return
    passing = next(one for one in map(str, range(32)) if one not in (*before.sealed, *before.others))
    _label(device, SEALING + passing)
    with passing_key() as key:
        place = ("--new-key-slot", passing)
        system.do("cryptsetup", "luksAddKey", "--batch-mode", "--token-only", *place, *QUICK, device.real, key)
        seal(tier, device, key, [passing, *before.sealed])


def forget(device: Device, header: Header) -> list[dict[str, Any]]:
    """Remove the sealed keys from a header whose keyslots are destroyed; what that was, for the receipt."""
    for number, _kind in header.tokens:
        system.do("cryptsetup", "token", "remove", "--token-id", number, device.real)
    return [{"mapping": device.path, "cipher": None, "kind": kind} for _number, kind in header.tokens]
