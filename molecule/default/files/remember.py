# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes down what must be different after a reboot: boot id, digest of the volume's key, content of some blocks."""

import hashlib
import json
import pathlib
import subprocess
import sys

root, mapper, out = sys.argv[1:]
table = subprocess.run(["dmsetup", "table", "--showkeys", mapper], capture_output=True, text=True, check=True).stdout
# START LENGTH crypt CIPHER KEY ...
key = table.split()[4]
assert len(key) == 128, "the table does not show a key of 512 bits"
blocks = sorted(pathlib.Path(root).rglob("*.bin"), key=lambda path: path.stat().st_mtime)[-3:]
assert len(blocks) == 3, "no blocks to look for later"
record = {
    "boot": pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
    "key": hashlib.sha256(key.encode()).hexdigest(),
    # In hex: the root disk must not hold what the tests will look for.
    "blocks": {str(path): path.read_bytes()[:32].hex() for path in blocks},
}
target = pathlib.Path(out)
target.touch(mode=0o600)
target.write_text(json.dumps(record))
