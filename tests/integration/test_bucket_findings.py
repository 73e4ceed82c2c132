# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What no test server says by itself, said by a real one through a proxy, and what kvsweep makes of errors."""

from __future__ import annotations

import email.utils
import socket
from urllib.parse import parse_qs, urlsplit

import pytest
import s3_servers
from module_runner import run
from s3_servers import DOMAIN, Between, block, is_lifecycle
from test_bucket_sweeper import Sweeper

WEEK = 10080
SPACE = 'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'
ERROR = "<?xml version='1.0' encoding='UTF-8'?><Error><Code>{}</Code><Message>m</Message></Error>"
DENIED = (403, {}, ERROR.format("AccessDenied").encode())


def document(root, inside):
    return f'<?xml version="1.0" encoding="UTF-8"?><{root} {SPACE}>{inside}</{root}>'.encode()


# As Amazon's documents (MFA, replication) and MinIO's (purge all versions) show these answers.
MFA = document("VersioningConfiguration", "<Status>Enabled</Status><MfaDelete>Enabled</MfaDelete>")
COPIES = document(
    "ReplicationConfiguration",
    "<Role>arn:aws:iam::1:role/r</Role><Rule><ID>a</ID><Status>Enabled</Status><Priority>1</Priority><Filter/>"
    "<Destination><Bucket>arn:aws:s3:::elsewhere</Bucket></Destination></Rule>"
    "<Rule><ID>b</ID><Status>Disabled</Status><Priority>2</Priority><Filter/>"
    "<Destination><Bucket>arn:aws:s3:::off</Bucket></Destination></Rule>",
)
PURGE = document(
    "LifecycleConfiguration",
    "<Rule><ID>m</ID><Status>Enabled</Status><Filter><Prefix>qwen/</Prefix></Filter>"
    "<Expiration><Days>3</Days><ExpiredObjectAllVersions>true</ExpiredObjectAllVersions></Expiration></Rule>",
)


@pytest.mark.parametrize(
    ("question", "answer", "code", "breaks", "says"),
    [
        ("?versioning", (200, {}, MFA), "mfa_delete", True, "MFA"),
        ("?replication", (200, {}, COPIES), "replicated", True, "arn:aws:s3:::elsewhere"),
        ("?replication", DENIED, "not_checked", False, "replication: "),
        ("?lifecycle", (200, {}, PURGE), "rule_unknown_parts", False, "ExpiredObjectAllVersions"),
    ],
)
def test_what_only_other_servers_say_is_found(weed, question, answer, code, breaks, says):
    bucket = weed.bucket()
    weed.put(bucket, block(1))
    assert run("bucket_lifecycle", **weed.options(bucket, retention_minutes=WEEK))["changed"]
    with Between(weed.endpoint) as between:
        between.meddle = lambda method, path, body: answer if method == "GET" and question in path else None
        options = weed.options(bucket, endpoint=between.endpoint, retention_minutes=WEEK)
        found = run("bucket_lifecycle_info", **options)
        (finding,) = [one for one in found["findings"] if one["code"] == code]
        assert finding["breaks"] == breaks and says in finding["message"] and "off" not in finding["message"], finding
        if code in ("mfa_delete", "rule_unknown_parts"):
            assert run("bucket_lifecycle", **options)["failed"]
            assert not [line for line in between.seen if line.startswith(("PUT", "DELETE", "POST"))]


@pytest.fixture
def names(monkeypatch):
    """Names below DOMAIN lead to this host; gives those that were looked up."""
    asked = []
    look_up = socket.getaddrinfo

    def to_loopback(host, *more, **named):
        if not str(host).endswith(DOMAIN):
            return look_up(host, *more, **named)
        asked.append(host)
        return look_up("127.0.0.1", *more, **named)

    monkeypatch.setattr(socket, "getaddrinfo", to_loopback)
    return asked


def test_http_is_a_finding_wherever_it_leaves_the_host(weed, names):
    bucket = weed.bucket()
    endpoint = weed.endpoint.replace("127.0.0.1", DOMAIN)
    found = run("bucket_lifecycle_info", **weed.options(bucket, endpoint=endpoint, retention_minutes=WEEK))
    assert "http_endpoint" in {one["code"] for one in found["findings"]}, found["message"]
    assert set(names) == {DOMAIN}


