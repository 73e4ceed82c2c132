#!/usr/bin/env python
# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes the table of variables in each role's README from its argument_specs; --check only compares."""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
BEGIN = "<!-- Variables: written by tests/tools/gen_roles.py from meta/argument_specs.yml. -->"
END = "<!-- End of variables. -->"
# A README that was never generated: its first table of variables, in whose place the generated one comes.
BY_HAND = re.compile(r"^\| variable \|.*\n(?:\|.*\n)+", re.M)
MARKED = re.compile(re.escape(BEGIN) + r"\n.*?" + re.escape(END) + r"\n", re.S)
MACRO = re.compile(r"\b[COVEIBM]\(([^()]*)\)")
PAGE = re.compile(r"`?\bdocs/([a-z-]+\.md)`?")


def prose(text: str | list[str]) -> str:
    """A description as Markdown: Ansible's macros as code, pages of docs/ as links."""
    joined = " ".join([text] if isinstance(text, str) else text)
    joined = MACRO.sub(r"`\1`", joined)
    joined = PAGE.sub(r"[docs/\1](../../docs/\1)", joined)
    return joined.replace("|", "\\|").strip()


def default(option: dict[str, Any]) -> str:
    if option.get("required"):
        return "required"
    value = option.get("default")
    if value in (None, ""):
        return ""
    return f"`{value if isinstance(value, str) else json.dumps(value)}`"


def kind(option: dict[str, Any]) -> str:
    elements = f" of {option['elements']}" if "elements" in option else ""
    return option["type"] + elements


def rows(options: dict[str, Any]) -> list[str]:
    lines = ["| variable | type | default | |", "|---|---|---|---|"]
    for name, option in options.items():
        text = prose(option["description"])
        if "choices" in option:
            text += " One of {}.".format(", ".join(f"`{choice}`" for choice in option["choices"]))
        lines.append(f"| `{name}` | {kind(option)} | {default(option)} | {text} |")
    return lines


def table(specs: dict[str, Any]) -> str:
    lines = [BEGIN]
    for entry, spec in specs.items():
        if len(specs) > 1:
            lines += ["", f"Entry point `{entry}`: {prose(spec['short_description'])}.", ""]
        lines += rows(spec.get("options", {}))
    return "\n".join([*lines, END, ""])


def page(role: Path) -> str:
    """The README as it has to be: everything outside the markers as it is."""
    written = (role / "README.md").read_text(encoding="utf-8")
    specs = yaml.safe_load((role / "meta/argument_specs.yml").read_text(encoding="utf-8"))["argument_specs"]
    new = table(specs)
    for place in (MARKED, BY_HAND):
        if place.search(written):
            return place.sub(lambda _found: new, written, count=1)
    return written.rstrip("\n") + "\n\n" + new


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, fail if a README is not current")
    check = parser.parse_args().check
    stale = 0
    for role in sorted(path.parents[1] for path in ROOT.glob("roles/*/meta/argument_specs.yml")):
        readme, text = role / "README.md", page(role)
        if readme.read_text(encoding="utf-8") == text:
            continue
        if check:
            stale += 1
            print(f"{readme.relative_to(ROOT)} is not what its argument_specs say: run tests/tools/gen_roles.py")
        else:
            readme.write_text(text, encoding="utf-8")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
