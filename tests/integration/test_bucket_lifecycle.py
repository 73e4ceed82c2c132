# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""bucket_lifecycle and bucket_lifecycle_info against real servers: what they set expires, what they say is so."""

from __future__ import annotations

import email.utils
import re
import threading
import time

import pytest
import s3_servers
from module_runner import run
from s3_servers import Between, block, is_lifecycle

from ansible_collections.llmhost.hardening.plugins.module_utils.s3 import enforce, setting

WEEK = 10080
TAGGED = {"Filter": {"And": {"Prefix": "qwen/", "Tags": [{"Key": "team", "Value": "x"}]}}, "Expiration": {"Days": 30}}
SIZES = {"ObjectSizeGreaterThan": 10, "ObjectSizeLessThan": 1000}
LEGACY = {"Prefix": "logs/", "Expiration": {"Days": 90}}


def info(server, bucket, **more):
    result = run("bucket_lifecycle_info", **server.options(bucket, retention_minutes=WEEK, **more))
    assert "failed" not in result, result
    return result


def lifecycle(server, bucket, **more):
    return run("bucket_lifecycle", **server.options(bucket, **{"retention_minutes": WEEK, **more}))


def codes(result, breaking=False):
    return {one["code"] for one in result["findings"] if one["breaks"] or not breaking}


# SeaweedFS keeps a//b as a/b, so its rules and its listings have one slash.


def test_the_server_expires_what_the_rule_covers_and_neighbours_stay(weed):
    bucket = weed.bucket()
    old, young = block(1), block(2)
    near = ("qwen-other/x", "qwenq", "logs/a", "else")
    weed.put(bucket, old, *near)
    assert weed.age(bucket, 9) == 5
    weed.put(bucket, young)
    before = info(weed, bucket)
    assert before["status"] == "absent" and not before["kept"]
    assert {"no_rule", "overdue_objects", "uploads_kept"} <= codes(before, breaking=True)
    done = lifecycle(weed, bucket)
    assert done["changed"] and done["enforceable"] and done["days"] == 5, done
    assert done["key_prefix"] == "qwen/"
    # The rule is there and means nothing yet: the object is.
    stored = info(weed, bucket)
    assert stored["status"] == "insufficient" and codes(stored, breaking=True) == {"overdue_objects"}
    assert stored["proof"]["objects"]["oldest_minutes"] in (9 * 1440, 9 * 1440 + 1)
    weed.expire()
    after = info(weed, bucket)
    assert (after["status"], after["kept"], after["kept_by"]) == ("ok", True, "rules"), after["message"]
    assert set(weed.keys(bucket)) == {young.replace("//", "/"), *near}


def test_the_second_run_changes_nothing_and_check_mode_writes_nothing(weed):
    bucket = weed.bucket()
    weed.put(bucket, block(1))
    checked = run("bucket_lifecycle", check=True, **weed.options(bucket, retention_minutes=WEEK))
    assert checked["changed"] and "expire after days 5" in checked["diff"]["after"] and checked["diff"]["before"] == ""
    with pytest.raises(weed.client.exceptions.ClientError, match="NoSuchLifecycle"):
        weed.rules(bucket)
    assert lifecycle(weed, bucket)["changed"]
    rules = weed.rules(bucket)
    assert not lifecycle(weed, bucket)["changed"]
    assert weed.rules(bucket) == rules
    assert [(rule["Filter"], rule["Expiration"]["Days"]) for rule in rules] == [({"Prefix": "qwen/"}, 5)]
    assert rules[0]["AbortIncompleteMultipartUpload"] == {"DaysAfterInitiation": 1}
    # With the last block goes what tells how the server keeps slashes.
    weed.client.delete_object(Bucket=bucket, Key=block(1))
    assert info(weed, bucket)["status"] == "ok"
    assert not lifecycle(weed, bucket)["changed"] and weed.rules(bucket) == rules


