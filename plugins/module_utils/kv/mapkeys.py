# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What each key of the data map may hold: one parser a key, from an operator's spelling to the normalised value."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any, Callable, NamedTuple

from .stores import STORES

LIB_ROOT = "/var/lib/llmhost"
EXPIRE_EVERY = (1, 2, 3, 4, 5, 6, 10, 12, 15, 20, 30, 60)
MIN_VOLUME = 64 << 20
MAX_SIZE = 1 << 62
# Ten years: a larger number is a typing mistake, not a retention.
MAX_MINUTES = 5256000

# A tier may lie below the first kind (but not be one), and not at all in the second.
_NOT_ITSELF = """/ /data /home /media /mnt /opt /srv /var /var/cache /var/lib /var/local /var/opt /var/spool""".split()
_NOT_BELOW = """/bin /boot /dev /efi /etc /lib /lib32 /lib64 /libx32 /lost+found /proc /root /run /sbin /snap /sys /tmp
/usr /var/backups /var/cache/apt /var/lib/apt /var/lib/containerd /var/lib/containers /var/lib/dbus /var/lib/docker
/var/lib/dpkg /var/lib/kubelet /var/lib/pam /var/lib/private /var/lib/rpm /var/lib/sudo /var/lib/systemd /var/lib/ucf
/var/lock /var/log /var/mail /var/run /var/spool/at /var/spool/cron /var/spool/mail /var/tmp /var/www""".split()

_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40, "P": 1 << 50}
_TIER_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?", re.ASCII)
_ACCOUNT = re.compile(r"[a-z_][a-z0-9_-]{0,31}", re.ASCII)
# What fstab, crypttab, cron and unit files take without quoting.
_SAFE_PATH = re.compile(r"/[A-Za-z0-9._/@:+-]*", re.ASCII)
_HOME = re.compile(r"/home/[^/]+", re.ASCII)
# systemd's own units and ours are no writers; a name that begins with - would be an option of systemctl.
_SERVICE = re.compile(
    r"(?!systemd-|llmhost-)(?=.{1,255}$)[A-Za-z0-9_][A-Za-z0-9:_.-]*(?:@[A-Za-z0-9:_.\\-]*)?\.service", re.ASCII
)
_PEER = re.compile(r"[A-Za-z0-9\[:][A-Za-z0-9.:\[\]-]{0,254}", re.ASCII)
_BUCKET = re.compile(r"(?!.*\.\.)[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", re.ASCII)
_URL = re.compile(
    r"(https?)://([A-Za-z0-9.-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::([0-9]{1,5}))?(?:/[A-Za-z0-9._~/-]{0,500})?",
    re.ASCII,
)


class Mistake(NamedTuple):
    """What is wrong with a value: why, what to write instead, and the key below the parsed one it is about."""

    reason: str
    fix: str
    key: str | None = None


class Mistakes(Exception):
    """A value that its key cannot hold, with everything that is wrong with it."""

    def __init__(self, *found: Mistake) -> None:
        super().__init__("; ".join(mistake.reason for mistake in found))
        self.found = found


class Bytes(int):
    """A size read back from the normalised document."""


def show(value: Any, limit: int = 60) -> str:
    """Any value as a short piece of one line."""
    try:
        text = repr(value)
    except Exception:  # a number of thousands of digits, a structure that holds itself
        text = f"a {type(value).__name__} that cannot be shown"
    text = "".join(char if char.isprintable() else "?" for char in text[: limit + 1])
    return text if len(text) <= limit else text[:limit] + "..."


def key_text(key: Any) -> str:
    """A key or name as it stands where it is harmless, else as show() has it."""
    return key if isinstance(key, str) and key.isprintable() and 0 < len(key) <= 60 else show(key)


def plain(value: Any, depth: int = 7) -> Any:
    """A copy in Python's own types: Ansible's templates give subclasses of them.

    No key holds a value that is nested deeper than depth: what lies below is cut, so that no structure is too deep.
    """
    if isinstance(value, (bool, Bytes)):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, dict):
        return {plain(key): plain(item, depth - 1) for key, item in value.items()} if depth else "..."
    if isinstance(value, (list, tuple)):
        return [plain(item, depth - 1) for item in value] if depth else "..."
    return value


def parse_size(value: Any) -> int:
    """Bytes of a size like `160G` (G = 2^30); ValueError with the reason where the unit is missing or ambiguous."""
    if isinstance(value, int) and not isinstance(value, bool):
        raise ValueError(f"size {show(value)} has no unit")
    if not isinstance(value, str):
        raise ValueError(f"{show(value)} is not a size")
    match = re.fullmatch(r"(\d{1,15})(K|M|G|T|P)(?:iB)?", value, re.ASCII)
    if match:
        size = int(match.group(1)) * _UNITS[match.group(2)]
        if not 0 < size <= MAX_SIZE:
            raise ValueError("a size of 0" if not size else f"size {value} is larger than any disk")
        return size
    if re.fullmatch(r"\d+", value, re.ASCII):
        raise ValueError(f"size {show(value)} has no unit")
    if re.fullmatch(r"\d+\s*[KMGTP]B", value, re.ASCII | re.IGNORECASE) or re.fullmatch(r"\d+[kmgtp]", value, re.ASCII):
        raise ValueError(f"size {show(value)} is ambiguous: it may mean powers of 1000 or of 1024")
    raise ValueError(f"{show(value)} is not a size")


