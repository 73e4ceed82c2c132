# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What systemd, crypttab and fstab read from us."""

from __future__ import annotations

import configparser
import os
import re
import shutil
import subprocess
from typing import Any

import pytest

from ansible_collections.llmhost.hardening.plugins.module_utils.kv import datamap, units


def tiers(*more: dict[str, Any]) -> list[dict[str, Any]]:
    chat = {
        "name": "chat",
        "store": "vllm_fs",
        "path": "/var/lib/vllm-kv",
        "owner": "vllm",
        "services": ["vllm.service"],
        "volume": {"backend": "dmcrypt", "source": {"file": "/var/lib/llmhost/chat.img", "size": "1G"}},
    }
    result: list[dict[str, Any]] = datamap.normalise([chat, *more], "gpu1")["tiers"]
    return result


SLOTS = {
    "name": "my-slots",
    "store": "llamacpp_slots",
    "path": "/srv/slots",
    "owner": "llama",
    "services": ["llama.service", "vllm.service"],
    "volume": {"backend": "existing"},
}


def directives(text: str) -> list[tuple[str, str]]:
    return [
        (name, value)
        for line in text.splitlines()
        if line[:1] not in "#["
        for name, _eq, value in [line.partition("=")]
    ]


def test_crypttab_line_asks_for_a_random_key_and_a_new_file_system() -> None:
    assert units.crypttab_line(tiers()[0]) == (
        "llmhost_chat /var/lib/llmhost/chat.img /dev/urandom "
        "plain,cipher=aes-xts-plain64,size=512,sector-size=4096,tmp=ext4,nofail"
    )


def test_fstab_line_denies_devices_setuid_programs_and_symlinks_and_lets_the_host_boot() -> None:
    assert units.fstab_line(tiers()[0]) == (
        "/dev/mapper/llmhost_chat /var/lib/vllm-kv ext4 nodev,nosuid,noexec,noatime,nosymfollow,nofail,"
        "x-systemd.requires=systemd-cryptsetup@llmhost_chat.service,x-systemd.device-timeout=60s 0 0"
    )


@pytest.mark.parametrize(
    ("path", "unit"),
    [
        ("/var/lib/vllm-kv", r"var-lib-vllm\x2dkv.mount"),
        ("/data/a.b", "data-a.b.mount"),
        ("/.x/y", r"\x2ex-y.mount"),
        ("/a/.b", "a-.b.mount"),
        ("/a@b:c+d", r"a\x40b:c\x2bd.mount"),
        ("/", "-.mount"),
    ],
)
def test_mount_units_are_named_as_systemd_names_them(path: str, unit: str) -> None:
    assert units.mount_unit(path) == unit
    program = shutil.which("systemd-escape")
    if program:
        said = subprocess.run([program, "--path", "--suffix=mount", path], capture_output=True, text=True, check=True)
        assert said.stdout.strip() == unit


def test_prepare_unit_of_a_volume_stops_and_starts_with_its_mount() -> None:
    text = units.prepare_unit(tiers()[0])
    found = directives(text)
    mount = r"var-lib-vllm\x2dkv.mount"
    for pair in (
        ("RequiresMountsFor", "/var/lib/vllm-kv"),
        ("BindsTo", mount),
        ("After", mount),
        ("Type", "oneshot"),
        ("RemainAfterExit", "yes"),
        ("ExecStart", "/usr/local/sbin/kvtier prepare chat"),
        ("WantedBy", mount),
    ):
        assert pair in found
    assert units.wants_link(tiers()[0]) == f"/etc/systemd/system/{mount}.wants/llmhost-tier@chat.service"


def test_prepare_unit_of_other_peoples_storage_starts_at_boot() -> None:
    slots = tiers(SLOTS)[1]
    found = dict(directives(units.prepare_unit(slots)))
    assert found["WantedBy"] == "multi-user.target"
    assert "BindsTo" not in found
    assert found["RequiresMountsFor"] == "/srv/slots"


def test_drop_in_needs_every_tier_of_its_unit_prepared() -> None:
    both = tiers(SLOTS)
    found = directives(units.drop_in("vllm.service", both))
    prepare = "llmhost-tier@chat.service llmhost-tier@my-slots.service"
    assert ("Requires", prepare) in found
    assert ("After", prepare) in found
    assert ("RequiresMountsFor", "/srv/slots /var/lib/vllm-kv") in found
    assert ("Requires", "llmhost-tier@my-slots.service") in directives(units.drop_in("llama.service", both))
    assert units.drop_in("vllm.service", both) == units.drop_in("vllm.service", both[::-1])


def test_an_instances_drop_in_says_all_that_its_templates_does() -> None:
    # systemd takes vllm@a.service.d/50-llmhost.conf instead of vllm@.service.d/50-llmhost.conf, not both.
    one = dict(tiers()[0], services=["vllm@.service"])
    other = dict(tiers()[0], name="code", path="/srv/code", services=["vllm@a.service"])
    requires = ("Requires", "llmhost-tier@chat.service llmhost-tier@code.service")
    assert requires in directives(units.drop_in("vllm@a.service", [one, other]))
    assert ("Requires", "llmhost-tier@chat.service") in directives(units.drop_in("vllm@.service", [one, other]))


