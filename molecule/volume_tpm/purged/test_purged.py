# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""After a purge: the slots of the TPM are new, what the old ones opened cannot be read."""

from __future__ import annotations

import json

from on_host import output

testinfra_hosts = ["ansible://testbed"]

DISK = "/dev/disk/by-id/virtio-bed-0"


def test_the_receipt_names_the_slots_of_the_tpm_and_what_others_must_destroy(host):
    receipt = json.loads(output(host, "cat /root/purged.json"))
    assert receipt["result"] == "destroyed" and receipt["proof"]["table_after"].split()[2] == "error"
    assert [key["kind"] for key in receipt["keys_destroyed"]] == [
        "memory",
        "header backup",
        "LUKS2 keyslots",
        "TPM2 slot, PCRs 0+7",
    ]
    assert receipt["keys_elsewhere"] == ["copies of the header that were made by others: this host's TPM opens them"]


def test_the_header_has_one_new_slot_of_the_tpm(host):
    before = json.loads(output(host, "cat /root/header-before"))
    header = json.loads(output(host, f"cryptsetup luksDump --dump-json-metadata {DISK}"))
    ((_number, token),) = header["tokens"].items()
    assert token["tpm2-pcrs"] == [0, 7] and token["keyslots"] == list(header["keyslots"])
    assert token["tpm2-blob"] not in json.dumps(before)
    assert header["digests"] != before["digests"]


def test_what_was_in_it_is_neither_found_nor_decrypted(host):
    output(host, "sync && echo 3 >/proc/sys/vm/drop_caches")
    for place in (DISK, "/dev/mapper/llmhost_sealed"):
        assert host.run(f"grep -c marker-of-before {place}").stdout.strip() == "0"


def test_a_copy_of_the_header_that_somebody_else_made_still_opens_as_the_receipt_warns(host):
    command = f"cryptsetup open --test-passphrase --token-only --header /root/stolen.header {DISK} && echo opens"
    assert output(host, command) == "opens"


def test_a_purge_that_was_killed_with_its_slots_erased_is_finished_by_the_next_one(host):
    ((name, run),) = json.loads(output(host, "cat /root/killed.json")).items()
    assert name == "sealed keyslots erased" and run["killed"] is True and run["rc"] == 0, run


def test_the_tier_is_in_service_again(host):
    assert output(host, "stat -c '%U %a' /var/lib/vllm-kv") == "vllm 700"
    for unit in ("vllm.service", "vllm-python.service"):
        assert host.service(unit).is_running
