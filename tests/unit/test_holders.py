# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Blocks of a store whose engine must be stopped go only when nothing on the host holds or uses the tier.

Real processes hold it. Tests with `guarded` also show what is lost when that look is taken away.
"""

from __future__ import annotations

import ctypes
import errno
import os
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from fixtures import NOBODY, in_child, mount, public_directory, tier_for, with_own_mounts
from held import HOLD, HOUR, Place, holding, process, see_only_what_can_be_seen
from store_trees import KEY

from ansible_collections.llmhost.hardening.plugins.module_utils.kv import (
    account,
    discovery,
    expiry,
    holders,
    state,
    walk,
)

both = pytest.mark.parametrize("guarded", [True, False], ids=["guarded", "guard removed"])


@pytest.fixture
def public():
    with public_directory() as root:
        yield root


@pytest.fixture
def place(public, monkeypatch):
    return Place(public, monkeypatch)


@pytest.fixture(autouse=True)
def own_umask():
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.fixture(autouse=True)
def only_readable(monkeypatch):
    monkeypatch.setattr(holders.os, "listdir", see_only_what_can_be_seen())


# -- with nothing that holds it


def test_what_nothing_holds_goes(place, capfd):
    assert place.run("--stopped") == expiry.OK
    assert not place.is_left() and "expired 1 blocks" in capfd.readouterr().out


def test_without_the_word_nothing_goes_and_the_command_is_named(place, capfd):
    assert place.run() == expiry.REFUSED
    assert place.is_left()
    assert "only root can see that: run kvtier expire --stopped chat as root" in capfd.readouterr().out


def test_without_the_word_nothing_goes_under_a_running_engine(place, capfd, monkeypatch):
    monkeypatch.setattr(discovery, "engines", lambda *_: [discovery.Found(7, "vllm.service", "1.0", "/x")])
    assert place.run() == expiry.REFUSED
    text = capfd.readouterr().out
    assert place.is_left() and "run systemctl stop vllm.service, then kvtier expire --stopped chat" in text


def test_a_live_safe_store_needs_no_word(public, monkeypatch):
    place = Place(public, monkeypatch, store="vllm_fs")
    assert place.run() == expiry.OK


def test_the_word_needs_a_tier(place, capfd):
    assert place.main("expire", "--stopped") == expiry.USAGE
    assert "name the tier" in capfd.readouterr().err and place.is_left()


def test_listing_asks_the_same_and_deletes_nothing(place, capfd):
    assert place.run("--stopped", "--dry-run") == expiry.OK
    assert place.is_left() and place.old in capfd.readouterr().out
    with holding("fd", place.tree.path(place.young)):
        assert place.run("--stopped", "--dry-run") == expiry.REFUSED
    assert place.old not in capfd.readouterr().out.splitlines()


# -- with something that does

HOWS = {
    "fd": "has it open",
    "directory fd": "has it open",
    "O_PATH fd": "has it open",
    "mmap": "maps it",
    "cwd": "works in it",
    "root": "has its root in it",
    "thread": "has it open",
}


def without(monkeypatch, how):
    """Take the look away that would see it."""
    if how == "mmap":
        monkeypatch.setattr(holders.Look, "_maps", lambda *_: None)
    elif how in ("cwd", "root"):
        real = holders.Look._linked
        monkeypatch.setattr(
            holders.Look, "_linked", lambda self, pid, path, *rest: path.endswith(how) or real(self, pid, path, *rest)
        )
    else:
        monkeypatch.setattr(holders.Look, "_descriptor", lambda *_: None)


@both
@pytest.mark.parametrize("how", HOWS)
def test_what_a_process_holds_stays(place, capfd, monkeypatch, how, guarded):
    if not guarded:
        without(monkeypatch, how)
        if how == "root":
            without(monkeypatch, "cwd")  # it still works where it worked before, outside
    with holding(how, place.tree.path(place.young), cwd="/") as holder:
        code = place.run("--stopped")
        text = capfd.readouterr().out
    assert place.is_left() == guarded
    assert code == (expiry.REFUSED if guarded else expiry.OK)
    if guarded:
        assert f"not stopped: pid {holder.pid} {HOWS[how]}: {place.tree.root}" in text
        assert f"then run kvtier expire --stopped {place.tier['name']} again" in text


def test_a_program_of_the_tier_that_runs_holds_it(place):
    program = place.tree.path("sleep")
    program.write_bytes(open("/usr/bin/sleep", "rb").read())
    program.chmod(0o755)
    with subprocess.Popen([program, "60"], cwd="/") as started:
        code = place.run("--stopped")
        started.kill()
    assert code == expiry.REFUSED and place.is_left()


def test_what_held_it_and_ended_holds_it_no_more(place):
    with holding("fd", place.tree.path(place.young)):
        assert place.run("--stopped") == expiry.REFUSED
    assert place.run("--stopped") == expiry.OK and not place.is_left()


@both
@pytest.mark.parametrize("how", ["fd", "mmap", "cwd"])
def test_another_mount_namespace_and_another_name_hide_nothing(place, capfd, monkeypatch, how, guarded):
    """A container: the tier is mounted elsewhere there. Seen failing when paths alone were compared."""
    elsewhere = place.tree.root.parent / "elsewhere"
    elsewhere.mkdir()
    inside = f'mount --bind "$0" "$1" && umount -l "$0" 2>/dev/null; exec "$2" -c "$3" {how} "$1/$4"'
    if not guarded:
        monkeypatch.setattr(holders.Look, "_match", lambda self: None)
    command = ["unshare", "-m", "sh", "-c", inside, place.tree.root, elsewhere, sys.executable, HOLD, place.young]
    with process(*command, cwd="/") as holder:
        code = place.run("--stopped")
        text = capfd.readouterr().out
    assert (code == expiry.REFUSED, place.is_left()) == (guarded, guarded)
    assert not guarded or (f"pid {holder.pid} " in text and "elsewhere" in text)


def test_a_hard_link_elsewhere_that_is_open_holds_it(place):
    os.link(place.tree.path(place.young), place.tree.root.parent / "copy")
    with holding("fd", place.tree.root.parent / "copy", cwd="/"):
        assert place.run("--stopped") == expiry.REFUSED


def test_a_file_beside_the_tier_holds_nothing(place):
    (place.tree.root.parent / "kv2").mkdir()
    (place.tree.root.parent / "kv2" / "x").write_bytes(b"x")
    with holding("fd", place.tree.root.parent / "kv2/x", cwd=place.tree.root.parent):
        assert place.run("--stopped") == expiry.OK
    assert not place.is_left()


# -- an engine that holds nothing just now


def engine_like(uid=None, **options):
    """A process whose command line is the engine's, as LMCache is between two requests: no file of the store open."""
    # The tests' own interpreter may lie where only root gets to.
    arguments = ["/usr/bin/python3", "-c", "print('ready', flush=True); import time; time.sleep(60)", "lmcache_server"]
    account_ = {} if uid is None else {"user": uid, "group": uid, "extra_groups": []}
    return process(*arguments, cwd="/", **account_, **options)


