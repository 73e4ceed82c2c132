# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the test bed needs from the machine it runs on: commands, cache, locks, KVM or TCG."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import platform
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

PACKAGES = {
    "qemu-system-x86_64": "qemu-system-x86",
    "qemu-img": "qemu-utils",
    "mmdebstrap": "mmdebstrap",
    "mke2fs": "e2fsprogs",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "setpriv": "util-linux",
    "tar": "tar",
}
TPM_PACKAGE = "swtpm"
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
KVM_PROBE_SECONDS = 15


class BedError(Exception):
    """Ends the command with one message."""


def system_path() -> None:
    """mke2fs is in sbin, which a user's PATH lacks on Debian."""
    os.environ["PATH"] = os.environ.get("PATH", "") + ":/usr/local/sbin:/usr/sbin:/sbin"


def missing_packages() -> dict[str, list[str]]:
    """Debian package -> the commands of it that are missing."""
    missing: dict[str, list[str]] = {}
    for command, package in PACKAGES.items():
        if shutil.which(command) is None:
            missing.setdefault(package, []).append(command)
    if not Path(KEYRING).exists():
        missing["debian-archive-keyring"] = [KEYRING]
    if os.geteuid() != 0 and shutil.which("newuidmap") is None:
        missing["uidmap"] = ["newuidmap"]
    return missing


def prereq_message(missing: dict[str, list[str]], root: bool) -> str:
    lines = [f"missing: {', '.join(items)} (package {package})" for package, items in sorted(missing.items())]
    sudo = "" if root else "sudo "
    lines.append(f"install with: {sudo}apt-get install -y --no-install-recommends {' '.join(sorted(missing))}")
    return "\n".join(lines)


def check_prereq() -> None:
    missing = missing_packages()
    if missing:
        raise BedError(prereq_message(missing, os.geteuid() == 0))


def check_tpm() -> None:
    """Only guests that get a TPM need its emulator."""
    if shutil.which("swtpm") is None:
        raise BedError(prereq_message({TPM_PACKAGE: ["swtpm"]}, os.geteuid() == 0))


def cache_dir() -> Path:
    root = os.environ.get("LLMHOST_CACHE") or os.path.expanduser("~/.cache/llmhost")
    path = Path(root).absolute() / "testbed"
    for part in ("images", "instances", "locks"):
        (path / part).mkdir(parents=True, exist_ok=True)
    return path


@contextlib.contextmanager
def lock(name: str, wait: bool = True) -> Iterator[bool]:
    """Yields False where the lock is taken and `wait` is off. A killed holder frees it."""
    with open(cache_dir() / "locks" / name, "w", encoding="ascii") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        yield True


def digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]


def start_time(pid: int) -> str | None:
    """Start time of a process in clock ticks: with the pid it names one process for ever."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] == "Z" else fields[19]


def end_process(pid: int, started: str | None) -> None:
    """SIGKILL, and wait until it is gone."""
    while started is not None and start_time(pid) == started:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
        time.sleep(0.02)


def qemu_version() -> str:
    return subprocess.run(
        ["qemu-system-x86_64", "--version"], check=True, capture_output=True, text=True
    ).stdout.splitlines()[0]


def cpu_identity() -> str:
    """A KVM snapshot only loads where the CPU offers the same features."""
    keep = ("model name", "flags")
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n")[0].splitlines()
    return "\n".join(line for line in lines if line.startswith(keep))


def accelerator(kernel: Path, initrd: Path) -> str:
    """`kvm` where it really boots this kernel into user space, else `tcg`; the answer is kept per machine."""
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return "tcg"
    key = digest([qemu_version(), platform.release(), cpu_identity(), kernel.stat().st_size])
    memory = cache_dir() / "accel.json"
    with lock("accel"):
        try:
            known = json.loads(memory.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            known = {}
        if key not in known:
            known[key] = "kvm" if kvm_boots(kernel, initrd) else "tcg"
            temp = memory.with_suffix(".new")
            temp.write_text(json.dumps(known), encoding="utf-8")
            temp.rename(memory)
    return str(known[key])


def kvm_boots(kernel: Path, initrd: Path) -> bool:
    command = [
        "setpriv", "--pdeathsig", "KILL", "qemu-system-x86_64", "-accel", "kvm", "-cpu", "max", "-m", "512",
        "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-serial", "stdio",
        "-kernel", str(kernel), "-initrd", str(initrd), "-append", "console=ttyS0 panic=-1",
    ]  # fmt: skip
    try:
        run = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=KVM_PROBE_SECONDS, check=False
        )
        console = run.stdout
    except subprocess.TimeoutExpired as hang:
        console = hang.stdout or b""
    return b"Loading, please wait" in console