def test_rules_of_others_are_the_same_after_ten_runs(weed):
    bucket = weed.bucket()
    weed.put(bucket, block(1))
    weed.set_rules(bucket, TAGGED)
    legacy = {"ID": "old", "Status": "Enabled", **LEGACY}
    for number in range(10):
        changed = lifecycle(weed, bucket, retention_minutes=WEEK + 1440 * (number % 2))["changed"]
        assert changed, "the retention alternates, so each run writes"
    rules = {rule["ID"]: rule for rule in weed.rules(bucket)}
    assert rules["theirs-0"] == {"ID": "theirs-0", "Status": "Enabled", **TAGGED}
    assert len(rules) == 2
    # A rule of the first protocol version makes the whole document one of it.
    weed.client.put_bucket_lifecycle_configuration(Bucket=bucket, LifecycleConfiguration={"Rules": [legacy]})
    for number in range(10):
        assert lifecycle(weed, bucket, retention_minutes=WEEK + 1440 * (number % 2))["changed"]
    rules = {rule["ID"]: rule for rule in weed.rules(bucket)}
    assert (rules["old"].get("Filter") or rules["old"])["Prefix"] == "logs/" and rules["old"]["Expiration"][
        "Days"
    ] == 90
    assert len(rules) == 2


def test_absent_takes_out_ours_alone_and_never_deletes_the_document(weed):
    bucket = weed.bucket()
    weed.set_rules(bucket, LEGACY)
    assert lifecycle(weed, bucket)["changed"] and len(weed.rules(bucket)) == 2
    assert lifecycle(weed, bucket, state="absent")["changed"]
    assert [rule["ID"] for rule in weed.rules(bucket)] == ["theirs-0"]
    assert not lifecycle(weed, bucket, state="absent")["changed"]
    alone = weed.bucket()
    lifecycle(weed, alone)
    with Between(weed.endpoint) as between:
        gone = run("bucket_lifecycle", **weed.options(alone, endpoint=between.endpoint, state="absent"))
        assert gone["changed"]
        assert not [line for line in between.seen if line.startswith("DELETE")]
    assert [rule["Status"] for rule in weed.rules(alone)] == ["Disabled"]
    assert not lifecycle(weed, alone, state="absent")["changed"]


@pytest.mark.parametrize(
    ("rules", "code"),
    [
        ([{"Filter": {"Prefix": "qwen/"}, "Expiration": {"Days": 1}, "Status": "Disabled"}], "rule_disabled"),
        ([{"Filter": {"Prefix": "qwen/Qwen_Other"}, "Expiration": {"Days": 1}}], "prefix_not_covered"),
        ([{"Filter": {"Prefix": "/qwen/"}, "Expiration": {"Days": 1}}], "prefix_not_covered"),
        ([{"Filter": {"Prefix": "qwen/*"}, "Expiration": {"Days": 1}}], "prefix_not_covered"),
        ([{"Filter": {"Prefix": "Qwen/"}, "Expiration": {"Days": 1}}], "prefix_not_covered"),
        ([TAGGED], "filter_tag"),
        ([{"Filter": {"And": {"Prefix": "qwen/", **SIZES}}, "Expiration": {"Days": 1}}], "filter_and"),
        ([{"Filter": {"Tag": {"Key": "a", "Value": "b"}}, "Expiration": {"Days": 1}}], "filter_tag"),
        ([{"Filter": {"ObjectSizeGreaterThan": 1000}, "Expiration": {"Days": 1}}], "filter_size"),
        ([{"Filter": {"Prefix": "qwen/"}, "Expiration": {"Days": 7}}], "too_long"),
        ([{"Filter": {"Prefix": "qwen/"}, "Expiration": {"Days": 0}}], "days_zero"),
        ([{"Filter": {"Prefix": "qwen/"}, "Expiration": {"Date": "2040-01-01T00:00:00Z"}}], "date_rule"),
        ([{"Filter": {"Prefix": ""}, "Expiration": {"Days": 1}}], "rule_wider"),
        ([{"Filter": {"Prefix": "qwen/"}, "Expiration": {"Days": 1}}], "uploads_kept"),
    ],
)
def test_each_hole_of_a_rule_has_its_code(weed, rules, code):
    bucket = weed.bucket()
    weed.put(bucket, block(1))
    weed.set_rules(bucket, *rules)
    result = info(weed, bucket)
    assert code in codes(result)
    assert result["status"] == "absent" if code == "rule_disabled" else "insufficient"
    assert not result["kept"]


