# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A Debian 12 host that asks and sweeps its bucket: Debian's own boto3 through apt, the playbook harden, real cron."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import s3_servers
import yaml
from s3_servers import KEY, SECRET, Between, block, program

ROOT = Path(__file__).resolve().parents[2]
BED = ROOT / "tests/testbed/bed.py"
NAME = "bucket-bookworm"
# QEMU's name for this machine's loopback.
OUTSIDE = "10.0.2.2"


def bed(*arguments: str) -> str:
    done = subprocess.run([sys.executable, BED, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def host():
    bed("down", NAME)
    bed("up", NAME)
    yield lambda command: bed("ssh", NAME, "--", command)
    bed("down", NAME)


@pytest.fixture
def weed():
    with s3_servers.weed() as server:
        yield server


class Play:
    def __init__(self, place: Path, tier: dict[str, object]) -> None:
        self.place = place
        (place / "hosts.yml").write_text(bed("inventory", NAME))
        self.tiers(tier)

    def tiers(self, *tiers: dict[str, object]) -> None:
        values = {
            "llmhost_tiers": list(tiers),
            "kv_bucket_host": "{{ inventory_hostname }}",
            "kv_bucket_ca_bundle": "/root/ca.pem",
            "kv_bucket_access_key": KEY,
            "kv_bucket_secret_key": SECRET,
            "ansible_python_interpreter": "/usr/bin/python3",
        }
        (self.place / "vars.yml").write_text(yaml.safe_dump(values))

    def run(self, playbook: str, *arguments: str) -> tuple[int, str]:
        collections = os.environ.get("ANSIBLE_COLLECTIONS_PATH") or str(ROOT / ".build/pythonpath")
        environment = {**os.environ, "ANSIBLE_COLLECTIONS_PATH": collections, "ANSIBLE_PIPELINING": "1"}
        path = ROOT / "playbooks" / f"{playbook}.yml"
        command = [program("ansible-playbook"), "-i", "hosts.yml", "-e", "@vars.yml", str(path), *arguments]
        done = subprocess.run(command, cwd=self.place, env=environment, capture_output=True, text=True, check=False)
        said = done.stdout + done.stderr
        assert SECRET not in said
        return done.returncode, " ".join(said.replace("\n", " ").replace('",', "").replace('"', "").split())


def test_a_debian_host_keeps_a_day_in_its_bucket_with_debians_boto3_and_cron(host, weed, tmp_path):
    bucket = weed.bucket()
    weed.put(bucket, block(1), "other/notes")
    weed.age(bucket, 2)
    weed.put(bucket, block(2))
    certificate = s3_servers.self_signed(tmp_path, OUTSIDE)
    bed("push", NAME, str(certificate), "/root/ca.pem")
    with Between(weed.endpoint, certificate=certificate) as between:
        endpoint = between.endpoint.replace("127.0.0.1", OUTSIDE)
        tier: dict[str, object] = {"name": "chat", "store": "vllm_obj", "bucket": bucket, "endpoint": endpoint}
        tier |= {"prefix": "qwen", "expire_every_minutes": 1}
        play = Play(tmp_path, tier)
        look = "ls /usr/local/sbin/kvsweep /etc/llmhost /usr/lib/python3/dist-packages/boto3 2>/dev/null || true"

        code, said = play.run("harden", "--check")
        assert code == 0, said
        assert host(look).strip() == "" and len(weed.keys(bucket)) == 3, "a check run left something"

        code, said = play.run("harden", "--diff")
        assert code == 0, said
        # Before there was nobody to ask the bucket, for boto3 was missing.
        assert "KV-09 high bucket expires unknown -> pass" in said, said
        assert "1.26" in host("/usr/bin/python3 -c 'import boto3; print(boto3.__version__)'")
        assert set(weed.keys(bucket)) == {block(2).replace("//", "/"), "other/notes"}
        once_hardened(host, weed, bucket, play)
        taken_out_of_the_map(host, weed, bucket, play, tier)


def once_hardened(host, weed, bucket, play):
    """Nothing changes any more, cron deletes the young block a day later, and the audit finds it so."""
    young = block(2).replace("//", "/")
    code, said = play.run("harden")
    assert code == 0 and "changed=0" in said and "KV-09 high bucket expires pass -> pass" in said, said
    weed.age(bucket, 1 + 1 / 1440, young)
    aged = time.monotonic()
    while young in weed.keys(bucket):
        assert time.monotonic() < aged + 150, host("journalctl --no-pager -t kvsweep -t CRON | tail -30")
        time.sleep(2)
    said = host("journalctl --no-pager -t kvsweep; cat /etc/cron.d/llmhost-sweep")
    assert "deleted 1 objects" in said and "* * * * * root /usr/local/sbin/kvsweep run" in said, said
    assert SECRET not in said
    (record,) = json.loads(host("/usr/local/sbin/kvsweep run --json"))
    assert record["exit"] == 0 and weed.keys(bucket) == ["other/notes"]
    code, said = play.run("audit")
    assert code == 0 and "KV-09 high bucket expires pass" in said, said


def taken_out_of_the_map(host, weed, bucket, play, tier):
    """The tier goes on being swept and is a finding until it is absent."""
    rules = weed.rules(bucket)
    play.tiers()
    code, said = play.run("harden")
    assert code == 0 and "KV-01 high declared fail -> fail" in said, said
    assert "left the data map" in said and "KV-09 high bucket expires pass -> pass" in said, said
    assert weed.rules(bucket) == rules
    code, said = play.run("audit")
    assert code != 0 and "KV-01" in said and "KV-09 high bucket expires pass" in said, said
    assert "LEFT THE MAP" in host("/usr/local/sbin/kvtier status || true")
    weed.put(bucket, block(3))
    weed.age(bucket, 1 + 1 / 1440, block(3).replace("//", "/"))
    aged = time.monotonic()
    while len(weed.keys(bucket)) > 1:
        assert time.monotonic() < aged + 150, host("journalctl --no-pager -t kvsweep -t CRON | tail -30")
        time.sleep(2)
    play.tiers({**tier, "state": "absent"})
    code, said = play.run("harden")
    assert code == 0 and "left the data map" not in said.partition("Audit after")[2], said
    assert [rule["Status"] for rule in weed.rules(bucket)] == ["Disabled"]
    assert host("ls /etc/llmhost/sweep.d /etc/cron.d/llmhost-sweep 2>/dev/null || true").strip() == ""
    play.tiers()
    code, said = play.run("audit")
    assert code == 0, said
