# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""kvtier as cron, systemd and a person call it."""
# pylint: disable=unreachable

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time

import pytest
from fixtures import HOSTILE_NAMESPACE, NOBODY, Tree, make_state, public_directory, remember_in, tier_for

from ansible_collections.llmhost.hardening.plugins.module_utils.kv import (
    cli,
    datamap,
    discovery,
    expiry,
    mounts,
    prepare,
    program,
    standing,
    state,
)


class Host:
    """A host with tiers: their trees, their states, and the map that names them."""

    def __init__(self, root, monkeypatch, *owners):
        self.root = root
        self.trees, self.tiers = [], []
        for number, owner in enumerate(owners):
            tree = Tree(root / f"kv{number}")
            tier = {**tier_for(tree.root, owner=owner), "name": f"tier{number}"}
            if isinstance(owner, int):
                tree.give(owner)
                make_state(root / "state", tier)
            self.trees.append(tree)
            self.tiers.append(tier)
        document = {"schema": 1, "host": "h", "prompt_log_retention_minutes": 1440, "tiers": self.tiers}
        monkeypatch.setattr(datamap, "load", lambda path: document)
        remember_in(monkeypatch, root / "state", expiry.expire)
        monkeypatch.setattr(state.read_run, "__defaults__", (str(root / "state"),))
        monkeypatch.setattr(discovery, "engines", lambda *_: [])
        self.logged = []
        monkeypatch.setattr(cli.syslog, "syslog", lambda level, text: self.logged.append((level, text)))

    def put(self, number, age, tree=0, **options):
        path = self.trees[tree].block(number, age, **options)
        self.trees[tree].give(self.tiers[tree]["owner"])
        return path

    def record(self, tree=0):
        return state.read_run(self.tiers[tree])


@pytest.fixture(autouse=True)
def own_umask():
    """kvtier sets its own for good."""
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.fixture
def public():
    with public_directory() as root:
        yield root


@pytest.fixture
def host(public, monkeypatch):
    return Host(public, monkeypatch, NOBODY)


def test_expire_as_root_drops_to_the_account_for_all_of_its_work(public, monkeypatch):
    host = Host(public, monkeypatch, NOBODY, 1)
    seen = public / "seen"
    seen.mkdir()
    seen.chmod(0o777)
    real = os.unlink

    def tell(name, *, dir_fd=None):
        (seen / f"{os.getresuid()}-{os.getresgid()}-{os.getgroups()}").touch()
        real(name, dir_fd=dir_fd)

    for tree in (0, 1):
        host.put(1, 4000, tree)
    with monkeypatch.context() as patch:
        patch.setattr(expiry.os, "unlink", tell)
        assert cli.main(["expire"]) == expiry.OK
    assert sorted(os.listdir(seen)) == [f"({uid}, {uid}, {uid})-({uid}, {uid}, {uid})-[]" for uid in (1, NOBODY)]
    assert [tree.files() for tree in host.trees] == [set(), set()]
    assert os.getresuid() == (0, 0, 0)
    owners = [(public / f"state/tier{number}/{state.RECORD}").stat().st_uid for number in (0, 1)]
    assert owners == [NOBODY, 1]


def test_what_the_account_may_not_delete_root_does_not_delete_for_it(host):
    host.put(1, 4000)
    leaf = host.trees[0].path(host.put(2, 4000)).parent
    os.chown(leaf, 0, 0)
    leaf.chmod(0o755)
    assert cli.main(["expire", "tier0"]) == expiry.ERRORS
    assert len(host.trees[0].files()) == 1 and host.record()["messages"][0] == "1 x EACCES while walking"


def test_expire_says_in_one_line_what_it_did(host, capsys):
    host.put(1, 4000)
    host.put(2, 60)
    assert cli.main(["expire", "tier0"]) == expiry.OK
    output = capsys.readouterr().out
    assert output.startswith("expire tier0: exit 0, expired 1 blocks (16 bytes), left 1 (16 bytes), overdue 0")
    assert output.count("\n") == 1
    assert host.logged == [(cli.syslog.LOG_INFO, output.strip())]


