# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Puts blocks into tiers, as their accounts: DIRECTORY ACCOUNT STORE ... What is in them can be found on a disk."""

import hashlib
import os
import pwd
import sys

MARK = b"KV-OF-A-PROMPT "
words = sys.argv[1:]
for root, account, store in zip(words[::3], words[1::3], words[2::3], strict=True):
    entry = pwd.getpwnam(account)
    child = os.fork()
    if child:
        assert os.waitpid(child, 0)[1] == 0
        continue
    os.setgroups([])
    os.setgid(entry.pw_gid)
    os.setuid(entry.pw_uid)
    for number in range(64):
        name = hashlib.sha256(b"%d" % number).hexdigest()
        path = os.path.join(root, f"slot-{number}")
        data = b"qsgg" + MARK * 64
        if store == "vllm_fs":
            path = os.path.join(root, "Qwen_Qwen3-8B_0123456789ab_r0", name[:3], name[3:5] + "_g0", name + ".bin")
            data = MARK * 64
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        with open(path, "wb") as file:
            file.write(data)
    os._exit(0)
os.sync()