def test_the_bucket_may_stand_in_the_host_name(weed, names):
    bucket = weed.bucket()
    weed.put(bucket, block(1))
    endpoint = weed.endpoint.replace("127.0.0.1", DOMAIN)
    options = weed.options(bucket, endpoint=endpoint, path_style=False, region="eu-west-9", retention_minutes=WEEK)
    assert run("bucket_lifecycle", **options)["changed"] and not run("bucket_lifecycle", **options)["changed"]
    assert run("bucket_lifecycle_info", **options)["status"] == "ok"
    assert set(names) == {f"{bucket}.{DOMAIN}"} and len(weed.rules(bucket)) == 1


def test_of_a_large_bucket_a_part_is_listed_and_what_is_not_the_tiers_is_found_all_the_same(weed):
    bucket = weed.bucket()
    weed.fill(bucket, [block(number) for number in range(1001)])
    options = weed.options(bucket, retention_minutes=WEEK, max_entries=1)
    found = run("bucket_lifecycle_info", **options)
    assert not found["proof"]["complete"] and found["proof"]["objects"]["seen"] == 1000
    assert "proof_incomplete" in {one["code"] for one in found["findings"]}
    done = run("bucket_lifecycle", **options)
    assert done["changed"] and "not every key was looked at" in str(done["warnings"])
    weed.put(bucket, "qwen/zebra/notes")
    refused = run("bucket_lifecycle", **{**options, "retention_minutes": WEEK + 1440})
    assert refused["failed"] and "qwen/zebra/" in refused["msg"], "listings end long before it"
    whole = run("bucket_lifecycle_info", **{**options, "max_entries": 5000})
    assert "strangers" in {one["code"] for one in whole["findings"]} and whole["proof"]["complete"]


def test_uploads_are_found_where_the_server_takes_the_prefix_for_a_whole_key(weed, tmp_path):
    """As MinIO does (minio/minio#20989): it lists no upload under a prefix, and all without one."""
    bucket = weed.bucket()
    weed.put(bucket, block(1))
    for key in (block(2), "other/upload", "qwen/notes"):
        weed.client.create_multipart_upload(Bucket=bucket, Key=key)
    weed.age(bucket, 30)
    now = {"Date": email.utils.formatdate(usegmt=True)}
    none = (200, now, document("ListMultipartUploadsResult", "<IsTruncated>false</IsTruncated>"))

    def exact(method, path, body):
        asked = parse_qs(urlsplit(path).query, keep_blank_values=True)
        return none if "uploads" in asked and asked.get("prefix", [""]) != [""] else None

    with Between(weed.endpoint) as between:
        between.meddle = exact
        options = weed.options(bucket, endpoint=between.endpoint, retention_minutes=WEEK)
        found = run("bucket_lifecycle_info", **options)
        assert (found["proof"]["uploads"]["overdue"], found["proof"]["strangers"]) == (1, 1), str(found["proof"])
        assert "overdue_uploads" in {one["code"] for one in found["findings"]}
        record = Sweeper(tmp_path, weed, bucket, endpoint=between.endpoint).passes()
    assert record["exit"] == 0 and record["deleted"]["uploads"] == 1, record
    left = weed.client.list_multipart_uploads(Bucket=bucket)["Uploads"]
    assert {one["Key"] for one in left} == {"other/upload", "qwen/notes"}


# A pass of the sweeper against what may go wrong

PAGE = b"<!DOCTYPE html><html><body>Please log in</body></html>"