# One parser a key: takes the raw value, gives the normalised one or raises Mistakes.


def _wrong(reason: str, fix: str, key: str | None = None) -> Mistakes:
    return Mistakes(Mistake(reason, fix, key))


def _size(value: Any) -> int:
    if isinstance(value, Bytes) and 0 < value <= MAX_SIZE:
        return int(value)
    try:
        return parse_size(value)
    except ValueError as error:
        raise _wrong(str(error), "write a whole number and K, M, G or T (powers of 1024), for example 160G") from error


def whole(low: int, high: int, unit: str) -> Callable[[Any], int]:
    """Parser of a whole number of that unit from low to high."""

    def parse(value: Any) -> int:
        number = _number(value)
        if number is None or not low <= number <= high:
            raise _wrong(
                "%s is not a whole number of %s from %d to %d" % (show(value), unit, low, high),
                "write a number of %s from %d to %d" % (unit, low, high),
            )
        return number

    return parse


def _number(value: Any) -> int | None:
    """Ansible hands templated numbers over as text."""
    if isinstance(value, str) and re.fullmatch(r"\d{1,18}", value, re.ASCII):
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip() or len(value) > 500 or not value.isprintable():
        raise _wrong("not a line of text of 1 to 500 characters", "write one line of text")
    return value


def _word_of(*choices: str) -> Callable[[Any], str]:
    def parse(value: Any) -> str:
        if not isinstance(value, str) or value not in choices:
            raise _wrong(f"{show(value)} is not allowed", "choose one of {}".format(", ".join(choices)))
        return value

    return parse


def _number_of(*choices: int) -> Callable[[Any], int]:
    def parse(value: Any) -> int:
        number = _number(value)
        if number is None or number not in choices:
            raise _wrong(f"{show(value)} is not allowed", "choose one of {}".format(", ".join(map(str, choices))))
        return number

    return parse


def _name(value: Any) -> str:
    if not isinstance(value, str) or not _TIER_NAME.fullmatch(value):
        raise _wrong(
            f"{show(value)} is not a tier name",
            "use 1 to 32 of a-z, 0-9 and -, beginning and ending with a letter or digit",
        )
    return value


def _store(value: Any) -> str:
    if not isinstance(value, str) or value not in STORES:
        near = _nearest(value, list(STORES))
        hint = f"did you mean {near}? " if near else ""
        raise _wrong(f"unknown store {show(value)}", "{}known stores: {}".format(hint, ", ".join(sorted(STORES))))
    return value


def clean_path(value: Any) -> str:
    """An absolute path in its one canonical spelling; raises ValueError with the reason."""
    if not isinstance(value, str) or not value.startswith("/"):
        raise ValueError(f"{show(value)} is not an absolute path")
    if len(value) > 1024 or not _SAFE_PATH.fullmatch(value):
        raise ValueError(f"{show(value)} has characters that mount tables and unit files would misread")
    if value != "/" and (value.endswith("/") or os.path.normpath(value) != value or value.startswith("//")):
        raise ValueError(f"{value} is not the plain spelling of the path")
    return value


def _of_the_system(path: str) -> bool:
    return path in _NOT_ITSELF or bool(_HOME.fullmatch(path)) or any(within(path, system) for system in _NOT_BELOW)


def _path(value: Any) -> str:
    try:
        path = clean_path(value)
    except ValueError as error:
        raise _wrong(
            str(error), "write an absolute path of letters, digits and ._@:+-, without .., // or a final /"
        ) from error
    # systemd escapes some characters to four, and a unit name ends at 255.
    if len(path) + 3 * len(re.findall(r"[@+-]", path)) > 240:
        raise _wrong(f"{show(path)} is too long for the name of a mount unit", "use a shorter path")
    if _of_the_system(path):
        raise _wrong(f"{path} belongs to the system", "use a directory of its own, for example /var/lib/vllm-kv")
    if within(path, LIB_ROOT) or within(LIB_ROOT, path):
        raise _wrong(f"{path} is where this collection keeps its state", "use a directory of its own")
    return path


