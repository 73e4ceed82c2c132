# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The host before its map changes."""

from __future__ import annotations

testinfra_hosts = ["ansible://testbed"]


def test_every_tier_is_there_and_prepared(host):
    for name in ("chat", "code", "notes", "plain", "gone", "disk"):
        assert host.service(f"llmhost-tier@{name}").is_running
    assert host.mount_point("/srv/disk").exists and host.mount_point("/srv/code").exists
