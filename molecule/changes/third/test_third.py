# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""After the second change: put back, and an old name at a new place."""

from __future__ import annotations

import json

from on_host import output

testinfra_hosts = ["ansible://testbed"]


def test_what_is_put_back_is_a_tier_like_any_other(host):
    output(host, "kvtier expire || true")
    found = json.loads(host.run("kvtier audit --json").stdout)
    results = {(one["control"], one["tier"]): one for one in found["results"]}
    for name in ("chat", "code", "slots", "gone", "disk"):
        for control in ("KV-01", "KV-03", "KV-05"):
            assert results[control, name]["status"] == "pass", results[control, name]
    assert "plain" not in {tier for _control, tier in results}


def test_an_old_name_lives_at_a_new_place(host):
    assert output(host, "findmnt -n -o SOURCE --mountpoint /srv/code2") == "/dev/mapper/llmhost_code"
    assert host.run("ls -d /srv/code").rc != 0


def test_nothing_of_others_is_lost(host):
    assert output(host, "sha256sum --check --quiet /root/others") == ""
