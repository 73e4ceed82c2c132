# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Writing a document, and sweeping a bucket: every way it can go wrong half way."""

from __future__ import annotations

import contextlib
import itertools
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from fake_bucket import NOW, FakeBucket, entry
from module_runner import run

from ansible_collections.llmhost.hardening.plugins.module_utils.s3 import (
    client,
    enforce,
    errors,
    listing,
    merge,
    proof,
    sweep,
    sweep_cli,
    sweep_program,
    sweep_state,
)
from ansible_collections.llmhost.hardening.plugins.module_utils.s3.document import Rule
from ansible_collections.llmhost.hardening.plugins.module_utils.s3.errors import S3Error, Seen
from ansible_collections.llmhost.hardening.plugins.module_utils.s3.keys import Keys

ROOT = Path(__file__).resolve().parents[2]
START = merge.own_start("qwen//")
OURS = merge.wanted(START, "qwen//", 5, versioned=False)
THEIRS = Rule(id="theirs", prefix="qwen/", tags=(("a", "b"),), days=30)
SIZED = Rule(id="sized", prefix="a/", above=1000, days=1)
DENIED = S3Error(errors.DENIED, "no right", "grant it", "AccessDenied")
CUT = S3Error(errors.UNREACHABLE, "the connection was cut", "run again")


def plan(current):
    return merge.merge(current, OURS, START)


def enforced(bucket):
    clock = itertools.count()
    state = enforce.read(bucket)
    return enforce.enforce(bucket, state, plan, START, lambda _s: None, lambda: float(next(clock)), lambda: 0.0)


def test_a_good_write_keeps_the_others_and_is_one_put():
    bucket = FakeBucket([THEIRS])
    assert enforced(bucket) == [THEIRS, *OURS] == bucket.rules and len(bucket.puts) == 1
    assert enforced(bucket) == [THEIRS, *OURS] and len(bucket.puts) == 1


@pytest.mark.parametrize("kind", [errors.UNSUPPORTED, errors.UNKNOWN, errors.DENIED, errors.UNREACHABLE])
def test_nothing_is_put_without_a_valid_read_and_head(kind):
    wrong = S3Error(kind, "no", "fix")
    for bucket in (FakeBucket(lifecycle=wrong), FakeBucket([THEIRS], HeadBucket=wrong)):
        with pytest.raises(S3Error):
            enforced(bucket)
        assert bucket.puts == []


def drop_sizes(rules):
    return [replace(rule, above=None) for rule in rules]


def test_a_server_that_drops_a_size_gets_the_former_document_back_and_is_named():
    bucket = FakeBucket([SIZED])
    puts = itertools.count()
    bucket.change = lambda rules: drop_sizes(rules) if next(puts) == 0 else rules
    with pytest.raises(enforce.Refused, match=r"rule_dropped.*larger than 1000.*The former document is back"):
        enforced(bucket)
    assert bucket.rules == [SIZED] and len(bucket.puts) == 2


def test_a_server_that_always_drops_it_is_reported_as_not_restored():
    bucket = FakeBucket([SIZED])
    bucket.change = drop_sizes
    with pytest.raises(enforce.Refused, match="does not come back"):
        enforced(bucket)


def test_without_a_former_document_ours_are_disabled_and_none_is_deleted():
    bucket = FakeBucket(None)
    puts = itertools.count()
    bucket.change = lambda rules: [replace(one, abort_days=None) for one in rules] if next(puts) == 0 else rules
    with pytest.raises(enforce.Refused, match="Our rules are disabled"):
        enforced(bucket)
    assert bucket.rules == [replace(OURS[0], enabled=False)]
    assert all("Delete" not in name for name, _more in bucket.calls)


def test_a_loser_of_a_race_merges_again_and_keeps_both():
    sibling = merge.wanted(merge.own_start("b/"), "b/", 1, versioned=False)
    bucket = FakeBucket([THEIRS])
    puts = itertools.count()
    bucket.change = lambda rules: [THEIRS, *sibling] if next(puts) == 0 else rules
    assert enforced(bucket) == [THEIRS, *sibling, *OURS]


