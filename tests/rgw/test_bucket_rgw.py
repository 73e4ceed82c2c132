# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Our bucket modules against a real Ceph object gateway, which expires by itself and spells documents its own way."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import boto3
import pytest
from botocore.exceptions import ClientError
from module_runner import run
from rgw import gateway
from s3_servers import KEY, SECRET, block, client

WEEK = 10080
TAGS = [{"Key": "a", "Value": "b"}, {"Key": "c", "Value": "d"}]


@pytest.fixture(scope="module")
def rgw():
    with gateway() as server:
        yield server


def lifecycle(rgw, bucket, **more):
    result = run("bucket_lifecycle", **rgw.options(bucket, **{"retention_minutes": WEEK, **more}))
    assert "failed" not in result, result
    return result


def info(rgw, bucket):
    return run("bucket_lifecycle_info", **rgw.options(bucket, retention_minutes=WEEK))


@pytest.mark.parametrize("prefix", ["qwen", ""])
def test_the_gateway_expires_the_tiers_keys_by_itself_and_neighbours_stay(rgw, prefix):
    bucket = rgw.bucket("plain")
    near = {"qwen-other/x", "qwen/x", "x"}
    rgw.put(bucket, block(1, prefix=prefix), *near)
    assert info(rgw, bucket)["status"] != "ok"
    options = {"prefix": prefix}
    assert lifecycle(rgw, bucket, **options)["changed"] and not lifecycle(rgw, bucket, **options)["changed"]
    assert block(1, prefix=prefix) in rgw.keys(bucket), "slashes are kept as they are here"
    # Five days of four seconds, and its next rounds.
    end = time.monotonic() + 90
    while set(rgw.keys(bucket)) != near and time.monotonic() < end:
        time.sleep(1)
    assert set(rgw.keys(bucket)) == near
    found = run("bucket_lifecycle_info", **rgw.options(bucket, retention_minutes=WEEK, **options))
    assert (found["status"], found["bucket"]["server"]) == ("ok", "Ceph RGW")
    # It answers a question about encryption with another document: that is no answer.
    assert [one["code"] for one in found["findings"]] == ["not_checked"]


def test_a_foreign_rule_keeps_its_prefix_although_the_gateway_echoes_it_apart(rgw):
    bucket = rgw.bucket("tags")
    rgw.put(bucket, block(1))
    theirs = {"Filter": {"And": {"Prefix": "a/", "Tags": TAGS}}, "Expiration": {"Days": 3000}}
    rgw.set_rules(bucket, theirs)
    echoed = rgw.rules(bucket)
    assert echoed[0]["Filter"] == {"Prefix": "a/", "And": {"Tags": TAGS}}
    for number in range(10):
        assert lifecycle(rgw, bucket, retention_minutes=WEEK + 1440 * (number % 2))["changed"]
    assert [rule for rule in rgw.rules(bucket) if rule["ID"] == "theirs-0"] == echoed


def test_suspended_versioning_is_no_verdict_to_pass_with(rgw):
    bucket = rgw.bucket("versions")
    rgw.client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    assert lifecycle(rgw, bucket)["days"] == 2 and not lifecycle(rgw, bucket)["changed"]
    assert info(rgw, bucket)["status"] == "ok"
    rgw.client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Suspended"})
    found = info(rgw, bucket)
    assert found["status"] == "insufficient" and "Ceph" in found["message"]
    assert lifecycle(rgw, bucket, state="absent")["changed"]
    assert [rule["Status"] for rule in rgw.rules(bucket)] == ["Disabled"]


@pytest.mark.parametrize(
    ("change", "status"), [({"secret_key": "x" * 20}, "denied"), ({"bucket": "not-there"}, "no_bucket")]
)
def test_errors_without_a_message_are_told_all_the_same(rgw, change, status):
    bucket = rgw.bucket("errors")
    found = run("bucket_lifecycle_info", **{**rgw.options(bucket, retention_minutes=WEEK), **change})
    assert found["status"] == status and "None" not in found["message"] and "Fix: " in found["message"]


def test_a_rule_that_only_moves_objects_is_no_expiry(rgw):
    bucket = rgw.bucket("moves")
    rgw.put(bucket, block(1))
    rgw.set_rules(bucket, {"Filter": {"Prefix": "qwen//"}, "Transitions": [{"Days": 1, "StorageClass": "STANDARD_IA"}]})
    found = info(rgw, bucket)
    assert found["status"] == "insufficient" and "transition_only" in {one["code"] for one in found["findings"]}, found


