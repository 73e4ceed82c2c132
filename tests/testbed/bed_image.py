# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The cached images: a base disk made by mmdebstrap, and over it the snapshot of a booted, settled guest."""

from __future__ import annotations

import io
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bed_guest
import bed_time
from bed_guest import Guest
from bed_host import BedError, accelerator, cache_dir, cpu_identity, digest, lock, qemu_version

RELEASES = ("bookworm", "trixie")
DISK = "10G"
INSTALLED = (
    "systemd systemd-sysv dbus udev python3 python3-apt cron sudo iproute2 e2fsprogs procps kmod "
    "openssh-server chrony linux-image-cloud-amd64 initramfs-tools"
).split()
# what a play installs: the guest has no way out, so the packages wait in a local repository
OFFERED = {
    "bookworm": (
        "acl cryptsetup-bin xfsprogs lvm2 mdadm fdisk tpm2-tools crun nginx libnginx-mod-http-lua python3-boto3"
    ).split()
}
OFFERED["trixie"] = [*OFFERED["bookworm"], "systemd-cryptsetup"]

# before the kernel is installed: a small initramfs, made once
EARLY_FILES = {
    "etc/initramfs-tools/conf.d/testbed": "MODULES=list\nCOMPRESS=zstd\nRESUME=none\n",
    "etc/initramfs-tools/modules": "virtio_pci\nvirtio_blk\next4\n",
}
FILES = {
    "etc/hostname": "testbed\n",
    "etc/hosts": "127.0.0.1 localhost\n127.0.1.1 testbed\n",
    "etc/fstab": f"UUID={bed_guest.ROOT_UUID} / ext4 errors=remount-ro 0 1\n",
    "etc/default/locale": "LANG=C.UTF-8\n",
    "etc/systemd/network/10-testbed.network": (
        "[Match]\nType=ether\n\n[Network]\nAddress=10.0.2.15/24\nLinkLocalAddressing=no\nIPv6AcceptRA=no\n"
    ),
    "etc/chrony/chrony.conf": (
        f"server 10.0.2.2 port {bed_time.PORT} iburst minpoll -2 maxpoll 0\n"
        "makestep 0.1 -1\nrtcsync\ndriftfile /var/lib/chrony/chrony.drift\n"
    ),
    # the guest boots the initramfs that QEMU hands it: a package's trigger would only burn minutes
    "etc/initramfs-tools/update-initramfs.conf": "update_initramfs=no\nbackup_initramfs=no\n",
    "etc/apt/sources.list": "deb [trusted=yes] file:/var/lib/testbed-repo ./\n",
}
OFFER = """set -eu
mkdir -p /var/lib/testbed-repo/partial
apt-get install -y --download-only -o Dir::Cache::archives=/var/lib/testbed-repo -o APT::Install-Recommends=true "$@"
cd /var/lib/testbed-repo
rm -rf partial lock
for deb in *.deb; do
  name=$(dpkg-deb -f "$deb" Package).deb
  mv "$deb" "$name"
  dpkg-deb -f "$name"
  sum=$(sha256sum "$name" | cut -d' ' -f1)
  printf 'Filename: ./%s\\nSize: %s\\nSHA256: %s\\n\\n' "$name" "$(stat -c %s "$name")" "$sum"
done >Packages
"""
FINISH = """set -eu
apt-get update
systemctl enable systemd-networkd
systemctl mask apt-daily.timer apt-daily-upgrade.timer e2scrub_all.timer e2scrub_reap.service
"""
SETTLE = f"systemctl is-system-running --wait && {bed_guest.WAIT_SYNC} && sync && echo 3 >/proc/sys/vm/drop_caches"
# what every play and every `up` runs is in the snapshot's page cache, the rest is not
WARM = "chronyc tracking; date; systemctl show -p Version; python3 -c 'import zipfile, subprocess, shutil, socket'"


@dataclass(frozen=True)
class Image:
    release: str
    path: Path
    accel: str
    ready: Path


def recipe(release: str) -> dict[str, Any]:
    """Everything that decides what the base disk holds."""
    return {
        "release": release,
        "disk": DISK,
        "uuid": bed_guest.ROOT_UUID,
        "installed": INSTALLED,
        "offered": OFFERED[release],
        "early": EARLY_FILES,
        "files": FILES,
        "scripts": [OFFER, FINISH],
    }


def snapshot_recipe(accel: str, qemu: str, cpu: str) -> dict[str, Any]:
    """What decides whether a snapshot loads: the machine, never the name or port of one guest."""
    command = bed_guest.qemu_command("", "", accel, 0, load=False)
    return {"command": command, "settle": [SETTLE, WARM], "qemu": qemu, "cpu": cpu if accel == "kvm" else ""}


def base_path(release: str) -> Path:
    return cache_dir() / "images" / f"{release}-{digest(recipe(release))}"


def image(release: str) -> Image:
    """The image of a release, built when the cache lacks it."""
    base = base_path(release)
    if not base.exists():
        with lock(f"build-{release}"):
            if not base.exists():
                build_base(release, base)
                prune(release, base)
    accel = accelerator(base / "vmlinuz", base / "initrd.img")
    key = digest(snapshot_recipe(accel, qemu_version(), cpu_identity()))
    found = Image(release, base, accel, base / f"ready-{accel}-{key}.qcow2")
    if not found.ready.exists():
        with lock(f"build-{release}"):
            if not found.ready.exists():
                build_snapshot(found)
    return found