def test_a_race_that_never_ends_is_given_up():
    bucket = FakeBucket([THEIRS])
    others = (Rule(id=f"b{number}", prefix=f"b{number}/", days=1) for number in itertools.count())
    bucket.change = lambda rules: [rule for rule in rules if not merge.is_own(rule, START)] + [next(others)]
    with pytest.raises(enforce.Refused, match="one play at a time"):
        enforced(bucket)


def test_answers_that_flap_are_read_until_they_agree():
    bucket = FakeBucket([THEIRS])
    bucket.reads = [[THEIRS], [THEIRS, *OURS], [THEIRS], [THEIRS, *OURS], [THEIRS, *OURS]]
    assert enforced(bucket) == [THEIRS, *OURS] and bucket.reads == []


def test_a_put_that_was_cut_is_judged_by_what_is_read_back():
    for arrived in (True, False):
        bucket = FakeBucket([THEIRS])

        def put(rules, _size, bucket=bucket, arrived=arrived):
            if arrived:
                FakeBucket.put_lifecycle(bucket, rules, None)
            raise CUT

        bucket.put_lifecycle = put
        with contextlib.nullcontext() if arrived else pytest.raises(S3Error, match="cut"):
            assert enforced(bucket) == [THEIRS, *OURS]


def test_a_read_that_fails_after_the_put_says_that_rules_were_sent():
    bucket = FakeBucket([THEIRS])
    bucket.reads = [[THEIRS], CUT]
    with pytest.raises(S3Error, match="the rules were sent, but reading them back failed"):
        enforced(bucket)


@pytest.mark.parametrize(
    "rules",
    [[Rule(id="x", more=("Action",))], [THEIRS, replace(THEIRS, days=1)]],
    ids=["unknown parts", "one id twice"],
)
def test_a_document_that_cannot_be_written_back_is_refused(rules):
    with pytest.raises(enforce.Refused, match="Fix:"):
        enforce.check_writable(enforce.State(rules, None, b""), START)


def test_the_setting_of_the_document_that_travels_in_a_header_goes_back():
    bucket = FakeBucket([THEIRS])
    bucket.headers = lambda: {"x-amz-transition-default-minimum-object-size": "varies_by_storage_class"}
    enforced(bucket)
    assert bucket.puts[0][1] == "varies_by_storage_class"


# Errors


@pytest.mark.parametrize(
    ("code", "seen", "kind", "says"),
    [
        ("NoSuchLifecycleConfiguration", Seen(404, "Error"), "absent", ""),
        ("NoSuchBucket", Seen(404, "Error"), "no_bucket", "does not exist"),
        ("404", Seen(404, ""), "no_bucket", "does not exist"),
        ("NoSuchUpload", Seen(404, "Error"), "unknown", "refused"),
        ("403", Seen(403, ""), "denied", "no right"),
        ("InvalidAccessKeyId", Seen(403, "Error"), "denied", "access key"),
        ("ExpiredToken", Seen(400, "Error"), "denied", "expired"),
        ("AuthorizationHeaderMalformed", Seen(400, "Error", region="eu-1"), "denied", "eu-1"),
        ("400", Seen(400, "", region="eu-1"), "denied", "eu-1"),
        ("302", Seen(302, "", location="https://x.example/?token=a"), "unreachable", "https://x.example/"),
        ("502", Seen(502, "html"), "unreachable", "not S3"),
        ("407", Seen(407, ""), "unreachable", "proxy"),
        ("501", Seen(501, ""), "unsupported", "implement"),
        ("XMinioInternal\x1b[2J", Seen(500, "Error"), "unknown", "refused"),
    ],
)
def test_each_answer_has_its_kind_and_remedy(code, seen, kind, says):
    error = errors.of_answer(code, seen)
    assert error.kind == kind and says in str(error) and "Fix: " in str(error)
    assert "token=a" not in str(error) and "\x1b" not in str(error)


