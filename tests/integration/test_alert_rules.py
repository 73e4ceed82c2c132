# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The alert rules under Debian's own promtool: they parse, fire when they must and stay silent when they must."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RULES = sorted(ROOT.glob("roles/*/files/*.rules.yml"))
CASES = sorted(Path(__file__).parent.glob("alerts/*.yml"))
pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def promtool() -> Path:
    done = subprocess.run([ROOT / "tests/tools/prometheus.sh"], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.fail(done.stderr, pytrace=False)
    return Path(done.stdout.strip()) / "promtool"


def run(*command: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("rules", RULES, ids=lambda path: path.name)
def test_prometheus_takes_the_rules(promtool: Path, rules: Path) -> None:
    done = run(promtool, "check", "rules", rules)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("case", CASES, ids=lambda path: path.stem)
def test_alerts_fire_when_they_must_and_only_then(promtool: Path, case: Path) -> None:
    done = run(promtool, "test", "rules", case)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_rule_that_does_not_see_the_bypass_fails_its_case(promtool: Path, tmp_path: Path) -> None:
    (rules,) = (path for path in RULES if "gateway" in path.name)
    (tmp_path / "rules.yml").write_text(rules.read_text().replace("> 5", "> 5000"))
    case = (Path(__file__).parent / "alerts/gateway.yml").read_text()
    (tmp_path / "case.yml").write_text(case.replace(f"../../../{rules.relative_to(ROOT)}", "rules.yml"))
    assert run(promtool, "test", "rules", tmp_path / "case.yml").returncode == 1
