# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a path is stored on, from its file system down to the disks, and where the key of each encrypting layer is.

Reads only. Never asks a tool to print a key. What cannot be seen is None ("cannot tell"), never False or True.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
import struct
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Callable, NamedTuple

from . import command, fsio
from .fsio import line_of
from .mapkeys import within

_NETWORK = (
    "nfs nfs4 ceph lustre cifs smb3 smbfs 9p afs glusterfs beegfs gpfs ocfs2 gfs2 fuse.glusterfs fuse.ceph fuse.sshfs "
    "fuse.s3fs fuse.juicefs fuse.rclone virtiofs"
)
# File systems that are not on a local block device of their own, and what they are.
_ELSEWHERE = {
    **dict.fromkeys(_NETWORK.split(), "network"),
    **dict.fromkeys(("tmpfs", "ramfs", "devtmpfs", "hugetlbfs"), "memory"),
    **dict.fromkeys(("overlay", "aufs", "unionfs"), "layered"),
}

# dm-verity and dm-integrity mappings have a CRYPT- uuid too and encrypt nothing.
_CRYPT_UUID = re.compile(r"CRYPT-(LUKS1|LUKS2|PLAIN|LOOPAES|TCRYPT|BITLK|FVAULT2)-", re.ASCII)
_NETWORK_DISK = re.compile(r"(?:nbd|rbd|drbd)\d", re.ASCII)
_RANDOM = ("/dev/urandom", "/dev/random", "/dev/hw_random")
_GET_POLICY_EX = 0xC0096616
_FSCRYPT_MODES = {1: "AES-256-XTS", 5: "AES-128-CBC-ESSIV", 7: "SM4-XTS", 9: "Adiantum"}
_MAX_DEPTH = 12
_CLEAR = "no layer below it encrypts"

GOOD, UNKNOWN, BAD = "good", "unknown", "bad"
_RANK = {BAD: 0, UNKNOWN: 1, GOOD: 2}


def run(argv: Sequence[str]) -> str | None:
    """Output of a command that only reads; None if it is not installed or fails."""
    try:
        done = command.run(argv, 20)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout if done.returncode == 0 else None


def _mount_id(path: str) -> int | None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return fsio.mount_id(fd)
    except OSError:
        return None
    finally:
        os.close(fd)


def fscrypt_policy(path: str) -> bytes | None:
    """The fscrypt policy of a directory, None if it has none; OSError if that cannot be seen."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        answer = bytearray(8 + 32)
        struct.pack_into("=Q", answer, 0, 32)
        fcntl.ioctl(fd, _GET_POLICY_EX, answer, True)
        return bytes(answer[8:])
    except OSError as error:
        if error.errno in (errno.ENODATA, errno.ENOTTY, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            return None
        raise
    finally:
        os.close(fd)


@dataclass(frozen=True)
class Roots:
    """Where this host's facts are read from; tests give trees made by hand."""

    proc: str = "/proc"
    sys: str = "/sys"
    etc: str = "/etc"
    root: bool = field(default_factory=lambda: os.geteuid() == 0)
    run: Callable[[Sequence[str]], str | None] = run
    mount_id: Callable[[str], int | None] = _mount_id
    fscrypt: Callable[[str], bytes | None] = fscrypt_policy


class Mount(NamedTuple):
    """One line of a mountinfo file."""

    ident: int
    device: str
    root: str
    point: str
    options: str
    fstype: str
    source: str


@dataclass(frozen=True)
class Key:
    """Where the key of an encrypting layer comes from. status: GOOD, UNKNOWN or BAD, with the reason."""

    kind: str
    status: str
    reason: str
    layer: str = ""
    cipher: str | None = None
    size_bits: int | None = None
    path: str | None = None
    mode: str | None = None
    on_encrypted: bool | None = None


@dataclass
class Storage:
    """What a path is stored on. encrypted None: cannot tell. by: the layer that encrypts. chain: top down."""

    path: str
    device: str = ""
    source: str = ""
    fstype: str = ""
    mountpoint: str = ""
    options: str = ""
    chain: list[dict[str, str]] = field(default_factory=list)
    encrypted: bool | None = None
    local: bool = True
    by: str | None = None
    cipher: str | None = None
    key_size_bits: int | None = None
    key_kind: str = "unknown"
    key: Key | None = None
    problems: list[str] = field(default_factory=list)

    def evidence(self) -> dict[str, Any]:
        """The same as plain JSON values."""
        return asdict(self)


def _unescape(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), text)


