# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""kvsweep and the role kv_bucket against real servers, from the data map to the last object."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from module_runner import run
from s3_servers import KEY, SECRET, Between, block, program

from ansible_collections.llmhost.hardening.plugins.module_utils.kv import datamap

ROOT = Path(__file__).resolve().parents[2]
MINUTE = 1 / 1440


class Sweeper:
    """A job of kvsweep in a place of its own, installed by the module and run as a program."""

    def __init__(self, place: Path, server, bucket: str, **options) -> None:
        self.place = place
        self.options = server.options(bucket, tier="gpu1/chat", python=sys.executable, **options)
        paths = {"program": "kvsweep", "config_dir": "jobs", "state_dir": "state", "cron_file": "cron"}
        self.options.update({name: str(place / path) for name, path in paths.items()})
        self.options.setdefault("retention_minutes", 1440)
        self.installed = self.install()
        self.job = self.installed["job"]

    def install(self, check=False, **change):
        given = {name: value for name, value in {**self.options, **change}.items() if value is not None}
        result = run("bucket_sweeper", check=check, **given)
        assert "failed" not in result, result
        return result

    def sweep(self, *arguments: str, command: str = "run"):
        done = subprocess.run(
            [self.place / "kvsweep", f"--config={self.place}/jobs", f"--state={self.place}/state", command, *arguments],
            capture_output=True,
            text=True,
            check=False,
        )
        return done

    def passes(self, *arguments: str):
        done = self.sweep("--json", *arguments)
        assert done.stdout.startswith("["), done.stderr
        (record,) = json.loads(done.stdout)
        assert record["exit"] == done.returncode
        return record


def test_a_day_is_kept_to_the_minute(weed, tmp_path):
    bucket = weed.bucket()
    weed.put(bucket, block(1), "qwen/notes", "other/a")
    weed.age(bucket, 1 + MINUTE)
    weed.put(bucket, block(2))
    weed.age(bucket, 1 - MINUTE, block(2).replace("//", "/"))
    weed.put(bucket, block(3))
    sweeper = Sweeper(tmp_path, weed, bucket)
    dry = sweeper.passes("--dry-run")
    assert dry["would_delete"] == ["object " + block(1).replace("//", "/")] and dry["overdue"] == 1
    assert sum(dry["deleted"].values()) == 0 and len(weed.keys(bucket)) == 5
    record = sweeper.passes()
    assert record["exit"] == 0 and record["deleted"]["objects"] == 1 and record["strangers"] == 1
    assert 1440 * 60 <= record["oldest_seconds"] < 1442 * 60
    left = {block(2).replace("//", "/"), block(3).replace("//", "/"), "qwen/notes", "other/a"}
    assert set(weed.keys(bucket)) == left
    assert sweeper.passes()["deleted"]["objects"] == 0
    assert sweeper.sweep(command="status").returncode == 0


def test_old_versions_markers_and_uploads_go_too_and_nothing_young(weed, tmp_path):
    bucket = weed.bucket()
    weed.client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    weed.put(bucket, block(1))
    weed.put(bucket, block(1))
    weed.put(bucket, block(2))
    weed.client.delete_object(Bucket=bucket, Key=block(2))
    for key in (block(4), "qwen//theirs"):
        weed.client.create_multipart_upload(Bucket=bucket, Key=key)
    weed.age(bucket, 2)
    weed.put(bucket, block(3))
    young = weed.client.create_multipart_upload(Bucket=bucket, Key=block(4))
    found = run("bucket_lifecycle_info", **weed.options(bucket, retention_minutes=1440))
    codes = {one["code"] for one in found["findings"]}
    assert {"overdue_objects", "overdue_versions", "overdue_uploads"} <= codes, found
    record = Sweeper(tmp_path, weed, bucket).passes()
    assert record["exit"] == 0, record
    assert record["deleted"] == {"objects": 1, "versions": 2, "markers": 1, "uploads": 1}
    found = weed.client.list_object_versions(Bucket=bucket)
    assert [one["Key"] for one in found["Versions"]] == [block(3).replace("//", "/")]
    assert not found.get("DeleteMarkers")
    left = {one["UploadId"]: one["Key"] for one in weed.client.list_multipart_uploads(Bucket=bucket)["Uploads"]}
    assert left.pop(young["UploadId"]) == block(4).replace("//", "/")
    assert list(left.values()) == ["qwen/theirs"]


