# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The verdict about a bucket, and the documented answers of providers that no test here can ask."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from fake_bucket import NOW, FakeBucket, absent, entry, xml

from ansible_collections.llmhost.hardening.plugins.module_utils.s3 import (
    document,
    errors,
    evidence,
    findings,
    judge,
    merge,
    proof,
)
from ansible_collections.llmhost.hardening.plugins.module_utils.s3.document import Rule
from ansible_collections.llmhost.hardening.plugins.module_utils.s3.errors import S3Error
from ansible_collections.llmhost.hardening.plugins.module_utils.s3.evidence import Evidence
from ansible_collections.llmhost.hardening.plugins.module_utils.s3.judge import Policy
from ansible_collections.llmhost.hardening.plugins.module_utils.s3.keys import Keys

WEEK = Policy(10080)
DAY = Policy(1440)
PREFIX = "qwen//"
KEYS = Keys("qwen", "vllm_obj")
NAME = "Qwen_Qwen3-8B_0123456789ab_r0/abc/de_g0/" + "a" * 64 + ".bin"
GOOD = Rule(id="r", prefix=PREFIX, days=5, abort_days=1)
ALIVE = {"alive": True, "message": ""}


def evidence_of(*rules, **more):
    base = {"endpoint": "https://s3.example", "rules": list(rules), "versioning": evidence.OFF, "encrypted": True}
    return Evidence(**{**base, "destinations": [], "public": False, "proof": proof.Proof(now=NOW), **more})


def verdict(*rules, policy=WEEK, sweeper=None, keys=KEYS, accepted=(), **more):
    return judge.judge(evidence_of(*rules, **more), keys, policy, sweeper, merge.own_start(keys.prefix), accepted)


def codes(seen):
    return {one.code for one in seen.findings.all}


def breaking(seen):
    return {one.code for one in seen.findings.breaking()}


def test_a_good_rule_is_ok_and_says_nothing():
    seen = verdict(GOOD)
    assert (seen.status, seen.kept_by, codes(seen)) == ("ok", "rules", set())
    assert (seen.days, seen.worst_minutes) == (5, 6 * 1440 + 1440)


@pytest.mark.parametrize(
    ("change", "code", "status"),
    [
        ({"enabled": False}, "rule_disabled", "absent"),
        ({"prefix": "qwen//Qwen_"}, "prefix_not_covered", "insufficient"),
        ({"prefix": "/qwen//"}, "prefix_not_covered", "insufficient"),
        ({"prefix": "QWEN//"}, "prefix_not_covered", "insufficient"),
        ({"prefix": "qwen-other/"}, "no_rule", "absent"),
        ({"tags": (("a", "b"),)}, "filter_tag", "insufficient"),
        ({"above": 0}, "filter_size", "insufficient"),
        ({"below": 10**12}, "filter_size", "insufficient"),
        ({"above": 0, "below": 10**12}, "filter_and", "insufficient"),
        ({"days": 6}, "too_long", "insufficient"),
        ({"days": 0}, "days_zero", "insufficient"),
        ({"days": None, "date": "2020-01-01T00:00:00Z"}, "date_rule", "insufficient"),
        (
            {"days": None, "transitions": ((("Days", "1"), ("StorageClass", "GLACIER")),)},
            "transition_only",
            "insufficient",
        ),
        ({"days": None}, "no_rule", "insufficient"),
        ({"abort_days": None}, "uploads_kept", "insufficient"),
        ({"abort_days": 7}, "uploads_kept", "insufficient"),
        ({"more": ("Filter/ArchiveZone",)}, "rule_unknown_parts", "insufficient"),
    ],
)
def test_each_hole_of_a_rule_breaks_the_verdict(change, code, status):
    seen = verdict(replace(GOOD, **change))
    assert code in codes(seen) and seen.status == status and seen.kept_by == "nothing"


def test_another_rule_closes_the_hole():
    for bad in (replace(GOOD, days=0), replace(GOOD, enabled=False), replace(GOOD, tags=(("a", "b"),))):
        assert verdict(bad, replace(GOOD, id="s")).status == "ok"