def test_a_container_daemon_waits_for_the_tier_and_is_never_stopped_or_changed_with_it() -> None:
    docker = dict(tiers()[0], services=["docker.service"])
    found = directives(units.drop_in("docker.service", [docker]))
    assert found == [("Wants", "llmhost-tier@chat.service"), ("After", "llmhost-tier@chat.service")]


def test_drop_in_closes_new_files_core_dumps_and_swap() -> None:
    found = directives(units.drop_in("vllm.service", tiers()))
    for pair in (
        ("UMask", "0077"),
        ("LimitCORE", "0"),
        ("MemorySwapMax", "0"),
        ("StateDirectoryMode", "0700"),
        ("CacheDirectoryMode", "0700"),
        ("RuntimeDirectoryMode", "0700"),
        ("LogsDirectoryMode", "0700"),
    ):
        assert pair in found
    # systemd ORs the masks of several lines: the empty one first drops the unit's own.
    assert [value for name, value in found if name == "CoredumpFilter"] == ["", "0x0"]


def test_each_setting_of_the_drop_in_says_why() -> None:
    lines = units.drop_in("vllm.service", tiers()).splitlines()
    service = lines[lines.index("[Service]") + 1 :]
    for number, line in enumerate(service):
        assert line.startswith("#") == (number % 2 == 0)


_SETUID_HELPER = "implies NoNewPrivileges=: the setuid nvidia-modprobe could not make the device nodes"

# What no drop-in of ours may set, because a GPU engine dies of it or silently falls back to the CPU.
FORBIDDEN = {
    "PrivateDevices": "hides /dev/nvidia*",
    "DevicePolicy": "closes /dev/nvidia*, whose major numbers differ from host to host",
    "DeviceAllow": "closes every device that is not listed, /dev/nvidia* among them",
    "MemoryDenyWriteExecute": "CUDA and Triton map memory writable and executable",
    "NoNewPrivileges": "the setuid nvidia-modprobe could not load the driver or make the device nodes",
    "ProtectKernelModules": "nvidia-modprobe loads the driver on first use; it also " + _SETUID_HELPER,
    "DynamicUser": "the tier belongs to one fixed account; it also " + _SETUID_HELPER,
    "LockPersonality": _SETUID_HELPER,
    "ProtectClock": _SETUID_HELPER + "; it also sets DeviceAllow=",
    "ProtectHostname": _SETUID_HELPER,
    "ProtectKernelLogs": _SETUID_HELPER,
    "ProtectKernelTunables": _SETUID_HELPER,
    "RestrictAddressFamilies": _SETUID_HELPER + "; NCCL needs netlink and InfiniBand sockets",
    "RestrictNamespaces": _SETUID_HELPER,
    "RestrictRealtime": _SETUID_HELPER,
    "RestrictSUIDSGID": _SETUID_HELPER,
    "SystemCallArchitectures": _SETUID_HELPER,
    "SystemCallFilter": _SETUID_HELPER,
    "SystemCallLog": _SETUID_HELPER,
    "ProtectHome": "hides the model cache in the account's home",
    "NoExecPaths": "Triton and torch.compile run what they build in TMPDIR",
    "TemporaryFileSystem": "a noexec TMPDIR breaks Triton and torch.compile",
}


def test_no_unit_of_ours_sets_what_kills_cuda() -> None:
    both = tiers(SLOTS)
    texts = [units.drop_in(service, both) for service in ("vllm.service", "llama.service")]
    texts += [units.prepare_unit(tier) for tier in both]
    for text in texts:
        assert not {name for name, _value in directives(text)} & set(FORBIDDEN)
        assert "TMPDIR" not in text


def test_every_file_of_ours_begins_with_the_line_that_allows_its_removal() -> None:
    for text in (units.drop_in("vllm.service", tiers()), units.prepare_unit(tiers()[0])):
        assert text.startswith(units.HEADER + "\n")
        assert text.endswith("\n")


def test_units_are_sections_of_plain_lines() -> None:
    for text in (units.drop_in("vllm.service", tiers(SLOTS)), units.prepare_unit(tiers()[0])):
        parsed = configparser.RawConfigParser(strict=False, delimiters=("=",))
        parsed.read_string(text)
        assert set(parsed.sections()) <= {"Unit", "Service", "Install"}
        assert not re.search(r"[^\x20-\x7e\n]", text)
    assert units.drop_in_path("vllm.service") == "/etc/systemd/system/vllm.service.d/50-llmhost.conf"
    assert units.prepare_path(tiers()[0]) == "/etc/systemd/system/llmhost-tier@chat.service"
    assert os.path.dirname(units.prepare_path(tiers()[0])) == units.UNIT_DIR