@both
def test_an_engine_of_the_account_that_idles_counts(place, capfd, monkeypatch, guarded):
    if not guarded:
        monkeypatch.setattr(holders, "engines", lambda *_: [])
    with engine_like(NOBODY) as engine:
        code = place.run("--stopped")
        text = capfd.readouterr().out
    assert (code == expiry.REFUSED, place.is_left()) == (guarded, guarded)
    assert not guarded or f"pid {engine.pid} is lmcache, run by {NOBODY}" in text


def test_an_engine_of_another_account_does_not_count(place):
    with engine_like(1):
        assert place.run("--stopped") == expiry.OK


def test_an_engine_in_a_container_that_has_the_volume_counts(public, monkeypatch, capfd):
    def work():
        mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", public)
        place = Place(public, monkeypatch, owner=1)
        script = "import ctypes,time;ctypes.CDLL(None).unshare(0x20000);print('ready',flush=True);time.sleep(60)"
        with process(sys.executable, "-c", script, "lmcache_server", cwd="/"):
            return place.run("--stopped"), place.is_left()

    assert with_own_mounts(work) == [expiry.REFUSED, True]
    assert "is lmcache in a container that has the volume" in capfd.readouterr().out


def test_our_own_arguments_are_no_engine(public, monkeypatch):
    """A tier may be called like its engine: kvtier expire --stopped vllm."""
    place = Place(public, monkeypatch, store="vllm_simple_disk")
    script = "import sys; sys.path[:0] = %r; from test_holders import expire_it; sys.exit(expire_it(%r))"
    done = subprocess.run(
        [sys.executable, "-c", script % (sys.path, str(public)), "vllm"], capture_output=True, text=True, check=False
    )
    assert done.returncode == expiry.OK, done.stdout + done.stderr
    assert place.tree.files() == {place.old, place.young}


