# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Processes that hold a tier in every way that there is, and a tier whose engine must be stopped."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys

from fixtures import NOBODY, Tree, make_state, remember_in, tier_for
from store_trees import KEY

from ansible_collections.llmhost.hardening.plugins.module_utils.kv import cli, datamap, expiry

HOUR = 3600
HOLD = """
import os, sys, time
how, path = sys.argv[1], sys.argv[2]
if how == "fd":
    held = open(path, "rb")
elif how == "directory fd":
    held = os.open(os.path.dirname(path), os.O_RDONLY)
elif how == "O_PATH fd":
    held = os.open(path, os.O_PATH)
elif how == "mmap":
    import ctypes
    map_it = ctypes.CDLL(None).mmap
    map_it.restype = ctypes.c_void_p
    map_it.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
    with open(path, "rb") as file:  # Python's own mmap would keep a descriptor too
        assert map_it(None, 16, 1, 1, file.fileno(), 0) not in (None, 2**64 - 1)
elif how == "cwd":
    os.chdir(os.path.dirname(path))
elif how == "root":
    os.chroot(os.path.dirname(path))
elif how == "thread":
    import ctypes, threading
    def work():
        ctypes.CDLL(None).unshare(0x400)  # CLONE_FILES: the thread has descriptors of its own
        held = os.open(path, os.O_RDONLY)
        print("ready", flush=True)
        time.sleep(60)
    threading.Thread(target=work, daemon=True).start()
    time.sleep(60)
print("ready", flush=True)
time.sleep(60)
"""


@contextlib.contextmanager
def process(*arguments, **options):
    """A process that says when it is ready and is ended with the test."""
    with subprocess.Popen(list(map(str, arguments)), stdout=subprocess.PIPE, text=True, **options) as started:
        try:
            assert started.stdout and started.stdout.readline() == "ready\n"
            yield started
        finally:
            started.kill()


def holding(how, path, **options):
    return process(sys.executable, "-c", HOLD, how, path, **options)


class Place:
    """A stopped store with an old and a young chunk, its state, and `kvtier expire --stopped` over it."""

    def __init__(self, root, monkeypatch, owner=NOBODY, store="lmcache_disk", **changes):
        self.tree = Tree(root / "kv")
        self.old, self.young = self.tree.put(f"{KEY}.pt", 2 * HOUR), self.tree.put(f"{KEY}@1.pt", 60)
        self.tree.give(owner)
        self.tier = {**tier_for(self.tree.root, owner=owner, **changes), "store": store}
        make_state(root / "state", self.tier)
        document = {"schema": 1, "host": "h", "prompt_log_retention_minutes": 1440, "tiers": [self.tier]}
        monkeypatch.setattr(datamap, "load", lambda path: document)
        remember_in(monkeypatch, root / "state", expiry.expire)
        monkeypatch.setattr(cli.syslog, "syslog", lambda *_: None)
        self.monkeypatch = monkeypatch

    def run(self, *options):
        """kvtier in a process of its own: what this one started is not its child."""
        return self.main("expire", "chat", *options)

    def main(self, *arguments):
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            code = 99
            try:
                code = cli.main(arguments)
                sys.stdout.flush()
                sys.stderr.flush()
            finally:
                os._exit(code)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    def is_left(self):
        assert self.young in self.tree.files()
        return self.old in self.tree.files()


def see_only_what_can_be_seen(readlink=os.readlink, listdir=os.listdir):
    """Leave out what even root may not look at here: the processes of a sandbox around these tests.

    One such process is a refusal, as test_a_process_that_cannot_be_looked_at_keeps_everything says.
    """

    def seen(name):
        try:
            return bool(readlink(f"/proc/{name}/cwd")) or True
        except PermissionError:
            return False
        except OSError:
            return True

    def only_seen(path="."):
        return [name for name in listdir(path) if path != "/proc" or not name.isdigit() or seen(name)]

    return only_seen