def test_a_pass_that_ran_out_of_time_is_gone_on_with(weed, tmp_path):
    bucket = weed.bucket()
    weed.fill(bucket, [block(number) for number in range(1200)])
    weed.age(bucket, 3)
    sweeper = Sweeper(tmp_path, weed, bucket)
    with Between(weed.endpoint) as between:
        sweeper.install(endpoint=between.endpoint)
        other = sweeper.install(endpoint=between.endpoint)["job"]
        first = sweeper.passes("--max-seconds=0", other)
        assert first["exit"] == 6 and not first["complete"] and first["resume"], first
        assert first["deleted"]["objects"] == 1000
        between.seen.clear()
        second = sweeper.passes(other)
        deletes = [line for line in between.seen if line.startswith("POST")]
        assert second["exit"] == 0 and len(deletes) == 1
        resumed = [line for line in between.seen if "start-after" in line]
        assert resumed, "the second pass began where the first one stopped"
    assert first["deleted"]["objects"] + second["deleted"]["objects"] == 1200
    assert weed.keys(bucket) == []


def old_files(rclone, bucket, *keys):
    """Objects of long ago, where the server keeps them."""
    for key in keys:
        path = rclone.root / "data" / bucket / key.replace("//", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"k")
        os.utime(path, (1e9, 1e9))
        yield path


def test_the_rate_limit_slows_the_pass_down(rclone, tmp_path):
    bucket = rclone.bucket()
    assert len(list(old_files(rclone, bucket, *(block(number) for number in range(1500))))) == 1500
    record = Sweeper(tmp_path, rclone, bucket, deletes_per_second=1000).passes()
    assert record["deleted"]["objects"] == 1500 and record["seconds"] >= 1


def test_what_cannot_be_deleted_is_an_error_and_no_success(weed, tmp_path):
    bucket = weed.bucket()
    weed.put(bucket, block(1))
    weed.age(bucket, 3)
    reader = {"access_key": "readkey", "secret_key": "readsecret"}
    sweeper = Sweeper(tmp_path, weed, bucket)
    sweeper.install(**reader)
    record = sweeper.passes()
    assert record["exit"] in (1, 3) and record["last_success"] is None
    assert sweeper.sweep(command="status").returncode == 1
    found = run(
        "bucket_lifecycle_info",
        **weed.options(bucket, retention_minutes=1440, sweep_state_dir=str(tmp_path / "state")),
    )
    assert not found["kept"] and "sweeper_stale" in {one["code"] for one in found["findings"]}


def test_a_server_without_lifecycle_is_kept_by_the_sweeper_alone(rclone, tmp_path):
    bucket = rclone.bucket()
    key, notes = old_files(rclone, bucket, block(1), "qwen/notes")
    sweeper = Sweeper(tmp_path, rclone, bucket)
    options = rclone.options(bucket, retention_minutes=1440, sweep_state_dir=str(tmp_path / "state"))
    before = run("bucket_lifecycle_info", **options)
    assert before["status"] == "unsupported" and not before["kept"]
    assert "overdue_objects" in {one["code"] for one in before["findings"]}, before
    record = sweeper.passes()
    assert record["exit"] == 0 and record["deleted"]["objects"] == 1, record
    assert not key.exists() and notes.exists()
    after = run("bucket_lifecycle_info", **options)
    assert (after["status"], after["kept_by"]) == ("unsupported", "sweeper"), after["message"]


