# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Trees of KV blocks made by code, tiers to go with them, and places where a test may mount what it likes."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
import time
import traceback
from pathlib import Path

from ansible_collections.llmhost.hardening.plugins.module_utils.kv.caps import CappedWalk
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.datamap import STATE_ROOT
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.mapkeys import KEYS
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.stores import STORES
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.walk import Policy

VLLM = STORES["vllm_fs"]
SLOTS = STORES["llamacpp_slots"]
NAMESPACE = "Qwen_Qwen3-8B_0123456789ab"
NOBODY = 65534
NS = 10**9
# Names that anybody who may write there can leave in a tree.
HOSTILE = (
    b"new\nline",
    b"\xff\xfe invalid",
    b"x" * 255,
    b"\x1b[2J\x1b]0;owned\x07",
    "\u202egnp.bin".encode(),
    b"-rf",
    b"$(reboot)",
    b" ",
)
# A namespace that the store knows although its name is hostile: vLLM puts the operator's model name in.
HOSTILE_NAMESPACE = os.fsdecode(b"\xff\x1b[2J_0123456789ab")
POLICY = Policy(retention=3600, tmp_grace=600, dir_grace=600)


def digest(number: int) -> str:
    return hashlib.sha256(b"%d" % number).hexdigest()


def leaf_of(name: str) -> str:
    return f"{name[:3]}/{name[3:5]}_g0"


class Tree:
    """A tier's root and what a test puts into it; ages are seconds before `now`, paths are relative to the root."""

    def __init__(self, root: Path, now: int | None = None) -> None:
        self.root, self.now = root, int(time.time()) if now is None else now
        root.mkdir(mode=0o700, parents=True, exist_ok=True)

    def path(self, relative: str) -> Path:
        return self.root / relative

    def put(self, relative: str, age: float = 0, size: int = 16, data: bytes | None = None) -> str:
        path = self.path(relative)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.write_bytes(b"k" * size if data is None else data)
        path.chmod(0o600)
        self.age(relative, age)
        return relative

    def age(self, relative: str, seconds: float) -> None:
        mtime = self.now * NS - round(seconds * NS)
        os.utime(self.path(relative), ns=(mtime, mtime), follow_symlinks=False)

    def block(self, number: int, age: float = 0, size: int = 16, namespace: str = NAMESPACE) -> str:
        name = digest(number)
        return self.put(f"{namespace}_r0/{leaf_of(name)}/{name}.bin", age, size)

    def temp(self, number: int, age: float = 0) -> str:
        name = digest(number)
        return self.put(f"{NAMESPACE}_r0/{leaf_of(name)}/{name}.bin_{number}.tmp", age)

    def probe(self, age: float = 0) -> str:
        return self.put(f"{NAMESPACE}/.o_direct_probe_7.tmp", age)

    def config(self, age: float = 0) -> str:
        return self.put(f"{NAMESPACE}/config.json", age, data=b"{}")

    def slot(self, name: str, age: float = 0, data: bytes = b"qsgg tokens") -> str:
        return self.put(name, age, data=data)

    def directory(self, relative: str, age: float = 0) -> str:
        self.path(relative).mkdir(mode=0o700, parents=True, exist_ok=True)
        self.age(relative, age)
        return relative

    def age_directories(self, seconds: float) -> None:
        for directory, _names, _files in os.walk(self.root, topdown=False):
            self.age(os.path.relpath(directory, self.root), seconds)

    def give(self, uid: int) -> None:
        for directory, names, files in os.walk(self.root):
            for name in [".", *names, *files]:
                os.chown(os.path.join(directory, name), uid, uid, follow_symlinks=False)

    def files(self) -> set[str]:
        """Everything that is not a directory."""
        return {
            os.path.relpath(os.path.join(directory, name), self.root)
            for directory, names, files in os.walk(self.root)
            for name in files + [one for one in names if os.path.islink(os.path.join(directory, one))]
        }

    def dirs(self) -> set[str]:
        return {
            os.path.relpath(os.path.join(directory, name), self.root)
            for directory, names, _files in os.walk(self.root)
            for name in names
            if not os.path.islink(os.path.join(directory, name))
        }