def test_the_shortest_rule_counts_in_any_order():
    rules = [replace(GOOD, days=1000, prefix=""), GOOD]
    for order in (rules, rules[::-1]):
        seen = verdict(*order)
        assert (seen.status, codes(seen)) == ("ok", {"rule_wider"})


@pytest.mark.parametrize(
    ("rules", "found"),
    [
        ([GOOD], {"noncurrent_kept", "delete_markers_kept"}),
        ([replace(GOOD, noncurrent_days=1)], {"noncurrent_too_long", "delete_markers_kept"}),
        (
            [replace(GOOD, days=2, noncurrent_days=1, noncurrent_keep=2)],
            {"newer_noncurrent_kept", "noncurrent_kept", "delete_markers_kept"},
        ),
        ([replace(GOOD, days=2, noncurrent_days=1)], {"delete_markers_kept"}),
        (merge.wanted("x-", PREFIX, 2, versioned=True), set()),
    ],
)
def test_a_versioned_bucket_needs_more(rules, found):
    for state in ("Enabled", None):
        assert codes(verdict(*rules, versioning=state)) == found
    suspended = verdict(*rules, versioning=evidence.SUSPENDED)
    assert codes(suspended) == {*found, "versioning_suspended"}


def test_suspended_versioning_breaks_the_verdict_on_ceph():
    rules = merge.wanted("x-", PREFIX, 2, versioned=True)
    assert verdict(*rules, versioning="Suspended").status == "ok"
    assert verdict(*rules, versioning="Suspended", server="Ceph RGW").status == "insufficient"


@pytest.mark.parametrize(
    ("more", "code", "breaks"),
    [
        ({"lock_days": 8, "lock_enabled": True}, "object_lock", True),
        ({"lock_days": 7, "lock_enabled": True}, "object_lock", False),
        ({"held": ["k"]}, "object_held", True),
        ({"mfa_delete": True}, "mfa_delete", True),
        ({"destinations": ["arn:aws:s3:::copy"]}, "replicated", True),
        ({"endpoint": "http://s3.example"}, "http_endpoint", False),
        ({"public": True}, "public_access", False),
        ({"encrypted": False}, "no_encryption", False),
        ({"skew_seconds": -301.0}, "clock_skew", False),
        ({"unread": {"versioning": "denied"}}, "not_checked", False),
    ],
)
def test_what_surrounds_the_rules_is_found(more, code, breaks):
    seen = verdict(GOOD, **more)
    assert codes(seen) == {code} and (code in breaking(seen)) == breaks
    assert seen.status == ("insufficient" if breaks else "ok")
    accepted = verdict(GOOD, accepted=[code], **more)
    assert accepted.status == "ok" and codes(accepted) == {code}


def test_http_on_loopback_is_no_finding():
    assert codes(verdict(GOOD, endpoint="http://127.0.0.1:9000")) == set()


@pytest.mark.parametrize("kind", ["objects", "versions", "uploads"])
def test_a_rule_proves_nothing_while_something_is_overdue(kind):
    listed = proof.Proof(now=NOW)
    getattr(listed, kind).add(999999, 10, "key\x1b[2J")
    seen = verdict(GOOD, proof=listed)
    assert breaking(seen) == {"overdue_" + kind} and seen.status == "insufficient"
    assert all("\x1b" not in one.message for one in seen.findings.all)


def test_a_listing_that_was_cut_off_says_so():
    assert codes(verdict(GOOD, proof=proof.Proof(complete=False))) == {"proof_incomplete"}


def test_keys_that_nobody_may_list_prove_nothing():
    blind = proof.Proof(complete=False, unread={proof.OBJECTS: "no right"})
    seen = verdict(GOOD, proof=blind)
    assert (seen.status, seen.kept_by, breaking(seen)) == ("insufficient", "nothing", {"proof_incomplete"})
    assert verdict(GOOD, proof=blind, policy=DAY, sweeper=ALIVE).kept_by == "nothing"
    uploads = proof.Proof(complete=False, unread={proof.UPLOADS: "no right"})
    assert verdict(GOOD, proof=uploads).kept_by == "rules"