def test_exceptions_of_the_library_are_known_by_their_names_and_bases():
    class HTTPClientError(Exception):
        pass

    class SSLError(HTTPClientError):
        pass

    class Other(HTTPClientError):
        pass

    assert "ca_bundle" in str(errors.of_exception(SSLError()))
    assert errors.of_exception(Other()).kind == errors.UNREACHABLE
    assert errors.of_exception(RuntimeError("AKIA secret")).kind == errors.UNKNOWN
    assert "secret" not in str(errors.of_exception(RuntimeError("AKIA secret")))


OPTIONS = {"bucket": "kv-prod", "endpoint": "https://s3.example", "prefix": "qwen", "retention_minutes": 10080}


@pytest.mark.parametrize("module", ["bucket_lifecycle", "bucket_lifecycle_info"])
def test_missing_boto3_names_interpreter_and_host(module, monkeypatch):
    monkeypatch.setattr(client, "BOTO_ERROR", "ImportError")
    result = run(module, **OPTIONS)
    assert result["failed"] and sys.executable in result["msg"] and "python3-boto3" in result["msg"]
    import socket

    assert socket.gethostname() in result["msg"]


@pytest.mark.parametrize("module", ["bucket_lifecycle", "bucket_lifecycle_info"])
@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"retention_minutes": 0}, "retention_minutes: 0 is not from 1"),
        ({"retention_minutes": "soon"}, "retention_minutes"),
        ({"retention_minutes": 10**9}, "retention_minutes"),
        ({"lag_minutes": -1}, "lag_minutes"),
        ({"bucket": "no/bucket"}, "bucket: not a usable value"),
        ({"endpoint": "ftp://x"}, "endpoint: not a usable value"),
        ({"endpoint": "https://key:hidden@x"}, "endpoint: not a usable value"),
        ({"region": "a b"}, "region"),
        ({"prefix": "a\nb"}, "prefix: not a key prefix"),
        ({"store": "vllm_fs"}, "vllm_obj"),
        ({"store": "nothing"}, "vllm_obj"),
        ({"max_entries": 0}, "max_entries"),
        ({"timeout": 0}, "timeout"),
        ({"id_prefix": ""}, "id_prefix"),
        ({"prefix": None}, "prefix"),
        ({"key_prefix": "x"}, "mutually exclusive"),
        ({"access_key": "only"}, "secret_key"),
    ],
)
def test_bad_options_are_one_message_before_anything_is_sent(module, change, says, monkeypatch):
    monkeypatch.setattr(client, "BOTO_ERROR", None)
    arguments = {key: value for key, value in {**OPTIONS, **change}.items() if value is not None}
    result = run(module, **arguments)
    assert result["failed"] and says in result["msg"], result
    assert "hidden" not in result["msg"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"retention_minutes": 0}, "retention_minutes: 0 is not from 1"),
        ({"retention_minutes": "soon"}, "retention_minutes"),
        ({"retention_minutes": None}, "retention_minutes"),
        ({"tier": None}, "tier"),
        ({"interval_minutes": 7}, "interval_minutes: not a divisor of an hour"),
        ({"deletes_per_second": -1}, "deletes_per_second"),
        ({"python": "python3"}, "python: not a plain absolute path"),
        ({"program": "/usr/local/sbin/kv sweep"}, "program: not a plain absolute path"),
        ({"bucket": "no/bucket"}, "bucket: not a usable value"),
        ({"endpoint": "https://key:hidden@x"}, "endpoint: not a usable value"),
        ({"prefix": "a\nb"}, "prefix: not a key prefix"),
        ({"store": "vllm_fs"}, "vllm_obj"),
        ({"access_key": "only"}, "secret_key"),
        ({"access_key": "zzzkey", "secret_key": "hidden value"}, "spaces or control characters"),
        ({"state": "gone"}, "state"),
    ],
)
def test_bad_options_of_the_sweeper_write_nothing(change, says, tmp_path):
    paths = {name: str(tmp_path / name) for name in ("program", "config_dir", "state_dir", "cron_file")}
    arguments = {**OPTIONS, "tier": "h/t", **paths, **change}
    result = run("bucket_sweeper", **{key: value for key, value in arguments.items() if value is not None})
    assert result["failed"] and says in result["msg"] and "hidden" not in result["msg"], result
    assert list(tmp_path.iterdir()) == []