@pytest.mark.parametrize(
    ("answer", "code", "says"),
    [
        ((400, {}, ERROR.format("ExpiredToken").encode()), 3, "session token has expired"),
        (
            (307, {"Location": "https://elsewhere.example/x?secret=1"}, b""),
            1,
            "redirects to https://elsewhere.example/x",
        ),
        ((200, {"Content-Type": "text/html"}, PAGE), 1, "a web page answered"),
        ((502, {"Content-Type": "text/html"}, b"<html>Bad gateway</html>"), 1, "not S3"),
        ((200, {}, b""), 1, "the answer is empty"),
        ((200, {}, document("ListAllMyBucketsResult", "")), 3, "does not know the question"),
        (DENIED, 3, "no right"),
        (Between.CUT, 1, "Fix: "),
    ],
)
def test_a_listing_that_is_none_deletes_nothing_and_is_one_clear_message(weed, tmp_path, answer, code, says):
    bucket = weed.bucket()
    weed.put(bucket, block(1))
    weed.age(bucket, 3)
    with Between(weed.endpoint) as between:
        between.meddle = lambda method, path, body: answer if "list-type" in path else None
        record = Sweeper(tmp_path, weed, bucket, endpoint=between.endpoint).passes()
        assert not [line for line in between.seen if line.startswith(("POST", "DELETE"))]
    assert (record["exit"], record["last_success"], record["complete"]) == (code, None, False), record
    (message,) = record["messages"]
    assert says in message and "Fix: " in message and "secret=1" not in message and "\n" not in message
    assert len(weed.keys(bucket)) == 1


@pytest.mark.parametrize(
    ("change", "code", "says"),
    [
        ({"access_key": "not-this"}, 3, "does not know the access key"),
        ({"secret_key": "not-this"}, 3, "secret key is wrong"),
        ({"bucket": "not-there"}, 3, "does not exist"),
        ({"endpoint": "http://127.0.0.1:1"}, 1, "nothing answers there"),
    ],
)
def test_a_wrong_connection_of_a_job_is_one_clear_message(weed, tmp_path, change, code, says):
    bucket = change.get("bucket") or weed.bucket()
    sweeper = Sweeper(tmp_path, weed, bucket, **{name: value for name, value in change.items() if name != "bucket"})
    record = sweeper.passes()
    assert record["exit"] == code and says in record["messages"][-1] and "not-this" not in str(record), record
    assert sweeper.sweep(command="status").returncode == 1


def test_a_job_with_a_certificate_of_an_unknown_authority_says_so(weed, tmp_path):
    bucket = weed.bucket()
    with Between(weed.endpoint, certificate=s3_servers.self_signed(tmp_path)) as between:
        sweeper = Sweeper(tmp_path, weed, bucket, endpoint=between.endpoint)
        record = sweeper.passes()
        assert record["exit"] == 1 and "certificate" in record["messages"][-1], record
        sweeper.install(ca_bundle=str(tmp_path / "cert.pem"))
        assert sweeper.passes()["exit"] == 0


def test_rights_that_are_withdrawn_in_the_middle_of_a_pass_are_no_success(weed, tmp_path):
    bucket = weed.bucket()
    weed.fill(bucket, [block(number) for number in range(600)])
    weed.age(bucket, 3)
    posts = []

    def withdraw(method, path, body):
        # Keys alone too: where only the call for several is refused, they go one by one.
        if method not in ("POST", "DELETE"):
            return None
        posts.append(path)
        return DENIED if len(posts) > 1 else None

    with Between(weed.endpoint) as between:
        between.meddle = withdraw
        record = Sweeper(tmp_path, weed, bucket, endpoint=between.endpoint).passes()
    assert record["exit"] == 3 and record["last_success"] is None and "no right" in record["messages"][-1], record
    # Of three calls at once, for 250, 250 and 100 keys, whichever came first.
    gone = record["deleted"]["objects"]
    assert gone in (100, 250) and len(weed.keys(bucket)) == 600 - gone


def test_a_rule_that_changes_under_a_server_that_drops_its_days_is_refused(weed):
    """The worst loss: our own rule comes back without the days."""
    bucket = weed.bucket()
    weed.put(bucket, block(1))
    with Between(weed.endpoint) as between:

        def drop(method, path, status, body):
            return status, body.replace(b"<Days>5</Days>", b"") if method == "GET" and is_lifecycle(path) else body

        between.answered = drop
        result = run("bucket_lifecycle", **weed.options(bucket, endpoint=between.endpoint, retention_minutes=WEEK))
    assert result["failed"] and "rule_dropped" in result["msg"], result