def say(text: str) -> None:
    print(f"testbed: {text}", file=sys.stderr, flush=True)


def write_tar(path: Path, files: dict[str, str]) -> None:
    with tarfile.open(path, "w") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(text.encode()), 0o644
            if name.startswith("root/.ssh/"):
                folder = tarfile.TarInfo("root/.ssh")
                folder.type, folder.mode = tarfile.DIRTYPE, 0o700
                archive.addfile(folder)
                member.mode = 0o600
            archive.addfile(member, io.BytesIO(text.encode()))


def mmdebstrap_command(release: str) -> list[str]:
    offered = " ".join(OFFERED[release])
    return [
        "setpriv", "--pdeathsig", "TERM", "mmdebstrap", "--variant=minbase", "--quiet", "--format=tar",
        "--skip=cleanup/apt/lists", f"--include={','.join(INSTALLED)}",
        "--essential-hook=tar-in early.tar /",
        "--customize-hook=tar-in scripts.tar /",
        f'--customize-hook=chroot "$1" sh /testbed-offer {offered}',
        "--customize-hook=tar-in files.tar /",
        '--customize-hook=chroot "$1" sh /testbed-finish',
        '--customize-hook=rm "$1/testbed-offer" "$1/testbed-finish"',
        release, "rootfs.tar",
    ]  # fmt: skip


# runs as root, real or of a user namespace, so that the disk's files get their owners
DISK_SCRIPT = f"""set -eu
mkdir root
trap 'rm -rf root' EXIT
tar -C root -xpf rootfs.tar --numeric-owner --xattrs --xattrs-include='*'
cp root/boot/vmlinuz-* vmlinuz
cp root/boot/initrd.img-* initrd.img
truncate -s {DISK} base.raw
mke2fs -q -t ext4 -U {bed_guest.ROOT_UUID} -E lazy_itable_init=0,lazy_journal_init=0 -d root base.raw
"""


def build_base(release: str, target: Path) -> None:
    began = time.monotonic()
    images = cache_dir() / "images"
    for left in images.glob(f".build-{release}-*"):
        shutil.rmtree(left)
    work = images / f".build-{release}-{os.getpid()}"
    work.mkdir()
    try:
        say(f"{release}: base disk (mmdebstrap)")
        call(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "testbed", "-f", "id_ed25519"], work)
        public = (work / "id_ed25519.pub").read_text(encoding="ascii")
        write_tar(work / "early.tar", EARLY_FILES)
        write_tar(work / "scripts.tar", {"testbed-offer": OFFER, "testbed-finish": FINISH})
        write_tar(work / "files.tar", {**FILES, "root/.ssh/authorized_keys": public})
        call(mmdebstrap_command(release), work)
        as_root = [] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--map-auto"]
        call([*as_root, "sh", "-c", DISK_SCRIPT], work)
        call(["qemu-img", "convert", "-f", "raw", "-O", "qcow2", "base.raw", "base.qcow2"], work)
        for name in ("base.raw", "rootfs.tar", "early.tar", "scripts.tar", "files.tar"):
            (work / name).unlink()
        (work / "base.qcow2").chmod(0o444)
        work.rename(target)
    finally:
        if work.exists():
            shutil.rmtree(work)
    say(f"{release}: base disk after {time.monotonic() - began:.0f} s")


def build_snapshot(found: Image) -> None:
    """Boot once, settle, save; then shut down cleanly, so that a cold boot finds a clean disk."""
    began = time.monotonic()
    say(f"{found.release}: boot and snapshot ({found.accel})")
    guest = Guest(f"_build-{found.release}")
    try:
        guest.create(found.release, found.path, found.accel, ready=None)
        guest.start(load=False, tied=True)
        guest.wait_ssh()
        guest.run(SETTLE, timeout=bed_guest.BOOT_SECONDS)
        for _login in range(2):
            guest.run(WARM)
            guest.control_exit()
        with guest.monitor() as hmp:
            hmp(f"savevm {bed_guest.SNAPSHOT}")
        guest.power_off()
        for old in found.path.glob("ready-*.qcow2"):
            old.unlink()
        (guest.path / "disk.qcow2").rename(found.ready)
    finally:
        guest.remove()
        bed_guest.stop_idle_time_server()
    say(f"{found.release}: snapshot after {time.monotonic() - began:.0f} s")


def prune(release: str, keep: Path) -> None:
    """Images of older recipes go, unless a guest still runs on one."""
    used = {guest.meta.get("image") for guest in bed_guest.all_guests()}
    for path in (cache_dir() / "images").glob(f"{release}-*"):
        if path != keep and str(path) not in used:
            shutil.rmtree(path)


def call(command: list[str], work: Path) -> None:
    """Output only on failure; the child dies when this process is told to end."""
    # a killed mmdebstrap leaves its tree: in the work folder that goes too, but a subordinate id may not get in there
    env = {**os.environ, "TMPDIR": str(work)} if os.geteuid() == 0 else None
    process = subprocess.Popen(
        command, cwd=work, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        start_new_session=True,
    )  # fmt: skip
    try:
        output, _errors = process.communicate()
    except BaseException:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait()
        raise
    if process.returncode != 0:
        tail = output.decode(errors="replace")[-3000:]
        raise BedError(f"{command[0]} failed with {process.returncode}:\n{tail}")