def test_a_day_needs_backstop_and_sweeper_and_nothing_overdue():
    backstop = replace(GOOD, days=1)
    overdue = proof.Proof(now=NOW)
    overdue.objects.add(999999, 10, "key")
    for rules, sweeper, more, kept in (
        ([backstop], ALIVE, {}, "sweeper"),
        ([backstop], None, {}, "nothing"),
        ([backstop], {"alive": False, "message": "old"}, {}, "nothing"),
        ([], ALIVE, {}, "nothing"),
        ([replace(backstop, enabled=False)], ALIVE, {}, "nothing"),
        ([backstop], ALIVE, {"proof": overdue}, "nothing"),
        ([backstop], ALIVE, {"held": ["key"]}, "nothing"),
        ([backstop], ALIVE, {"versioning": "Enabled"}, "sweeper"),
    ):
        seen = verdict(*rules, policy=DAY, sweeper=sweeper, **more)
        assert (seen.status, seen.kept_by) == ("not_enforceable", kept), (rules, sweeper, more)
        assert "not_enforceable" in codes(seen) and seen.days is None


def test_a_sweeper_makes_up_for_a_rule_that_is_too_long_and_never_for_none():
    assert verdict(replace(GOOD, days=30), sweeper=ALIVE).kept_by == "sweeper"
    assert verdict(sweeper=ALIVE).kept_by == "nothing"
    assert verdict(replace(GOOD, days=30), destinations=["x"], sweeper=ALIVE).kept_by == "nothing"


def test_a_server_without_lifecycle_is_kept_by_a_sweeper_only():
    refusal = S3Error(errors.UNSUPPORTED, "no", "fix")
    assert verdict(refusal=refusal, sweeper=ALIVE).kept_by == "sweeper"
    assert verdict(refusal=refusal).kept_by == "nothing"
    for kind in (errors.DENIED, errors.UNKNOWN):
        seen = verdict(refusal=S3Error(kind, "no", "fix"), sweeper=ALIVE)
        assert (seen.status, seen.kept_by) == (kind, "nothing")


def test_an_own_rule_that_somebody_changed_is_a_finding():
    start = merge.own_start(PREFIX)
    (own,) = merge.wanted(start, PREFIX, 5, versioned=False)
    assert verdict(own).status == "ok"
    assert verdict(replace(own, days=4)).status == "ok", "shorter is as good"
    assert "rule_changed" in codes(verdict(replace(own, prefix=""), GOOD))
    assert "rule_changed" in codes(verdict(replace(own, above=5), GOOD))


def test_in_an_empty_bucket_our_rule_tells_how_the_server_keeps_slashes():
    (own,) = merge.wanted(merge.own_start(PREFIX), "qwen/", 5, versioned=False)
    assert verdict(own).status == "ok"
    seen = proof.Proof(objects=proof.Count(seen=1))
    assert "rule_changed" in breaking(verdict(own, proof=seen)), "keys with both slashes are there"
    assert verdict(own, proof=replace(seen, folded=True)).status == "ok"
    theirs = replace(own, id="theirs")
    assert judge.prefix_of(proof.Proof(), [theirs], KEYS, merge.own_start(PREFIX)) == PREFIX, "only ours tells"


def test_keys_without_a_prefix_begin_with_a_slash():
    keys = Keys("", "vllm_obj")
    assert keys.prefix == "/" and keys.owns("/" + NAME) and keys.owns(NAME) and not keys.owns("x/" + NAME)
    assert verdict(replace(GOOD, prefix="/"), keys=keys).status == "ok"
    seen = verdict(replace(GOOD, prefix="Qwen_"), keys=keys)
    assert seen.kept_by == "nothing"


@pytest.mark.parametrize("key", ["qwen//" + NAME, "qwen/" + NAME])
def test_keys_as_vllm_names_them_are_the_tiers(key):
    assert KEYS.owns(key)
    for other in (key + "x", key.replace("qwen", "qwe"), key.replace("_r0", ""), key.replace("de_g0/", ""), "qwen/x"):
        assert not KEYS.owns(other)


