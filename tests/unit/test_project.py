# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rules for the project's own files: links that lead somewhere, files that can be read in one go, generated parts."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import gen_roles
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("roles/*/README.md"), *ROOT.glob("tests/*/README.md")]
)
LINK = re.compile(r"\[[^\]\n]*\]\(([^)\s]+)\)")
CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.M | re.S)
TEXT = {".py", ".sh", ".md", ".yml", ".toml", ".lua", ".j2", ".cfg", ".txt", ""}
# Longer than 500 lines, and why.
LONG = {
    "LICENSE": "the licence's own text",
    "LICENSES/GPL-3.0-or-later.txt": "the licence's own text",
    "tests/integration/test_bucket_lifecycle.py": "one started server for all of it",
    "tests/unit/test_controls.py": "one host made by hand for all controls",
    "tests/unit/test_datamap.py": "one table of mistakes",
    "tests/unit/test_expiry.py": "one tier made by hand for all rules of a pass",
    "tests/unit/test_indexed.py": "one random history and its reference",
    "tests/unit/test_mapkeys.py": "one table of mistakes",
    "tests/unit/test_offload_host.py": "one host made by hand for all forms of units",
    "tests/unit/test_s3_sweep.py": "one bucket made by hand for all rules of a sweep",
    "tests/unit/test_walk.py": "one tree made by hand for all rules of a walk",
}


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def anchors(page: Path) -> set[str]:
    """What GitHub makes of a page's headings."""
    heads = re.findall(
        r"^#+ (.*)$", re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S), re.M
    )
    return {re.sub(r"[^\w -]", "", head.lower()).strip().replace(" ", "-") for head in heads}


def broken(page: Path) -> list[str]:
    """Links to files or headings that are not there."""
    found = []
    for target in LINK.findall(CODE.sub("", page.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", target):
            continue
        file, _hash, anchor = target.partition("#")
        there = (page.parent / file).resolve() if file else page
        if not there.exists() or (anchor and anchor not in anchors(there)):
            found.append(target)
    return found


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_of_the_documentation_lead_somewhere(page: Path) -> None:
    assert broken(page) == []


def test_a_link_to_nothing_is_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A head, with `code`\n[a](page.md#a-head-with-code) [b](#nowhere) [c](gone.md) `[d](code.md)` [e](https://x/y)\n"
    )
    assert broken(page) == ["#nowhere", "gone.md"]


@pytest.mark.parametrize("page", sorted(ROOT.glob("docs/*.md")), ids=name)
def test_every_page_can_be_reached_from_the_readme(page: Path) -> None:
    seen, waiting = set(), [ROOT / "README.md"]
    while waiting:
        one = waiting.pop()
        if one in seen or one.suffix != ".md" or not one.exists():
            continue
        seen.add(one)
        links = LINK.findall(one.read_text(encoding="utf-8"))
        waiting += [(one.parent / link.partition("#")[0]).resolve() for link in links if not re.match(r"[a-z]+:", link)]
    assert page in seen


def test_no_file_is_too_long_to_be_read_without_a_reason() -> None:
    listed = subprocess.run([ROOT / "tests/tools/sources.sh"], check=True, capture_output=True, text=True).stdout
    files = [ROOT / item for item in listed.split("\0") if item and Path(item).suffix in TEXT]
    long = {name(file) for file in files if len(file.read_bytes().splitlines()) > 500}
    assert long - LONG.keys() == set(), "split it, or say in LONG why not"
    assert LONG.keys() - long == set(), "short by now: take it out of LONG"


def test_role_readmes_say_what_their_argument_specs_say(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["gen_roles.py", "--check"])
    assert gen_roles.main() == 0, capsys.readouterr().out


def test_what_a_person_wrote_into_a_role_readme_stays(tmp_path: Path) -> None:
    (tmp_path / "meta").mkdir()
    option = "{description: 'Say V(x|y), see docs/stores.md.', type: str, default: z}"
    spec = f"argument_specs: {{main: {{options: {{a_b: {option}}}}}}}"
    (tmp_path / "meta/argument_specs.yml").write_text(spec)
    row = "| `a_b` | str | `z` | Say `x\\|y`, see [docs/stores.md](../../docs/stores.md). |\n"
    for before in (
        "| variable | default | |\n|---|---|---|\n| `old` | | |\n",
        gen_roles.BEGIN + "\nold\n" + gen_roles.END + "\n",
    ):
        (tmp_path / "README.md").write_text("# mine\n\n" + before + "\nmine too\n")
        text = gen_roles.page(tmp_path)
        assert (
            text.startswith("# mine\n\n" + gen_roles.BEGIN)
            and text.endswith("\nmine too\n")
            and row in text
            and "old" not in text
        )
        (tmp_path / "README.md").write_text(text)
        assert gen_roles.page(tmp_path) == text


@pytest.mark.parametrize("scenario", sorted(ROOT.glob("molecule/*/molecule.yml")), ids=lambda path: path.parent.name)
def test_no_step_of_a_scenario_is_skipped_for_a_playbook_that_is_missing(scenario: Path) -> None:
    """molecule skips a step and calls it done: one without its playbook, and any side effect without a default one."""
    text = yaml.safe_load(scenario.read_text(encoding="utf-8"))
    named = text["provisioner"].get("playbooks", {})
    for step in text["scenario"]["test_sequence"]:
        action, *given = step.split()
        if action in ("create", "destroy", "prepare", "converge", "side_effect"):
            for file in {named.get(action, f"{action}.yml"), *given}:
                assert (scenario.parent / file).is_file(), f"{step}: {file} is not there"
        for directory in given if action == "verify" else ():
            assert (scenario.parent / directory).is_dir(), f"{step}: {directory} is not there"
