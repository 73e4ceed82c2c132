# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Store llamacpp_slots through all roles: a real llama-server on a test-bed host, slots on dm-crypt, expired by cron.

One host for all tests, in their order.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import engine_host
import pytest
import tiny_gguf

NAME = "llama-bookworm"
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
VARIABLES = {
    "llmhost_restart": "when_needed",
    "llmhost_prompt_log_retention_minutes": 60,
    "llmhost_wait_for_expiry_seconds": 150,
    "llmhost_tiers": [TIER],
    "engine_offload_engines": [{"name": "llama", "engine": "llamacpp", "unit": "llama.service", "tier": "slots"}],
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
    """llama-server runs there as operators have it before: no directory for slots, nothing closed."""
    place = tmp_path_factory.mktemp("llama-host")
    tiny_gguf.write(place / "tiny.gguf")
    (place / "llama.service").write_text(UNIT)
    with engine_host.up(NAME):
        this = engine_host.Host(NAME, place, VARIABLES)
        this.push(program, "/usr/local/bin/llama-server")
        this.push(place / "tiny.gguf", "/srv/tiny.gguf")
        this.push(place / "llama.service", "/etc/systemd/system/llama.service")
        this.do("useradd --system --no-create-home --shell /usr/sbin/nologin llama")
        this.do("systemctl daemon-reload && systemctl enable --now llama.service")
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


def test_a_second_run_changes_nothing(host):
    code, said = host.play()
    assert code == 0 and "changed=0" in said, said


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


def test_the_audit_finds_nothing_wrong_with_the_tier(host):
    found = host.verdicts("slots")
    assert {"KV-01", "KV-02", "KV-03", "KV-04", "KV-07", "KV-13"} <= set(found), found
    wrong = {control: one for control, one in found.items() if one[0] not in ("pass", "not_applicable")}
    assert wrong == {}, wrong
    code, said = host.play(engine_host.ROOT / "playbooks/audit.yml")
    assert code == 0, said


def test_after_all_that_another_run_changes_nothing(host):
    code, said = host.play()
    assert code == 0 and "changed=0" in said, said


def test_it_survives_a_reboot(host):
    engine_host.bed("reboot", NAME)
    answers(host)
    assert host.do(f"findmnt -n -o SOURCE --mountpoint {SLOTS}") == "/dev/mapper/llmhost_slots"
    assert host.do(f"ls {SLOTS}") == "CACHEDIR.TAG", "a new key: what was there is gone"
    first = complete(host)
    assert slot(host, "save", filename="chat")[0] == 200
    assert slot(host, "restore", filename="chat")[0] == 200
    assert complete(host) == first