def _owner(value: Any) -> Any:
    number = _number(value)
    if number is not None:
        if 0 < number < 2**32 - 1 and number != 65534:
            return number
        raise _wrong(f"uid {show(number)} cannot own a tier", "name the engine's own system account")
    if not isinstance(value, str) or not _ACCOUNT.fullmatch(value):
        raise _wrong(f"{show(value)} is not an account name or uid", "name the engine's system account, e.g. vllm")
    if value in ("root", "nobody"):
        raise _wrong(f"{value} cannot own a tier", "run the engine as a system account of its own and name that")
    return value


def _list_of(pattern: Any, what: str, fix: str) -> Callable[[Any], list[str]]:
    def parse(value: Any) -> list[str]:
        if not isinstance(value, (list, tuple)):
            raise _wrong(f"{show(value)} is not a list", f"write a list, for example [{what}]")
        bad = [item for item in value if not isinstance(item, str) or not pattern.fullmatch(item)]
        if bad:
            raise Mistakes(*(Mistake(f"{show(item)} is not {what}", fix) for item in bad[:20]))
        if len(set(value)) != len(value):
            raise _wrong("an entry stands twice", "name each once")
        return list(value)

    return parse


def _endpoint(value: Any) -> str:
    # Never shown: it may hold credentials, in front of an @ or in a query.
    fix = "write https://HOST[:PORT]; http is allowed on loopback only"
    if not isinstance(value, str):
        raise _wrong(f"{show(value)} is not a URL", fix)
    if "@" in value:
        raise _wrong("the URL carries credentials", "give them by file, never in the data map")
    match = _URL.fullmatch(value)
    if match is None or (match.group(3) and not 0 < int(match.group(3)) < 65536):
        raise _wrong("not an http or https URL of a host, a port and a path", fix)
    if match.group(1) == "http" and not is_loopback(match.group(2)):
        raise _wrong(f"blocks would travel in clear to {match.group(2)}", fix)
    return value


def is_loopback(host: str) -> bool:
    """Can only this machine reach that address?"""
    import ipaddress  # dear to import, and few maps have an address

    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _bucket(value: Any) -> str:
    if not isinstance(value, str) or not _BUCKET.fullmatch(value):
        raise _wrong(f"{show(value)} is not a bucket name", "use 3 to 63 of a-z, 0-9, - and .")
    return value


def _prefix(value: Any) -> str:
    if not isinstance(value, str) or not value.isprintable() or len(value) > 500:
        raise _wrong(
            f"{show(value)} is not a key prefix", "write the engine's own `prefix` setting, or an empty string"
        )
    return value


def _nearest(word: Any, known: Sequence[str]) -> str | None:
    # Of a mistake only, so read only then.
    import difflib

    return next(iter(difflib.get_close_matches(word[:60], known, n=1)), None) if isinstance(word, str) else None


def unknown_key_fix(key: Any, known: Sequence[str]) -> str:
    """What to write instead of a key that does not exist."""
    near = _nearest(key, known)
    return f"did you mean {near}" if near else "known keys: {}".format(", ".join(known))


def _unknown(value: dict[Any, Any], known: Sequence[str], where: str) -> list[Mistake]:
    return [
        Mistake("unknown key", unknown_key_fix(key, known), f"{where}.{key_text(key)}")
        for key in value
        if key not in known
    ]


def _volume(value: Any) -> dict[str, Any]:
    # Built on this module, so not known to it before it is whole.
    from . import volumekeys

    return volumekeys.parse(value)


def within(path: str, top: str) -> bool:
    """True if path is top or lies below it, by components."""
    return path == top or top == "/" or path.startswith(top + "/")


_SERVICES = _list_of(_SERVICE, "vllm.service", "name the engine's systemd units with their suffix, e.g. vllm.service")
_PEERS = _list_of(_PEER, "a host name or address", "name each peer's host")

# key -> (parser, default); None is "not set". datamap says which stores need which key.
KEYS: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "name": (_name, None),
    "store": (_store, None),
    "state": (_word_of("present", "planned", "absent"), "present"),
    "path": (_path, None),
    "owner": (_owner, None),
    "services": (_SERVICES, []),
    "retention_minutes": (whole(1, MAX_MINUTES, "minutes"), None),
    "retention_reason": (_text, None),
    "expire": (_word_of("live", "stopped"), "live"),
    "expire_every_minutes": (_number_of(*EXPIRE_EVERY), 5),
    "grace_minutes": (whole(0, 1440, "minutes"), 2),
    "tmp_grace_minutes": (whole(1, 43200, "minutes"), 60),
    "dir_grace_minutes": (whole(1, 43200, "minutes"), 60),
    "full_pass_hours": (whole(1, 168, "hours"), 24),
    "max_bytes": (_size, None),
    "max_files": (whole(1, 2**31, "files"), None),
    "volume": (_volume, None),
    "bucket": (_bucket, None),
    "endpoint": (_endpoint, None),
    "prefix": (_prefix, None),
    "peers": (_PEERS, None),
    "purpose": (_text, None),
    "data_owner": (_text, None),
}
