# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What `volume` of a tier may hold: source, key, file system and how they go together."""

from __future__ import annotations

import copy
import datetime
import re
from typing import Any, Callable

from .mapkeys import (
    LIB_ROOT,
    MIN_VOLUME,
    Mistake,
    Mistakes,
    _of_the_system,
    _size,
    _text,
    _unknown,
    _word_of,
    _wrong,
    clean_path,
    show,
    within,
)

MIN_XFS = 320 << 20
_STABLE = re.compile(r"/dev/disk/by-(?:id|partuuid)/[A-Za-z0-9._:+=-]{1,200}", re.ASCII)
_NO_KEYS = ("/boot", "/dev", "/proc", "/run", "/sys", "/tmp", "/var/tmp", LIB_ROOT + "/state")  # noqa: S108
_LVM = re.compile(r"[A-Za-z0-9_+.][A-Za-z0-9_+.-]{0,99}", re.ASCII)
_LVM_RESERVED = re.compile(
    r"^\.{1,2}$|^(?:snapshot|pvmove)|_(?:cdata|cmeta|corig|mlog|mimage|rimage|rmeta|tdata|tmeta|vorigin)"
)
_OPTION = re.compile(r"[a-z][a-z0-9_-]{0,30}(?:=[A-Za-z0-9_.:/-]{1,60})?", re.ASCII)
# Ours, their opposites, and what mounts elsewhere, later, or not at all.
_NO_OPTIONS = frozenset(
    """dev nodev suid nosuid exec noexec atime noatime relatime norelatime strictatime nostrictatime symfollow
    nosymfollow fail nofail auto noauto user nouser users owner group defaults ro rw loop offset sizelimit
    remount bind rbind move private shared slave unbindable rprivate rshared rslave""".split()
)
# The debug and the application PCR.
_RESETTABLE = (16, 23)
_KERNEL_NAME = re.compile(r"/dev/(?:sd|vd|xvd|hd|nvme|mmcblk|dm-|loop|md)", re.ASCII)