@pytest.mark.parametrize("way", ["keys", "profile"])
def test_credentials_of_the_environment_are_the_jobs_for_cron_has_none(weed, tmp_path, monkeypatch, way):
    bucket = weed.bucket()
    names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_SHARED_CREDENTIALS_FILE")
    lines = f"[kv]\naws_access_key_id = {KEY}\naws_secret_access_key = {SECRET}\n"
    (tmp_path / "own").write_text(lines)
    (tmp_path / "own").chmod(0o600)
    values = (KEY, SECRET) if way == "keys" else (None, None, "kv", str(tmp_path / "own"))
    with monkeypatch.context() as there:
        for name, value in zip(names, (*values, None, None)):
            there.setenv(name, value) if value else there.delenv(name, raising=False)
        sweeper = Sweeper(tmp_path, weed, bucket, access_key=None, secret_key=None)
    job = (tmp_path / "jobs" / f"{sweeper.job}.json").read_text()
    assert SECRET not in job + str(sweeper.installed)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in names:
        monkeypatch.delenv(name, raising=False)
    assert sweeper.passes()["exit"] == 0


def test_two_passes_of_one_job_never_run_at_once(weed, tmp_path):
    bucket = weed.bucket()
    sweeper = Sweeper(tmp_path, weed, bucket)
    import fcntl

    with (tmp_path / "state" / f".{sweeper.job}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert sweeper.sweep().returncode == 4
    assert sweeper.sweep().returncode == 0


def test_jobs_are_shared_by_tiers_and_installed_once(weed, tmp_path):
    bucket = weed.bucket()
    sweeper = Sweeper(tmp_path, weed, bucket, metrics_dir=str(tmp_path))
    assert sweeper.installed["changed"] and not sweeper.install()["changed"]
    assert (tmp_path / "jobs" / f"{sweeper.job}.credentials").stat().st_mode & 0o777 == 0o600
    assert SECRET not in (tmp_path / "jobs" / f"{sweeper.job}.json").read_text() + (tmp_path / "cron").read_text()
    assert SECRET not in str(sweeper.install(secret_key=SECRET, region="eu-1", check=True))
    shorter = sweeper.install(tier="gpu2/chat", retention_minutes=60)
    assert (shorter["job"], shorter["retention_minutes"]) == (sweeper.job, 60)
    assert not sweeper.install()["changed"], "the other tier's wish stays"
    assert f"run {sweeper.job} " in (tmp_path / "cron").read_text()
    assert sweeper.passes()["exit"] == 0
    assert 'llmhost_bucket_retention_seconds{job="' in (tmp_path / f"llmhost_sweep_{sweeper.job}.prom").read_text()
    assert '"s3:DeleteObject"' in sweeper.sweep(sweeper.job, command="policy").stdout
    assert sweeper.install(tier="gpu2/chat", state="absent")["retention_minutes"] == 1440
    sweeper.install(tier="gpu1/talk")
    tiers = json.loads((tmp_path / "jobs" / f"{sweeper.job}.json").read_text())["tiers"]
    assert tiers == {"gpu1/talk": 1440}, "a host has one tier at a place, which got another name"
    assert sweeper.install(state="absent")["retention_minutes"] is None
    # Or it would pass for a sweeper that died.
    assert not (tmp_path / "state" / f"{sweeper.job}.json").exists()
    assert not (tmp_path / "cron").exists() and not (tmp_path / "jobs").exists()
    assert not sweeper.install(state="absent")["changed"]


# The role, from the data map on


# An /etc of this run's own, over the machine's.
REMEMBER = """
mkdir -p own
mount -t tmpfs tmpfs own
mkdir own/etc own/work own/known
cp known.json own/known/
mount -t overlay overlay -o lowerdir=/etc,upperdir=own/etc,workdir=own/work /etc
mkdir -p /etc/llmhost
cp own/known/known.json /etc/llmhost/tiers.json
exec "$@"
"""


class Play:
    """The role on one host."""

    def __init__(self, place: Path, endpoint: str) -> None:
        self.place, self.endpoint = place, endpoint
        collections = os.environ.get("ANSIBLE_COLLECTIONS_PATH") or str(ROOT / ".build/pythonpath")
        self.environment = {
            **os.environ,
            "ANSIBLE_COLLECTIONS_PATH": collections,
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_RETRY_FILES_ENABLED": "0",
            "ANSIBLE_LOCALHOST_WARNING": "0",
            "LC_ALL": "C.UTF-8",
        }

    def run(self, tiers, *arguments: str, playbook=None, known=None, **variables):
        """known: the data map that the host remembers, put there for this run alone."""
        values = {
            "llmhost_tiers": tiers,
            "kv_bucket_install": False,
            "kv_bucket_python": sys.executable,
            "kv_bucket_access_key": KEY,
            "kv_bucket_secret_key": SECRET,
            "__kv_bucket_root": str(self.place),
            **variables,
        }
        hosts = {"gpu1": {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}}
        (self.place / "hosts.yml").write_text(yaml.safe_dump({"all": {"hosts": hosts}}))
        (self.place / "vars.yml").write_text(yaml.safe_dump(values))
        play = [{"hosts": "all", "gather_facts": False, "roles": ["llmhost.hardening.kv_bucket"]}]
        (self.place / "play.yml").write_text(yaml.safe_dump(play))
        playbook = "play.yml" if playbook is None else str(ROOT / "playbooks" / playbook)
        command = [program("ansible-playbook"), "-i", "hosts.yml", "-e", "@vars.yml", playbook]
        if known is not None:
            (self.place / "known.json").write_text(json.dumps(known))
            command = ["unshare", "--mount", "sh", "-euc", REMEMBER, "sh", *command]
        return subprocess.run(
            [*command, *arguments], cwd=self.place, env=self.environment, capture_output=True, text=True, check=False
        )

    def tier(self, bucket: str, **more):
        tier = {"name": "chat", "store": "vllm_obj", "bucket": bucket, "endpoint": self.endpoint, "prefix": "qwen"}
        return {**tier, **more}


@pytest.mark.skipif(os.geteuid() != 0, reason="the sweeper's files are root's")
def test_the_role_keeps_a_day_and_a_week_and_leaves_neighbours_alone(weed, tmp_path):
    play = Play(tmp_path, weed.endpoint)
    day, week = weed.bucket("day"), weed.bucket("week")
    theirs = {"Prefix": "logs/", "Expiration": {"Days": 90}}
    for bucket in (day, week):
        weed.put(bucket, block(1), "logs/a")
        weed.age(bucket, 8)
        weed.put(bucket, block(2))
        weed.set_rules(bucket, theirs)
    tiers = [play.tier(day), play.tier(week, name="week", retention_minutes=10080, retention_reason="a test")]
    checked = play.run(tiers[:1], "--check")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert len(weed.rules(day)) == 1 and not (tmp_path / "etc").exists()
    first = play.run(tiers, "--diff", "-vv")
    # The week's object is overdue until the server acts on its new rule: the play must not call that kept.
    assert first.returncode != 0 and "overdue_objects" in first.stdout, first.stdout
    weed.expire()
    second = play.run(tiers[:1], "-vv")
    assert second.returncode == 0, second.stdout + second.stderr
    assert SECRET not in first.stdout + first.stderr + second.stdout + second.stderr
    assert "not_enforceable: kept by the sweeper" in second.stdout
    kept = run("bucket_lifecycle_info", **weed.options(week, retention_minutes=10080))
    assert kept["status"] == "ok" and kept["message"].endswith("ok: kept by its rules")
    assert "changed=0" in second.stdout, second.stdout
    for bucket in (day, week):
        assert set(weed.keys(bucket)) == {block(2).replace("//", "/"), "logs/a"}
        assert [rule["ID"] for rule in weed.rules(bucket)][0] == "theirs-0" and len(weed.rules(bucket)) == 2
    weed.age(day, 1 + MINUTE, "qwen/")
    (line,) = [line for line in (tmp_path / "etc/cron.d/llmhost-sweep").read_text().splitlines() if " run " in line]
    assert line.startswith("*/5 * * * * root ")
    subprocess.run(line.partition(" root ")[2], shell=True, check=True)
    assert set(weed.keys(day)) == {"logs/a"}
    gone = play.run([{**tiers[0], "state": "absent"}])
    assert gone.returncode == 0, gone.stdout
    assert [rule["ID"] for rule in weed.rules(day)] == ["theirs-0"] and not (
        tmp_path / "etc/cron.d/llmhost-sweep"
    ).exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="the sweeper's files are root's")
