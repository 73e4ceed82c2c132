# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is installed on a host: only what is missing, by the names of its distribution, nothing in check mode."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from ansible_collections.llmhost.hardening.plugins.module_utils.kv import packages, system
from ansible_collections.llmhost.hardening.plugins.modules import kv_packages


@pytest.fixture
def ran(monkeypatch):
    """A host of the RHEL family without cron; what was run on it."""
    commands = []
    there = {"cron": False}

    def run(argv, timeout=0):
        commands.append(list(argv))
        there["cron"] = True
        return subprocess.CompletedProcess(argv, 0, "", "")

    monkeypatch.setattr(packages, "family", lambda: "dnf")
    monkeypatch.setattr(packages, "missing", lambda needs: [name for name in needs if not there.get(name, True)])
    monkeypatch.setattr(system, "run", run)
    return commands


def test_only_what_is_missing_is_installed(ran):
    done = packages.ensure(["cron", "setfacl"], act=True)
    assert ran == [["dnf", "-qy", "--setopt=install_weak_deps=False", "install", "cronie"]]
    assert done == {"changed": True, "missing": ["cron"], "packages": ["cronie"], "units": {"cron": "crond.service"}}
    assert packages.ensure(["cron", "setfacl"], act=True)["changed"] is False and len(ran) == 1


def test_check_mode_names_the_packages_and_runs_nothing(ran):
    assert packages.ensure(["cron"], act=False)["packages"] == ["cronie"]
    assert ran == []


def test_debians_lists_are_brought_first_and_its_questions_are_not_asked():
    update, install = packages.commands(["cryptsetup", "cron"], "apt")
    assert update[:1] == ["apt-get"] and update[-1] == "update"
    assert install[-3:] == ["install", "cryptsetup-bin", "cron"] and "DEBIAN_FRONTEND=noninteractive" in install


def test_a_failure_says_what_failed_and_what_the_package_manager_said(ran, monkeypatch):
    monkeypatch.setattr(system, "run", lambda argv, timeout=0: subprocess.CompletedProcess(argv, 1, "", "no mirror\n"))
    with pytest.raises(system.HostError, match=r"install cronie failed:\n  no mirror"):
        packages.ensure(["cron"], act=True)


def test_a_host_with_neither_apt_nor_dnf_is_told_what_to_install(ran, monkeypatch):
    monkeypatch.setattr(packages, "family", lambda: None)
    with pytest.raises(system.HostError, match="cron.*neither apt-get nor dnf.*Fix"):
        packages.ensure(["cron"], act=False)


def test_a_place_may_be_a_pattern(tmp_path):
    assert packages.missing(["boto3"], str(tmp_path)) == ["boto3"]
    module = tmp_path / "usr/lib/python3.9/site-packages/boto3/__init__.py"
    module.parent.mkdir(parents=True)
    module.touch()
    assert packages.missing(["boto3"], str(tmp_path)) == []


def test_the_manager_is_the_one_that_is_there(tmp_path):
    assert packages.family(str(tmp_path)) is None
    (tmp_path / "usr/bin").mkdir(parents=True)
    (tmp_path / "usr/bin/dnf").touch()
    assert packages.family(str(tmp_path)) == "dnf"


def test_the_module_takes_what_the_table_knows():
    choices = yaml.safe_load(kv_packages.DOCUMENTATION)["options"]["needs"]["choices"]
    assert choices == sorted(packages.NEEDS)


def test_the_page_of_distributions_names_every_package():
    page = (Path(__file__).resolve().parents[2] / "docs/distributions.md").read_text(encoding="utf-8")
    for name, need in packages.NEEDS.items():
        (row,) = [line for line in page.splitlines() if line.startswith(f"| `{name}`")]
        _empty, _what, debian, red_hat, _end = row.split("|")
        assert need.apt in debian and need.dnf in red_hat
        assert need.units[0] in debian and need.units[1] in red_hat