def test_versions_locks_encryption_and_public_access_are_seen(weed):
    bucket = weed.bucket()
    weed.put(bucket, block(1))
    weed.set_rules(
        bucket,
        {
            "Filter": {"Prefix": "qwen/"},
            "Expiration": {"Days": 1},
            "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 1},
        },
    )
    assert codes(info(weed, bucket)) == {"no_encryption", "slashes_folded"}
    weed.client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    found = info(weed, bucket)
    assert {"noncurrent_kept", "delete_markers_kept"} <= codes(found) and found["status"] == "insufficient"
    weed.client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Suspended"})
    assert "versioning_suspended" in codes(info(weed, bucket))
    weed.client.put_bucket_encryption(
        Bucket=bucket,
        ServerSideEncryptionConfiguration={
            "Rules": [{"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256"}}]
        },
    )
    assert "no_encryption" not in codes(info(weed, bucket))
    weed.client.put_bucket_acl(Bucket=bucket, ACL="public-read")
    assert "public_access" in codes(info(weed, bucket))
    locked = "locked-1"
    weed.client.create_bucket(Bucket=locked, ObjectLockEnabledForBucket=True)
    assert [one["breaks"] for one in info(weed, locked)["findings"] if one["code"] == "object_lock"] == [False]
    weed.client.put_object_lock_configuration(
        Bucket=locked,
        ObjectLockConfiguration={
            "ObjectLockEnabled": "Enabled",
            "Rule": {"DefaultRetention": {"Mode": "GOVERNANCE", "Days": 30}},
        },
    )
    found = info(weed, locked)
    assert [one["breaks"] for one in found["findings"] if one["code"] == "object_lock"] == [True]


def test_a_versioned_bucket_gets_rules_for_versions_and_markers_too(weed):
    bucket = weed.bucket()
    weed.client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    weed.put(bucket, block(1))
    done = lifecycle(weed, bucket)
    # A week less the day of the old versions' own rule and its lag.
    assert done["days"] == 2 and done["worst_minutes"] <= WEEK, done
    rules = weed.rules(bucket)
    assert rules[0]["NoncurrentVersionExpiration"] == {"NoncurrentDays": 1}
    assert rules[1]["Expiration"] == {"ExpiredObjectDeleteMarker": True}
    assert not lifecycle(weed, bucket)["changed"]
    assert info(weed, bucket)["status"] == "ok"


def test_holes_about_old_versions_and_changed_rules_of_ours_are_seen(weed):
    bucket = weed.bucket()
    weed.client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    weed.put(bucket, block(1))
    assert lifecycle(weed, bucket)["changed"]
    (mine, _markers) = weed.rules(bucket)
    for change, code in (
        ({"NoncurrentVersionExpiration": {"NoncurrentDays": 5}}, "noncurrent_too_long"),
        ({"NoncurrentVersionExpiration": {"NoncurrentDays": 1, "NewerNoncurrentVersions": 3}}, "newer_noncurrent_kept"),
        ({"Filter": {"Prefix": "qwen/Qwen_"}}, "rule_changed"),
    ):
        weed.set_rules(bucket, {**mine, **change})
        found = info(weed, bucket)
        assert code in codes(found, breaking=True) and not found["kept"], found
    assert lifecycle(weed, bucket)["changed"] and info(weed, bucket)["status"] == "ok"


def test_an_overdue_object_under_legal_hold_is_named(weed):
    bucket = "held-1"
    weed.client.create_bucket(Bucket=bucket, ObjectLockEnabledForBucket=True)
    weed.put(bucket, block(1))
    weed.client.put_object_legal_hold(Bucket=bucket, Key=block(1), LegalHold={"Status": "ON"})
    weed.age(bucket, 30)
    found = info(weed, bucket)
    assert {"object_held", "overdue_objects"} <= codes(found, breaking=True), found["findings"]


def test_a_clock_that_is_off_is_seen(weed):
    bucket = weed.bucket()
    with Between(weed.endpoint) as between:
        between.date = email.utils.formatdate(time.time() - 3600, usegmt=True)
        found = info(weed, bucket, endpoint=between.endpoint)
    assert "clock_skew" in codes(found)


