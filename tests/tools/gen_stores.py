#!/usr/bin/env python
# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes docs/stores.md from the store registry; with --check only says whether the page is what it would write."""

from __future__ import annotations

import argparse
import importlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "stores.md"
CLAIMS = ROOT / "tests" / "tools" / "claims.json"

TIER = re.compile(r"tier \w+: vllm/")

HEAD = """\
<!--
SPDX-FileCopyrightText: 2026 llmhost contributors
SPDX-License-Identifier: GPL-3.0-or-later
Written by tests/tools/gen_stores.py from plugins/module_utils/kv/stores*.py: change those, not this page.
-->
# Stores

What `store` may be in the [data map](data-map.md), and all that this collection knows of it. A name that is not listed
is a stranger: it is reported and never touched. Files expire by the time of their last write.

- *block*: holds KV; expires. *temp*: an unfinished write or a probe; goes after `tmp_grace_minutes`. *config*: stays.
- *live*: blocks may be deleted while the engine runs. *stopped*: only `kvtier expire --stopped`, which cron calls too,
  deletes them, after it made sure that nothing on the host holds or uses the tier ([kvtier.md](kvtier.md)).
- Evidence: *observed*: a real writer made these names in our tests. *from source, not run*: they were read
  in the engine's source or documentation. For each store the tests make a tree of all these names, and of hostile ones.

Names are regular expressions for one path component each; `/` stands between components. `lost+found` and
`CACHEDIR.TAG` at the root of a tier are known in every store.

## Overview

| store | engine | expires | evidence |
|---|---|---|---|
"""


def registry() -> Any:
    """The registry as it lies in this tree."""
    sys.path.insert(0, str(ROOT / "plugins/module_utils"))
    try:
        return importlib.import_module("kv.stores")
    finally:
        sys.path.pop(0)


def expires(store: Any) -> str:
    if store.layout is None:
        return "no files on the host"
    if not store.live:
        return "stopped"
    return "live" if store.live_from is None else "live from {}".format(".".join(map(str, store.live_from)))


def names(level: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Kind and path of each known name, and of each directory that is removed when it is empty."""
    for file in level.files:
        magic = f"   (begins with {file.magic.decode('ascii')})" if file.magic else ""
        yield file.kind, path + file.pattern.pattern + magic
    for below in level.dirs:
        here = path + below.pattern.pattern + "/"
        yield from names(below, here)
        if below.prune:
            yield "empty", here


def section(store: Any) -> str:
    lines = [f"## {store.name}", "", f"{store.title}.", ""]
    lines += [f"- Expires: {expires(store)}. Evidence: {store.evidence}."]
    lines += [f"- Removing: {store.removing}."]
    if store.layout is not None:
        lines += ["- File systems: {}.".format(", ".join(store.filesystems))]
    if store.default_paths:
        lines += ["- The engine's default: {}.".format(", ".join(f"`{path}`" for path in store.default_paths))]
    if store.layout is not None:
        lines += ["", "```text", *(f"{kind:<7}{path}" for kind, path in names(store.layout)), "```"]
    lines += ["", "Dangers:", "", *(f"- {danger.text} ({danger.source})" for danger in store.dangers)]
    return "\n".join(lines) + "\n"


def releases() -> str:
    """What the claims say of vLLM's tiers, release by release."""
    facts = json.loads(CLAIMS.read_text(encoding="utf-8"))["facts"]
    lines = ["", "### vLLM's tiers by release", ""]
    lines += ["Read out of the releases' own wheels; `make claims` says what changed.", ""]
    lines += ["| tier type | releases |", "|---|---|"]
    lines += [f"| `{fact[5:].partition(':')[0]}` | {span} |" for fact, span in facts.items() if TIER.match(fact)]
    lines += ["", "Everything in the file and object tiers that can take a file away or replace one:", "", "```text"]
    removes = {fact.removeprefix("removes "): span for fact, span in facts.items() if fact.startswith("removes ")}
    lines += [f"{span:<16}{call}" for call, span in removes.items()]
    return "\n".join([*lines, "```", ""])


def page(stores: dict[str, Any]) -> str:
    ordered = [stores[name] for name in sorted(stores)]
    rows = [
        f"| [{store.name}](#{store.name}) | {store.engine} | {expires(store)} | {store.evidence} |\n"
        for store in ordered
    ]
    return HEAD + "".join(rows) + "".join("\n" + section(store) for store in ordered) + releases()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, fail if the page is not current")
    text = page(registry().STORES)
    if not parser.parse_args().check:
        PAGE.write_text(text, encoding="utf-8")
        return 0
    if PAGE.is_file() and PAGE.read_text(encoding="utf-8") == text:
        return 0
    print(f"{PAGE.relative_to(ROOT)} is not what the registry says: run tests/tools/gen_stores.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
