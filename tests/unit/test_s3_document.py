# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Lifecycle documents: arithmetic, reading, merging, and what servers are known to make of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ansible.errors import AnsibleFilterError
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.llmhost.hardening.plugins.filter import lifecycle_days
from ansible_collections.llmhost.hardening.plugins.module_utils.s3 import arithmetic, document, merge
from ansible_collections.llmhost.hardening.plugins.module_utils.s3.document import Rule, parse, render

NS = "http://s3.amazonaws.com/doc/2006-03-01/"
START = merge.own_start("qwen//")


def lifecycle(*rules: str) -> bytes:
    return f'<LifecycleConfiguration xmlns="{NS}">{"".join(rules)}</LifecycleConfiguration>'.encode()


def rule_xml(inside: str, status: str = "Enabled") -> str:
    return f"<Rule><ID>r</ID><Status>{status}</Status>{inside}</Rule>"


def only(inside: str) -> Rule:
    (rule,) = parse(lifecycle(rule_xml(inside)))
    return rule


@pytest.mark.parametrize(
    ("retention", "lag", "days"),
    [
        (1440, 1440, None),
        (4319, 1440, None),
        (4320, 1440, 1),
        (5759, 1440, 1),
        (5760, 1440, 2),
        (2880, 0, 1),
        (2879, 0, None),
        (10080, 1440, 5),
        (43200, 2880, 27),
    ],
)
def test_the_longest_rule_that_keeps_a_retention(retention, lag, days):
    assert arithmetic.days_for(retention, lag) == days


@given(st.integers(1, 6000000), st.integers(0, 43200), st.integers(0, 20000))
def test_the_rule_keeps_the_retention_and_one_day_more_would_not(retention, lag, after):
    days = arithmetic.days_for(retention, lag, after)
    if days is None:
        assert arithmetic.worst_minutes(1, lag) + after > retention
        assert arithmetic.least_retention(lag, after) > retention
    else:
        assert arithmetic.worst_minutes(days, lag) + after <= retention
        assert arithmetic.worst_minutes(days + 1, lag) + after > retention


def test_the_filter_computes_what_the_modules_set_and_rounds_nothing_up():
    days = lifecycle_days.FilterModule().filters()["lifecycle_days"]
    assert [days(minutes) for minutes in (1440, 4319, 4320, 5759, 10080)] == [None, None, 1, 1, 5]
    assert (days(10080, 0), days(10080, 1440, True), days(2880, 0)) == (6, 2, 1)
    for wrong in (
        (0,),
        (-1,),
        ("soon",),
        (True,),
        (None,),
        (1.5,),
        (10**9,),
        (1440, -1),
        (1440, "x"),
        (1440, 1440, "yes"),
    ):
        with pytest.raises(AnsibleFilterError, match=r"lifecycle_days: \w+: .*Fix: "):
            days(*wrong)


def test_old_versions_shorten_the_rule_by_the_life_of_their_own():
    assert merge.days_wanted(10080, 1440, versioned=False) == 5
    assert merge.days_wanted(10080, 1440, versioned=True) == 2
    assert merge.days_wanted(8639, 1440, versioned=True) is None
    assert merge.days_wanted(8640, 1440, versioned=True) == 1


# Reading


@pytest.mark.parametrize(
    ("body", "root"),
    [
        (b"", ""),
        (b"  \n", ""),
        (b"{}", ""),
        (b"<html><body>login</body></html>", "html"),
        (b"<!DOCTYPE html><html></html>", "html"),
        (b"<html><br></html>", "html"),
        (f'<ListBucketResult xmlns="{NS}"><Name>b</Name></ListBucketResult>'.encode(), "ListBucketResult"),
        (b"<ListBucketResult/>", "ListBucketResult"),
        (b"<Error><Code>AccessDenied</Code></Error>", "Error"),
        (b'<!DOCTYPE x [<!ENTITY a "b">]><LifecycleConfiguration/>', ""),
        (lifecycle(rule_xml(""))[:-5], ""),
        (b"<LifecycleConfiguration>" + b" " * document.MAX_BYTES + b"</LifecycleConfiguration>", ""),
    ],
)
def test_only_a_lifecycle_root_is_an_answer(body, root):
    with pytest.raises(document.NotALifecycle) as caught:
        parse(body)
    assert caught.value.root == root


