# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""OpenStack Swift with its s3api on loopback, out of Debian's python3-swift: a real S3 without lifecycle.

The packages of its servers are not installed: they would start daemons that listen everywhere.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from s3_servers import Server, client, free_ports, serving, status, wait_until

PYTHON = "/usr/bin/python3"
KEY, SECRET = "test:tester", "testing"
SERVER = """\
import sys
from swift.common import utils, wsgi
utils.set_swift_dir(sys.argv[3])
sys.exit(wsgi.run_wsgi(sys.argv[1], sys.argv[2]))
"""
RING = "import sys; from swift.cli.ringbuilder import main; sys.exit(main(['swift-ring-builder'] + sys.argv[1:]))"
COMMON = """\
[DEFAULT]
bind_ip = 127.0.0.1
bind_port = {port}
user = root
swift_dir = {root}
devices = {root}/dev
mount_check = false
workers = 0
"""
STORE = """\
[pipeline:main]
pipeline = {name}-server
[app:{name}-server]
use = egg:swift#{name}
"""
PROXY = """\
[pipeline:main]
pipeline = catch_errors cache listing_formats s3api tempauth copy slo dlo versioned_writes symlink proxy-server
[app:proxy-server]
use = egg:swift#proxy
account_autocreate = true
[filter:cache]
use = egg:swift#memcache
memcache_servers = 127.0.0.1:1
[filter:s3api]
use = egg:swift#s3api
s3_acl = false
location = us-east-1
[filter:tempauth]
use = egg:swift#tempauth
user_test_tester = testing .admin
[filter:versioned_writes]
use = egg:swift#versioned_writes
allow_versioned_writes = true
allow_object_versioning = true
"""
PLAIN = ("catch_errors", "listing_formats", "copy", "symlink", "slo", "dlo")
HASH = """\
[swift-hash]
swift_hash_path_suffix = a
swift_hash_path_prefix = b
[storage-policy:0]
name = p0
default = yes
"""


def ring(*arguments: object) -> None:
    done = subprocess.run([PYTHON, "-c", RING, *map(str, arguments)], capture_output=True, text=True, check=False)
    # 1 is a warning: one device is no cluster.
    if done.returncode > 1:
        raise RuntimeError(f"swift-ring-builder {arguments}: {done.stdout}{done.stderr}")


@contextlib.contextmanager
def swift() -> Iterator[Server]:
    if subprocess.run([PYTHON, "-c", "import swift"], capture_output=True, check=False).returncode:
        raise RuntimeError("python3-swift is missing: apt-get install -y --no-install-recommends python3-swift")
    root = Path(tempfile.mkdtemp(prefix="llmhost-swift-"))
    (root / "dev/d1").mkdir(parents=True)
    (root / "swift.conf").write_text(HASH)
    names = ("account", "container", "object", "proxy")
    ports = dict(zip(names, free_ports(4), strict=True))
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, root, ignore_errors=True)
        for name in names:
            text = PROXY if name == "proxy" else STORE.format(name=name)
            if name == "proxy":
                text += "".join(f"[filter:{one}]\nuse = egg:swift#{one}\n" for one in PLAIN)
            else:
                builder = root / f"{name}.builder"
                ring(builder, "create", 4, 1, 0)
                ring(builder, "add", f"r1z1-127.0.0.1:{ports[name]}/d1", 1)
                ring(builder, "rebalance")
            conf = root / f"{name}-server.conf"
            conf.write_text(COMMON.format(port=ports[name], root=root) + text)
            (root / name).mkdir()
            command = [PYTHON, "-c", SERVER, str(conf), f"{name}-server", str(root)]
            process = stack.enter_context(serving(command, root / name))
        server = Server(f"http://127.0.0.1:{ports['proxy']}", root, process)
        server.client = client(server.endpoint, KEY, SECRET)
        wait_until(lambda: status(ports["proxy"], "/") > 0, what="Swift")
        wait_until(lambda: bool(_listed(server)), what="Swift's account server")
        yield server


def _listed(server: Server) -> bool:
    try:
        server.client.list_buckets()
    except Exception:
        return False
    return True