def test_a_credentials_file_that_others_can_read_is_refused(tmp_path):
    path = tmp_path / "credentials"
    path.write_text("[default]\n")
    path.chmod(0o644)
    with pytest.raises(S3Error, match="chmod 0600"):
        client._closed(str(path))
    path.chmod(0o600)
    client._closed(str(path))


# Sweeping

KEYS = Keys("qwen", "vllm_obj")


def key(number):
    return f"qwen//Qwen_Qwen3-8B_0123456789ab_r0/abc/de_g0/{number:064x}.bin"


def job(**more):
    base = dict(id="kv-1", schema=1, bucket="kv", endpoint="https://s3.example", region="us-east-1", path_style=True)
    base.update(ca_bundle=None, profile=None, credentials_file=None, timeout=30, prefix="qwen", key_prefix=None)
    base.update(store="vllm_obj", tiers={"h/t": 1440}, interval_minutes=5, deletes_per_second=0, metrics_dir=None)
    return {**base, **more}


def swept(bucket, monkeypatch=None, **options):
    record = sweep_state.new_record(job(), NOW)
    options = {"trust_clock": True, **options}
    sweep.Sweep(bucket, KEYS, 1440 * 60, record, **options).run()
    return record


def deleted(bucket):
    return [one for name, more in bucket.calls if name == "DeleteObjects" for one in more["Delete"]["Objects"]]


def test_only_the_tiers_own_and_old_are_deleted():
    pages = [{"Contents": [entry(key(1), 1440), entry(key(2), 1439), entry("qwen//notes", 99999), entry(key(3), -60)]}]
    bucket = FakeBucket(ListObjectsV2=pages)
    record = swept(bucket)
    assert deleted(bucket) == [{"Key": key(1)}]
    assert (record["deleted"]["objects"], record["strangers"], record["strangers_overdue"]) == (1, 1, 1)
    assert record["future"] == 1 and record["complete"]


def test_a_dry_run_deletes_nothing():
    due = []
    pages = [{"Contents": [entry(key(1), 9999)]}]
    uploads = [{"Uploads": [{"Key": key(2), "UploadId": "u", "Initiated": NOW - 10**6}]}]
    bucket = FakeBucket(ListObjectsV2=pages, ListMultipartUploads=uploads)
    record = swept(bucket, delete=False, note=lambda kind, name: due.append((kind, name)))
    assert due == [("objects", key(1)), ("uploads", key(2))] and record["overdue"] == 2
    assert not [name for name, _more in bucket.calls if name.startswith(("Delete", "Abort"))]


def test_versions_go_by_their_id_and_markers_too():
    page = {
        "Versions": [
            entry(key(1), 9999, VersionId="a", IsLatest=False),
            entry(key(2), 1, VersionId="b", IsLatest=True),
            entry(key(2), 9999, VersionId="c", IsLatest=False),
        ],
        "DeleteMarkers": [entry(key(1), 9998, VersionId="d", IsLatest=True)],
    }
    bucket = FakeBucket(ListObjectVersions=[page], GetBucketVersioning={"Status": "Enabled"})
    record = swept(bucket)
    assert {one["VersionId"] for one in deleted(bucket)} == {"a", "c", "d"}
    assert record["deleted"] == {"objects": 0, "versions": 2, "markers": 1, "uploads": 0}


def test_old_uploads_are_aborted_and_young_ones_stay():
    uploads = [
        {
            "Uploads": [
                {"Key": key(1), "UploadId": "old", "Initiated": NOW - 1440 * 60},
                {"Key": key(2), "UploadId": "young", "Initiated": NOW - 1439 * 60},
                {"Key": "qwen//other", "UploadId": "theirs", "Initiated": NOW - 10**6},
            ]
        }
    ]
    bucket = FakeBucket(ListMultipartUploads=uploads)
    record = swept(bucket)
    aborted = [more["UploadId"] for name, more in bucket.calls if name == "AbortMultipartUpload"]
    assert aborted == ["old"] and record["deleted"]["uploads"] == 1