def test_a_document_without_rules_is_an_answer():
    assert parse(lifecycle()) == []
    assert parse(b"<LifecycleConfiguration/>") == []


def test_both_protocol_versions_mean_the_same():
    old = only("<Prefix>logs/</Prefix><Expiration><Days>90</Days></Expiration>")
    new = only("<Filter><Prefix>logs/</Prefix></Filter><Expiration><Days>90</Days></Expiration>")
    assert old == new
    assert render(old)["Filter"] == {"Prefix": "logs/"} and "Prefix" not in render(old)


def test_a_rule_for_everything_has_one_form():
    forms = ["<Filter/>", "<Filter><Prefix/></Filter>", "<Prefix></Prefix>", "<Filter><And/></Filter>"]
    assert len({only(form + "<Expiration><Days>1</Days></Expiration>") for form in forms}) == 1


TAG = "<Tag><Key>{0}</Key><Value>{0}</Value></Tag>"


def test_the_filter_that_ceph_echoes_keeps_its_prefix():
    """Ceph 16 answers And{Prefix, two tags} as Filter{Prefix, And{tags}}; put back so, the prefix would be lost."""
    tags = TAG.format("a") + TAG.format("b")
    sent = only(f"<Filter><And><Prefix>kv/</Prefix>{tags}</And></Filter>")
    echoed = only(f"<Filter><Prefix>kv/</Prefix><And>{tags}</And></Filter>")
    assert sent == echoed
    assert render(echoed)["Filter"]["And"]["Prefix"] == "kv/" and len(render(echoed)["Filter"]["And"]["Tags"]) == 2
    one = only(f"<Filter><Prefix>kv/</Prefix>{TAG.format('a')}</Filter>")
    assert render(one)["Filter"] == {"And": {"Prefix": "kv/", "Tags": [{"Key": "a", "Value": "a"}]}}


@pytest.mark.parametrize(
    "inside",
    [
        "<Filter><Prefix>a</Prefix></Filter><Expiration><ExpiredObjectAllVersions>true</ExpiredObjectAllVersions>"
        "<Days>1</Days></Expiration>",
        "<DelMarkerExpiration><Days>3</Days></DelMarkerExpiration>",
        "<Action><Delete/></Action><Condition><Age>30</Age></Condition>",
        "<Filter><ArchiveZone/></Filter>",
        "<Expiration><Days>one</Days></Expiration>",
        "<Filter><Prefix>a</Prefix><And><Prefix>b</Prefix></And></Filter>",
    ],
)
def test_what_we_do_not_know_is_named_and_never_written_away(inside):
    rule = only(inside)
    assert rule.more
    with pytest.raises(ValueError, match="would be lost"):
        render(rule)


def test_a_rule_without_a_status_is_not_enabled():
    (rule,) = parse(lifecycle("<Rule><Filter/><Expiration><Days>1</Days></Expiration></Rule>"))
    assert not rule.enabled and rule.more


def test_one_instant_has_one_spelling():
    dates = ["2027-01-01T00:00:00Z", "2027-01-01T00:00:00.000Z", "2027-01-01T00:00:00+00:00"]
    assert len({only(f"<Filter/><Expiration><Date>{date}</Date></Expiration>") for date in dates}) == 1


texts = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=6)
rules = st.builds(
    Rule,
    id=st.none() | texts,
    enabled=st.booleans(),
    prefix=st.just("") | texts,
    tags=st.lists(st.tuples(texts, texts), max_size=2, unique=True).map(lambda tags: tuple(sorted(tags))),
    above=st.none() | st.integers(0, 99),
    below=st.none() | st.integers(0, 99),
    days=st.none() | st.integers(1, 99),
    noncurrent_days=st.none() | st.integers(1, 99),
    noncurrent_keep=st.none() | st.integers(1, 99),
    abort_days=st.none() | st.integers(1, 99),
    markers=st.booleans(),
)