def expire_it(root):
    """In a process of its own: a whole pass over what Place made, by its own means."""
    os.listdir = see_only_what_can_be_seen()
    tree = SimpleNamespace(root=f"{root}/kv")
    tier = {**tier_for(tree.root, owner=NOBODY), "store": "vllm_simple_disk"}
    with holders.sentinel(tier) as stopped:
        result = account.as_owner(NOBODY, lambda: expiry.expire(tier, state_root=f"{root}/state", stopped=stopped))
    print(result["messages"])
    return result["exit"]


@both
@pytest.mark.parametrize("how", ["fd", "mmap"])
def test_a_process_whose_first_thread_has_ended_still_holds(place, monkeypatch, how, guarded):
    """Seen: /proc/PID/mountinfo is EINVAL and /proc/PID/maps empty there, while another thread goes on."""
    script = HOLD.replace('print("ready", flush=True)\ntime.sleep(60)', "") + (
        "import ctypes, threading\n"
        "def stay():\n"
        "    time.sleep(0.5)\n"
        "    print('ready', flush=True)\n"
        "    time.sleep(60)\n"
        "threading.Thread(target=stay).start()\n"
        "ctypes.CDLL(None).syscall(60, 0)\n"  # exit, of this thread alone
    )
    if not guarded:
        monkeypatch.setattr(holders.Look, "_task", lambda *_: None)
        monkeypatch.setattr(holders.Look, "_maps", lambda self, pid, base: "/task/" in base or False)
    with process(sys.executable, "-c", script, how, place.tree.path(place.young), cwd="/"):
        assert (place.run("--stopped") == expiry.REFUSED) == guarded
    assert place.is_left() == guarded


def test_a_process_in_a_unit_of_the_tier_counts_whatever_it_is(place, monkeypatch):
    me = discovery.Process(4711, 0, "sh", ("sh",), "vllm.service", 1, 0, "0", 0)
    monkeypatch.setattr(discovery, "processes", lambda proc="/proc": [me])
    assert "pid 4711 runs in vllm.service" in holders.in_use(place.tier, os.getpid())


# -- units


@pytest.fixture
def systemctl(monkeypatch, tmp_path):
    """A host with systemd that answers what a test says."""
    asked = tmp_path / "asked"

    def host(lines, returncode=0):
        def run(argv, timeout=0):
            asked.write_text(" ".join(argv))
            return SimpleNamespace(returncode=returncode, stdout=lines, stderr="broken")

        monkeypatch.setattr(holders.system, "run", run)
        real = holders.active_units
        monkeypatch.setattr(holders, "active_units", lambda services: real(services, str(tmp_path)))
        return asked

    return host


@pytest.mark.parametrize("active", ["active", "activating", "reloading", "deactivating", "maintenance"])
def test_a_unit_that_runs_or_is_about_to_keeps_everything(place, capfd, systemctl, active):
    """`activating` is a unit between two automatic restarts: no process is there just now."""
    systemctl(f"vllm.service loaded {active} auto-restart vLLM\n")
    assert place.run("--stopped") == expiry.REFUSED
    assert place.is_left() and "not stopped: vllm.service; run systemctl stop vllm.service" in capfd.readouterr().out


@pytest.mark.parametrize("line", ["vllm.service loaded inactive dead x\n", "vllm.service loaded failed failed x\n", ""])
def test_a_unit_that_is_stopped_keeps_nothing(place, systemctl, line):
    asked = systemctl(line)
    place.tier["services"] = ["vllm@.service", "x.service"]
    assert place.run("--stopped") == expiry.OK
    assert asked.read_text().endswith(" -- vllm@*.service x.service")


def test_a_systemd_that_does_not_answer_keeps_everything(place, capfd, systemctl):
    systemctl("", 1)
    assert place.run("--stopped") == expiry.REFUSED
    assert place.is_left() and "cannot be told (systemctl list-units failed: broken)" in capfd.readouterr().out


# -- what cannot be looked at


