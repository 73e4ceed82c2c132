# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A volume whose key the TPM seals, seen with an operator's own commands."""

from __future__ import annotations

import json

from on_host import output

testinfra_hosts = ["ansible://testbed"]

DISK = "/dev/disk/by-id/virtio-bed-0"


def test_the_tier_lies_on_dm_crypt_on_its_disk(host):
    source = output(host, "findmnt -n -o SOURCE --mountpoint /var/lib/vllm-kv")
    assert output(host, f"lsblk --inverse --noheadings --list --output TYPE {source}").split() == ["crypt", "disk"]
    assert output(host, f"cryptsetup status {source} | grep -o 'type:.*'").split() == ["type:", "LUKS2"]
    assert output(host, "stat -c '%U %a' /var/lib/vllm-kv") == "vllm 700"
    for unit in ("vllm.service", "vllm-python.service"):
        assert host.service(unit).is_running


def test_only_the_tpm_opens_it_no_passphrase_no_key_file_no_recovery_key(host):
    header = json.loads(output(host, f"cryptsetup luksDump --dump-json-metadata {DISK}"))
    ((_number, token),) = header["tokens"].items()
    assert token["type"] == "systemd-tpm2" and token["tpm2-pcrs"] == [0, 7]
    assert token["keyslots"] == list(header["keyslots"]) and len(header["keyslots"]) == 1
    assert output(host, f"cryptsetup open --test-passphrase --token-only {DISK} && echo opens") == "opens"
    assert output(host, "find / -xdev -name '*.key' -newer /etc/hostname -size -2 -path '*llmhost*'") == ""


def test_flags_are_in_the_header(host):
    assert "no-read-workqueue no-write-workqueue" in output(host, f"cryptsetup luksDump {DISK}")
    assert "no_read_workqueue" in output(host, "dmsetup table llmhost_sealed")


def test_crypttab_names_the_tpm_and_no_file_and_a_boot_asks_nobody(host):
    (line,) = output(host, "grep ^llmhost_ /etc/crypttab").splitlines()
    name, source, key, options = line.split()
    assert (name, key) == ("llmhost_sealed", "none") and source.startswith("UUID=")
    assert {"luks", "tpm2-device=auto", "headless=true", "nofail"} <= set(options.split(","))


def test_our_copy_of_the_header_is_root_s_alone(host):
    assert output(host, "stat -c '%U %a' /var/lib/llmhost/headers /var/lib/llmhost/headers/sealed.luks2") == (
        "root 700\nroot 600"
    )


def test_the_audit_sees_the_key_in_the_tpm(host):
    audit = json.loads(host.run("kvtier audit --json").stdout)
    assert "tpm2" in json.dumps([one for one in audit["results"] if one["control"] == "KV-02"])
