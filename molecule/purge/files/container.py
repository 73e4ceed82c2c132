# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs a container with the tier as a volume of its own, as podman has its runtime do it: crun, a scope libpod-ID."""

import json
import os
import pathlib
import pwd
import subprocess
import sys

ID = "c0ffee" + "0" * 58
root = sys.argv[1]
account = pwd.getpwuid(os.stat(root).st_uid)
box = pathlib.Path("/root/box")
for name in ("usr", "proc", "dev", "kv"):
    (box / "rootfs" / name).mkdir(parents=True, exist_ok=True)
for name in ("bin", "lib", "lib64"):
    (box / "rootfs" / name).symlink_to("usr/" + name)
bind = {"type": "bind", "options": ["rbind", "rprivate"]}
config = {
    "ociVersion": "1.0.0",
    "process": {
        "user": {"uid": account.pw_uid, "gid": account.pw_gid},
        # PID 1 of its namespace does not hear SIGTERM.
        "args": ["/bin/sh", "-c", "exec 3</kv/CACHEDIR.TAG; while :; do sleep 9; done"],
        "env": ["PATH=/usr/bin:/bin"],
        "cwd": "/",
    },
    "root": {"path": "rootfs"},
    "mounts": [
        {"destination": "/proc", "type": "proc", "source": "proc"},
        {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]},
        {"destination": "/usr", "source": "/usr", **bind},
        {"destination": "/kv", "source": root, **bind},
    ],
    "linux": {
        "namespaces": [{"type": "pid"}, {"type": "mount"}, {"type": "ipc"}],
        "cgroupsPath": "machine.slice:libpod:" + ID,
    },
}
(box / "config.json").write_text(json.dumps(config))
with open("/root/box.log", "wb") as log:
    run = ["crun", "--systemd-cgroup", "run", "--detach", f"--bundle={box}", ID]
    sys.exit(subprocess.run(run, stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=False).returncode)