def test_a_bucket_that_left_the_map_is_swept_and_asked_until_it_is_absent(weed, tmp_path):
    play = Play(tmp_path, weed.endpoint)
    bucket = weed.bucket()
    weed.put(bucket, block(1), "other/a")
    tier = play.tier(bucket)
    known = datamap.normalise([tier], "gpu1")
    assert play.run([tier]).returncode == 0
    rules = weed.rules(bucket)
    (job,) = (tmp_path / "etc/llmhost/sweep.d").glob("*.json")
    wanted = job.read_text()
    weed.age(bucket, 2, "qwen/")
    audited = play.run([], playbook="audit.yml", known=known)
    said = " ".join(audited.stdout.replace("\n", " ").replace('",', "").replace('"', "").split())
    assert audited.returncode != 0 and "KV-01 high declared fail" in said and "left the data map" in said, said
    assert "KV-09 high bucket expires fail" in said and "overdue_objects" in said, said
    (line,) = [line for line in (tmp_path / "etc/cron.d/llmhost-sweep").read_text().splitlines() if " run " in line]
    subprocess.run(line.partition(" root ")[2], shell=True, check=True)
    assert weed.keys(bucket) == ["other/a"]
    again = play.run([], known=known)
    assert again.returncode == 0 and "changed=0" in again.stdout and "kept by the sweeper" in again.stdout, again.stdout
    assert weed.rules(bucket) == rules and job.read_text() == wanted
    assert play.run([{**tier, "state": "absent"}], known=known).returncode == 0
    assert not job.exists() and [rule["Status"] for rule in weed.rules(bucket)] == ["Disabled"]


