#!/usr/bin/env python
# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Installs Debian packages on a guest, which has no way out: fetched here by apt for exactly what the guest lacks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from bed_guest import Guest
from bed_host import KEYRING, cache_dir, lock, system_path

SOURCES = """deb [signed-by={key}] http://deb.debian.org/debian {release} main
deb [signed-by={key}] http://deb.debian.org/debian {release}-updates main
deb [signed-by={key}] http://deb.debian.org/debian-security {release}-security main
"""
INSTALL = """set -e
cd /var/cache/testbed-packages
DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends -o Dpkg::Use-Pty=0 ./*.deb
rm -r /var/cache/testbed-packages
"""


def fetch(release: str, status: str, packages: list[str], folder: Path) -> None:
    """The packages and what they need beyond the status file of the guest, into folder."""
    root = cache_dir() / "packages" / release
    for part in ("lists/partial", "archives/partial", "none/partial"):
        (root / part).mkdir(parents=True, exist_ok=True)
    (root / "sources.list").write_text(SOURCES.format(key=KEYRING, release=release), encoding="utf-8")
    (root / "status").write_text(status, encoding="utf-8")
    options = {
        "Dir::State::status": root / "status",
        "Dir::State::lists": root / "lists",
        "Dir::Cache": root,
        "Dir::Cache::archives": root / "archives",
        "Dir::Etc::SourceList": root / "sources.list",
        "Dir::Etc::SourceParts": "-",
        "Dir::Etc::PreferencesParts": "-",
        "APT::Keep-Downloaded-Packages": "true",
        "APT::Install-Recommends": "false",
        "APT::Sandbox::User": "root",
        "Debug::NoLocking": "true",
    }
    apt = ["apt-get", "-y", "-q"] + [f"-o{key}={value}" for key, value in options.items()]
    subprocess.run([*apt, "update"], check=True, stdout=sys.stderr)
    # What is in the cache already would not be printed.
    asked = [*apt, f"-oDir::Cache::archives={root / 'none'}", "install", "--print-uris", *packages]
    lines = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.splitlines()
    subprocess.run([*apt, "install", "--download-only", *packages], check=True, stdout=sys.stderr)
    for name in (line.split()[1] for line in lines if line.startswith("'http")):
        os.link(root / "archives" / name, folder / name)


def main(name: str, *packages: str) -> int:
    system_path()
    guest = Guest(name).need()
    release = guest.meta["release"]
    status = subprocess.run(guest.ssh_command("cat /var/lib/dpkg/status"), check=True, capture_output=True, text=True)
    with lock(f"packages-{release}"):
        folder = cache_dir() / "packages" / f"for-{name}"
        subprocess.run(["rm", "-rf", str(folder)], check=True)
        folder.mkdir(parents=True)
        fetch(release, status.stdout, list(packages), folder)
    bed = Path(__file__).with_name("bed.py")
    subprocess.run([sys.executable, str(bed), "push", name, str(folder), "/var/cache/testbed-packages"], check=True)
    subprocess.run(["rm", "-rf", str(folder)], check=True)
    return subprocess.run(guest.ssh_command(INSTALL), check=False, stdout=sys.stderr).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