def test_expire_speaks_json(host, capsys):
    host.put(1, 4000, namespace=HOSTILE_NAMESPACE)
    assert cli.main(["expire", "--json"]) == expiry.OK
    output = capsys.readouterr().out
    (result,) = json.loads(output)
    assert (result["tier"], result["exit"], result["expired"]) == ("tier0", 0, 1)
    assert {"strangers", "errors", "ages", "oldest_mtime", "seconds", "version", "overdue"} <= set(result)
    assert output.isascii()


def test_dry_run_lists_what_would_go_and_leaves_all_as_it_was(host, capsys):
    path = host.put(1, 4000)
    hostile = host.put(2, 4000, namespace=HOSTILE_NAMESPACE)
    host.put(3, 60)
    assert cli.main(["expire", "--dry-run"]) == expiry.OK
    lines = capsys.readouterr().out.splitlines()
    assert path in lines and len(lines) == 3 and "would delete 2 entries" in lines[-1]
    assert all(line.isprintable() for line in lines)
    assert len(host.trees[0].files()) == 3 and hostile not in lines and host.record() is None


def test_a_terminal_that_cannot_show_a_name_gets_it_escaped(host, monkeypatch):
    host.put(1, 4000, namespace="mod\u00e8le_0123456789ab")
    screen = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(cli.sys, "stdout", screen)
    assert cli.main(["expire", "--dry-run"]) == expiry.OK
    screen.flush()
    assert b"mod\\xe8le_0123456789ab_r0/" in screen.buffer.getvalue()


def test_dry_run_lists_no_more_than_it_says(host, capsys, monkeypatch):
    monkeypatch.setattr(cli, "MAX_LISTED", 3)
    for number in range(10):
        host.put(number, 4000)
    assert cli.main(["expire", "--dry-run", "--json"]) == expiry.OK
    (result,) = json.loads(capsys.readouterr().out)
    assert (len(result["would_delete"]), result["would_delete_count"]) == (3, 10)


def test_one_broken_tier_does_not_keep_the_others_from_being_expired(public, monkeypatch, capsys):
    """Seen failing when the first tier's error ended the command."""
    host = Host(public, monkeypatch, "no-such-account", NOBODY, NOBODY)
    host.put(1, 4000, 1)
    host.put(1, 4000, 2)
    (public / "state/tier1").rename(public / "aside")
    assert cli.main(["expire"]) == expiry.REFUSED
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert "there is no account no-such-account" in lines[0] and "cannot be locked" in lines[1]
    assert host.trees[2].files() == set() and len(host.trees[1].files()) == 1


def test_a_working_process_that_dies_is_told_and_the_next_tier_goes_on(public, monkeypatch, capsys):
    host = Host(public, monkeypatch, NOBODY, NOBODY)
    host.put(1, 4000, 1)
    real = expiry.expire
    monkeypatch.setattr(
        expiry, "expire", lambda tier, **options: os._exit(9) if tier["name"] == "tier0" else real(tier, **options)
    )
    assert cli.main(["expire"]) == expiry.ERRORS
    assert "the working process died" in capsys.readouterr().out.splitlines()[0]
    assert host.trees[1].files() == set()


@pytest.mark.parametrize(
    ("state_", "code"), [("present", 0), ("vanished", 0), ("planned", expiry.USAGE), ("absent", expiry.USAGE)]
)
def test_only_tiers_that_are_there_are_expired(host, capsys, state_, code):
    host.tiers[0]["state"] = state_
    assert cli.main(["expire", "tier0"]) == code
    assert not code or "has nothing to expire" in capsys.readouterr().err


def test_an_unknown_tier_is_wrong_use(host, capsys):
    assert cli.main(["expire", "x\x1b[2J"]) == expiry.USAGE
    error = capsys.readouterr().err
    assert "no tier x\\x1b[2J in the data map (known: tier0)" in error and "\x1b" not in error


