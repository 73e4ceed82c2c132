#!/usr/bin/env python
# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What encryption costs vLLM's writer, and how long a purge takes, on a host of the test bed.

cost   blocks a second that the engine's fs tier stores on plain ext4 and on dm-crypt, with and without kvtier's expiry
purge  seconds to each stage of a purge of few and of many blocks, their inodes in memory

The kernel of the machine need not have dm-crypt. Where the host is emulated, only ratios within one run mean something.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
TESTS = HERE.parent / "tests"
BED = [sys.executable, str(TESTS / "testbed/bed.py")]
PLAYBOOK = "llmhost.hardening.harden"
TIER = {
    "name": "many",
    "store": "vllm_fs",
    "path": "/var/lib/many-kv",
    "owner": "vllm",
    "services": ["many.service"],
    "volume": {"backend": "dmcrypt", "source": {"device": "/dev/disk/by-id/virtio-bed-0"}, "key": "ephemeral"},
}
UNIT = """[Service]
User=vllm
ExecStart=/bin/sleep infinity
[Install]
WantedBy=multi-user.target
"""


class Host:
    """A host of the test bed, from up to down."""

    def __init__(self, name: str, *options: str) -> None:
        self.name, self.options = name, options

    def __enter__(self) -> Host:
        subprocess.run([*BED, "up", self.name, *self.options], check=True, stdout=subprocess.DEVNULL)
        return self

    def __exit__(self, *_what: object) -> None:
        subprocess.run([*BED, "down", self.name], check=True)

    def run(self, command: str, show: bool = False) -> str:
        """Its output; show: line by line on stderr too, as it comes."""
        lines = []
        with subprocess.Popen([*BED, "ssh", self.name, "--", command], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout
            for line in process.stdout:
                lines.append(line)
                if show:
                    print(line, end="", file=sys.stderr, flush=True)
        if process.returncode:
            raise SystemExit(f"{command}: rc {process.returncode}: {''.join(lines)}")
        return "".join(lines)

    def push(self, source: Path | str, target: str) -> None:
        subprocess.run([*BED, "push", self.name, str(source), target], check=True)

    def inventory(self) -> str:
        return subprocess.run([*BED, "inventory", self.name], check=True, stdout=subprocess.PIPE, text=True).stdout


def engine(host: Host) -> None:
    """The engine's storage half and its account."""
    python = host.run("python3 -c 'import sys; print(\"%d.%d\" % sys.version_info[:2])'").strip()
    fetch = [sys.executable, str(TESTS / "testbed/writer/fetch.py"), "0.29.0", f"--python={python}"]
    tree = subprocess.run(fetch, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    host.push(f"{tree}/opt/vllm", "/opt/vllm")


def cost(args: argparse.Namespace) -> None:
    from ansible_collections.llmhost.hardening.plugins.module_utils.kv import datamap, program

    with Host("bench-volume", "--disk", "3G") as host, tempfile.TemporaryDirectory() as place:
        engine(host)
        kvtier = Path(place, "kvtier")
        kvtier.write_bytes(program.build())
        kvtier.chmod(0o755)
        tier = {**TIER, "path": "/srv/bench-kv", "volume": None, "max_bytes": "64M", "expire_every_minutes": 1}
        tiers = Path(place, "tiers.json")
        tiers.write_text(json.dumps(datamap.normalise([tier], "bench")))
        for source, target in ((kvtier, "/root/kvtier"), (tiers, "/root/tiers.json")):
            host.push(source, target)
        host.push(HERE / "volume_guest.py", "/root/volume_guest.py")
        host.run("useradd --system vllm; apt-get -q update && apt-get -qy install cryptsetup-bin >/dev/null 2>&1")
        text = host.run(f"python3 /root/volume_guest.py {args.seconds} {args.rounds} {args.block_kib}", show=True)
    table(text)


def table(text: str) -> None:
    cells: dict[str, dict[bool, list[float]]] = {}
    for line in text.splitlines():
        cell = json.loads(line)
        cells.setdefault(cell["device"], {}).setdefault(cell["expiry"], []).append(cell["mib_s"])
    plain = statistics.median(cells["plain ext4"][False])
    print(f"{'device':<44}{'MiB/s':>8}{'ratio':>7}{'expiring':>10}{'ratio':>7}")
    for device, found in cells.items():
        still, busy = (statistics.median(found[key]) for key in (False, True))
        print(f"{device:<44}{still:>8.1f}{still / plain:>7.2f}{busy:>10.1f}{busy / plain:>7.2f}")


def harden(host: Host, place: str) -> None:
    host.run(f"useradd --system vllm; printf %s {shlex.quote(UNIT)} >/etc/systemd/system/many.service")
    host.run("install -d -o vllm /var/lib/many-kv; systemctl daemon-reload; systemctl enable --now many.service")
    hosts, values = Path(place, "hosts.yml"), Path(place, "values.json")
    hosts.write_text(host.inventory())
    values.write_text(json.dumps({"llmhost_tiers": [TIER], "llmhost_restart": "when_needed"}))
    command = ["ansible-playbook", "-i", str(hosts), PLAYBOOK, "-e", f"@{values}"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={**os.environ, "ANSIBLE_HOST_KEY_CHECKING": "0"})


def purge(args: argparse.Namespace) -> None:
    # ext4 gives one inode to 16 KiB: a million blocks and their directories need 27 GiB, of which little is written.
    with Host("bench-volume", "--disk", "30G") as host, tempfile.TemporaryDirectory() as place:
        harden(host, place)
        host.push(HERE / "tree.py", "/root/tree.py")
        # Their expiry would have them read, or gone.
        host.run("mv /etc/cron.d/llmhost /root/; chmod 755 /root")
        seen: dict[str, list[dict[str, Any]]] = {}
        for blocks in args.blocks * args.rounds:
            make = "import sys; sys.path.insert(0, '/root'); import tree; tree.make('/var/lib/many-kv/t', %d, 0, 0, 60)"
            host.run(f"setpriv --reuid vllm --clear-groups python3 -c {shlex.quote(make % blocks)}; sync")
            # Each inode is in memory then, as after a pass of expiry.
            found = host.run("find /var/lib/many-kv -name '*.bin' -size -1 | wc -l")
            receipt = json.loads(host.run("kvtier purge many --confirm many --json"))
            assert int(found) == blocks and receipt["result"] == "destroyed", (found, receipt)
            stages = {one["stage"]: one["seconds"] for one in receipt["stages"]}
            seen.setdefault(str(blocks), []).append(stages)
            print(json.dumps({"blocks": blocks, **stages}), flush=True)
    names = list(next(iter(seen.values()))[0])
    print(f"\n{'stage, seconds from the start':<32}" + "".join(f"{blocks:>14}" for blocks in seen))
    for name in names:
        cells = ["%.1f" % statistics.median(one[name] for one in runs) for runs in seen.values()]
        print(f"{name:<32}" + "".join(f"{cell:>14}" for cell in cells))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="what", required=True)
    one = commands.add_parser("cost")
    one.add_argument("--seconds", type=int, default=5, help="of each cell")
    one.add_argument("--rounds", type=int, default=1)
    one.add_argument("--block-kib", type=int, default=4096)
    two = commands.add_parser("purge")
    two.add_argument("--blocks", type=int, nargs="+", default=[1000, 20000])
    two.add_argument("--rounds", type=int, default=1)
    args = parser.parse_args()
    {"cost": cost, "purge": purge}[args.what](args)


if __name__ == "__main__":
    main()
