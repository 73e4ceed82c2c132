# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A purge: the key goes first, nothing that is not the tier's is touched, and it can be killed anywhere."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jinja2
import pytest

from ansible_collections.llmhost.hardening.plugins.module_utils.kv import (
    cli,
    datamap,
    discovery,
    holders,
    pins,
    purge,
    purgecmd,
    receipt,
    system,
)
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.system import HostError, Mapper

IMAGE = "/var/lib/llmhost/chat.img"
# What dmsetup 1.02.185 of Debian 12 prints: keys as zeros, of LUKS2 as the name of a key in the kernel's keyring.
PLAIN = f"0 524288 crypt aes-xts-plain64 {'0' * 128} 0 7:0 0 1 sector_size:4096\n"
LUKS = "0 2064384 crypt aes-xts-plain64 :64:logon:cryptsetup:5d1c-d0 0 254:16 32768\n"
ERROR = "0 524288 error \n"
MAPPER = Mapper("253:0", "CRYPT-PLAIN-llmhost_chat", [IMAGE])
ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="receipts are root's")


def document(**more: Any) -> dict[str, Any]:
    raw = {
        "name": "chat",
        "store": "vllm_fs",
        "path": "/var/lib/vllm-kv",
        "owner": "vllm",
        "services": ["vllm.service"],
        "volume": {"backend": "dmcrypt", "source": {"file": IMAGE, "size": "256M"}},
        **more,
    }
    return datamap.normalise([raw], "gpu1")


class Host:
    """A host with one open volume that answers commands and remembers them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, table: str = PLAIN) -> None:
        self.table, self.open, self.suspended = table, True, False
        self.calls: list[list[str]] = []
        self.fails: dict[str, str] = {}
        self.held: list[list[pins.Pin]] = []
        self.stuck = self.keeps = False
        monkeypatch.setattr(system, "run", self.run)
        monkeypatch.setattr(system, "mapper", lambda name: MAPPER if self.open else None)
        monkeypatch.setattr(system, "mounts", list)
        monkeypatch.setattr(system, "exclusive", contextlib.nullcontext)
        monkeypatch.setattr(holders, "sees_all", lambda: None)
        monkeypatch.setattr(holders, "active_units", list)
        monkeypatch.setattr(pins, "find", lambda device: [])
        monkeypatch.setattr(purge, "_drop_caches", lambda: self.calls.append(["drop_caches"]))

    def run(self, argv: list[str], timeout: float = 0) -> subprocess.CompletedProcess[str]:
        self.calls.append(argv)
        line = " ".join(argv)
        for words, error in self.fails.items():
            if words in line:
                return subprocess.CompletedProcess(argv, 1, "", error)
        out = ""
        if argv[0] == "dmsetup":
            verb = argv[1]
            if verb == "suspend":
                self.suspended = True
            elif verb == "message" and not (self.suspended and "crypt" in self.table):
                return subprocess.CompletedProcess(argv, 1, "", "the target does not take messages now")
            elif verb == "wipe_table":
                self.table, self.suspended = self.table if self.keeps else ERROR, False
            elif verb == "table":
                out = self.table
            elif verb == "remove" and not self.stuck:
                self.open = False
        elif argv[:2] == ["systemctl", "start"] and "cryptsetup" in argv[-1]:
            self.table, self.open = PLAIN, True
        return subprocess.CompletedProcess(argv, 0, out, "")

    def verbs(self) -> list[str]:
        return [argv[1] if argv[0] in ("dmsetup", "systemctl") else argv[0] for argv in self.calls]


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(monkeypatch)


def run(tmp_path: Path, doc: dict[str, Any] | None = None) -> dict[str, Any]:
    doc = doc or document()
    made = purge.purge(doc["tiers"][0], doc, receipt.who("tests"), str(tmp_path / "receipts"))
    written: dict[str, Any] = json.loads(Path(made.path).read_text(encoding="utf-8"))
    assert written == made.content
    return written


# The key


@ROOT_ONLY
def test_the_key_is_destroyed_before_anything_waits_for_a_holder(host: Host, tmp_path: Path) -> None:
    content = run(tmp_path)
    verbs = host.verbs()
    order = [verbs.index(verb) for verb in ("suspend", "message", "wipe_table", "drop_caches", "stop", "start")]
    assert order == sorted(order)
    assert ["dmsetup", "suspend", "--noflush", "--nolockfs", "llmhost_chat"] in host.calls
    assert ["dmsetup", "message", "llmhost_chat", "0", "key", "wipe"] in host.calls
    assert content["result"] == "destroyed" and content["messages"] == []
    assert content["keys_destroyed"] == [{"mapping": "llmhost_chat", "cipher": "aes-xts-plain64", "kind": "memory"}]
    assert content["proof"]["table_after"] == ERROR.strip()


@ROOT_ONLY
def test_a_purge_killed_after_the_wipe_goes_on_without_a_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    host = Host(monkeypatch, table=ERROR)
    assert run(tmp_path)["result"] == "destroyed"
    assert "message" not in host.verbs() and "suspend" not in host.verbs()
    assert host.table == PLAIN


@ROOT_ONLY
def test_a_purge_killed_after_the_close_makes_the_volume_anew(host: Host, tmp_path: Path) -> None:
    host.open = False
    content = run(tmp_path)
    assert content["result"] == "destroyed" and content["keys_destroyed"] == []
    assert host.open


@ROOT_ONLY
def test_what_does_not_answer_is_not_read_before_its_key_is_gone(
    host: Host, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A purge that was killed between suspension and wipe leaves a mapping on which every read waits for ever."""
    (tmp_path / "dev/block/253:0/dm").mkdir(parents=True)
    (tmp_path / "dev/block/253:0/dm/suspended").write_text("1\n")
    assert purge.suspended("253:0", str(tmp_path)) and not purge.suspended("253:1", str(tmp_path))
    monkeypatch.setattr(purge, "suspended", lambda device: True)
    content = run(tmp_path)
    assert content["result"] == "destroyed" and "filesystem_before" not in content["proof"]
    verbs = host.verbs()
    assert verbs.index("wipe_table") < verbs.index("blkid")