def test_no_map_is_wrong_use_in_words(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(cli.syslog, "syslog", lambda *_: None)
    assert cli.main(["--map", str(tmp_path / "none"), "expire"]) == expiry.USAGE
    assert "run the harden playbook" in capsys.readouterr().err


def test_a_full_state_file_system_ends_in_one_clear_message(host, capsys, monkeypatch):
    host.put(1, 4000)

    def full(*_arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(state, "write_run", full)
    assert cli.main(["expire"]) == expiry.ERRORS
    captured = capsys.readouterr()
    assert captured.err == "" and captured.out.count("\n") == 1
    assert "the pass is not on record: No space left on device" in captured.out
    assert host.trees[0].files() == set()


def test_the_exit_codes_are_in_the_help(capsys):
    with pytest.raises(SystemExit):
        cli.main(["expire", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    for code, meaning in expiry.EXIT_CODES.items():
        assert f"{code} {meaning}" in text


def test_the_umask_is_ours_whatever_cron_gave(host):
    os.umask(0)
    cli.main(["expire"])
    assert os.umask(0o022) == 0o077
    assert (host.root / f"state/tier0/{state.RECORD}").stat().st_mode & 0o777 == 0o600


# -- prepare


def test_prepare_says_what_it_did_and_refuses_with_its_own_code(host, capsys):
    host.trees[0].root.chmod(0o755)
    assert cli.main(["prepare", "tier0"]) == expiry.OK
    assert "mode 0755 -> 0700" in capsys.readouterr().out
    assert cli.main(["prepare", "tier0"]) == expiry.OK
    assert capsys.readouterr().out == "nothing to do\n"
    host.trees[0].root.rename(host.root / "aside")
    assert cli.main(["prepare", "tier0"]) == expiry.REFUSED
    assert "tier tier0" in capsys.readouterr().err
    host.tiers[0]["path"] = None
    assert cli.main(["prepare", "tier0"]) == expiry.REFUSED


@pytest.mark.parametrize("error", [OSError(5, "broken"), RuntimeError("broken"), prepare.Refused("broken")])
def test_what_goes_wrong_ends_in_a_message_not_in_a_traceback(host, capsys, monkeypatch, error):
    def broken(_tier):
        raise error

    monkeypatch.setattr(prepare, "prepare", broken)
    assert cli.main(["prepare", "tier0"]) in (expiry.ERRORS, expiry.REFUSED)
    assert "broken" in capsys.readouterr().err


# -- status


def status(host, capsys):
    code = cli.main(["status"])
    lines = capsys.readouterr().out.splitlines()
    assert all(line.isprintable() for line in lines) and 2 <= len(lines) <= 3
    assert ("all well" in lines[0]) is (code == 0)
    return code, "\n".join(lines[1:])


def test_status_says_how_a_tier_stands_and_what_to_do(host, capsys, monkeypatch):
    code, line = status(host, capsys)
    assert code == 1 and "BAD tier0: no expiry has run" in line and "do: wait for cron, or kvtier expire tier0" in line
    host.put(1, 120)
    cli.main(["expire"])
    capsys.readouterr()
    code, line = status(host, capsys)
    assert code == 0 and "ok  tier0: 1 blocks, 0 MiB, oldest 2 min of 60 min allowed, expired" in line
    late = time.time() + 601
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: late)
        code, line = status(host, capsys)
    assert code == 1 and "STALE" in line and "do: systemctl status cron" in line
    with monkeypatch.context() as patch:
        open_umask = discovery.Process(os.getpid(), 1, "x", ("x",), "vllm.service", 1, 0o022, "0", 0)
        patch.setattr(discovery, "of_services", lambda services: [open_umask])
        code, line = status(host, capsys)
    assert code == 1 and "RESTART PENDING of vllm.service" in line and "do: systemctl restart vllm.service" in line
    host.tiers[0]["state"] = "vanished"
    code, line = status(host, capsys)
    assert code == 1 and "LEFT THE MAP" in line and "state: absent" in line
    host.tiers[0]["state"] = "present"
    monkeypatch.setattr(discovery, "engines", lambda *_: [discovery.Found(7, "vllm.service", "0.27.0", "/x")])
    cli.main(["expire"])
    capsys.readouterr()
    code, line = status(host, capsys)
    assert code == 1 and "FAILED" in line and "upgrade to 0.28" in line


def test_status_of_a_killed_run_says_that_it_did_not_end(host, capsys):
    with state.locked(host.tiers[0], str(host.root / "state")) as fd:
        state.write_run(fd, state.new_record(host.tiers[0], time.time()))
    os.chown(host.root / f"state/tier0/{state.RECORD}", NOBODY, NOBODY)
    code, line = status(host, capsys)
    assert code == 1 and "FAILED, it did not end" in line


def test_status_of_a_tier_that_is_not_mounted_names_the_command(host, capsys, monkeypatch):
    monkeypatch.setattr(mounts, "problem", lambda *_: "it is not the mount")
    code, line = status(host, capsys)
    assert code == 1 and "NOT THERE" in line and "systemctl start" in line
    host.trees[0].root.rename(host.root / "aside")
    code, line = status(host, capsys)
    assert code == 1 and "do: systemctl start llmhost-tier@tier0.service" in line
    host.tiers[0]["state"] = "planned"
    assert status(host, capsys) == (0, "ok  tier0: planned, not in use")


def test_status_believes_no_hostile_record(host, capsys):
    path = host.root / f"state/tier0/{state.RECORD}"
    path.write_text(json.dumps({**state.new_record(host.tiers[0], time.time()), "messages": ["\x1b[2Jgood"]}))
    os.chown(path, NOBODY, NOBODY)
    code, line = status(host, capsys)
    assert code == 1 and "no expiry has run" in line


def test_status_names_a_bucket_that_left_the_map_and_no_other():
    tiers = [
        {"name": "a", "store": "vllm_obj", "bucket": "kv-a", "endpoint": "https://s3.example"},
        {"name": "b", "store": "vllm_obj", "bucket": "kv-b", "endpoint": "https://s3.example"},
    ]
    both = datamap.normalise(tiers, "gpu1")
    assert standing.of_host(both, 0) == []
    (found,) = standing.of_host(datamap.merge(both, datamap.normalise(tiers[:1], "gpu1")), 0)
    assert not found.good and "LEFT THE MAP" in found.text and "bucket kv-b" in found.text and "absent" in found.todo


@pytest.mark.parametrize("bad, good", [(0, 0), (0, 9), (0, 30), (4, 1), (4, 9), (30, 3), (1, 7), (1, 8)])
def test_status_is_ten_lines_at_most_and_what_is_wrong_comes_first(bad, good):
    found = [standing.Standing(f"good{n}", True, "x") for n in range(good)]
    found += [standing.Standing(f"bad{n}", False, "x", "y") for n in range(bad)]
    lines = standing.render("gpu1", found)
    assert len(lines) <= 10
    marks = [line[:3] for line in lines[1:] if line[:3] in ("ok ", "BAD")]
    assert marks == sorted(marks)
    shown = len(marks)
    assert (shown == bad + good) or lines[-1].startswith(f"and {bad + good - shown} more, ")
    assert ("NOT WELL" in lines[0]) is bool(bad)


# -- the program itself


@pytest.mark.parametrize("locale", [{}, {"LANG": "C"}, {"LC_ALL": "POSIX"}, {"LC_ALL": "en_US.ISO-8859-1"}])
def test_the_zipapp_runs_alone_in_any_locale_and_says_no_in_words(tmp_path, locale):
    path = tmp_path / "kvtier"
    path.write_bytes(program.build())
    done = subprocess.run(
        [sys.executable, "-I", path, "--map", f"{tmp_path}/\udcff\u65e5\x1b", "expire"],
        env=locale,
        capture_output=True,
        check=False,
    )
    assert done.returncode == expiry.USAGE and b"Traceback" not in done.stderr and b"\x1b" not in done.stderr
    assert b"no data map on this host" in done.stderr
