# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""One disposable guest: a QEMU process, its monitor, its SSH port, its own disk."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import bed_time
from bed_host import BedError, cache_dir, end_process, lock, start_time

ROOT_UUID = "6c6c6d68-6f73-4bed-8000-000000000001"
SNAPSHOT = "ready"
MEMORY = "2048"
CPUS = "2"
# modules that only cost time here; a guest without KVM takes its emulated TSC for unstable and then reads slow HPET
APPEND = (
    f"root=UUID={ROOT_UUID} ro console=ttyS0 quiet mitigations=off panic=10 "
    "modprobe.blacklist=ata_piix,ata_generic,kvm_amd,kvm_intel,powernow_k8"
)
APPEND_TCG = " tsc=reliable"
SOCKET_PATH_MAX = 107 - 17  # ssh appends a random suffix while it binds
BOOT_SECONDS = 600
WAIT_SYNC = "chronyc waitsync 300 0.2 0 0.1 >/dev/null"


def qemu_command(name: str, image: str, accel: str, port: int, load: bool) -> list[str]:
    """Runs inside the guest's folder, so socket and disk names stay short and relative."""
    emulated = accel == "tcg"
    return [
        "qemu-system-x86_64", "-name", name, "-machine", "pc",
        "-accel", "tcg,thread=multi" if emulated else accel, "-cpu", "max", "-m", MEMORY, "-smp", CPUS,
        "-nodefaults", "-no-user-config", "-display", "none", "-rtc", "base=utc,clock=host",
        "-kernel", f"{image}/vmlinuz", "-initrd", f"{image}/initrd.img",
        "-append", APPEND + (APPEND_TCG if emulated else ""),
        "-drive", "id=root,if=none,file=disk.qcow2,format=qcow2,discard=unmap", "-device", "virtio-blk-pci,drive=root",
        "-netdev", f"user,id=net,ipv6=off,hostfwd=tcp:127.0.0.1:{port}-10.0.2.15:22",
        "-device", "virtio-net-pci,netdev=net,romfile=", "-device", "virtio-rng-pci",
        "-serial", "file:console.log", "-qmp", "unix:qmp.sock,server=on,wait=off",
        *(["-loadvm", SNAPSHOT] if load else []),
    ]  # fmt: skip


def disk_arguments(number: int) -> tuple[str, str]:
    """Values of -drive and -device for one more disk; its by-id name is virtio-bed-NUMBER."""
    drive = f"if=none,id=data{number},file=data{number}.qcow2,format=qcow2,discard=unmap"
    return drive, f"virtio-blk-pci,drive=data{number},id=disk{number},serial=bed-{number}"


TPM_STATE = "tpm"
TPM_DEVICE = (
    "-chardev socket,id=tpm,path=tpm.sock -tpmdev emulator,id=tpm0,chardev=tpm -device tpm-crb,tpmdev=tpm0".split()
)


def ssh_options(key: str, control: str | None) -> list[str]:
    options = {
        "IdentitiesOnly": "yes",
        "StrictHostKeyChecking": "no",
        "UserKnownHostsFile": "/dev/null",
        "LogLevel": "ERROR",
        "BatchMode": "yes",
        "ConnectTimeout": "20",
        "ServerAliveInterval": "10",
        "ServerAliveCountMax": "6",
        "ControlMaster": "auto" if control else "no",
        "ControlPersist": "60s",
        "ControlPath": control or "none",
    }
    return ["-F", "/dev/null", "-i", key, *(f"-o{name}={value}" for name, value in options.items())]