def full_tree(root: Path, now: int | None = None) -> tuple[Tree, set[str], set[str]]:
    """A tier with everything in it, under POLICY: the tree, what has ended, and what must stay."""
    tree = Tree(root, now)
    ended = {tree.block(number, 3600 + 500 * number) for number in range(5)}
    ended |= {tree.block(20, 9000, namespace=HOSTILE_NAMESPACE), tree.temp(30, 700), tree.probe(601)}
    stays = {tree.block(number, 3599 - 500 * (number - 40)) for number in range(40, 45)}
    stays |= {tree.temp(50, 599), tree.config(10**7)}
    name = digest(60)
    leaf = f"{NAMESPACE}_r0/{leaf_of(name)}"
    for wrong in (
        *(f"{leaf}/{os.fsdecode(hostile)}" for hostile in HOSTILE),
        f"{leaf}/{name}.bin\n",
        f"{leaf}/{name.upper()}.bin",
        f"{leaf}/{name[:31]}.bin",
        f"{leaf}/{name}0.bin",
        f"{leaf}/{name}.bin.bak",
        f"{leaf}/{name}.safetensors",
        f"{leaf}/{name}.bin_x.tmp",
        f"{leaf}/config.json",
        f"{leaf}/.o_direct_probe_7.tmp",
        f"{leaf}/deeper/{name}.bin",
        f"{NAMESPACE}_r0/{name}.bin",
        f"{NAMESPACE}_r0/abc/{name}.bin",
        f"{NAMESPACE}_r0/ABC/de_g0/{name}.bin",
        f"{NAMESPACE}_r0/abc/de_g\u0661/{name}.bin",
        f"{NAMESPACE}_rx/{leaf_of(name)}/{name}.bin",
        f"{NAMESPACE}/{name}.bin",
        f"new\nline_0123456789ab_r0/{leaf_of(name)}/{name}.bin",
        f"lost+found/{name}.bin",
        f"{name}.bin",
        "CACHEDIR.TAG",
        "README",
    ):
        stays.add(tree.put(os.path.normpath(wrong), 10**7))
    return tree, ended, stays


def tier_for(path: Path, **changes) -> dict:
    """A complete tier of the data map; paths as the map would not take them, so it is not validated."""
    tier = {key: default for key, (_parse, default) in KEYS.items()}
    tier.update(name="chat", store="vllm_fs", path=str(path), owner=0, services=["vllm.service"], retention_minutes=60)
    tier.update(tmp_grace_minutes=10, dir_grace_minutes=10, **changes)
    return tier


def make_state(root: Path, tier: dict) -> Path:
    """The tier's state directory below root, as the role makes it."""
    path = root / tier["name"]
    path.mkdir(mode=0o700, parents=True)
    root.chmod(0o755)
    os.chown(path, tier["owner"], tier["owner"])
    return path


def remember_in(monkeypatch, root: Path, function) -> None:
    """Passes by this function remember what they did below root, unless told otherwise."""
    defaults = function.__defaults__
    at = defaults.index(STATE_ROOT)
    monkeypatch.setattr(function, "__defaults__", (*defaults[:at], str(root), *defaults[at + 1 :]))


def walked(tree: Tree, policy: Policy = POLICY, store=VLLM, **options):
    """One deleting walk over the tree by its own time."""
    fd = os.open(tree.root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        options = {"owner_uid": os.getuid(), "now": float(tree.now), "delete": True, **options}
        return CappedWalk(fd, store, policy=policy, **options).run()
    finally:
        os.close(fd)


def strings(value) -> list[str]:
    """Every text in a JSON value, keys too."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [text for key, one in value.items() for text in strings(key) + strings(one)]
    return [text for one in value for text in strings(one)] if isinstance(value, (list, tuple)) else []


@contextlib.contextmanager
def public_directory():
    """A directory that any account can get into (pytest's own are closed to all but root)."""
    path = Path(tempfile.mkdtemp(prefix="llmhost-", dir="/var/tmp"))
    path.chmod(0o755)
    try:
        yield path
    finally:
        shutil.rmtree(path)


def mount(*arguments) -> None:
    subprocess.run(["mount", *map(str, arguments)], check=True)


def in_child(work) -> int:
    """Wait status of a forked child that does work(); what it raises goes to the test's output."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return os.waitpid(child, 0)[1]


def with_own_mounts(work):
    """Result (a JSON value) of work() in a child with a mount namespace of its own: no mount outlives it."""
    reader, writer = os.pipe()

    def inside() -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(0x00020000):
            raise OSError(ctypes.get_errno(), "unshare: these tests need root and a mount namespace")
        mount("--make-rprivate", "/")
        with os.fdopen(writer, "w") as pipe:
            json.dump(work(), pipe)

    status = in_child(inside)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    assert status == 0, "the work in a mount namespace failed, see the output"
    return json.loads(text)