def test_overdue_versions_and_uploads_are_counted(weed):
    bucket = weed.bucket()
    weed.client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    weed.put(bucket, block(1))
    weed.put(bucket, block(1))
    weed.client.create_multipart_upload(Bucket=bucket, Key=block(3))
    weed.age(bucket, 30)
    found = info(weed, bucket)
    assert {"overdue_objects", "overdue_versions", "overdue_uploads"} <= codes(found, breaking=True)
    assert found["proof"]["uploads"]["seen"] == 1
    # The server ends the upload by our rule. It knows itself since when a version is old: no aging reaches that.
    assert lifecycle(weed, bucket)["changed"]
    weed.expire()
    assert not weed.client.list_multipart_uploads(Bucket=bucket).get("Uploads")
    left = weed.client.list_object_versions(Bucket=bucket)
    assert [one["IsLatest"] for one in left["Versions"]] == [False, False] and len(left["DeleteMarkers"]) == 1


def test_a_retention_of_a_day_is_not_enforceable_and_gets_its_backstop(weed):
    bucket = weed.bucket()
    weed.put(bucket, block(1))
    done = lifecycle(weed, bucket, retention_minutes=1440)
    assert done["changed"] and done["days"] == 1 and not done["enforceable"]
    assert "not_enforceable" in str(done["warnings"]) and "4320" in str(done["warnings"])
    found = run("bucket_lifecycle_info", **weed.options(bucket, retention_minutes=1440))
    assert (found["status"], found["kept"]) == ("not_enforceable", False)
    assert "sweeper_missing" in codes(found, breaking=True)


def test_a_rule_that_would_take_what_is_not_the_tiers_is_refused(weed):
    bucket = weed.bucket()
    weed.put(bucket, block(1), "qwen/notes.txt")
    refused = lifecycle(weed, bucket)
    assert refused["failed"] and "qwen/notes.txt" in refused["msg"]
    assert lifecycle(weed, bucket, allow_foreign_keys=True)["changed"]
    root = weed.bucket()
    # Without a prefix this server keeps the blocks at the root, so the rule would take the whole bucket.
    weed.put(root, block(1, prefix=""))
    refused = lifecycle(weed, root, prefix="")
    assert refused["failed"] and "whole bucket" in refused["msg"]
    assert lifecycle(weed, root, prefix="", allow_whole_bucket=True)["changed"]
    options = {key: value for key, value in weed.options(root, retention_minutes=WEEK).items() if key != "prefix"}
    refused = run("bucket_lifecycle", key_prefix="", **options)
    assert refused["failed"] and "whole bucket" in refused["msg"]


def test_a_put_carries_the_checksum_that_old_servers_demand(weed):
    bucket = weed.bucket()
    with Between(weed.endpoint) as between:
        options = weed.options(bucket, endpoint=between.endpoint, retention_minutes=WEEK)
        assert run("bucket_lifecycle", **options)["changed"]
        (put,) = [headers for line, headers in between.headers.items() if line.startswith("PUT")]
    assert len(put["content-md5"]) == 24 and "content-md5" in put["authorization"]


def test_credentials_come_from_the_named_file_or_the_environment_and_are_never_shown(weed, tmp_path, monkeypatch):
    bucket = weed.bucket()
    weed.put(bucket, block(1))
    options = weed.options(bucket, retention_minutes=WEEK)
    without = {name: options[name] for name in options.keys() - {"access_key", "secret_key"}}
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    missing = run("bucket_lifecycle_info", **without)
    assert missing["failed"] and "no credentials were found" in missing["msg"] and "credentials_file" in missing["msg"]
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3_servers.KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3_servers.SECRET)
    assert run("bucket_lifecycle_info", **without)["status"] == "absent"
    path = tmp_path / "credentials"
    path.write_text("[default]\naws_access_key_id = nokey\naws_secret_access_key = nosecret\n[good]\n")
    with path.open("a") as file:
        file.write(f"aws_access_key_id = {s3_servers.KEY}\naws_secret_access_key = {s3_servers.SECRET}\n")
    path.chmod(0o600)
    given = {**without, "credentials_file": str(path)}
    assert run("bucket_lifecycle_info", **given)["status"] == "denied", "the file wins over the environment"
    good = run("bucket_lifecycle_info", profile="good", **given)
    assert good["status"] == "absent" and s3_servers.SECRET not in str(good)
    assert "no such profile" in run("bucket_lifecycle_info", profile="bad", **given)["msg"]
    path.chmod(0o644)
    assert "chmod 0600" in run("bucket_lifecycle_info", profile="good", **given)["msg"]


# What may go wrong half way


