#!/usr/bin/env python
# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Looks for secrets in the project's files with detect-secrets; no_secrets.json lists what only looks like one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from detect_secrets.core.secrets_collection import SecretsCollection
from detect_secrets.settings import default_settings

ROOT = Path(__file__).resolve().parents[2]
KNOWN = ROOT / "tests/tools/no_secrets.json"
# Lists of digests: nothing else stands in them.
DIGESTS = {"tests/requirements.lock", "tests/managed.lock", "tests/nightly/engine.lock", "tests/tools/claims.json"}


def sources() -> list[str]:
    listed = subprocess.run([ROOT / "tests/tools/sources.sh"], check=True, capture_output=True, text=True).stdout
    return [name for name in listed.split("\0") if name and name not in DIGESTS and ROOT / name != KNOWN]


def scan(names: list[str]) -> list[tuple[str, int, str, str]]:
    """File, line, kind and SHA-1 of whatever looks like a secret; no value leaves this function."""
    found = SecretsCollection()
    with default_settings():
        for name in names:
            found.scan_file(name)
    return sorted((name, one.line_number, one.type, one.secret_hash) for name, one in found)


def main() -> int:
    os.chdir(ROOT)
    known = {
        digest: why for why, digests in json.loads(KNOWN.read_text(encoding="utf-8")).items() for digest in digests
    }
    found = scan(sys.argv[1:] or sources())
    new = [one for one in found if one[3] not in known]
    for name, line, kind, digest in new:
        print(f"{name}:{line}: {kind}: remove and revoke it; if it is none, add {digest} to {KNOWN.relative_to(ROOT)}")
    unused = set() if sys.argv[1:] else known.keys() - {digest for *_rest, digest in found}
    for digest in sorted(unused):
        print(f"{KNOWN.relative_to(ROOT)}: {digest} ({known[digest]}) is nowhere any more")
    return 1 if new or unused else 0


if __name__ == "__main__":
    sys.exit(main())