def as_xml(value) -> str:
    """What render() gives, as the client library writes it."""
    names = {"Tags": "Tag", "Transitions": "Transition"}
    out = ""
    for key, one in value.items():
        for item in one if isinstance(one, list) else [one]:
            text = as_xml(item) if isinstance(item, dict) else str(item).lower() if item is True else str(item)
            out += f"<{names.get(key, key)}>{text}</{names.get(key, key)}>"
    return out


@given(rules)
def test_a_rule_written_and_read_again_is_the_same(rule):
    (again,) = parse(lifecycle(f"<Rule>{as_xml(render(rule))}</Rule>"))
    assert again == rule


# Merging


FOREIGN = Rule(id="theirs", prefix="qwen/", tags=(("team", "x"),), days=30)
LEGACY = Rule(id="logs", prefix="logs/", days=90)
OURS = merge.wanted(START, "qwen//", 5, versioned=False)


def test_our_rules_are_known_by_id_alone():
    assert all(merge.is_own(rule, START) for rule in OURS)
    assert not merge.is_own(FOREIGN, START) and not merge.is_own(replace(FOREIGN, id=None), START)
    sibling = merge.wanted(merge.own_start("other//"), "other//", 1, versioned=True)
    assert not any(merge.is_own(rule, START) for rule in sibling)
    assert set(sibling) <= set(merge.merge(sibling, OURS, START))


@given(st.lists(rules, max_size=4, unique_by=lambda rule: rule.id))
def test_merging_keeps_all_others_and_merging_again_changes_nothing(current):
    merged = merge.merge(current, OURS, START)
    assert [rule for rule in current if not merge.is_own(rule, START)] == [one for one in merged if one not in OURS]
    assert merge.merge(merged, OURS, START) == merged
    assert merge.same(merged, list(reversed(merged)))


def test_a_stale_rule_of_ours_is_replaced():
    old = [replace(OURS[0], days=1), Rule(id=START + "markers", prefix="qwen//", markers=True)]
    assert merge.merge([LEGACY, *old], OURS, START) == [LEGACY, *OURS]


def test_taking_ours_out_never_leaves_an_empty_document():
    assert merge.without([FOREIGN, *OURS], START) == [FOREIGN]
    assert merge.without(OURS, START) == [replace(OURS[0], enabled=False)]
    assert merge.without([], START) == []


def test_a_versioned_bucket_gets_three_expiries():
    first, second = merge.wanted(START, "qwen//", 2, versioned=True)
    assert (first.days, first.noncurrent_days, first.abort_days, first.filtered) == (2, 1, 1, False)
    assert second.markers and second.days is None


def result(put, got):
    return merge.outcome(put, got, START)


def test_a_server_may_name_the_nameless_but_not_rename_in_meaning():
    nameless = replace(FOREIGN, id=None)
    assert result([nameless, *OURS], [replace(FOREIGN, id="x" * 48), *OURS]).kept
    assert merge.same([nameless], [replace(FOREIGN, id="made-up")])
    # Backblaze names all rules anew.
    assert result(OURS, [replace(rule, id="native-1") for rule in OURS]).kept
    assert merge.merge([replace(OURS[0], id="native-1")], OURS, START) == [replace(OURS[0], id="native-1")]


def test_a_dropped_filter_is_a_loss_and_never_a_race():
    """Ceph 16 drops sizes; believed to be another writer's document, it would stay widened."""
    sized = Rule(id="big", prefix="a/", above=1000, days=1)
    for theirs in (sized, replace(sized, id=None)):
        for name in (theirs.id, "generated"):
            seen = result([theirs, *OURS], [replace(theirs, id=name, above=None), *OURS])
            assert not seen.kept and not seen.raced, (theirs.id, name)
    # Renamed and changed, ours too.
    seen = result([LEGACY, *OURS], [LEGACY, replace(OURS[0], id="native", abort_days=None)])
    assert not seen.kept and not seen.raced


def test_another_writers_document_is_a_race():
    sibling = merge.wanted(merge.own_start("b/"), "b/", 3, versioned=False)
    seen = result([LEGACY, *OURS], [LEGACY, *sibling])
    assert not seen.kept and seen.raced
    assert result([LEGACY, *OURS], [LEGACY, *OURS, *sibling]).kept