def parse(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _wrong(
            "not a mapping", "write volume: {backend: dmcrypt, source: {file: ..., size: ...}, key: ephemeral}"
        )
    wrong = _unknown(value, _VOLUME_KEYS, "volume")
    backend = value.get("backend")
    source = None
    result: dict[str, Any]
    if backend == "existing":
        wrong += [
            Mistake("an existing volume is checked only", f"leave out {key}", "volume." + key)
            for key in _VOLUME_KEYS[1:-1]
            if value.get(key) not in (None, False, [])
        ]
        result = {**dict.fromkeys(_VOLUME_KEYS), "backend": "existing", "discard": False, "no_workqueue": False}
        result["mount_options"] = []
        try:
            result["attested"] = _attested(value.get("attested"))
        except Mistakes as mistakes:
            wrong += mistakes.found
    else:
        if value.get("attested") is not None:
            reason = "a volume that is made here is looked at, not attested"
            wrong.append(Mistake(reason, "leave it out or write backend: existing", "volume.attested"))
        if backend != "dmcrypt":
            wrong.append(Mistake(f"{show(backend)} is not a backend", "write dmcrypt or existing", "volume.backend"))
        chosen: dict[str, Any] = {}
        for key, (parse, default) in _VOLUME_PARSERS.items():
            try:
                chosen[key] = copy.copy(default) if value.get(key) is None else parse(value[key])
            except Mistakes as mistakes:
                wrong += [mistake._replace(key="volume." + key) for mistake in mistakes.found]
        try:
            source = _source(value.get("source"))
        except Mistakes as mistakes:
            wrong += mistakes.found
        if not wrong:
            wrong += _judge_volume(chosen, source or {})
        result = {"backend": "dmcrypt", "source": source, **chosen, "attested": None}
    if wrong:
        raise Mistakes(*wrong)
    return result


def _attested(value: Any) -> dict[str, str] | None:
    """Encryption that no host can see (a provider's, a self-encrypting disk's): who says so, and until when."""
    if value is None:
        return None
    key = "volume.attested"
    if not isinstance(value, dict):
        raise _wrong("not a mapping", 'write attested: {reason: ..., until: "2027-06-30"}', key)
    return _members(value, {"reason": _text, "until": _day}, key)


def _members(value: dict[str, Any], parsers: dict[str, Callable[[Any], Any]], key: str) -> dict[str, Any]:
    """Each member of a mapping read by its parser, all mistakes at once."""
    wrong = _unknown(value, tuple(parsers), key)
    found = {}
    for name, parser in parsers.items():
        try:
            found[name] = parser(value.get(name))
        except Mistakes as mistakes:
            wrong += [mistake._replace(key=f"{key}.{name}") for mistake in mistakes.found]
    if wrong:
        raise Mistakes(*wrong)
    return found


def _day(value: Any) -> str:
    # YAML makes a date of an unquoted one.
    text = value.isoformat() if isinstance(value, datetime.date) else value
    try:
        if not isinstance(text, str) or datetime.date.fromisoformat(text).isoformat() != text:
            raise ValueError
    except ValueError as error:
        raise _wrong(f"{show(value)} is no date", "write the last day on which it holds, as YYYY-MM-DD") from error
    return text


def attested_until(volume: dict[str, Any] | None, today: datetime.date) -> str | None:
    """The day until which the encryption of a volume is attested, None if it is not, or no more."""
    attested = volume and volume.get("attested")
    if not attested or datetime.date.fromisoformat(attested["until"]) < today:
        return None
    return str(attested["until"])


def _judge_volume(chosen: dict[str, Any], source: dict[str, Any]) -> list[Mistake]:
    """What does not go together in a volume."""
    wrong = []
    if chosen["key"] != "ephemeral" and "file" in source:
        reason = "a persistent key needs a device; a file is opened with a new key at each boot"
        wrong.append(Mistake(reason, "write source: {device: ...} or key: ephemeral", "volume.key"))
    if chosen["key"] == "keyfile" and chosen["keyfile"] is None:
        fix = "name a file on encrypted storage; it is made if it is missing"
        wrong.append(Mistake("missing", fix, "volume.keyfile"))
    if chosen["key"] != "keyfile" and chosen["keyfile"] is not None:
        reason = "a key of kind {} is in no file".format(chosen["key"])
        wrong.append(Mistake(reason, "leave it out or write key: keyfile", "volume.keyfile"))
    if chosen["key"] == "tpm2" and chosen["tpm2_pcrs"] is None:
        fix = "write what the key is bound to, for example [7] (Secure Boot) or [0, 2, 4, 7]"
        wrong.append(Mistake("missing", fix, "volume.tpm2_pcrs"))
    if chosen["key"] != "tpm2" and chosen["tpm2_pcrs"] is not None:
        reason = "a key of kind {} is sealed to nothing".format(chosen["key"])
        wrong.append(Mistake(reason, "leave it out or write key: tpm2", "volume.tpm2_pcrs"))
    if chosen["rekey_at"] and chosen["key"] != "ephemeral":
        fix = "leave it out, or write key: ephemeral"
        wrong.append(Mistake("a persistent key is not renewed by the clock", fix, "volume.rekey_at"))
    if "discard" in chosen["mount_options"] and not chosen["discard"]:
        fix = "leave it out, or write discard: true"
        wrong.append(Mistake("discards do not get through without it", fix, "volume.mount_options"))
    if chosen["fstype"] == "xfs" and source["size"] is not None and source["size"] < MIN_XFS:
        wrong.append(Mistake("xfs needs 320M", "write fstype: ext4 or a larger size", "volume.fstype"))
    return wrong


def _device(value: Any) -> str:
    if isinstance(value, str) and _KERNEL_NAME.match(value):
        fix = f"write the name that the host shows for it: find -L /dev/disk/by-id -samefile {value}"
        raise _wrong(f"{show(value)} is a kernel name that changes when disks do", fix)
    if not isinstance(value, str) or not _STABLE.fullmatch(value):
        raise _wrong(f"{show(value)} is no stable name of a device", "write /dev/disk/by-id/... or by-partuuid/...")
    return value


def _keyfile(value: Any) -> str:
    try:
        path = clean_path(value)
    except ValueError as error:
        raise _wrong(str(error), "write an absolute path, for example /etc/llmhost/keys/NAME.key") from error
    if any(within(path, top) for top in _NO_KEYS):
        raise _wrong(f"{path} is no place for a key", "write for example /etc/llmhost/keys/NAME.key")
    return path


def _pcrs(value: Any) -> list[int]:
    if not isinstance(value, list) or not all(isinstance(one, int) and not isinstance(one, bool) for one in value):
        raise _wrong(f"{show(value)} is no list of PCRs", "write numbers from 0 to 23, for example [7]")
    if not value:
        reason = "sealed to no PCR, whoever starts another system on this machine opens the volume"
        raise _wrong(reason, "write for example [7]")
    if unknown := [one for one in value if not 0 <= one <= 23]:
        raise _wrong("a TPM has no PCR %d" % unknown[0], "write numbers from 0 to 23")
    if loose := [one for one in value if one in _RESETTABLE]:
        raise _wrong("any program resets PCR %d: it binds to nothing" % loose[0], "leave it out")
    return sorted(set(value))


def _minute(value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"(?:[01][0-9]|2[0-3]):[0-5][0-9]", value, re.ASCII):
        raise _wrong(f"{show(value)} is no time of day", 'write "HH:MM", in quotes, of the host\'s clock')
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise _wrong(f"{show(value)} is neither true nor false", "write true or false")
    return value


def _mount_options(value: Any) -> list[str]:
    if not isinstance(value, list):
        raise _wrong(f"{show(value)} is not a list", "write for example [commit=60]")
    for one in value:
        if not isinstance(one, str) or not _OPTION.fullmatch(one):
            raise _wrong(f"{show(one)} is no mount option", "write one option an entry, for example commit=60")
        if one.partition("=")[0] in _NO_OPTIONS or one.startswith(("x-", "X-")):
            raise _wrong(f"{one} is decided here", "leave it out; a tier is always nodev,nosuid,noexec,noatime,nofail")
    return sorted({str(one) for one in value})


def _source(source: Any) -> dict[str, Any]:
    key = "volume.source"
    if not isinstance(source, dict):
        raise _wrong("not a mapping", "write source: {file: /var/lib/llmhost/NAME.img, size: 200G}", key)
    if "device" in source:
        return _members(source, {"device": _device, "size": _optional_size}, key)
    if "vg" in source or "lv" in source:
        return _members(source, {"vg": _lvm_name, "lv": _lvm_name, "size": _volume_size}, key)
    return _members(source, {"file": _image, "size": _volume_size}, key)


def _lvm_name(value: Any) -> str:
    if not isinstance(value, str) or not _LVM.fullmatch(value) or _LVM_RESERVED.search(value):
        raise _wrong(
            f"{show(value)} is no name that LVM takes", "write the name alone, for example vg: cache, lv: chat"
        )
    return value


def _image(value: Any) -> str:
    try:
        path = clean_path(value)
    except ValueError as error:
        raise _wrong(str(error), "write an absolute path, for example /var/lib/llmhost/NAME.img") from error
    if within(path, "/dev"):
        kind = "a kernel name that changes when disks do" if _KERNEL_NAME.match(path) else "a device, not a file"
        raise _wrong(f"{path} is {kind}", "name a regular file here, or write source: {device: /dev/disk/by-id/...}")
    if _of_the_system(path):
        raise _wrong(f"{path} belongs to the system", f"keep images in {LIB_ROOT}")
    if path == LIB_ROOT or within(path, LIB_ROOT + "/state"):
        raise _wrong(f"{path} is where this collection keeps its state", f"name a file in {LIB_ROOT} itself")
    return path


def _volume_size(value: Any) -> int:
    # The normalised document holds bytes; an operator's own bare number has no unit and is refused.
    size = _size(value)
    if size < MIN_VOLUME or size % (1 << 20):
        raise _wrong("%d bytes is no usable size" % size, "write a whole number of M, at least 64M")
    return size


def _optional_size(value: Any) -> int | None:
    return None if value is None else _volume_size(value)


# key of a volume -> (parser, default)
_VOLUME_PARSERS: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "key": (_word_of("ephemeral", "keyfile", "tpm2"), "ephemeral"),
    "keyfile": (_keyfile, None),
    "tpm2_pcrs": (_pcrs, None),
    "fstype": (_word_of("ext4", "xfs"), "ext4"),
    "mount_options": (_mount_options, []),
    "discard": (_flag, False),
    "no_workqueue": (_flag, False),
    "rekey_at": (_minute, None),
}
_VOLUME_KEYS = ("backend", "source", *_VOLUME_PARSERS, "attested")
