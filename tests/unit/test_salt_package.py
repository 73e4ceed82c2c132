# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What holds for all code of the gateway: where it runs, what it may import, what it never names."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
import pythons
import yaml

ROOT = Path(__file__).resolve().parents[2]
ROLE = ROOT / "roles/cache_salt_gateway"
SALT = sorted(ROOT.glob("plugins/module_utils/salt/*.py"))
HOP = ROLE / "files/python/llmhost_salt_verify.py"
LUA = sorted(ROLE.glob("files/lua/*.lua"))


@pytest.mark.parametrize("path", [*SALT, HOP], ids=lambda path: path.name)
def test_it_needs_the_standard_library_only(path):
    for node in ast.walk(ast.parse(path.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and not node.level:
            names = [node.module]
        assert all(name.partition(".")[0] in sys.stdlib_module_names for name in names)


@pytest.mark.parametrize("version", pythons.MANAGED)
def test_it_works_under_every_python_that_a_host_may_have(version):
    python = pythons.find(version)
    if python is None:
        pytest.skip(f"Python {version} is not on this machine")
    program = (
        "import sys, runpy; sys.path.insert(0, sys.argv[1])\n"
        "from module_utils.salt import engine, render, settings, tenants\n"
        "print(render.unit(settings.complete({'engine_version': '0.29.0'})) > '')\n"
        "runpy.run_path(sys.argv[2])"
    )
    command = [python, "-IBc", program, str(ROOT / "plugins"), str(HOP)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


def test_files_are_short():
    assert LUA and all(len(path.read_text().splitlines()) <= 500 for path in [*SALT, HOP, *LUA])


def test_every_refusal_is_documented_with_its_status():
    text = (ROLE / "files/lua/llmhost_gateway.lua").read_text()
    page = (ROOT / "docs/gateway.md").read_text()
    refusals = re.findall(r"^    (\w+) = \{ (\d+), ", text, re.M)
    assert len(refusals) > 15
    for code, status in refusals:
        (row,) = [line for line in page.splitlines() if line.startswith("|") and f"`{code}`" in line.split("|")[1]]
        assert status in row, code


def test_every_guarded_field_is_documented():
    text = (ROLE / "files/lua/llmhost_gateway.lua").read_text()
    names = re.findall(r'"(\w+)"', text.split("for _, name in ipairs {", 1)[1].split("}", 1)[0])
    page = (ROOT / "docs/gateway.md").read_text()
    assert len(names) > 10 and all(f"`{name}`" in page for name in names)


def test_alert_rules_name_metrics_that_there_are():
    text = (ROLE / "files/lua/llmhost_gateway.lua").read_text()
    rules = yaml.safe_load((ROLE / "files/llmhost-gateway.rules.yml").read_text())["groups"][0]["rules"]
    named = {name for rule in rules for name in re.findall(r"llmhost_gateway_(\w+?)(?:_total)?\b", rule["expr"])}
    assert named and all(f'"{name}"' in text or f"llmhost_gateway_{name} " in text for name in named), named
    assert {rule["alert"] for rule in rules} >= {"LlmhostGatewayBypassed", "LlmhostGatewayTenantsUnreadable"}
