# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What docs/ says of the code is what the code says."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import yaml

from ansible_collections.llmhost.hardening.plugins.module_utils.kv import cli, expiry

ROOT = Path(__file__).resolve().parents[2]


def test_the_exit_codes_of_expire_are_documented_word_for_word() -> None:
    page = (ROOT / "docs/kvtier.md").read_text()
    for code, meaning in expiry.EXIT_CODES.items():
        assert f"| {code} | {meaning} |" in page


def test_every_command_and_option_of_kvtier_is_documented() -> None:
    page = (ROOT / "docs/kvtier.md").read_text()
    parser = cli._parser()
    (commands,) = [one for one in parser._actions if isinstance(one, argparse._SubParsersAction)]
    assert [name for name in commands.choices if f"`kvtier {name}" not in page] == []
    options = {option for one in (parser, *commands.choices.values()) for option in one._option_string_actions}
    assert [one for one in sorted(options - {"-h", "--help", "--version"}) if one not in page] == []


def test_the_architecture_names_every_module_of_the_hosts_code_and_none_that_is_not_there() -> None:
    page = (ROOT / "docs/architecture.md").read_text()
    there = {path.name for path in (ROOT / "plugins/module_utils").rglob("*.py")}
    hosts = {path.name for path in (ROOT / "plugins/module_utils/kv").glob("[a-z]*.py")}
    named = set(re.findall(r"[a-z0-9_]+\.py\b", page))
    families = tuple(re.findall(r"\b([a-z_]+)\*\.py", page))
    assert named - there == set()
    assert sorted(one for one in hosts - named if not one.startswith(families)) == []


def test_what_a_playbook_can_be_told_stands_in_the_readme() -> None:
    page = (ROOT / "README.md").read_text()
    told = {
        name
        for path in ROOT.glob("playbooks/*.yml")
        for name in re.findall(r"\b(llmhost_\w+) \| default\(", path.read_text())
    }
    # What one play keeps for the next.
    assert sorted(one for one in told - {"llmhost_audit_buckets"} if f"`{one}`" not in page) == []


def test_kvtier_has_the_version_of_the_collection() -> None:
    assert yaml.safe_load((ROOT / "galaxy.yml").read_text())["version"] == cli.VERSION