def parse_mounts(text: str) -> list[Mount]:
    """The lines of a mountinfo file."""
    found = []
    for line in text.splitlines():
        left, separator, right = line.partition(" - ")
        fields, tail = left.split(" "), right.split(" ")
        if not separator or len(fields) < 6 or len(tail) < 2 or not fields[0].isdigit():
            continue
        root, point = _unescape(fields[3]), _unescape(fields[4])
        found.append(Mount(int(fields[0]), fields[2], root, point, fields[5], tail[0], _unescape(tail[1])))
    return found


def mounts(roots: Roots, pid: str = "self") -> list[Mount]:
    """The mounts that a process sees; OSError if they cannot be read."""
    with open(os.path.join(roots.proc, pid, "mountinfo"), encoding="utf-8", errors="surrogateescape") as file:
        return parse_mounts(file.read())


def mount_of(path: str, table: Sequence[Mount], ident: int | None = None) -> Mount | None:
    """The mount that path lies on: the one with that id, else the longest mount point above it, the last of equals."""
    best = None
    for mount in table:
        if ident is not None and mount.ident == ident:
            return mount
        if within(path, mount.point) and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    return best


def _worst(keys: Sequence[Key | None]) -> Key | None:
    """What protects a device whose data lies on all of several ones: no more than the weakest of them."""
    known = [key for key in keys if key is not None]
    return min(known, key=lambda key: _RANK[key.status]) if known and len(known) == len(keys) else None


def _best(first: Key, second: Key | None) -> Key:
    return second if second is not None and _RANK[second.status] > _RANK[first.status] else first


class _Look:
    """One walk down the devices of a path; collects the chain and the problems on its way."""

    def __init__(self, roots: Roots, depth: int) -> None:
        self.roots, self.depth = roots, depth
        self.chain: list[dict[str, str]] = []
        self.problems: list[str] = []
        self.local = True
        self.cannot_tell = False

    def unknown(self, problem: str) -> None:
        self.problems.append(problem)
        self.cannot_tell = True

    def device(self, number: str) -> Key | None:
        """What encrypts the block device MAJOR:MINOR on every branch below it, or None."""
        directory = os.path.join(self.roots.sys, "dev", "block", number)
        if not os.path.isdir(directory):
            self.unknown(f"block device {number} is not in sysfs")
            return None
        return self.block(os.path.realpath(directory), 0)

    def block(self, directory: str, level: int) -> Key | None:
        name = os.path.basename(directory)
        if level > _MAX_DEPTH:
            self.unknown(f"more than {_MAX_DEPTH} devices below one another")
            return None
        if os.path.isdir(os.path.join(directory, "dm")):
            return self.mapping(directory, level)
        if os.path.isdir(os.path.join(directory, "loop")):
            return self.loop(directory, name)
        if os.path.isdir(os.path.join(directory, "md")):
            self.add(name, "md", line_of(os.path.join(directory, "md", "uuid")), line_of(directory + "/md/level"))
            return self.below(directory, level)
        if os.path.exists(os.path.join(directory, "partition")):
            self.add(name, "partition", "", "")
            return self.block(os.path.dirname(directory), level + 1)
        if self.slaves(directory):
            self.add(name, "layer", "", "")
            return self.below(directory, level)
        remote = self.remote(directory, name)
        model = line_of(os.path.join(directory, "device", "model")).strip()
        self.add(name, "network disk" if remote else "disk", "", model)
        if remote:
            self.local = False
            self.problems.append(f"{name} is a network block device")
        return None

    @staticmethod
    def remote(directory: str, name: str) -> bool:
        transport = line_of(os.path.join(directory, "device", "transport"))
        return bool(
            _NETWORK_DISK.match(name)
            or re.search(r"/session\d+/|/nvme-fabrics/", directory)
            or transport in ("tcp", "rdma", "fc")
        )

    def add(self, name: str, kind: str, uuid: str, detail: str) -> None:
        self.chain.append({"name": name, "kind": kind, "uuid": uuid, "detail": detail})

    @staticmethod
    def slaves(directory: str) -> list[str]:
        try:
            names = sorted(os.listdir(os.path.join(directory, "slaves")))
        except OSError:
            return []
        return [os.path.realpath(os.path.join(directory, "slaves", name)) for name in names]

    def below(self, directory: str, level: int) -> Key | None:
        return _worst([self.block(slave, level + 1) for slave in self.slaves(directory)])

    def mapping(self, directory: str, level: int) -> Key | None:
        name, uuid = (line_of(os.path.join(directory, "dm", what)) for what in ("name", "uuid"))
        match = _CRYPT_UUID.match(uuid)
        if not match:
            kind = uuid.partition("-")[0].lower() if "-" in uuid else "unknown"
            self.add(name, f"dm {kind}", uuid, "")
            return self.below(directory, level)
        self.add(name, "crypt", uuid, match.group(1))
        own = layer_key(name, match.group(1), self.roots, self.depth)
        under = self.below(directory, level)
        if own.cipher and "null" in own.cipher:
            self.problems.append(f"{name} uses cipher {own.cipher}, which encrypts nothing")
            return under
        return _best(own, under)

    def loop(self, directory: str, name: str) -> Key | None:
        backing = line_of(os.path.join(directory, "loop", "backing_file"))
        self.add(name, "loop", "", backing)
        if not backing or backing.endswith(" (deleted)"):
            self.unknown(f"the file behind {name} cannot be seen")
            return None
        under = describe(backing, self.roots, self.depth + 1)
        self.chain += under.chain
        self.problems += [problem for problem in under.problems if problem != _CLEAR]
        self.local = self.local and under.local
        self.cannot_tell = self.cannot_tell or under.encrypted is None
        return under.key

    def btrfs(self, source: str) -> Key | None:
        """All devices of the btrfs that has source among them (its st_dev is no block device)."""
        top = os.path.join(self.roots.sys, "fs", "btrfs")
        wanted = os.path.basename(source)
        try:
            for uuid in sorted(os.listdir(top)):
                devices = os.path.join(top, uuid, "devices")
                if not os.path.isdir(devices):
                    continue
                found = [os.path.realpath(os.path.join(devices, name)) for name in sorted(os.listdir(devices))]
                names = [os.path.basename(one) for one in found]
                names += [line_of(os.path.join(one, "dm", "name")) for one in found]
                if wanted in names:
                    return _worst([self.block(one, 0) for one in found])
        except OSError:
            pass
        self.unknown(f"the devices of btrfs {source} cannot be seen")
        return None

    def zfs(self, dataset: str) -> Key | None:
        self.add(dataset, "zfs", "", "")
        properties = "encryption,keylocation,encryptionroot"
        argv = ["zfs", "get", "-H", "-p", "-o", "property,value", properties, dataset]
        text = self.roots.run(argv) if self.roots.root else None
        values = dict(line.split("\t", 1) for line in (text or "").splitlines() if "\t" in line)
        cipher = values.get("encryption")
        if not cipher:
            self.unknown("the properties of ZFS dataset %s need root and the zfs program" % dataset)
            return None
        if cipher == "off":
            self.unknown(f"encryption of ZFS dataset {dataset} is off, and what lies below its pool is not judged")
            return None
        location = values.get("keylocation", "")
        layer = f"zfs {values.get('encryptionroot') or dataset}"
        if location == "prompt":
            return Key("passphrase", GOOD, "asked for when the dataset is loaded", layer, cipher)
        if location.startswith("file:///"):
            return _key_file(location[7:], layer, cipher, None, self.roots, self.depth)
        return Key("unknown", UNKNOWN, f"keylocation is {location or 'not set'}", layer, cipher)