class Sweeper:
    """kvsweep in a place of its own, with the shortest retention there is."""

    def __init__(self, place, rgw, bucket, **more):
        paths = {"program": "kvsweep", "config_dir": "jobs", "state_dir": "state", "cron_file": "cron"}
        options = {**rgw.options(bucket, tier="h/t", retention_minutes=1, python=sys.executable), **more}
        self.job = run("bucket_sweeper", **options, **{name: str(place / path) for name, path in paths.items()})["job"]
        self.program = [place / "kvsweep", f"--config={place}/jobs", f"--state={place}/state"]

    def says(self, *command):
        return subprocess.run([*self.program, *command], capture_output=True, text=True, check=False).stdout

    def passes(self):
        (record,) = json.loads(self.says("run", "--json"))
        return record


def test_the_sweeper_takes_versions_and_markers_of_the_gateway(rgw, tmp_path):
    bucket = rgw.bucket("sweep")
    rgw.client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    rgw.put(bucket, block(1), block(1), "qwen//other")
    rgw.client.delete_object(Bucket=bucket, Key=block(1))
    sweeper = Sweeper(tmp_path, rgw, bucket)
    time.sleep(61)
    record = sweeper.passes()
    assert record["exit"] == 0 and (record["deleted"]["versions"], record["deleted"]["markers"]) == (2, 1), record
    left = rgw.client.list_object_versions(Bucket=bucket)
    assert [one["Key"] for one in left["Versions"]] == ["qwen//other"] and not left.get("DeleteMarkers")


def allow(rgw, bucket, policy, account, way):
    """Give an account the printed policy: as the bucket's, or as its own."""
    if way == "user":
        iam = boto3.client("iam", endpoint_url=rgw.endpoint, region_name="us-east-1", **credentials(KEY, SECRET))
        iam.put_user_policy(UserName=account, PolicyName="sweep", PolicyDocument=json.dumps(policy))
        return
    for statement in policy["Statement"]:
        statement["Principal"] = {"AWS": [f"arn:aws:iam:::user/{account}"]}
    rgw.client.put_bucket_policy(Bucket=bucket, Policy=json.dumps(policy))


def credentials(key, secret):
    return {"aws_access_key_id": key, "aws_secret_access_key": secret}


@pytest.fixture(scope="module")
def restricted(rgw, tmp_path_factory):
    """For each way to give a policy: a bucket with what is due now, and the sweeper of an account that has no more."""
    made = {}
    for way in ("bucket", "user"):
        bucket, name = rgw.bucket("least"), f"sweeper-{way}"
        rgw.client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
        rgw.put(bucket, block(1), block(1), block(2), "qwen-other/x", "other")
        rgw.client.delete_object(Bucket=bucket, Key=block(2))
        rgw.client.create_multipart_upload(Bucket=bucket, Key=block(3))
        keys = rgw.account(name)
        sweeper = Sweeper(tmp_path_factory.mktemp(way), rgw, bucket, **keys)
        policy = json.loads(sweeper.says("policy", sweeper.job))
        allow(rgw, bucket, policy, name, way)
        made[way] = (bucket, name, keys, policy, sweeper)
    time.sleep(61)
    return made


@pytest.mark.parametrize("way", ["bucket", "user"])
def test_the_printed_policy_is_all_that_a_pass_needs_and_gives_no_more(rgw, restricted, way):
    bucket, name, keys, policy, sweeper = restricted[way]
    record = sweeper.passes()
    gone = {"objects": 1, "versions": 2, "markers": 1, "uploads": 1}
    assert (record["exit"], record["deleted"]) == (0, gone), record
    # This server judges a call for several keys by the bucket's own name.
    (said,) = record["messages"]
    assert "one by one" in said
    theirs, outside = client(rgw.endpoint, *keys.values()), [{"Key": "other"}, {"Key": "qwen-other/x"}]
    for call, more in (
        (theirs.get_object, {"Key": "other"}),
        (theirs.delete_object, {"Key": "other"}),
        (theirs.delete_objects, {"Delete": {"Objects": outside}}),
        (theirs.put_object, {"Key": block(4), "Body": b""}),
        (theirs.list_objects_v2, {}),
        (theirs.list_object_versions, {"Prefix": "other"}),
        (theirs.delete_bucket, {}),
    ):
        with pytest.raises(ClientError, match="AccessDenied"):
            call(Bucket=bucket, **more)
    # With that name beside the keys the call is let through, and its keys are judged one by one.
    delete = policy["Statement"][-1]
    delete["Resource"] = [delete["Resource"], f"arn:aws:s3:::{bucket}"]
    allow(rgw, bucket, policy, name, way)
    rgw.put(bucket, block(5))
    answer = theirs.delete_objects(Bucket=bucket, Delete={"Objects": [*outside, {"Key": block(5)}]})
    assert [one["Code"] for one in answer["Errors"]] == ["AccessDenied"] * 2, answer
    assert [one["Key"] for one in answer["Deleted"]] == [block(5)]
    assert set(rgw.keys(bucket)) == {"other", "qwen-other/x"}