def test_a_store_without_objects_is_refused():
    with pytest.raises(ValueError, match="vllm_obj"):
        Keys("p", "vllm_fs")


def test_every_finding_is_documented():
    from pathlib import Path

    page = (Path(__file__).resolve().parents[2] / "docs/buckets.md").read_text()
    assert [code for code in findings.FINDINGS if f"| `{code}` |" not in page] == []


def test_every_finding_is_shown_on_a_real_server():
    from pathlib import Path

    tests = Path(__file__).resolve().parents[1]
    files = [*tests.glob("integration/test_bucket_*.py"), *tests.glob("rgw/test_*.py")]
    text = "".join(path.read_text() for path in files)
    assert [code for code in findings.FINDINGS if f'"{code}"' not in text] == []


# Evidence


NONE = {
    "GetObjectLockConfiguration": absent(),
    "GetBucketReplication": absent(),
    "GetBucketPolicyStatus": absent(),
    "GetBucketEncryption": absent(),
}


def gathered(bucket, keys=KEYS, minutes=10080):
    return evidence.gather(bucket, keys, minutes, {"max_entries": 100, "max_seconds": 10})


def test_an_aws_bucket_without_anything_is_read_completely():
    found = gathered(FakeBucket(None, now=time.time(), **NONE))
    assert (found.rules, found.versioning, found.lock_enabled, found.destinations) == (None, "Off", False, [])
    assert (found.public, found.encrypted, found.unread) == (False, False, {})
    assert abs(found.skew_seconds) < 5


def test_what_must_not_be_read_is_unknown_and_never_fine():
    denied = S3Error(errors.DENIED, "no right", "grant it")
    names = ("GetBucketVersioning", "GetBucketPolicyStatus", "GetBucketAcl", *NONE)
    found = gathered(FakeBucket([GOOD], **dict.fromkeys(names, denied)))
    assert (found.versioning, found.lock_enabled, found.public, found.encrypted) == (None, None, None, None)
    assert set(found.unread) == {"versioning", "object lock", "replication", "policy status", "encryption"}
    assert found.versioned, "old versions may be there"
    seen = judge.judge(found, KEYS, WEEK)
    assert seen.status == "insufficient" and "noncurrent_kept" in breaking(seen)


def test_a_public_grant_is_seen_without_a_policy():
    grant = {"Grantee": {"URI": "http://acs.amazonaws.com/groups/global/AllUsers"}, "Permission": "READ"}
    assert gathered(FakeBucket([GOOD], **NONE, GetBucketAcl={"Grants": [grant]})).public


def test_held_objects_are_named():
    lock = {"ObjectLockConfiguration": {"ObjectLockEnabled": "Enabled"}}
    pages = [{"Contents": [entry(PREFIX + NAME, 99999)]}]
    answers = {**NONE, "GetObjectLockConfiguration": lock, "ListObjectsV2": pages}
    found = gathered(FakeBucket([GOOD], HeadObject={"ObjectLockLegalHoldStatus": "ON"}, **answers))
    assert found.held == [PREFIX + NAME]


def test_a_head_that_is_denied_stops_the_verdict():
    with pytest.raises(S3Error):
        gathered(FakeBucket([GOOD], HeadBucket=S3Error(errors.DENIED, "no", "fix"), **NONE))


def test_a_listing_counts_by_the_servers_clock_and_keeps_strangers_apart():
    pages = [
        {"Contents": [entry(PREFIX + NAME, 10079), entry("qwen//notes", 10**6)], "IsTruncated": True},
        {"Contents": [entry(PREFIX + NAME[:-5] + "b.bin", 10080)]},
    ]
    listed = proof.prove(FakeBucket(ListObjectsV2=pages), KEYS, 10080, versioned=False)
    assert (listed.objects.seen, listed.objects.overdue, listed.strangers) == (2, 1, 1)
    assert listed.complete and listed.now == NOW
    short = proof.prove(FakeBucket(ListObjectsV2=pages), KEYS, 10080, versioned=False, max_entries=1)
    assert not short.complete