def _key_file(path: str, layer: str, cipher: str | None, bits: int | None, roots: Roots, depth: int) -> Key:
    def key(status: str, reason: str, mode: str | None = None, on_encrypted: bool | None = None) -> Key:
        return Key("keyfile", status, reason, layer, cipher, bits, path, mode, on_encrypted)

    try:
        info = os.stat(path)
    except OSError as error:
        return key(UNKNOWN, f"key file {path}: {error.strerror}")
    mode = "%04o" % stat.S_IMODE(info.st_mode)
    if info.st_mode & 0o077 or info.st_uid != 0:
        return key(BAD, "key file %s is %s and belongs to uid %d: others may read it" % (path, mode, info.st_uid), mode)
    if depth >= 3:
        return key(UNKNOWN, f"key file {path} depends on too many other keys", mode)
    under = describe(path, roots, depth + 1)
    if under.encrypted is False or (under.key and under.key.status == BAD):
        return key(BAD, f"key file {path} lies on storage that is not encrypted", mode, False)
    if under.encrypted is None or under.key is None or under.key.status != GOOD:
        return key(UNKNOWN, f"whether key file {path} lies on encrypted storage cannot be told", mode)
    return key(GOOD, f"key file {path} lies on encrypted storage", mode, True)


def crypttab_entry(name: str, roots: Roots) -> list[str] | None:
    """The fields (device, key, options) of a mapper name in crypttab, None if it is not there; OSError as it comes."""
    try:
        with open(os.path.join(roots.etc, "crypttab"), encoding="utf-8", errors="surrogateescape") as file:
            lines = file.read().splitlines()
    except FileNotFoundError:
        return None
    for line in lines:
        fields = line.split()
        if fields and not fields[0].startswith("#") and fields[0] == name:
            return (fields[1:] + ["", "", ""])[:3]
    return None


