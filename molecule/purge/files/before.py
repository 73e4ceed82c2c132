# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes down what a purge must destroy: the volume's key itself, as a thief has it, and the content of some blocks."""

import json
import os
import pathlib
import subprocess
import sys

root, mapper, out = sys.argv[1:]
table = subprocess.run(["dmsetup", "table", "--showkeys", mapper], capture_output=True, text=True, check=True).stdout
# START LENGTH crypt CIPHER KEY ...
key = table.split()[4]
assert len(key) == 128, "the table does not show a key of 512 bits"
blocks = sorted(pathlib.Path(root).rglob("*.bin"), key=lambda path: path.stat().st_mtime)[-40:]
assert len(blocks) > 5, "no blocks to look for later"
record = {
    "table": table,
    "key": key,
    # In hex: no disk must hold what the tests will look for.
    "blocks": {str(path): path.read_bytes()[:32].hex() for path in blocks},
}
os.sync()
target = pathlib.Path(out)
target.touch(mode=0o600)
target.write_text(json.dumps(record))
