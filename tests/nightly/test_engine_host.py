# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Real engines through all roles, in units on a test-bed host, on dm-crypt, expired by cron.

llama-server saves its slots; of vLLM it is the file system tier alone, driven by fs_writer.py, with the settings that
engine_offload rendered for the release and the Python that it found. One Debian 13 host (its Python is one that the
role takes) for all tests, in their order.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path

import engine_host
import pytest
import tiny_gguf

NAME = "engines-trixie"
SLOTS = "/var/lib/llama-slots"
URL = "http://127.0.0.1:8080"
PROMPT = "The quick brown fox jumps over the lazy dog. " * 8
UNIT = """[Unit]
Description=llama.cpp
[Service]
User=llama
ExecStart=/usr/local/bin/llama-server -m /srv/tiny.gguf --host 127.0.0.1 --port 8080 -np 2 -c 2048 -t 2
[Install]
WantedBy=multi-user.target
"""
TIER = {
    "name": "slots",
    "store": "llamacpp_slots",
    "path": SLOTS,
    "owner": "llama",
    "services": ["llama.service"],
    "retention_minutes": 10,
    "expire_every_minutes": 1,
    "max_bytes": "16M",
    "volume": {"backend": "dmcrypt", "source": {"file": "/var/lib/llmhost/slots.img", "size": "64M"}},
}
KV = "/var/lib/vllm-kv"
STATUS = "/run/vllm-writer/status.json"
WRITER = f"""[Unit]
Description=vLLM
[Service]
User=vllm
RuntimeDirectory=vllm-writer
ExecStart=/opt/vllm/bin/python3 /opt/vllm/fs_writer.py --block-bytes 16384 --rate 4 --status {STATUS}
[Install]
WantedBy=multi-user.target
"""
CHAT = {
    "name": "chat",
    "store": "vllm_fs",
    "path": KV,
    "owner": "vllm",
    "services": ["vllm.service"],
    "retention_minutes": 10,
    "expire_every_minutes": 1,
    "volume": {"backend": "dmcrypt", "source": {"file": "/var/lib/llmhost/chat.img", "size": "64M"}},
}
SETTINGS = {"tiers": {"chat": {"n_read_threads": 2, "n_write_threads": 2}}, "cpu_bytes_to_use": "1M"}
VARIABLES = {
    "llmhost_restart": "when_needed",
    "llmhost_prompt_log_retention_minutes": 60,
    "llmhost_tiers": [TIER, CHAT],
    "engine_offload_engines": [
        {"name": "llama", "engine": "llamacpp", "unit": "llama.service", "tier": "slots"},
        {"name": "chat", "unit": "vllm.service", "settings": SETTINGS},
    ],
}


