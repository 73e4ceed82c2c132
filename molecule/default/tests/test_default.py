# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What harden made of the host, seen with an operator's own commands; true before and after a reboot."""

from __future__ import annotations

import json
import time

import pytest
from on_host import output

testinfra_hosts = ["ansible://testbed"]

ROOT = "/var/lib/vllm-kv"
# Shows the directory that the mount at ROOT covers; the private namespace ends with the command.
UNDER_MOUNT = "unshare --mount sh -c 'mount --bind /var/lib /mnt && {}'"


def status(host, variant: str) -> dict:
    return json.loads(output(host, f"cat /run/{variant}-writer/status.json"))


@pytest.fixture(scope="module", params=[("vllm.service", "compiled"), ("vllm@python.service", "python")], ids="/".join)
def writer(host, request) -> dict:
    """A writer's unit, its variant, and its main process as the kernel sees it."""
    unit, variant = request.param
    shown = output(host, f"systemctl show -P MainPID {unit} | xargs -I{{}} cat /proc/{{}}/status")
    return {"unit": unit, "variant": variant} | dict(
        line.split(":\t", 1) for line in shown.splitlines() if ":\t" in line
    )


def test_before_hardening_anybody_could_read_blocks_on_the_root_disk(host):
    owner_mode, mount, readable = output(host, "cat /root/before").splitlines()
    assert (owner_mode, mount) == ("vllm 755", "/")
    assert int(readable) >= 50


def test_the_tier_is_a_mount_of_dm_crypt(host):
    source, kind, options = output(host, f"findmnt -n -o SOURCE,FSTYPE,OPTIONS --mountpoint {ROOT}").split()
    assert (source, kind) == ("/dev/mapper/llmhost_chat", "ext4")
    assert {"nodev", "nosuid", "noexec", "noatime", "nosymfollow"} <= set(options.split(","))
    table = output(host, "dmsetup table llmhost_chat").split()
    assert table[2:4] == ["crypt", "aes-xts-plain64"]


def test_the_image_is_root_s_and_closed(host):
    assert output(host, "stat -c '%U %a' /var/lib/llmhost/chat.img") == "root 600"


def test_the_tier_belongs_to_the_account_alone(host):
    assert output(host, f"stat -c '%U %a' {ROOT}") == "vllm 700"


def test_files_are_born_closed_whatever_the_umask(host):
    acl = output(host, f"getfacl --default --omit-header --absolute-names {ROOT}").split()
    assert acl == ["user::rwx", "group::---", "other::---"]


def test_no_block_is_readable_by_others(host):
    assert int(output(host, f"find {ROOT} -type f -name '*.bin' 2>/dev/null | wc -l")) > 0
    assert output(host, f"find {ROOT} -type f -name '*.bin' -perm -004 | wc -l") == "0"
    assert output(host, f"find {ROOT} -ignore_readdir_race -perm /077 | wc -l") == "0"


def test_another_account_cannot_list_the_tier(host):
    as_uid = "setpriv --reuid={0} --regid={0} --clear-groups ls " + ROOT
    assert host.run(as_uid.format(output(host, "id -u vllm"))).rc == 0
    done = host.run(as_uid.format(65534))
    assert done.rc == 2 and "Permission denied" in done.stderr


def test_the_writer_runs_as_the_account_with_a_closed_umask(host, writer):
    assert host.service(writer["unit"]).is_running
    assert writer["Uid"].split() == [output(host, "id -u vllm")] * 4
    assert writer["Umask"] == "0077"


def test_the_writer_leaves_no_core_and_no_swap(host, writer):
    core = output(host, f"grep 'Max core file size' /proc/{writer['Pid']}/limits").split()
    assert core[4:6] == ["0", "0"]
    assert int(output(host, f"cat /proc/{writer['Pid']}/coredump_filter"), 16) == 0
    cgroup = output(host, f"systemctl show -P ControlGroup {writer['unit']}")
    assert output(host, f"cat /sys/fs/cgroup{cgroup}/memory.swap.max") == "0"


def test_the_writer_stores_and_reads_with_no_wrong_byte(host, writer):
    first = status(host, writer["variant"])
    end = time.monotonic() + 60
    while time.monotonic() < end:
        time.sleep(2)
        last = status(host, writer["variant"])
        if last["stored"] > first["stored"] and last["loaded"] > first["loaded"]:
            break
    assert last["state"] == "running"
    assert last["stored"] > first["stored"] and last["loaded"] > first["loaded"]
    assert last["wrong"] == 0 and last["errors"] == {}


def test_nothing_of_the_old_tree_is_left_under_the_mount(host):
    assert output(host, UNDER_MOUNT.format("ls -A /mnt/vllm-kv")) == ""
    # The same view does show what lies beside it.
    assert "vllm-kv" in output(host, UNDER_MOUNT.format("ls -A /mnt")).split()


def test_the_bare_mountpoint_is_0000_and_immutable(host):
    assert output(host, UNDER_MOUNT.format('stat -c "%U %a" /mnt/vllm-kv')) == "root 0"
    assert "i" in output(host, UNDER_MOUNT.format("lsattr -d /mnt/vllm-kv")).split()[0]


@pytest.mark.parametrize(
    ("path", "mode"),
    [("/usr/local/sbin/kvtier", "755"), ("/etc/llmhost/tiers.json", "644"), ("/etc/cron.d/llmhost", "644")],
)
def test_what_root_runs_and_reads_is_root_s(host, path, mode):
    assert output(host, f"stat -c '%U:%G %a' {path}") == f"root:root {mode}"


def test_cron_expires_as_the_account_and_audits_as_root(host):
    jobs = [line for line in output(host, "cat /etc/cron.d/llmhost").splitlines() if " * * * " in line]
    assert [(job.split()[5], job.split()[7]) for job in jobs] == [("vllm", "expire"), ("root", "audit")]
    assert host.service("cron").is_running and host.service("cron").is_enabled


def test_status_says_in_ten_lines_that_all_is_well(host):
    # After a boot the first expiry comes within its interval.
    end = time.monotonic() + 150
    while (done := host.run("/usr/local/sbin/kvtier status")).rc and time.monotonic() < end:
        time.sleep(5)
    lines = done.stdout.splitlines()
    assert done.rc == 0 and len(lines) <= 10, done.stdout
    assert lines[0].endswith("all well, 1 tier") and lines[1].startswith("ok  chat: ")
