# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Makes the blocks of a canary prompt that went through the gateway: under the names with its tenant's salt."""

import base64
import hashlib
import hmac
import json
import os
import pathlib
import shutil
import sys

sys.path.insert(0, "/usr/local/sbin/kvtier")
from kv import blocknames, stores_places

TOKENS = list(range(1000, 1032))
root = pathlib.Path("/var/lib/vllm-kv")
secret = bytes.fromhex(pathlib.Path("/etc/llmhost/gateway/salt.key").read_text().strip())
digest = hmac.new(secret, b"llmhost-cache-salt-v1\0canary\0" + b"1", hashlib.sha256).digest()
salt = base64.urlsafe_b64encode(digest).decode().rstrip("=")
file = pathlib.Path("/etc/llmhost/canary.salt")
file.touch(mode=0o600)
file.write_text(salt + "\n")
space = next(path for path in sorted(root.iterdir()) if stores_places.is_namespace(path.name))
os.setgid(space.stat().st_gid)
entry = {"tier": "chat", "token_ids": TOKENS, "block_size": 16, "version": "0.29.0", "salt_file": str(file)}
pathlib.Path("/etc/llmhost/canaries.json").write_text(json.dumps({"canaries": [entry]}))
for name in blocknames.names(TOKENS, 16, "0.29.0", "sha256", salt, None, 1):
    first, second, block = stores_places.block_place(name)
    directory = space / first / (second + "0")
    for made in (space / first, directory):
        made.mkdir(mode=0o700, exist_ok=True)
        shutil.chown(made, "vllm", "vllm")
    (directory / block).touch(mode=0o600)
    shutil.chown(directory / block, "vllm", "vllm")