def test_a_server_that_folds_slashes_is_noticed_whatever_its_listings_fold():
    folded = {"Contents": [entry("qwen/" + NAME, 1)]}

    def literal(prefix, start):
        # It stores qwen/ and finds nothing under qwen//.
        return [folded] if prefix == "qwen/" else [{}]

    for answer in (literal, [folded]):
        assert proof.listed_prefix(FakeBucket(ListObjectsV2=answer), KEYS) == "qwen/"
    assert proof.listed_prefix(FakeBucket(ListObjectsV2=[{"Contents": [entry(PREFIX + NAME, 1)]}]), KEYS) == PREFIX
    assert proof.listed_prefix(FakeBucket(), KEYS) == PREFIX

    def at_root(prefix, start):
        return [{"Contents": [entry(NAME, 1)]}] if prefix == "" else [{}]

    assert proof.listed_prefix(FakeBucket(ListObjectsV2=at_root), Keys("", "vllm_obj")) == ""


# Providers, from their documents: what a bucket with our rules, or theirs, looks like there. Not run.


def provider(body: bytes, **more):
    found = evidence_of(*document.parse(body), **more)
    return judge.judge(found, KEYS, WEEK, None, merge.own_start(PREFIX))


def test_google_interop_rules_are_of_another_schema_and_count_for_nothing():
    body = (
        b"<LifecycleConfiguration><Rule><Action><Delete/></Action><Condition><Age>1</Age></Condition></Rule>"
        b"</LifecycleConfiguration>"
    )
    seen = provider(body)
    assert seen.status == "absent" and {"no_rule", "rule_unknown_parts"} <= codes(seen)
    (rule,) = document.parse(body)
    with pytest.raises(ValueError, match="lost"):
        document.render(rule)


def test_r2_has_its_default_upload_rule_and_ours_beside_it():
    default = Rule(id="Default Multipart Abort Rule", abort_days=7)
    ours = merge.wanted(merge.own_start(PREFIX), PREFIX, 5, versioned=False)
    merged = merge.merge([default], ours, merge.own_start(PREFIX))
    assert merged[0] == default
    assert provider(xml(merged)).status == "ok"
    assert "uploads_kept" in breaking(provider(xml([default, replace(ours[0], abort_days=None)])))


def test_b2_is_always_versioned_and_names_rules_anew():
    ours = merge.wanted(merge.own_start(PREFIX), PREFIX, 2, versioned=True)
    native = [replace(rule, id=f"b2-{number}") for number, rule in enumerate(ours)]
    assert provider(xml(native), versioning="Enabled").status == "ok"
    hide_only = provider(xml([replace(GOOD, days=2)]), versioning="Enabled")
    assert "noncurrent_kept" in breaking(hide_only)


def test_wasabi_needs_a_lag_of_two_days_for_a_first_run():
    assert merge.days_wanted(10080, 2880, versioned=False) == 4


def test_minios_own_elements_are_kept_from_being_lost():
    body = (
        b"<LifecycleConfiguration><Rule><ID>m</ID><Status>Enabled</Status><Filter><Prefix>x/</Prefix></Filter>"
        b"<Expiration><Days>3</Days><ExpiredObjectAllVersions>true</ExpiredObjectAllVersions></Expiration></Rule>"
        b"</LifecycleConfiguration>"
    )
    (rule,) = document.parse(body)
    assert rule.more == ("Expiration/ExpiredObjectAllVersions",)


def test_garage_takes_expiry_and_uploads_with_the_prefix_in_the_filter():
    (rule,) = merge.wanted(merge.own_start(PREFIX), PREFIX, 5, versioned=False)
    put = document.render(rule)
    assert put["Filter"] == {"Prefix": PREFIX} and "Prefix" not in put
    assert set(put) == {"ID", "Status", "Filter", "Expiration", "AbortIncompleteMultipartUpload"}
