# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Right after the first harden: the quadlet was restarted with its unit, docker's container was not."""

from __future__ import annotations

import json

from on_host import output

testinfra_hosts = ["ansible://testbed"]


def audit(host) -> dict:
    found = json.loads(host.run("kvtier audit --json").stdout)
    return {(one["control"], one["tier"]): one for one in found["results"]}


def test_the_container_that_still_has_the_bare_directory_is_a_finding(host):
    results = audit(host)
    ident = output(host, "docker inspect --format '{{.Id}}' dock")[:12]
    verdict = results["KV-02", "dock"]
    assert verdict["status"] == "fail", verdict
    assert f"container {ident}) has at /kv the directory below the mount" in verdict["message"]
    assert f"docker restart {ident}" in verdict["remedy"]
    assert results["KV-02", "quad"]["status"] == "pass", results["KV-02", "quad"]


def test_status_says_so_too(host):
    output(host, "kvtier expire || true")
    shown = host.run("kvtier status").stdout
    assert "NOT ON THE VOLUME" in shown and "docker restart" in shown


def test_it_can_write_nothing_there(host):
    assert output(host, "unshare --mount sh -c 'mount --bind /var/lib /mnt && ls -A /mnt/dock-kv'") == ""
