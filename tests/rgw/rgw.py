# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A whole Ceph object gateway on loopback: a monitor, an OSD in memory, a radosgw whose lifecycle day takes seconds."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

from s3_servers import KEY, SECRET, Server, free_ports

PACKAGES = "radosgw ceph-mon ceph-osd ceph-common"
CONF = """\
[global]
fsid = {fsid}
mon_host = [v2:127.0.0.1:{mon},v1:127.0.0.1:{mon1}]
mon_initial_members = a
public_addr = 127.0.0.1
cluster_addr = 127.0.0.1
public_network = 127.0.0.0/8
run_dir = {root}/run
admin_socket = {root}/run/$name.asok
pid_file =
log_file = {root}/log/$name.log
crash_dir = {root}/log
keyring = {root}/keyring
osd_pool_default_size = 1
osd_pool_default_min_size = 1
osd_pool_default_pg_num = 4
osd_pool_default_pg_autoscale_mode = off
osd_crush_chooseleaf_type = 0
mon_allow_pool_size_one = true
mon_max_pg_per_osd = 1000
osd_memory_target = 939524096
[mon.a]
mon_data = {root}/mon
mon_cluster_log_file = {root}/log/cluster.log
[osd.0]
osd_data = {root}/osd
osd_objectstore = memstore
memstore_device_bytes = 1G
[client.rgw.t]
rgw_frontends = beast endpoint=127.0.0.1:{s3}
rgw_lc_debug_interval = {day}
rgw_lc_max_objs = 32
rgw_lc_max_worker = 1
rgw_lc_lock_max_time = 3
rgw_lifecycle_work_time = 00:00-23:59
rgw_enable_usage_log = false
rgw_rados_pool_pg_num_min = 4
"""


class Gateway(Server):
    """The gateway, which can make other accounts. admin: calls radosgw-admin."""

    def __init__(self, endpoint: str, root: Path, process: subprocess.Popen[bytes], admin: Callable[..., str]) -> None:
        super().__init__(endpoint, root, process)
        self.admin = admin

    def account(self, name: str, **more: str) -> dict[str, str]:
        """The credentials of a new account, which has no right to anything."""
        keys = {"access_key": name, "secret_key": name[::-1]}
        given = {"uid": name, "display-name": name, **keys, **more}
        self.admin("user", "create", *(f"--{key.replace('_', '-')}={value}" for key, value in given.items()))
        return keys


@contextlib.contextmanager
def gateway(day: int = 4) -> Iterator[Gateway]:
    """The gateway; day: seconds that stand for one day of a lifecycle rule."""
    for name in ("radosgw", "ceph-mon", "ceph-osd", "ceph"):
        if shutil.which(name) is None:
            raise RuntimeError(f"{name} is missing: apt-get install -y --no-install-recommends {PACKAGES}")
    root = Path(tempfile.mkdtemp(prefix="llmhost-rgw-"))
    for name in ("mon", "osd", "run", "log"):
        (root / name).mkdir()
    mon, mon1, s3 = free_ports(3)
    fsid = str(uuid.uuid4())
    conf, ring = root / "ceph.conf", root / "keyring"
    conf.write_text(CONF.format(root=root, fsid=fsid, mon=mon, mon1=mon1, s3=s3, day=day))
    started: list[subprocess.Popen[bytes]] = []

    def run(*command: object) -> str:
        given = [str(one) for one in command]
        environment = {**os.environ, "CEPH_CONF": str(conf)}
        done = subprocess.run(given, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{given[0]} failed: {done.stderr[-2000:]}")
        return done.stdout

    def start(*command: object) -> None:
        with (root / "log" / f"{command[0]}.out").open("wb") as log:
            started.append(subprocess.Popen([str(one) for one in command], stdout=log, stderr=log, cwd=root))

    def until(check: str, what: str) -> None:
        end = time.monotonic() + 120
        while time.monotonic() < end:
            with contextlib.suppress(RuntimeError):
                if what in run("ceph", "-c", conf, "--connect-timeout", 5, *check.split()):
                    return
            time.sleep(0.3)
        raise RuntimeError(f"ceph {check} never said {what!r}")

    try:
        addresses = f"[v2:127.0.0.1:{mon},v1:127.0.0.1:{mon1}]"
        run("monmaptool", "--create", "--addv", "a", addresses, "--fsid", fsid, root / "monmap")
        # Without cephx this radosgw never gets past its first request.
        new = ["ceph-authtool", ring, "--gen-key", "-n"]
        run(*new, "mon.", "--create-keyring", "--cap", "mon", "allow *")
        run(*new, "client.admin", "--cap", "mon", "allow *", "--cap", "osd", "allow *")
        run(*new, "osd.0", "--cap", "mon", "allow profile osd", "--cap", "osd", "allow *")
        run(*new, "client.rgw.t", "--cap", "mon", "allow rw", "--cap", "osd", "allow rwx")
        run("ceph-mon", "--mkfs", "-i", "a", "-c", conf, "--monmap", root / "monmap", "--keyring", ring)
        start("ceph-mon", "-f", "-i", "a", "-c", conf)
        until("quorum_status", "quorum")
        osd = uuid.uuid4()
        run("ceph", "-c", conf, "osd", "new", osd, 0)
        run("ceph-osd", "--mkfs", "-i", 0, "-c", conf, "--osd-uuid", osd)
        start("ceph-osd", "-f", "-i", 0, "-c", conf)
        until("osd stat", "1 up")
        start("radosgw", "-f", "-n", "client.rgw.t", "-c", conf)
        admin = functools.partial(run, "radosgw-admin", "-c", conf, "-n", "client.rgw.t")
        server = Gateway(f"http://127.0.0.1:{s3}", root, started[-1], admin)
        server.account("t", access_key=KEY, secret_key=SECRET, caps="user-policy=*")
        end = time.monotonic() + 120
        while True:
            try:
                server.client.list_buckets()
                break
            except Exception:
                if time.monotonic() > end:
                    raise
                time.sleep(0.3)
        yield server
    finally:
        # radosgw cannot end once its OSD is gone, and nothing here is worth keeping.
        for process in reversed(started):
            process.kill()
            process.wait()
        shutil.rmtree(root, ignore_errors=True)
