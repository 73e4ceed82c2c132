# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A person at a terminal sees how far a long pass is; cron, pipes and short passes see nothing."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import re
import select
import subprocess
import sys

import pytest
from fixtures import Tree, in_child, make_state, tier_for

from ansible_collections.llmhost.hardening.plugins.module_utils.kv import progress

RUN = """
import json, os, sys
from ansible_collections.llmhost.hardening.plugins.module_utils.kv import cli, datamap, discovery, expiry, progress
tier, state_root, after = json.loads(sys.argv[1]), sys.argv[2], float(sys.argv[3])
document = {"schema": 1, "host": "h", "prompt_log_retention_minutes": 1440, "tiers": [tier]}
datamap.load, discovery.engines, cli.syslog.syslog = lambda path: document, lambda *_: [], lambda *_: None
progress.Progress.after, progress.Progress.every = after, 0.0
expire = expiry.expire
expiry.expire = lambda tier, **options: expire(tier, state_root=state_root, **options)
sys.exit(cli.main(["expire", "chat"]))
"""


class Clock:
    def __init__(self, monkeypatch):
        self.now = 100.0
        monkeypatch.setattr(progress.time, "monotonic", lambda: self.now)


def test_nothing_is_shown_before_two_seconds_and_then_not_too_often(monkeypatch):
    clock, screen = Clock(monkeypatch), io.StringIO()
    shown = progress.Progress("chat", screen)
    for _number in range(100):
        clock.now += 0.0199
        shown.directory()
    assert screen.getvalue() == ""
    shown.end()
    assert screen.getvalue() == "", "nothing to take away"
    for _number in range(100):
        clock.now += 0.02
        shown.directory()
    lines = screen.getvalue().split("\r\x1b[K")[1:]
    assert 3 <= len(lines) <= 5 and lines[-1].startswith("chat: ") and "\n" not in screen.getvalue()
    shown.end()
    assert screen.getvalue().endswith("\r\x1b[K")


def test_what_forked_processes_do_counts(monkeypatch):
    clock, screen = Clock(monkeypatch), io.StringIO()
    shown = progress.Progress("chat", screen)

    def work():
        for _number in range(5):
            shown.directory()

    for _worker in range(3):
        assert in_child(work) == 0
    clock.now += 3
    shown.directory()
    assert "chat: 16 directories read, 3 s" in screen.getvalue()


def test_a_terminal_that_is_gone_ends_no_pass(monkeypatch):
    clock = Clock(monkeypatch)
    reader, writer = os.pipe()
    os.close(reader)
    stream = os.fdopen(writer, "w")
    shown = progress.Progress("chat", stream)
    clock.now += 3
    shown.directory()
    with contextlib.suppress(BrokenPipeError):
        stream.close()


def test_only_a_terminal_gets_it():
    assert progress.at_terminal("chat", io.StringIO()) is None
    closed = io.StringIO()
    closed.close()
    assert progress.at_terminal("chat", closed) is None
    main, terminal = pty.openpty()
    with os.fdopen(terminal, "w") as stream:
        assert progress.at_terminal("chat", stream) is not None
    os.close(main)


@pytest.mark.parametrize("where", ["terminal", "pipe", "terminal, short"])
def test_kvtier_shows_it_and_takes_it_away(tmp_path, where):
    tree = Tree(tmp_path / "kv")
    for number in range(3):
        tree.block(number, 4000)
    tier = tier_for(tree.root)
    make_state(tmp_path / "state", tier)
    main, terminal = pty.openpty()
    after = "1000" if "short" in where else "0"
    arguments = [sys.executable, "-c", RUN, json.dumps(tier), str(tmp_path / "state"), after]
    stderr = subprocess.PIPE if where == "pipe" else terminal
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(arguments, stdout=subprocess.PIPE, stderr=stderr, env=environment, text=True, check=False)
    text = ""
    while select.select([main], [], [], 0)[0]:
        text += os.read(main, 4096).decode()
    os.close(main)
    os.close(terminal)
    assert done.returncode == 0 and done.stdout.startswith("expire chat: exit 0, expired 3"), done
    if where == "terminal":
        # Two workers count; which numbers are shown depends on who is first.
        assert re.search(r"chat: [2-9] directories read", text) and text.endswith("\r\x1b[K") and "\n" not in text
    else:
        assert text == "" and not done.stderr