@both
@pytest.mark.parametrize("what", ["fd", "maps", "task", "mountinfo", "cwd"])
def test_a_process_that_cannot_be_looked_at_keeps_everything(place, capfd, monkeypatch, what, guarded):
    real = {"listdir": os.listdir, "open": open, "readlink": os.readlink}
    number = errno.EACCES if guarded else errno.ESRCH

    def closed(name, pid):
        def call(path, *rest, **options):
            if str(path).startswith(f"/proc/{pid}/") and str(path).endswith("/" + what):
                raise OSError(number, os.strerror(number), path)
            return real[name](path, *rest, **options)

        return call

    with engine_like(1) as other:
        monkeypatch.setattr(holders.os, "listdir", closed("listdir", other.pid))
        monkeypatch.setattr(holders.os, "readlink", closed("readlink", other.pid))
        monkeypatch.setattr("builtins.open", closed("open", other.pid))
        code = place.run("--stopped")
        text = capfd.readouterr().out
    assert (code == expiry.REFUSED, place.is_left()) == (guarded, guarded)
    assert not guarded or f"pid {other.pid} cannot be looked at: Permission denied): nothing is deleted" in text


def test_a_tier_that_cannot_be_read_keeps_everything(place, capfd, monkeypatch):
    def failing(fd):
        raise OSError(errno.EIO, "broken")

    with holding("fd", place.tree.path(place.young), cwd="/"):
        with monkeypatch.context() as patch:
            patch.setattr(holders.Look, "_names", lambda *_: False)
            patch.setattr(holders.os, "scandir", failing)
            assert place.run("--stopped") == expiry.REFUSED
    assert place.is_left() and "cannot be told" in capfd.readouterr().out


@pytest.mark.parametrize("inode", [None, 4026531000])
def test_who_does_not_see_all_processes_cannot_tell(place, monkeypatch, capfd, inode):
    if inode is None:
        monkeypatch.setattr(holders.os, "geteuid", lambda: 990)
    else:
        monkeypatch.setattr(holders, "_FIRST_PID_NAMESPACE", inode)
    assert "cannot be told" in holders.in_use(place.tier, os.getpid())


def test_the_account_itself_cannot_say_that_it_is_stopped(place):
    place.tree.root.parent.chmod(0o755)

    def work():
        account.become(NOBODY)
        with holders.sentinel(place.tier) as stopped:
            assert "only root can look at all processes" in stopped()

    assert in_child(work) == 0


# -- between two looks


def test_a_process_that_appears_during_the_pass_ends_it(public, monkeypatch, capfd):
    """The look is repeated; without that all 60 would go."""
    place = Place(public, monkeypatch)
    for number in range(60):
        place.tree.put(f"{KEY}@{number + 100}.pt", 2 * HOUR)
    place.tree.give(NOBODY)
    monkeypatch.setattr(walk, "_STRIDE", 1)
    monkeypatch.setattr(expiry.Watch, "stopped_every", 0.0)
    monkeypatch.setattr(expiry.Watch, "stopped_share", 0)
    marker, ready = public / "begun", public / "ready"
    public.chmod(0o777)
    real = os.unlink

    def slow(name, *, dir_fd=None):
        real(name, dir_fd=dir_fd)
        if os.geteuid() == NOBODY:  # the pass; not what cleans up after the test
            marker.touch()
            end = time.monotonic() + 20
            while not ready.exists() and time.monotonic() < end:
                time.sleep(0.01)

    monkeypatch.setattr(walk.os, "unlink", slow)
    script = (
        "import os,sys,time\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.01)\n"
        "held = open(sys.argv[2])\nopen(sys.argv[3], 'w')\ntime.sleep(60)"
    )
    path = place.tree.path(place.young)
    with subprocess.Popen([sys.executable, "-c", script, marker, path, ready], cwd="/") as late:
        code = place.run("--stopped")
        late.kill()
    assert code == expiry.REFUSED and "has it open" in capfd.readouterr().out
    assert len(place.tree.files()) >= 60, "at most one look's worth of files went"


def test_a_watcher_that_dies_ends_the_pass(place):
    with holders.sentinel(place.tier) as stopped:
        assert stopped() is None
        children = open(f"/proc/self/task/{os.getpid()}/children").read().split()
        os.kill(int(children[-1]), 9)
        time.sleep(0.1)
        assert "died: nothing more is deleted" in stopped()


def test_the_watcher_ends_with_us(place):
    def children():
        return open(f"/proc/self/task/{os.getpid()}/children").read().split()

    before = children()
    with holders.sentinel(place.tier) as stopped:
        stopped()
        assert len(children()) == len(before) + 1
    assert children() == before


def test_the_record_of_a_stopped_pass_is_the_accounts(place):
    place.run("--stopped")
    record = state.read_run(place.tier, str(place.tree.root.parent / "state"))
    assert record["exit"] == expiry.OK and record["expired"] == 1
    assert ctypes.CDLL(None) and os.getuid() == 0