def inventory(guests: list[Guest], group: str) -> str:
    """Ansible YAML; every scalar is JSON, which YAML reads."""
    lines = ["all:", "  children:", f"    {group}:", "      hosts:"]
    for guest in guests:
        lines.append(f"        {guest.name}:")
        variables = {
            "ansible_host": "127.0.0.1",
            "ansible_port": guest.port,
            "ansible_user": "root",
            "ansible_ssh_private_key_file": guest.key,
            "ansible_ssh_args": shlex.join(ssh_options(guest.key, guest.control)),
            "ansible_ssh_pipelining": True,
            "ansible_python_interpreter": "/usr/bin/python3",
        }
        lines += [f"          {name}: {json.dumps(value)}" for name, value in variables.items()]
    return "\n".join(lines) + "\n"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Guest:
    def __init__(self, name: str) -> None:
        self.name = name
        self.path = cache_dir() / "instances" / name
        self.meta: dict[str, Any] = {}
        with contextlib.suppress(OSError, ValueError):
            self.meta = json.loads((self.path / "instance.json").read_text(encoding="utf-8"))

    @property
    def port(self) -> int:
        return int(self.meta["port"])

    @property
    def key(self) -> str:
        return str(Path(self.meta["image"]) / "id_ed25519")

    @property
    def control(self) -> str | None:
        path = str(self.path / "ssh.sock")
        return path if len(path) <= SOCKET_PATH_MAX else None

    @property
    def running(self) -> bool:
        started = self.meta.get("started")
        return started is not None and start_time(self.meta["pid"]) == started

    def describe(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "release": self.meta["release"],
            "host": "127.0.0.1",
            "port": self.port,
            "user": "root",
            "ssh_key": self.key,
            "pid": self.meta["pid"] if self.running else None,
            "accel": self.meta["accel"],
            "monitor": str(self.path / "qmp.sock"),
            "console": str(self.path / "console.log"),
        }

    def need(self, running: bool = True) -> Guest:
        if not self.meta:
            raise BedError(f"no guest {self.name}: bed.py up {self.name}")
        if running and not self.running:
            raise BedError(f"guest {self.name} is not running: bed.py up {self.name} --cold boots its disk")
        return self

    def create(
        self,
        release: str,
        image: Path,
        accel: str,
        ready: Path | None,
        disks: Sequence[str] = (),
        tpm: bool = False,
    ) -> None:
        """A fresh folder: a copy of the snapshot's small disk, or for its making an empty one, over the shared base.

        disks: sizes of more disks, empty ones.
        """
        self.end()
        if self.path.exists():
            shutil.rmtree(self.path)
        self.path.mkdir(mode=0o700)
        (self.path / "base.qcow2").symlink_to(image / "base.qcow2")
        if ready:
            copy = ["cp", "--reflink=auto", "--sparse=auto", str(ready), "disk.qcow2"]
        else:
            copy = ["qemu-img", "create", "-q", "-f", "qcow2", "-b", "base.qcow2", "-F", "qcow2", "disk.qcow2"]
        subprocess.run(copy, check=True, cwd=self.path)
        for number, size in enumerate(disks):
            blank = ["qemu-img", "create", "-q", "-f", "qcow2", f"data{number}.qcow2", size]
            subprocess.run(blank, check=True, cwd=self.path)
        self.meta = {"release": release, "image": str(image), "accel": accel, "disks": list(disks), "tpm": tpm}
        self.save()

    def save(self) -> None:
        temp = self.path / "instance.new"
        temp.write_text(json.dumps(self.meta), encoding="utf-8")
        temp.rename(self.path / "instance.json")

    def start(self, load: bool, tied: bool = False) -> None:
        """`tied`: the guest dies with this process. The port of an earlier start is kept, inventories stay right."""
        with lock("time"):
            start_time_server()
        self.control_exit()
        tie = ["setpriv", "--pdeathsig", "KILL"] if tied else []
        for _attempt in range(5):
            port = self.meta.get("port") or free_port()
            command = tie + qemu_command(self.name, self.meta["image"], self.meta["accel"], port, load)
            if not load:
                for number in self.disks():
                    drive, device = disk_arguments(number)
                    command += ["-drive", drive, "-device", device]
            command += self.start_tpm()
            with open(self.path / "qemu.log", "wb") as log:
                process = subprocess.Popen(
                    command, cwd=self.path, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
                )
            self.meta.update(port=port, pid=process.pid, started=start_time(process.pid))
            self.save()
            if self.answers_monitor(process):
                if load:
                    self.plug_disks()
                return
            log_text = (self.path / "qemu.log").read_text(encoding="utf-8", errors="replace")
            if "host forwarding" not in log_text:
                raise BedError(f"QEMU ended at once for {self.name}: {log_text.strip()}")
            self.meta.pop("port")
        raise BedError(f"no free loopback port for {self.name}")

    def start_tpm(self) -> list[str]:
        """Arguments of QEMU for the guest's TPM; its state outlives the guest, and without its folder it is another."""
        if not self.meta.get("tpm"):
            return []
        state = self.path / TPM_STATE
        state.mkdir(mode=0o700, exist_ok=True)
        # Ends with QEMU's connection. It changes to / before it opens its state, so that one name is absolute.
        command = ["swtpm", "socket", "--tpm2", "--tpmstate", f"dir={state}", "--ctrl", "type=unixio,path=tpm.sock",
                   "--terminate", "--daemon"]  # fmt: skip
        done = subprocess.run(command, cwd=self.path, capture_output=True, text=True, check=False)
        if done.returncode:
            raise BedError(f"swtpm for {self.name}: {done.stderr.strip()}")
        return TPM_DEVICE

    def disks(self) -> list[int]:
        """Numbers of the disks that are there; a test takes one away by renaming its file while the guest is down."""
        count = len(self.meta.get("disks", []))
        return [number for number in range(count) if (self.path / f"data{number}.qcow2").exists()]

    def plug_disks(self) -> None:
        """Into the running guest: the snapshot that it was loaded from knows none of them."""
        with self.monitor() as hmp:
            for number in self.disks():
                drive, device = disk_arguments(number)
                hmp(f"drive_add 0 {drive}")
                hmp(f"device_add {device}")

    def answers_monitor(self, process: subprocess.Popen[bytes]) -> bool:
        while process.poll() is None:
            try:
                with self.monitor() as hmp:
                    hmp("info status")
                return True
            except OSError:
                time.sleep(0.02)
        return False

    @contextlib.contextmanager
    def monitor(self) -> Iterator[Any]:
        """A function that runs one human monitor command; an answer is an error text except for `info`."""
        folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with (
                socket.socket(socket.AF_UNIX) as connection,
                contextlib.closing(connection.makefile("rw", encoding="utf-8")) as stream,
            ):
                connection.settimeout(120)
                connection.connect(f"/proc/self/fd/{folder}/qmp.sock")

                def command(execute: str, **arguments: str) -> Any:
                    stream.write(json.dumps({"execute": execute, "arguments": arguments}) + "\n")
                    stream.flush()
                    for line in stream:
                        reply = json.loads(line)
                        if "return" in reply:
                            return reply["return"]
                        if "error" in reply:
                            raise BedError(f"QEMU monitor of {self.name}: {reply['error']['desc']}")
                    raise ConnectionError("QEMU closed its monitor")

                def hmp(line: str) -> str:
                    text = str(command("human-monitor-command", **{"command-line": line})).strip()
                    if text not in ("", "OK") and not line.startswith("info "):
                        raise BedError(f"QEMU monitor of {self.name}: {line}: {text}")
                    return text

                if "QMP" not in json.loads(stream.readline() or "{}"):
                    raise ConnectionError("no greeting from the monitor")
                command("qmp_capabilities")
                yield hmp
        finally:
            os.close(folder)

    def ssh_command(self, *command: str) -> list[str]:
        return ["ssh", *ssh_options(self.key, self.control), "-p", str(self.port), "root@127.0.0.1", *command]

    def run(self, script: str, timeout: float = 120) -> str:
        """Output of a shell script on the guest; its failure ends the command."""
        try:
            done = subprocess.run(
                self.ssh_command(script), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout,
                check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise BedError(f"{self.name}: no answer within {timeout:.0f} s to: {script}") from None
        if done.returncode != 0:
            raise BedError(f"{self.name}: {script}: rc {done.returncode}: {done.stdout}{done.stderr}".strip())
        return done.stdout

    def banner(self, timeout: float) -> bool:
        """True where sshd itself answers; QEMU's forwarder accepts long before."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=timeout) as connection:
                return connection.recv(4) == b"SSH-"
        except OSError:
            return False

    def wait_ssh(self, seconds: float = BOOT_SECONDS) -> None:
        end = time.monotonic() + seconds
        patience = 1.0
        while not self.banner(patience):
            # each try costs a slow guest one more sshd: impatience would keep it from ever answering
            patience = min(patience * 1.5, 30)
            if not self.running:
                log_text = (self.path / "qemu.log").read_text(encoding="utf-8", errors="replace")
                raise BedError(f"guest {self.name} ended: {log_text.strip() or 'see console.log'}")
            if time.monotonic() > end:
                raise BedError(f"guest {self.name}: no SSH within {seconds:.0f} s, see {self.path}/console.log")
            time.sleep(0.05)

    def boot_id(self) -> str:
        return self.run("cat /proc/sys/kernel/random/boot_id", timeout=30).strip()

    def control_exit(self) -> None:
        """An SSH master of an earlier state of the guest would hang."""
        if self.control and (self.path / "ssh.sock").exists():
            with contextlib.suppress(subprocess.TimeoutExpired):
                subprocess.run(
                    ["ssh", "-F", "/dev/null", "-O", "exit", f"-oControlPath={self.control}", "root@127.0.0.1"],
                    capture_output=True, timeout=5, check=False,
                )  # fmt: skip
            (self.path / "ssh.sock").unlink(missing_ok=True)

    def reset(self) -> None:
        if self.disks():
            raise BedError(f"guest {self.name} has disks that its snapshot does not know: down and up instead")
        self.control_exit()
        with self.monitor() as hmp:
            hmp(f"loadvm {SNAPSHOT}")
        self.wait_ssh()

    def reboot(self) -> None:
        before = self.boot_id()
        # the shell may be gone before it can answer
        with contextlib.suppress(BedError):
            self.run("systemctl reboot", timeout=20)
        self.control_exit()
        end = time.monotonic() + BOOT_SECONDS
        while time.monotonic() < end:
            self.wait_ssh(end - time.monotonic())
            with contextlib.suppress(BedError):
                if self.boot_id() != before:
                    return
            self.control_exit()
            time.sleep(0.5)
        raise BedError(f"guest {self.name} did not come back within {BOOT_SECONDS} s, see {self.path}/console.log")

    def power_off(self) -> None:
        with contextlib.suppress(BedError):
            self.run("systemctl poweroff", timeout=20)
        end = time.monotonic() + BOOT_SECONDS
        while self.running:
            if time.monotonic() > end:
                raise BedError(f"guest {self.name} does not shut down, see {self.path}/console.log")
            time.sleep(0.05)

    def end(self) -> None:
        """Power loss."""
        self.control_exit()
        if self.running:
            end_process(self.meta["pid"], self.meta["started"])

    def remove(self) -> None:
        self.end()
        if self.path.exists():
            shutil.rmtree(self.path)


def all_guests() -> list[Guest]:
    return [Guest(path.name) for path in sorted((cache_dir() / "instances").iterdir()) if path.is_dir()]


def start_time_server() -> None:
    if bed_time.answers(bed_time.PORT):
        return
    process = subprocess.Popen(
        [sys.executable, "-I", bed_time.__file__, str(bed_time.PORT)], stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True, cwd="/",
    )  # fmt: skip
    end = time.monotonic() + 10
    while not bed_time.answers(bed_time.PORT):
        if process.poll() is not None or time.monotonic() > end:
            raise BedError(f"no time server on UDP 127.0.0.1:{bed_time.PORT}: is the port taken?")
        time.sleep(0.05)
    record = {"pid": process.pid, "started": start_time(process.pid)}
    (cache_dir() / "time.json").write_text(json.dumps(record), encoding="utf-8")


def stop_idle_time_server() -> None:
    with lock("time"):
        record = cache_dir() / "time.json"
        if record.exists() and not any(guest.running for guest in all_guests()):
            known = json.loads(record.read_text(encoding="utf-8"))
            end_process(known["pid"], known["started"])
            record.unlink()