def test_a_server_that_drops_a_filter_gets_the_former_document_back(weed):
    bucket = weed.bucket()
    weed.put(bucket, block(1))
    theirs = {"Filter": {"And": {"Prefix": "qwen/", "ObjectSizeGreaterThan": 1000}}, "Expiration": {"Days": 1}}
    weed.set_rules(bucket, theirs)
    former = weed.rules(bucket)
    dropped = []

    def drop(method, path, body):
        if method == "PUT" and is_lifecycle(path) and not dropped:
            dropped.append(path)
            wide = {"Filter": {"Prefix": "qwen/"}, "Expiration": {"Days": 1}}
            weed.set_rules(bucket, wide, {"Filter": {"Prefix": "q"}, "Expiration": {"Days": 5}})
            return 200, {}, b""
        return None

    with Between(weed.endpoint) as between:
        between.meddle = drop
        result = run("bucket_lifecycle", **weed.options(bucket, endpoint=between.endpoint, retention_minutes=WEEK))
    assert dropped and result["failed"]
    assert "rule_dropped" in result["msg"] and "larger than 1000" in result["msg"] and "is back" in result["msg"]
    assert weed.rules(bucket) == former
    assert "ObjectSizeGreaterThan" in result["former"]


def test_where_there_was_no_document_a_server_that_drops_something_keeps_only_disabled_rules(weed):
    bucket = weed.bucket()
    state = {"puts": 0}

    def lose(method, path, status, body):
        if method == "GET" and is_lifecycle(path) and state["puts"] == 1:
            body = re.sub(rb"<(AbortIncompleteMultipartUpload)>.*?</\1>", b"", body)
        if method == "PUT" and is_lifecycle(path):
            state["puts"] += 1
        return status, body

    with Between(weed.endpoint) as between:
        between.answered = lose
        result = run("bucket_lifecycle", **weed.options(bucket, endpoint=between.endpoint, retention_minutes=WEEK))
    assert result["failed"] and "rule_dropped" in result["msg"] and "disabled" in result["msg"], result["msg"]
    assert [rule["Status"] for rule in weed.rules(bucket)] == ["Disabled"]


@pytest.mark.parametrize("cut", ["before the server gets it", "after the server got it", "between put and read"])
def test_a_cut_connection_leaves_a_state_that_the_next_run_mends(weed, cut):
    bucket = weed.bucket()
    weed.put(bucket, block(1))
    weed.set_rules(bucket, TAGGED)
    state = {"put": False}

    def meddle(method, path, body):
        if not is_lifecycle(path):
            return None
        if method == "PUT" and cut.startswith("before"):
            return Between.CUT
        if method == "GET" and state["put"] and cut.startswith("between"):
            return Between.CUT
        return None

    def answered(method, path, status, body):
        if method == "PUT" and is_lifecycle(path):
            state["put"] = True
        return status, body

    with Between(weed.endpoint) as between:
        between.meddle, between.answered = meddle, answered
        options = weed.options(bucket, endpoint=between.endpoint, retention_minutes=WEEK)
        result = run("bucket_lifecycle", **options)
        if cut.startswith("after"):
            assert result["changed"]
        else:
            assert result["failed"] and "cut" in result["msg"] and "Fix: run again" in result["msg"], result["msg"]
            assert "theirs-0" in result["former"]
        between.meddle = lambda *_: None
        run("bucket_lifecycle", **options)
    assert {rule["ID"] for rule in weed.rules(bucket)} >= {"theirs-0"} and len(weed.rules(bucket)) == 2


def test_rights_withdrawn_half_way_change_nothing(weed):
    bucket = weed.bucket()
    weed.put(bucket, block(1))
    weed.set_rules(bucket, TAGGED)
    former = weed.rules(bucket)
    denied = b"<?xml version='1.0'?><Error><Code>AccessDenied</Code><Message>no</Message></Error>"
    with Between(weed.endpoint) as between:
        between.meddle = lambda method, path, body: (403, {}, denied) if method == "PUT" else None
        result = run("bucket_lifecycle", **weed.options(bucket, endpoint=between.endpoint, retention_minutes=WEEK))
    assert result["failed"] and "no right" in result["msg"]
    assert weed.rules(bucket) == former