def test_ten_million_keys_take_no_more_memory_than_a_page():
    """Batches are sent while the listing goes on: never more than a few are held."""
    held = []

    def pages(prefix, start):
        for page in range(60):
            held.append(len(work.batch) + sweep.BATCH * len(work.running))
            contents = [entry(key(1000 * page + number), 9999) for number in range(1000)]
            yield {"Contents": contents, "IsTruncated": page < 59, "NextContinuationToken": "t"}

    bucket = FakeBucket(ListObjectsV2=pages)
    record = sweep_state.new_record(job(), NOW)
    work = sweep.Sweep(bucket, KEYS, 1440 * 60, record, trust_clock=True)
    work.run()
    assert record["deleted"]["objects"] == 60000 and max(held) <= sweep.BATCH * (sweep.WORKERS + 1)


def test_what_a_lock_keeps_is_counted_and_named():
    answer = {"Errors": [{"Key": key(1), "Code": "AccessDenied"}]}
    bucket = FakeBucket(ListObjectsV2=[{"Contents": [entry(key(1), 9999), entry(key(2), 9999)]}], DeleteObjects=answer)
    record = swept(bucket)
    assert (record["deleted"]["objects"], record["overdue"], record["errors"]) == (1, 1, {"AccessDenied": 1})


def test_a_store_that_deletes_one_object_a_call_is_served_so():
    unsupported = S3Error(errors.UNSUPPORTED, "no", "fix")
    bucket = FakeBucket(ListObjectsV2=[{"Contents": [entry(key(1), 9999)]}], DeleteObjects=unsupported)
    record = swept(bucket)
    assert [more for name, more in bucket.calls if name == "DeleteObject"] == [{"Key": key(1)}]
    assert record["deleted"]["objects"] == 1


def test_where_only_the_call_for_several_is_refused_they_go_one_by_one_and_the_pass_says_so():
    contents = [entry(key(number), 9999) for number in range(600)]
    bucket = FakeBucket(ListObjectsV2=[{"Contents": contents}], DeleteObjects=DENIED)
    record = swept(bucket)
    assert (record["deleted"]["objects"], record["errors"], record["complete"]) == (600, {}, True)
    assert len(record["messages"]) == 1
    assert "no right" in record["messages"][0] and "one by one" in record["messages"][0]


def test_where_single_deletions_are_refused_too_the_pass_ends_and_tries_no_more():
    contents = [entry(key(number), 9999) for number in range(200)]
    bucket = FakeBucket(ListObjectsV2=[{"Contents": contents}], DeleteObjects=DENIED, DeleteObject=DENIED)
    with pytest.raises(S3Error, match="no right"):
        swept(bucket)
    assert sum(name == "DeleteObject" for name, _more in bucket.calls) == sweep.MAX_TRIED


def test_a_clock_that_is_off_deletes_nothing():
    bucket = FakeBucket(ListObjectsV2=[{"Contents": [entry(key(1), 9999)]}])
    with pytest.raises(sweep.ClockJumped, match="NTP"):
        swept(bucket, trust_clock=False)
    assert deleted(bucket) == []


def test_the_rate_is_kept_on_average():
    slept = []
    contents = [entry(key(number), 9999) for number in range(3000)]
    bucket = FakeBucket(ListObjectsV2=[{"Contents": contents}])
    swept(bucket, rate=100, clock=lambda: 0.0, sleep=slept.append)
    assert slept == [2.5 * number for number in range(1, 12)]


def test_a_pass_that_is_out_of_time_says_where_the_next_goes_on():
    pages = [{"Contents": [entry(key(1), 9999)], "IsTruncated": True, "NextContinuationToken": "t"}, {"Contents": []}]
    bucket = FakeBucket(ListObjectsV2=pages)
    record = sweep_state.new_record(job(), NOW)
    ticks = itertools.count()
    work = sweep.Sweep(bucket, KEYS, 1, record, trust_clock=True, max_seconds=0, clock=lambda: float(next(ticks)))
    with pytest.raises(sweep.TimeUp):
        work.run()
    assert record["resume"] == {"operation": proof.OBJECTS, "position": {"StartAfter": key(1)}}
    assert record["deleted"]["objects"] == 1 and not record["complete"]
    seen = []
    again = FakeBucket(ListObjectsV2=lambda prefix, start: seen.append(start) or [{}])
    sweep.Sweep(again, KEYS, 1, record, trust_clock=True).run()
    assert {"StartAfter": key(1)} in seen and record["complete"]