@pytest.mark.skipif(os.geteuid() != 0, reason="the sweeper's files are root's")
def test_the_playbook_audit_judges_a_bucket_by_what_was_asked_just_now(weed, tmp_path):
    """KV-09 in the table of audit, from the data map alone; harden, which would change this machine, is molecule's."""
    play = Play(tmp_path, weed.endpoint)
    bucket = weed.bucket()
    weed.put(bucket, block(1))
    weed.age(bucket, 2)
    tiers = [play.tier(bucket)]

    def audited(tiers, **variables):
        done = play.run(tiers, playbook="audit.yml", **variables)
        text = " ".join(done.stdout.replace("\n", " ").replace('",', "").replace('"', "").split())
        assert SECRET not in done.stdout + done.stderr
        return done, text

    done, said = audited(tiers)
    assert done.returncode != 0 and "KV-09 high bucket expires fail" in said and "overdue_objects" in said, done.stdout
    assert "changed=0" in said and not (tmp_path / "etc").exists() and weed.keys(bucket)
    done, said = audited(tiers, kv_bucket_python="/nowhere/python3")
    assert done.returncode != 0 and "KV-09 high bucket expires unknown" in said, done.stdout
    assert play.run(tiers).returncode == 0
    assert weed.keys(bucket) == []
    # This machine may hold trees of other tests, which is a finding of the search and not of the bucket.
    done, said = audited(tiers, llmhost_fail_on="none", llmhost_scan_seconds=0)
    assert done.returncode == 0 and "KV-09 high bucket expires pass" in said, done.stdout


def test_the_role_stops_before_anything_on_unknown_overrides_and_unreachable_buckets(tmp_path):
    play = Play(tmp_path, "http://127.0.0.1:1")
    for tiers, variables, says in (
        ([play.tier("kv-1")], {"kv_bucket_overrides": {"chat": {"secret": "x"}}}, "kv_bucket_overrides has secret"),
        ([play.tier("kv-1")], {}, "nothing answers there"),
    ):
        done = play.run(tiers, **variables)
        assert done.returncode != 0 and says in done.stdout.replace("\n", " "), done.stdout
        assert not (tmp_path / "etc").exists()