def test_two_runs_at_once_both_keep_their_rules(weed):
    bucket = weed.bucket()
    weed.set_rules(bucket, LEGACY)
    meet = threading.Barrier(2, timeout=20)
    first = {"left": 2}
    lock = threading.Lock()

    def together(method, path, body):
        # Both have read before either writes.
        if method == "PUT" and is_lifecycle(path):
            with lock:
                first["left"] -= 1
                wait = first["left"] >= 0
            if wait:
                meet.wait()
        return None

    failures = []

    def one(prefix):
        options = {
            **weed.options(bucket, endpoint=between.endpoint),
            "prefix": None,
            "key_prefix": prefix,
            "store": None,
        }
        options.update(retention_minutes=WEEK, state="present", lag_minutes=1440, id_prefix="llmhost", max_entries=10)
        options.update(region="us-east-1", path_style=True, ca_bundle=None, profile=None, credentials_file=None)
        options.update(
            session_token=None,
            timeout=30,
            max_seconds=10,
            allow_whole_bucket=False,
            allow_foreign_keys=False,
            allow_unsupported=False,
        )
        try:
            setting.Setting(options).apply(check=False)
        except Exception as error:
            failures.append(error)

    with Between(weed.endpoint) as between:
        between.meddle = together
        threads = [threading.Thread(target=one, args=(prefix,)) for prefix in ("a/", "b/")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failures == []
    assert sorted(rule.get("Filter", rule)["Prefix"] for rule in weed.rules(bucket)) == ["a/", "b/", "logs/"]


# Servers and answers that are no S3 with lifecycle


def test_a_server_without_lifecycle_loses_neither_bucket_nor_gains_one(rclone):
    bucket = rclone.bucket()
    rclone.put(bucket, "qwen/block")
    found = run("bucket_lifecycle_info", **rclone.options(bucket, retention_minutes=WEEK))
    assert found["status"] == "unsupported" and not found["kept"] and "ListBucketResult" in found["message"]
    for state in ("present", "absent"):
        result = run("bucket_lifecycle", **rclone.options(bucket, retention_minutes=WEEK, state=state))
        assert result["failed"] and "does not know the question" in result["msg"]
    told = run("bucket_lifecycle", **rclone.options(bucket, retention_minutes=WEEK, allow_unsupported=True))
    assert (told["changed"], told["supported"], told["enforceable"]) == (False, False, False) and told["warnings"]
    gone = run("bucket_lifecycle", **rclone.options("never-made", state="absent"))
    assert not gone["changed"] and "no_bucket" in str(gone["warnings"])
    empty = rclone.bucket()
    assert run("bucket_lifecycle", **rclone.options(empty, state="absent"))["failed"]
    result = run("bucket_lifecycle", **rclone.options("never-made", retention_minutes=WEEK))
    assert result["failed"] and "does not exist" in result["msg"]
    assert {one["Name"] for one in rclone.client.list_buckets()["Buckets"]} >= {bucket, empty}
    assert "never-made" not in {one["Name"] for one in rclone.client.list_buckets()["Buckets"]}
    assert len(rclone.keys(bucket)) == 1


def test_the_put_of_that_server_would_have_made_a_bucket(rclone):
    """Why a read comes first: this is what the server does to those who do not."""
    rule = {"ID": "x", "Status": "Enabled", "Filter": {"Prefix": "a"}, "Expiration": {"Days": 1}}
    rclone.client.put_bucket_lifecycle_configuration(Bucket="made-by-put", LifecycleConfiguration={"Rules": [rule]})
    rclone.client.delete_bucket_lifecycle(Bucket="made-by-put")
    assert "made-by-put" not in {one["Name"] for one in rclone.client.list_buckets()["Buckets"]}


ERROR = "<?xml version='1.0' encoding='UTF-8'?><Error><Code>{}</Code><Message>m</Message>{}</Error>"
PAGE = b"<!DOCTYPE html><html><body>Please log in</body></html>"


@pytest.mark.parametrize(
    ("answer", "status", "says"),
    [
        ((200, {}, b""), "unknown", "the answer is empty"),
        ((200, {"Content-Type": "text/html"}, PAGE), "unreachable", "web page"),
        ((502, {"Content-Type": "text/html"}, b"<html>Bad gateway</html>"), "unreachable", "not S3"),
        ((503, {}, ERROR.format("SlowDown", "").encode()), "unknown", "overloaded"),
        (
            (307, {"Location": "https://elsewhere.example/x?secret=1"}, b""),
            "unreachable",
            "redirects to https://elsewhere",
        ),
        (
            (301, {}, ERROR.format("PermanentRedirect", "<Endpoint>b</Endpoint>").encode()),
            "unreachable",
            "another",
        ),
        ((400, {}, ERROR.format("ExpiredToken", "").encode()), "denied", "session token has expired"),
        ((400, {}, ERROR.format("AuthorizationHeaderMalformed", "<Region>eu-1</Region>").encode()), "denied", "region"),
        ((403, {}, ERROR.format("RequestTimeTooSkewed", "").encode()), "denied", "clock"),
        ((501, {}, ERROR.format("NotImplemented", "").encode()), "unsupported", "does not implement"),
        ((405, {}, b""), "unsupported", "does not implement"),
    ],
)
def test_each_kind_of_wrong_answer_is_one_clear_message(weed, answer, status, says):
    bucket = weed.bucket()
    weed.put(bucket, block(1))
    with Between(weed.endpoint) as between:
        between.meddle = lambda method, path, body: answer if is_lifecycle(path) else None
        options = weed.options(bucket, endpoint=between.endpoint, retention_minutes=WEEK)
        found = run("bucket_lifecycle_info", **options)
        assert (found["status"], found["kept"]) == (status, False), found["message"]
        assert says in found["message"] and "Fix: " in found["message"] and "secret=1" not in found["message"]
        result = run("bucket_lifecycle", **options)
        assert result["failed"] and says in result["msg"]
        assert not [line for line in between.seen if line.startswith(("PUT", "DELETE"))]


@pytest.mark.parametrize(
    ("change", "status", "says"),
    [
        ({"access_key": "not-this"}, "denied", "does not know the access key"),
        ({"secret_key": "not-this"}, "denied", "a proxy changes the requests"),
        ({"access_key": "nokey", "secret_key": "nosecret"}, "denied", "no right"),
        ({"bucket": "not-there"}, "no_bucket", "does not exist"),
        ({"endpoint": "http://127.0.0.1:1"}, "unreachable", "nothing answers there"),
        ({"endpoint": "https://127.0.0.1:1"}, "unreachable", "nothing answers there"),
    ],
)
def test_each_wrong_connection_is_one_clear_message(weed, change, status, says):
    bucket = weed.bucket()
    found = run("bucket_lifecycle_info", **{**weed.options(bucket, retention_minutes=WEEK), **change})
    assert found["status"] == status, found["message"]
    assert says in found["message"] and found["message"].count("\n") == 0
    result = run("bucket_lifecycle", **{**weed.options(bucket, retention_minutes=WEEK), **change})
    assert result["failed"] and says in result["msg"] and "not-this" not in str(result)
    with pytest.raises(weed.client.exceptions.ClientError, match="NoSuchLifecycle"):
        weed.rules(bucket)


def test_a_reader_may_look_but_not_set(weed):
    bucket = weed.bucket()
    weed.put(bucket, block(1))
    reader = {"access_key": "readkey", "secret_key": "readsecret"}
    assert (
        run("bucket_lifecycle_info", **{**weed.options(bucket, retention_minutes=WEEK), **reader})["status"] == "absent"
    )
    result = run("bucket_lifecycle", **{**weed.options(bucket, retention_minutes=WEEK), **reader})
    assert result["failed"] and "no right" in result["msg"]


def test_a_certificate_of_an_unknown_authority_is_named_and_a_bundle_makes_it_good(weed, tmp_path):
    bucket = weed.bucket()
    with s3_servers.Between(weed.endpoint, certificate=s3_servers.self_signed(tmp_path)) as between:
        options = weed.options(bucket, endpoint=between.endpoint, retention_minutes=WEEK)
        found = run("bucket_lifecycle_info", **options)
        assert (
            found["status"] == "unreachable" and "certificate" in found["message"] and "ca_bundle" in found["message"]
        )
        found = run("bucket_lifecycle_info", ca_bundle=str(tmp_path / "cert.pem"), **options)
        assert found["status"] == "absent", found["message"]


def test_the_state_to_write_from_is_read_in_the_same_run(weed):
    """enforce() without a valid read has nothing to start from; a read of a missing bucket is none."""
    with pytest.raises(Exception, match="does not exist"):
        enforce.read(setting.Bucket(s3_servers.settings(weed, "not-there")))