def test_a_sweeper_is_alive_only_for_its_own_place_and_time():
    settings = sweep_state.settings_of(job())
    record = {**sweep_state.new_record(job(), NOW), "last_success": NOW}

    def alive(now=NOW + 60, **change):
        return sweep_state.alive({**record, **change}, now, 300, settings, KEYS)["alive"]

    assert alive() and alive(now=NOW + 660)
    assert not alive(now=NOW + 661) and not alive(now=NOW - 400)
    assert not alive(last_success=None) and not alive(target="elsewhere")
    assert not sweep_state.alive(None, NOW, 300, settings, KEYS)["alive"]


@pytest.mark.parametrize(
    "change", [{"schema": 2}, {"id": "x"}, {"tiers": {}}, {"tiers": {"a": 0}}, {"more": 1}, {"timeout": "1"}]
)
def test_a_job_in_another_form_is_refused(change):
    with pytest.raises(sweep_state.BadJob, match="kv_bucket"):
        sweep_state.check_job({**job(), **change}, "kv-1")


def test_the_least_rights_name_bucket_and_prefix_and_nothing_else():
    policy = sweep_cli.policy("kv", "qwen//")
    actions = {
        action
        for one in policy["Statement"]
        for action in ([one["Action"]] if isinstance(one["Action"], str) else one["Action"])
    }
    assert actions == {
        "s3:ListBucket",
        "s3:ListBucketVersions",
        "s3:ListBucketMultipartUploads",
        "s3:GetBucketVersioning",
        "s3:DeleteObject",
        "s3:DeleteObjectVersion",
        "s3:AbortMultipartUpload",
    }
    assert policy["Statement"][2]["Resource"] == "arn:aws:s3:::kv/qwen//*"
    with_prefix = [one["Action"] for one in policy["Statement"] if "Condition" in one]
    assert with_prefix == [["s3:ListBucket", "s3:ListBucketVersions"]], (
        "uploads are listed without one that is looked at"
    )


def test_exit_codes_and_version_are_those_of_the_documents():
    page = (ROOT / "docs/buckets.md").read_text()
    for code, meaning in sweep_cli.EXIT_CODES.items():
        assert f"| {code} | {meaning} |" in page
    assert yaml.safe_load((ROOT / "galaxy.yml").read_text())["version"] == sweep_cli.VERSION


def test_metrics_are_one_sample_for_each_family():
    record = {**sweep_state.new_record(job(), NOW), "exit": 0}
    text = sweep_cli.metrics(job(bucket='k"v'), record)
    assert text.count("# TYPE") == len(sweep_cli.METRICS) - 1, "no success yet"
    assert 'bucket="k\\"v"' in text


# The program


def test_kvsweep_lacks_nothing_that_it_imports_and_is_known_again():
    files = sweep_program.sources()
    for name, data in files.items():
        if name == "__main__.py" or name.endswith("/__init__.py"):
            continue
        package = name.split("/")[1]
        for other, module in sweep_program.imported(package, data):
            assert f"{sweep_program.ROOT}/{other}/{module}.py" in files or module.isupper(), (name, other, module)
    built = sweep_program.build()
    assert sweep_program.is_current(built) and built.startswith(b"#!/usr/bin/python3 -I\n")
    assert not sweep_program.is_current(built, "/opt/venv/bin/python")
    assert not sweep_program.is_current(built[:-40])