@ROOT_ONLY
def test_a_device_that_hangs_does_not_keep_its_key(host: Host, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def hangs(argv: list[str], timeout: float = 0) -> subprocess.CompletedProcess[str]:
        if argv[0] == "blkid":
            raise HostError("blkid did not end within 60 s")
        return host.run(argv, timeout)

    monkeypatch.setattr(system, "run", hangs)
    content = run(tmp_path)
    assert content["result"] == "destroyed" and content["keys_destroyed"]


def test_a_message_that_fails_never_leaves_the_mapping_suspended(host: Host) -> None:
    host.fails["key wipe"] = "no"
    with pytest.raises(HostError):
        purge.destroy_key("llmhost_chat", PLAIN)
    assert not host.suspended and host.table == ERROR


def test_a_table_that_is_not_the_error_table_afterwards_is_no_success(host: Host) -> None:
    host.fails["wipe_table"] = "no"
    with pytest.raises(HostError):
        purge.destroy_key("llmhost_chat", PLAIN)
    del host.fails["wipe_table"]
    host.keeps = True
    with pytest.raises(HostError, match="run the purge again"):
        purge.destroy_key("llmhost_chat", PLAIN)


@pytest.mark.parametrize(
    ("found", "table", "words"),
    [
        (Mapper("253:0", "LVM-abc", []), PLAIN, "is not dm-crypt"),
        (Mapper("253:0", "CRYPT-PLAIN-other", [IMAGE]), PLAIN, "is not dm-crypt of that name"),
        (Mapper("253:0", "CRYPT-PLAIN-xllmhost_chat2", [IMAGE]), PLAIN, "of that name"),
        (MAPPER._replace(files=["/other.img"]), PLAIN, "not on " + IMAGE),
        (MAPPER._replace(files=[]), PLAIN, "something else"),
        (MAPPER, PLAIN + PLAIN, "one dm-crypt target"),
        (MAPPER, "0 8 linear 8:1 0\n", "is made of linear"),
        (MAPPER, "", "nothing"),
    ],
)
@ROOT_ONLY
def test_what_is_not_the_tier_s_own_volume_is_refused_untouched(
    host: Host, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, found: Mapper, table: str, words: str
) -> None:
    monkeypatch.setattr(system, "mapper", lambda name: found)
    host.table = table
    with pytest.raises(purge.Refused, match=words):
        run(tmp_path)
    assert [call for call in host.calls if call[:2] != ["dmsetup", "table"]] == []
    assert not (tmp_path / "receipts").exists()


def test_the_key_field_of_a_table_is_never_shown() -> None:
    assert purge.cipher(PLAIN) == "aes-xts-plain64"
    assert purge.cipher(LUKS) == "aes-xts-plain64"
    assert purge.cipher(ERROR) is None
    source = Path(purge.__file__).read_text(encoding="utf-8")
    assert "showkeys" not in source


@ROOT_ONLY
def test_a_holder_that_stays_is_named_and_the_purge_does_not_count_as_done(
    host: Host, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shell = pins.Pin(
        77, 1, "bash", "session-1.scope", None, "works in it: /var/lib/vllm-kv", "this command runs below it"
    )
    monkeypatch.setattr(pins, "find", lambda device: [shell])
    host.stuck = True
    content = run(tmp_path)
    assert content["result"] == "remains"
    assert "pid 77 (bash, session-1.scope) works in it" in content["messages"][0]
    assert content["held_by"][0]["spared"] and content["stopped"] == []
    assert host.table == ERROR
    assert "writers" in content and content["writers"] == ["vllm.service"]


@ROOT_ONLY
def test_writers_that_a_killed_purge_had_stopped_are_started_by_the_next(
    host: Host, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first = receipt.Receipt("chat", "gpu1", {}, "key", str(tmp_path / "receipts"))
    first.content["writers"] = ["vllm.service", "sshd.service"]
    first.write()
    monkeypatch.setattr(holders, "active_units", lambda services: [])
    run(tmp_path)
    started = [argv[-1] for argv in host.calls if argv[:2] == ["systemctl", "start"]]
    assert started[-1] == "vllm.service" and "sshd.service" not in started


@ROOT_ONLY
def test_a_container_daemon_of_the_tier_is_never_stopped(host: Host, tmp_path: Path) -> None:
    content = run(tmp_path, document(services=["docker.service"]))
    assert content["writers"] == []
    assert not [argv for argv in host.calls if "docker.service" in argv]


@ROOT_ONLY
def test_a_writer_that_does_not_start_again_is_said(host: Host, tmp_path: Path) -> None:
    host.fails["start -- vllm.service"] = "Job failed"
    content = run(tmp_path)
    assert content["result"] == "remains" and "vllm.service did not start" in content["messages"][0]


@ROOT_ONLY
def test_signals_do_not_end_a_purge_half_way(host: Host, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def hang_up() -> None:
        for number in purge._SIGNALS:
            os.kill(os.getpid(), number)

    monkeypatch.setattr(purge, "_drop_caches", hang_up)
    assert run(tmp_path)["result"] == "destroyed"


# Blocks


@ROOT_ONLY
def test_without_a_key_every_block_goes_and_nothing_else(
    host: Host, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    doc = document(volume=None)
    tier = {**doc["tiers"][0], "path": str(tmp_path / "kv")}
    (tmp_path / "kv").mkdir()
    (tmp_path / "kv" / "notes.txt").write_text("mine")
    monkeypatch.setattr(purge.walk, "destroy", lambda fd, store: (12, 4096, 1))
    monkeypatch.setattr(holders, "in_use", lambda *_: None)
    monkeypatch.setattr(pins, "find_in", lambda path: [])
    monkeypatch.setattr(purge.prepare, "prepare", lambda tier: [])
    content = run(tmp_path, {**doc, "tiers": [tier]})
    assert (content["method"], content["files_deleted"], content["bytes_deleted"]) == ("blocks", 12, 4096)
    assert content["keys_destroyed"] == [] and content["result"] == "remains"
    assert "1 entries" in content["messages"][0]
    assert (tmp_path / "kv" / "notes.txt").read_text() == "mine"


@ROOT_ONLY
def test_without_a_key_nothing_goes_while_somebody_uses_it(
    host: Host, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    doc = document(volume=None)
    monkeypatch.setattr(holders, "in_use", lambda *_: "not stopped: pid 5, then run kvtier expire --stopped chat again")
    monkeypatch.setattr(pins, "find_in", lambda path: [])
    monkeypatch.setattr(purge.walk, "destroy", lambda fd, store: pytest.fail("destroyed under a holder"))
    content = run(tmp_path, doc)
    assert content["result"] == "remains" and "run kvtier purge chat again" in content["messages"][0]


# The command


def command(monkeypatch: pytest.MonkeyPatch, *arguments: str, stdin: str = "", tty: bool = False) -> tuple[int, bool]:
    called = []
    doc = document()
    monkeypatch.setattr(datamap, "load", lambda path: doc)
    monkeypatch.setattr(cli.syslog, "syslog", lambda *_: None)

    def purged(*_: Any) -> Any:
        called.append(True)
        made = receipt.Receipt("chat", "gpu1", {}, "key", "/nowhere")
        made.content["result"] = "destroyed"
        return made

    monkeypatch.setattr(purge, "purge", purged)
    typed = io.StringIO(stdin)
    monkeypatch.setattr(typed, "isatty", lambda: tty)
    monkeypatch.setattr(purgecmd.sys, "stdin", typed)
    return cli.main(["purge", *arguments]), bool(called)


@pytest.fixture(autouse=True)
def own_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def test_no_purge_without_the_name_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    assert command(monkeypatch, "chat") == (2, False)
    assert command(monkeypatch, "chat", "--confirm", "other") == (2, False)
    assert command(monkeypatch, "chat", stdin="yes\n", tty=True) == (2, False)
    assert command(monkeypatch, "other", "--confirm", "other") == (2, False)
    assert command(monkeypatch, "chat", "--confirm", "chat") == (0, True)
    assert command(monkeypatch, "chat", stdin="chat\n", tty=True) == (0, True)


def test_a_dry_run_changes_nothing(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    assert command(monkeypatch, "chat", "--dry-run") == (0, False)
    assert [call for call in host.calls if call[:2] != ["dmsetup", "table"]] == []


# Receipts


@ROOT_ONLY
def test_a_receipt_is_there_before_anything_is_destroyed(
    host: Host, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def killed(*_: Any) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(purge, "destroy_key", killed)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path)
    (path,) = (tmp_path / "receipts").iterdir()
    assert json.loads(path.read_text())["result"] == "unfinished"
    assert (path.stat().st_mode & 0o777, (tmp_path / "receipts").stat().st_mode & 0o777) == (0o600, 0o700)


def test_receipts_of_a_tier_with_a_longer_name_are_not_ours(tmp_path: Path) -> None:
    other = {"tier": "chat-b", "result": "unfinished", "writers": ["b.service"]}
    (tmp_path / "chat-b-20260101T000000Z-1.json").write_text(json.dumps(other))
    assert receipt.unfinished_writers("chat", str(tmp_path)) == []


def test_who_is_kept_to_one_line() -> None:
    assert "\n" not in receipt.who("me\nroot")["says"]


# Who holds a volume


def test_containers_are_known_by_their_cgroup() -> None:
    ident = "0123456789abcdef" * 4
    for text in (
        f"0::/system.slice/docker-{ident}.scope\n",
        f"0::/machine.slice/libpod-{ident}.scope/container\n",
        f"1:name=systemd:/docker/{ident}\n",
        f"0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-{ident}.scope\n",
    ):
        assert discovery.container_of(text) == ident[:12], text
    assert discovery.container_of("0::/system.slice/vllm.service\n") is None


@ROOT_ONLY
def test_a_process_is_found_by_its_device_and_ends_by_sigterm(tmp_path: Path) -> None:
    file = tmp_path / "block"
    file.write_text("x")
    number = file.stat().st_dev
    device = f"{os.major(number)}:{os.minor(number)}"
    child = subprocess.Popen(["sleep", "99"], cwd=tmp_path)
    other = subprocess.Popen(["sleep", "99"], cwd="/proc")
    try:
        # The machine's own processes live on that device too: only the child is looked at.
        def look() -> list[pins.Pin]:
            if child.poll() is not None:
                return []
            seen = pins.OnDevice(device, -1)
            seen._process(child.pid)
            seen._process(other.pid)
            seen._match()
            works = [one for one in seen.holders if "works in it" in one.how]
            assert {one.pid for one in works} == {child.pid}
            return pins._named(works, -1, "/proc")

        told, left = pins.stop(look, patience=5)
        assert [pin.pid for pin in told] == [child.pid] and left == []
        assert child.wait(5) == -15 and other.poll() is None
    finally:
        for one in (child, other):
            one.kill()
            one.wait()


def test_a_reused_pid_is_not_signalled() -> None:
    child = subprocess.Popen(["sleep", "99"])
    try:
        other = pins.Pin(child.pid, 1, "sleep", None, None, "has it open", None)
        assert pins._signal(other, 9, "/proc") is None
        assert child.poll() is None
    finally:
        child.kill()
        child.wait()


def test_the_shell_above_and_init_are_spared() -> None:
    held = [holders.Holder(1, "x"), holders.Holder(os.getppid(), "x")]
    assert all(pin.spared for pin in pins._named(held, os.getpid(), "/proc"))


# Re-key


def test_cron_renews_a_key_at_its_minute_as_root() -> None:
    role = Path(__file__).resolve().parents[2] / "roles/kv_retention"
    environment = jinja2.Environment(loader=jinja2.FileSystemLoader(role / "templates"), trim_blocks=True)
    volume = {"backend": "dmcrypt", "source": {"file": IMAGE, "size": "256M"}, "rekey_at": "03:05"}
    tiers = document(volume=volume)["tiers"] + document(name="b", path="/srv/b", volume=None)["tiers"]
    text = environment.get_template("cron.j2").render(
        ansible_managed="",
        __kv_retention_host={"data_map": {"tiers": tiers}, "stopped": []},
        kv_retention_audit_every_minutes=15,
    )
    assert [line for line in text.splitlines() if " purge " in line] == [
        "5 3 * * * root /usr/local/sbin/kvtier purge chat --confirm chat --who 'cron: rekey_at' >/dev/null 2>&1"
    ]


@pytest.mark.parametrize(
    ("tags", "stays"),
    [
        ("shared:30", False),  # a member of our peer group: an unmount here takes it along
        ("master:30", False),  # a service that systemd gave a namespace of its own
        ("shared:91 master:30", False),
        ("shared:91", True),  # a container that copied the mount into a group of its own
        ("master:12", True),
        ("", True),
    ],
)
def test_only_a_namespace_that_an_unmount_does_not_reach_holds_a_volume(tags: str, stays: bool) -> None:
    here = "50 20 253:0 / /var/lib/vllm-kv rw shared:30 - ext4 /dev/mapper/llmhost_chat rw\n"
    there = f"91 80 253:0 / /kv rw {tags + ' ' if tags else ''}- ext4 /dev/mapper/llmhost_chat rw\n"
    other = "92 80 8:1 / /etc/hosts rw - ext4 /dev/sda1 rw\n"
    peers = pins.peer_groups(here, "253:0")
    assert pins.private_points(other + there, "253:0", peers) == (["/kv"] if stays else [])
    # Once it is unmounted here, whoever still has it does not follow.
    assert pins.private_points(there, "253:0", set()) == ["/kv"]


@ROOT_ONLY
def test_a_disk_that_was_pulled_out_does_not_keep_its_key(host: Host) -> None:
    of = document(volume={"backend": "dmcrypt", "source": {"device": "/dev/disk/by-id/virtio-gone"}})["tiers"][0]
    assert purge.judge_mapping(of, MAPPER._replace(files=[], below=("254:16",)), PLAIN) is None


@ROOT_ONLY
def test_a_full_disk_does_not_keep_a_key_alive(host: Host, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(receipt.fsio, "write_atomic", full)
    doc = document()
    made = purge.purge(doc["tiers"][0], doc, receipt.who("tests"), str(tmp_path / "receipts"))
    assert made.content["keys_destroyed"] and made.content["result"] == "remains"
    assert "no receipt was written" in made.content["messages"][0]
