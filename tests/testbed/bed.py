#!/usr/bin/env python
# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Disposable Debian hosts with real dm-crypt, for molecule, the sandbox of `make harden` and benchmarks."""

from __future__ import annotations

import argparse
import json
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import bed_guest
import bed_image
from bed_guest import Guest
from bed_host import BedError, check_prereq, check_tpm, lock, missing_packages, prereq_message, system_path


def guest_name(text: str) -> str:
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,40}", text):
        raise argparse.ArgumentTypeError(f"{text!r}: a name is a-z, 0-9 and -")
    return text


def disk_size(text: str) -> str:
    if not re.fullmatch(r"[1-9][0-9]{0,4}[MG]", text):
        raise argparse.ArgumentTypeError(f"{text!r}: a size is a number and M or G")
    return text


def show(value: object) -> None:
    print(json.dumps(value, indent=2))


def cmd_prereq(_args: argparse.Namespace) -> int:
    missing = missing_packages()
    print(prereq_message(missing, root=True) if missing else "nothing is missing")
    return 1 if missing else 0


def cmd_build(args: argparse.Namespace) -> int:
    found = bed_image.image(args.release)
    show({"release": found.release, "path": str(found.path), "accel": found.accel, "ready": str(found.ready)})
    return 0


def cmd_up(args: argparse.Namespace) -> int:
    with lock(f"guest-{args.name}"):
        guest = Guest(args.name)
        if guest.running:
            raise BedError(f"guest {args.name} runs already: bed.py reset {args.name}, or bed.py down {args.name}")
        if args.tpm:
            check_tpm()
        try:
            if not (args.cold and guest.meta):
                found = bed_image.image(args.release)
                guest.create(found.release, found.path, found.accel, found.ready, args.disk, tpm=args.tpm)
            # The snapshot's machine has no TPM, and none can be plugged in.
            guest.start(load=not (args.cold or guest.meta.get("tpm")))
            guest.wait_ssh()
        except BaseException:
            guest.end()
            bed_guest.stop_idle_time_server()
            raise
    show(guest.describe())
    return 0


def cmd_reboot(args: argparse.Namespace) -> int:
    Guest(args.name).need().reboot()
    return 0


def cmd_reset(args: argparse.Namespace) -> int:
    Guest(args.name).need().reset()
    return 0


def cmd_kill(args: argparse.Namespace) -> int:
    with lock(f"guest-{args.name}"):
        Guest(args.name).need().end()
    bed_guest.stop_idle_time_server()
    return 0


def cmd_down(args: argparse.Namespace) -> int:
    if bool(args.name) == args.all:
        raise BedError("down takes names, or --all")
    names = args.name or [guest.name for guest in bed_guest.all_guests()]
    for name in names:
        building = name.startswith("_")
        # the guest of a living build is left alone, of a killed one it goes
        with lock(name[1:] if building else f"guest-{name}", wait=not building) as free:
            if free:
                Guest(name).remove()
    bed_guest.stop_idle_time_server()
    return 0


def cmd_ssh(args: argparse.Namespace) -> int:
    guest = Guest(args.name).need()
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    return subprocess.run(guest.ssh_command(*command), check=False).returncode


def cmd_push(args: argparse.Namespace) -> int:
    """DST is the name on the guest, of the folder or of the file, not of its parent."""
    guest = Guest(args.name).need()
    source, target = Path(args.src).resolve(strict=True), shlex.quote(args.dst)
    if source.is_dir():
        pack = ["tar", "-C", str(source), "-cf", "-", "."]
        unpack = f"mkdir -p {target} && tar -C {target} -xpf - --no-same-owner"
    else:
        pack = ["tar", "-C", str(source.parent), "-cf", "-", "--transform=s,.*,new,", source.name]
        unpack = (
            f"temp=$(mktemp -d) && tar -C $temp -xpf - --no-same-owner && "
            f"install -D -m $(stat -c %a $temp/new) $temp/new {target} && rm -r $temp"
        )
    with subprocess.Popen(pack, stdout=subprocess.PIPE) as tar:
        done = subprocess.run(guest.ssh_command(unpack), stdin=tar.stdout, check=False).returncode
    return done or tar.returncode


def cmd_inventory(args: argparse.Namespace) -> int:
    print(bed_guest.inventory([Guest(name).need(running=False) for name in args.name], args.group), end="")
    return 0


def cmd_list(_args: argparse.Namespace) -> int:
    show([guest.describe() for guest in bed_guest.all_guests() if "port" in guest.meta])
    return 0


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="bed.py", description=__doc__)
    commands = top.add_subparsers(dest="command_name", required=True)

    def add(name: str, text: str, guest: bool = True) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text, description=text)
        if guest:
            command.add_argument("name", type=guest_name)
        return command

    add("prereq", "missing packages of this machine", guest=False)
    build = add("build", "build and cache an image", guest=False)
    build.add_argument("release", nargs="?", default="bookworm", choices=bed_image.RELEASES)
    up = add("up", "start a guest from the snapshot, or boot it")
    up.add_argument("--release", default="bookworm", choices=bed_image.RELEASES)
    up.add_argument("--cold", action="store_true", help="boot; a killed guest keeps its disk")
    up.add_argument(
        "--disk", action="append", type=disk_size, default=[], metavar="SIZE", help="one more disk, by-id virtio-bed-N"
    )
    up.add_argument("--tpm", action="store_true", help="with a TPM 2.0 (swtpm); boots instead of loading the snapshot")
    add("reboot", "reboot a guest and wait for it")
    add("reset", "back to the snapshot, in place")
    add("kill", "power loss")
    down = add("down", "end and remove guests", guest=False)
    down.add_argument("name", nargs="*", type=guest_name)
    down.add_argument("--all", action="store_true")
    ssh = add("ssh", "run a command on a guest")
    ssh.add_argument("command", nargs=argparse.REMAINDER)
    push = add("push", "copy a file or a folder to a name on the guest")
    push.add_argument("src")
    push.add_argument("dst")
    inventory = add("inventory", "Ansible inventory of guests", guest=False)
    inventory.add_argument("name", nargs="+", type=guest_name)
    inventory.add_argument("--group", default="testbed")
    add("list", "all guests", guest=False)
    return top


def main(argv: list[str]) -> int:
    args = parser().parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    system_path()
    try:
        if args.command_name != "prereq":
            check_prereq()
        return int(globals()[f"cmd_{args.command_name}"](args))
    except BedError as error:
        print(f"bed.py: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