def test_kvsweep_runs_isolated_and_from_a_modules_zip(tmp_path):
    package = ROOT / "plugins/module_utils"
    carrier = tmp_path / "carrier.zip"
    with zipfile.ZipFile(carrier, "w") as archive:
        for path in package.glob("*/*.py"):
            archive.write(path, f"deep/er/{path.parent.name}/{path.name}")
        for directory in ("deep", "deep/er"):
            archive.writestr(f"{directory}/__init__.py", "")
    code = "import sys; sys.path[:0] = sys.argv[1:]; from deep.er.s3 import sweep_program as p; "
    code += "sys.stdout.buffer.write(p.build())"
    done = subprocess.run([sys.executable, "-I", "-c", code, str(carrier)], capture_output=True, check=True)
    assert sweep_program.is_current(done.stdout)
    program = tmp_path / "kvsweep"
    program.write_bytes(done.stdout)
    shown = subprocess.run([sys.executable, "-I", str(program), "--help"], capture_output=True, text=True, check=False)
    assert shown.returncode == 0 and "policy" in shown.stdout, shown.stderr


def test_the_alert_rules_name_metrics_that_there_are():
    text = (ROOT / "roles/kv_bucket/files/llmhost-bucket.rules.yml").read_text()
    import re

    assert set(re.findall(r"llmhost_bucket_\w+", text)) <= set(sweep_cli.METRICS)


def test_two_tiers_of_one_place_have_one_job_and_two_places_two():
    one = sweep_state.job_id("https://s3.example", "kv", "qwen//")
    assert one == sweep_state.job_id("https://s3.example", "kv", "qwen//")
    assert one != sweep_state.job_id("https://s3.example", "kv", "other//")


# Pages of listings

PAGE = """<?xml version="1.0"?><ListVersionsResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>b</Name>
<Prefix>a%2Fb</Prefix><NextKeyMarker>a%2Fc%20d</NextKeyMarker><NextVersionIdMarker>v%2F1</NextVersionIdMarker>
<EncodingType>url</EncodingType><IsTruncated>true</IsTruncated>
<Version><Key>a%2Fb%0A</Key><VersionId>v1</VersionId><IsLatest>true</IsLatest>
<LastModified>2027-01-15T08:00:00.250Z</LastModified><ETag>"e"</ETag><Size>16</Size>
<Owner><ID>x</ID><Key>no</Key></Owner></Version>
<DeleteMarker><Key>b</Key><VersionId>v2</VersionId><IsLatest>false</IsLatest>
<LastModified>2027-01-15T08:00:00Z</LastModified></DeleteMarker></ListVersionsResult>"""


def test_a_page_is_read_as_the_library_would():
    page = listing.parse("ListObjectVersions", PAGE.encode())
    version = {"Key": "a/b\n", "VersionId": "v1", "IsLatest": True, "LastModified": NOW + 0.25, "Size": 16}
    assert page["Versions"] == [version]
    assert page["DeleteMarkers"] == [{"Key": "b", "VersionId": "v2", "IsLatest": False, "LastModified": NOW}]
    assert client.next_page("ListObjectVersions", page) == {"KeyMarker": "a/c d", "VersionIdMarker": "v%2F1"}


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2027-01-15T08:00:00Z", 0),
        ("2027-01-15T08:00:00.999Z", 0.999),
        ("2027-01-15T09:00:00+01:00", 0),
        ("2027-01-15T08:00:00.5+00:00", 0.5),
        ("2027-01-15T08:00:00", 0),
    ],
)
def test_times_are_read_in_every_spelling(text, seconds):
    assert listing.moment(text) == pytest.approx(NOW + seconds)


@pytest.mark.parametrize("text", ["", "yesterday", "2027-13-40T08:00:00Z", "2027-01-15T08:xx:00Z"])
def test_a_time_that_is_none_is_no_age(text):
    with pytest.raises(listing.BadPage):
        listing.moment(text)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"", errors.UNKNOWN),
        (b"<html></html>", errors.UNREACHABLE),
        (PAGE.replace("ListVersionsResult", "Other").encode(), errors.UNSUPPORTED),
        (PAGE.replace("<Key>b</Key>", "").encode(), errors.UNKNOWN),
        (PAGE.replace("2027-01-15T08:00:00Z", "soon").encode(), errors.UNKNOWN),
        (PAGE[:-9].encode(), errors.UNREACHABLE),
    ],
)
def test_another_document_is_no_empty_page(body, kind):
    with pytest.raises(S3Error) as caught:
        client._page("ListObjectVersions", body)
    assert caught.value.kind == kind