def layer_key(name: str, kind: str, roots: Roots, depth: int = 0) -> Key:
    """Cipher and key of a dm-crypt mapping. kind: LUKS2, PLAIN ... as in its uuid."""
    status = roots.run(["cryptsetup", "status", name]) if roots.root else None
    facts = dict(re.findall(r"^\s*(cipher|keysize):\s*(\S+)", status or "", re.MULTILINE))
    cipher: str | None = facts.get("cipher")
    bits = int(facts["keysize"]) if facts.get("keysize", "").isdigit() else None

    def key(kind_: str, status_: str, reason: str) -> Key:
        return Key(kind_, status_, reason, name, cipher, bits)

    try:
        entry = crypttab_entry(name, roots)
    except OSError as error:
        return key("unknown", UNKNOWN, f"crypttab: {error.strerror}")
    if entry is None:
        return key("unknown", UNKNOWN, f"{name} is not in crypttab, so where its key comes from cannot be told")
    _device, source, text = entry
    options = dict(option.partition("=")[::2] for option in text.split(","))
    if kind == "PLAIN":
        cipher = cipher or options.get("cipher")
        if bits is None and options.get("size", "").isdigit():
            bits = int(options["size"])
    if "keyscript" in options:
        return key("unknown", UNKNOWN, f"its key comes from the script {options['keyscript']}")
    for option, token in (("tpm2-device", "tpm2"), ("fido2-device", "token"), ("pkcs11-uri", "token")):
        if option in options:
            return key(token, GOOD, f"unlocked by {option}")
    if source in _RANDOM:
        if kind != "PLAIN":
            return key("unknown", UNKNOWN, f"crypttab says {source}, but the open mapping is {kind}")
        return key("memory", GOOD, "a random key that exists in memory only")
    if source in ("", "none", "-"):
        default = os.path.join(roots.etc, "cryptsetup-keys.d", name + ".key")
        if not os.path.exists(default):
            return key("passphrase", GOOD, "asked for when the volume is opened")
        source = default
    if ":" in source or not source.startswith("/"):
        return key("unknown", UNKNOWN, f"its key is {source}, which is not a local file")
    return _key_file(source, name, cipher, bits, roots, depth)


def _fscrypt(path: str, roots: Roots, look: _Look) -> Key | None:
    directory = path
    # What does not exist yet will have the policy of the directory that it is made in.
    while not os.path.isdir(directory) and directory != "/":
        directory = os.path.dirname(directory)
    try:
        policy = roots.fscrypt(directory)
    except OSError as error:
        look.unknown(f"whether {directory} has an fscrypt policy: {error.strerror}")
        return None
    if policy is None:
        return None
    mode = _FSCRYPT_MODES.get(policy[1], "mode %d" % policy[1])
    look.add(directory, "fscrypt", "", "policy version %d" % policy[0])
    return Key("unknown", UNKNOWN, "who unlocks the fscrypt key cannot be told", f"fscrypt {directory}", mode)


def describe(path: str, roots: Roots | None = None, depth: int = 0) -> Storage:
    """What path (which need not exist) is stored on. roots: tests only; depth: how many files deep we are already."""
    roots = roots or Roots()
    storage = Storage(path)
    if depth > 3:
        storage.problems.append("too many files behind one another")
        return storage
    real = os.path.realpath(path)
    try:
        mount = mount_of(real, mounts(roots), roots.mount_id(real))
    except OSError as error:
        storage.problems.append(f"mount table: {error.strerror}")
        return storage
    if mount is None:
        storage.problems.append("no mount above it is to be seen")
        return storage
    storage.device, storage.source, storage.fstype = mount.device, mount.source, mount.fstype
    storage.mountpoint, storage.options = mount.point, mount.options
    look = _Look(roots, depth)
    key: Key | None = None
    fstype = mount.fstype
    kind = _ELSEWHERE.get(fstype, "")
    if kind:
        look.add(mount.source, f"{kind} file system", "", fstype)
        look.problems.append(f"{fstype} is a {kind} file system, not one on a local block device")
        storage.encrypted, storage.local = False, kind != "network"
    elif fstype == "zfs":
        key = look.zfs(mount.source)
    elif fstype == "btrfs":
        key = look.btrfs(mount.source)
    elif mount.device.startswith("0:"):
        look.add(mount.source, "file system", "", fstype)
        look.unknown(f"{fstype} has no block device that can be seen")
    else:
        key = look.device(mount.device)
    if not kind and (key is None or key.status != GOOD):
        native = _fscrypt(real, roots, look)
        key = native if key is None else _best(key, native)
    storage.chain, storage.problems = look.chain, look.problems
    if not kind:
        storage.local = look.local
        storage.encrypted = True if key else (None if look.cannot_tell else False)
        if storage.encrypted is False:
            storage.problems.append(_CLEAR)
    if key:
        storage.key, storage.by, storage.cipher = key, key.layer, key.cipher
        storage.key_size_bits, storage.key_kind = key.size_bits, key.kind
    return storage
