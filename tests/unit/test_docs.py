# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What docs/ says of the code is what the code says."""

from __future__ import annotations

from pathlib import Path

import yaml

from ansible_collections.llmhost.hardening.plugins.module_utils.kv import cli, expiry

ROOT = Path(__file__).resolve().parents[2]


def test_the_exit_codes_of_expire_are_documented_word_for_word() -> None:
    page = (ROOT / "docs/kvtier.md").read_text()
    for code, meaning in expiry.EXIT_CODES.items():
        assert f"| {code} | {meaning} |" in page


def test_kvtier_has_the_version_of_the_collection() -> None:
    assert yaml.safe_load((ROOT / "galaxy.yml").read_text())["version"] == cli.VERSION