@pytest.fixture(scope="module")
def program():
    build = Path(__file__).with_name("build_llama.py")
    done = subprocess.run([sys.executable, build], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.fail(f"no llama-server to test with:\n{done.stderr[-3000:]}", pytrace=False)
    return Path(done.stdout.strip())


@pytest.fixture(scope="module")
def host(program, tmp_path_factory):
    """The engines as operators have them before: llama-server runs without slots, vLLM's unit offloads nothing."""
    place = tmp_path_factory.mktemp("engine-host")
    fetch = engine_host.ROOT / "tests/testbed/writer/fetch.py"
    fetched = [sys.executable, fetch, "0.29.0", "--python=3.13", "--out", place / "tree"]
    subprocess.run([str(word) for word in fetched], check=True)
    tiny_gguf.write(place / "tiny.gguf")
    (place / "llama.service").write_text(UNIT)
    (place / "vllm.service").write_text(WRITER)
    with engine_host.up(NAME, "--release", "trixie"):
        this = engine_host.Host(NAME, place, VARIABLES)
        this.push(program, "/usr/local/bin/llama-server")
        this.push(place / "tiny.gguf", "/srv/tiny.gguf")
        this.push(place / "llama.service", "/etc/systemd/system/llama.service")
        this.push(place / "vllm.service", "/etc/systemd/system/vllm.service")
        this.push(place / "tree/opt/vllm", "/opt/vllm")
        for account in ("llama", "vllm"):
            this.do(f"id {account} || useradd --system --no-create-home --shell /usr/sbin/nologin {account}")
        this.do("systemctl daemon-reload && systemctl enable vllm.service && systemctl enable --now llama.service")
        yield this


def slot(host, action, **body):
    return host.ask(f"{URL}/slots/0?action={action}", body)


def complete(host):
    status, answer = host.ask(f"{URL}/completion", {"prompt": PROMPT, "n_predict": 4, "id_slot": 0, "temperature": 0})
    assert status == 200, answer
    return answer["content"]


def answers(host):
    host.wait_for(lambda: host.ask(f"{URL}/health")[0] == 200, 90, "llama.service")


def test_the_roles_close_the_directory_and_give_it_to_the_server(host):
    answers(host)
    assert slot(host, "save", filename="before")[0] == 501  # it has no directory yet
    code, said = host.play()
    assert code == 0, said
    assert "any client that holds the API key can restore any slot file" in said and "`erase`" in said, said
    command = host.do("tr '\\0' ' ' </proc/$(systemctl show -P MainPID llama.service)/cmdline").strip()
    assert command.endswith(f"--slot-save-path {SLOTS}"), command
    assert host.do(f"findmnt -n -o SOURCE,FSTYPE --mountpoint {SLOTS}").split() == ["/dev/mapper/llmhost_slots", "ext4"]
    assert host.do(f"stat -c '%U %a' {SLOTS}") == "llama 700"
    umask = host.do("grep Umask /proc/$(systemctl show -P MainPID llama.service)/status").split()
    assert umask == ["Umask:", "0077"]


def test_a_saved_slot_is_the_account_s_alone_and_comes_back(host):
    answers(host)
    first = complete(host)
    status, answer = slot(host, "save", filename="chat")
    assert status == 200 and answer["n_saved"] > 300, answer
    assert host.do(f"stat -c '%U %a' {SLOTS}/chat") == "llama 600"
    denied = host.do(f"setpriv --reuid=65534 --regid=65534 --clear-groups ls {SLOTS} 2>&1 || true")
    assert "Permission denied" in denied, denied
    assert slot(host, "restore", filename="chat")[0] == 200
    assert slot(host, "erase")[0] == 200
    assert host.do(f"ls {SLOTS}/chat") == f"{SLOTS}/chat", "erase leaves the file"
    assert complete(host) == first


def test_cron_expires_it_and_the_server_lives_on(host):
    first, pid = complete(host), host.main_pid("llama.service")
    assert slot(host, "save", filename="young")[0] == 200
    host.do(f"touch -d '20 minutes ago' {SLOTS}/chat")
    host.wait_for(lambda: host.do(f"ls {SLOTS}") == "CACHEDIR.TAG\nyoung", 150, "cron")
    status, answer = slot(host, "restore", filename="chat")
    assert status == 400, answer
    assert slot(host, "restore", filename="young")[0] == 200
    assert slot(host, "erase")[0] == 200
    assert complete(host) == first
    assert slot(host, "save", filename="chat")[0] == 200
    assert host.main_pid("llama.service") == pid


def test_more_than_the_cap_goes_by_age_though_it_is_young(host):
    # Only what begins as a slot file does is one.
    host.do(
        f"for n in $(seq 1 12); do f={SLOTS}/big$n; (printf qsgg; head -c 2M /dev/zero) >$f; "
        "chown llama: $f; chmod 600 $f; done"
    )
    used = f"du -sb {SLOTS} | cut -f1"
    host.wait_for(lambda: int(host.do(used)) <= 16 << 20, 150, "cron")
    assert "big12" in host.do(f"ls {SLOTS}") and "big1\n" not in host.do(f"ls {SLOTS}")


# vLLM


def status(host):
    """What the writer says of itself from now on."""
    asked = float(host.do("date +%s.%N"))
    found = {}
    host.wait_for(
        lambda: found.update(json.loads(host.do(f"cat {STATUS}"))) or found["time"] > asked, 60, "vllm.service"
    )
    return found


def test_vllm_stores_and_reads_with_the_settings_that_the_role_rendered(host):
    config = "/etc/llmhost/engine/chat.yaml"
    assert host.do(f"stat -c '%U %G %a' {config}") == "root vllm 640"
    command = host.do("systemctl show -P ExecStart vllm.service")
    assert f"--status {STATUS} --config {config}" in command, command
    host.do("systemctl start vllm.service")
    host.wait_for(lambda: status(host)["loaded"] > 10, 120, "vllm.service")
    found = status(host)
    assert (found["state"], found["wrong"], found["errors"]) == ("running", 0, {}), found
    assert host.do(f"findmnt -n -o SOURCE --mountpoint {KV}") == "/dev/mapper/llmhost_chat"
    assert int(host.do(f"find {KV} -ignore_readdir_race -name '*.bin' | wc -l")) > 10
    assert host.do(f"find {KV} -ignore_readdir_race -type f -not '(' -user vllm -perm 0600 ')'") == ""
    assert host.do(f"find {KV} -ignore_readdir_race -type d -not '(' -user vllm -perm 0700 ')'") == ""


def goes_on(host, before, *allowed):
    """The writer stores again and reads right bytes, and nothing went wrong but what was meant to."""
    host.wait_for(lambda: status(host)["stored"] > before["stored"] + 5, 60, "vllm.service")
    found = status(host)
    assert (found["state"], found["wrong"]) == ("running", 0) and set(found["errors"]) <= set(allowed), found


def test_cron_expires_vllm_s_blocks_under_it(host):
    pid = host.main_pid("vllm.service")
    old = host.do(f"find {KV} -ignore_readdir_race -name '*.bin' | head -20").split()
    host.do("touch -d '20 minutes ago' " + " ".join(old))
    gone = "for f in " + " ".join(old) + "; do [ ! -e $f ] || echo $f; done"
    host.wait_for(lambda: host.do(gone) == "", 150, "cron")
    goes_on(host, status(host), "ENOENT")
    assert host.main_pid("vllm.service") == pid


def test_a_full_volume_costs_blocks_and_nothing_else(host):
    pid = host.main_pid("vllm.service")
    host.do(f"dd if=/dev/zero of={KV}/filler bs=64k status=none 2>/dev/null || true")
    host.wait_for(lambda: "ENOSPC" in status(host)["errors"], 60, "vllm.service")
    host.do(f"rm {KV}/filler")
    goes_on(host, status(host), "ENOENT", "ENOSPC")
    assert host.main_pid("vllm.service") == pid


def test_a_volume_that_turns_read_only_costs_blocks_and_nothing_else(host):
    pid = host.main_pid("vllm.service")
    # Busy while a block is just being written.
    host.do(f"for n in $(seq 20); do mount -o remount,ro {KV} && exit 0; sleep 0.2; done; exit 1")
    try:
        host.wait_for(lambda: "EROFS" in status(host)["errors"], 60, "vllm.service")
    finally:
        host.do(f"mount -o remount,rw {KV}")
    goes_on(host, status(host), "ENOENT", "ENOSPC", "EROFS")
    assert host.main_pid("vllm.service") == pid


# Both


@pytest.mark.parametrize("tier", ["slots", "chat"])
def test_the_audit_finds_nothing_wrong_with_the_tier(host, tier):
    found = {}

    def wrong():
        found.update(host.verdicts(tier))
        return {control: one for control, one in found.items() if one[0] not in ("pass", "not_applicable")}

    # The pass that met a read-only volume is followed by a good one within a minute.
    with contextlib.suppress(AssertionError):
        host.wait_for(lambda: not wrong(), 150, "cron")
    assert wrong() == {}
    assert {"KV-01", "KV-02", "KV-03", "KV-04", "KV-07", "KV-13"} <= set(found), found


def test_after_all_that_the_audit_passes_and_another_run_changes_nothing(host):
    code, said = host.play(engine_host.ROOT / "playbooks/audit.yml")
    assert code == 0, said
    code, said = host.play()
    assert code == 0 and "changed=0" in said, said


def test_it_survives_a_reboot(host):
    engine_host.bed("reboot", NAME)
    answers(host)
    assert host.do(f"findmnt -n -o SOURCE --mountpoint {SLOTS}") == "/dev/mapper/llmhost_slots"
    assert host.do(f"ls {SLOTS}") == "CACHEDIR.TAG", "a new key: what was there is gone"
    complete(host)
    assert slot(host, "save", filename="chat")[0] == 200
    assert slot(host, "restore", filename="chat")[0] == 200
    host.wait_for(lambda: status(host)["loaded"] > 0, 120, "vllm.service")
    assert host.do(f"findmnt -n -o SOURCE --mountpoint {KV}") == "/dev/mapper/llmhost_chat"
