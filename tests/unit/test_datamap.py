# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The map as a whole: every mistake at once, nothing but MapError, and no tier whose blocks are forgotten."""
# pylint: disable=unidiomatic-typecheck

from __future__ import annotations

import copy
import datetime
import json
import os
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.llmhost.hardening.plugins.module_utils.kv import datamap, mapkeys, stores
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.datamap import MapError
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.mapkeys import KEYS

ROOT = os.geteuid() == 0
VOLUME: dict[str, Any] = {
    "backend": "dmcrypt",
    "source": {"file": "/var/lib/llmhost/chat.img", "size": "10G"},
    "key": "ephemeral",
}


def tier(**changes):
    good = {"name": "chat", "store": "vllm_fs", "path": "/srv/chat", "owner": "vllm", "services": ["vllm.service"]}
    merged = {**good, **changes}
    return {key: value for key, value in merged.items() if value != "leave out"}


def bucket(**changes):
    return {"name": "obj", "store": "vllm_obj", "bucket": "kv-prod", "endpoint": "https://s3.example", **changes}


def peer(**changes):
    return {"name": "peer", "store": "vllm_p2p", "services": ["vllm.service"], **changes}


def normalise(*tiers, prompt_log=1440, host="gpu1"):
    return datamap.normalise(list(tiers), host, prompt_log)


def problems(*tiers, prompt_log=1440):
    with pytest.raises(MapError) as caught:
        normalise(*tiers, prompt_log=prompt_log)
    found = caught.value.problems
    assert str(caught.value).splitlines() == [str(problem) for problem in found]
    assert all(problem.host == "gpu1" and problem.reason and problem.fix for problem in found)
    return found


def keys(*tiers, **options):
    return sorted((problem.tier, problem.key) for problem in problems(*tiers, **options))


# -- one tier


def test_a_tier_is_completed():
    (got,) = normalise(tier())["tiers"]
    assert got == {
        "name": "chat", "store": "vllm_fs", "state": "present", "path": "/srv/chat", "owner": "vllm",
        "services": ["vllm.service"], "retention_minutes": 1440, "retention_reason": None, "expire_every_minutes": 5,
        "grace_minutes": 2, "tmp_grace_minutes": 60, "dir_grace_minutes": 60, "full_pass_hours": 24, "max_bytes": None,
        "max_files": None, "volume": None, "bucket": None, "endpoint": None, "prefix": None, "peers": None,
        "purpose": None, "data_owner": None,
    }  # fmt: skip


def test_the_example_of_the_design_is_a_good_map():
    chat = tier(max_bytes="160G", volume={**VOLUME, "source": {**VOLUME["source"], "size": "200G"}})
    slots = tier(name="slots", store="llamacpp_slots", path="/srv/slots", owner="llama", services=["llama.service"],
                 retention_minutes=60)  # fmt: skip
    document = normalise(chat, bucket(prefix="qwen"), slots)
    assert [one["retention_minutes"] for one in document["tiers"]] == [1440, 1440, 60]
    assert document["tiers"][0]["max_bytes"] == 160 << 30
    assert document["tiers"][1]["prefix"] == "qwen" and normalise(bucket())["tiers"][0]["prefix"] == ""


def test_null_is_the_default():
    nothing = {key: None for key in KEYS if key not in tier()}
    assert normalise(tier(**nothing)) == normalise(tier())


@pytest.mark.parametrize("store", sorted(stores.STORES))
def test_every_store_can_be_declared_live_safe_or_not(store):
    good = {"vllm_obj": bucket, "vllm_p2p": peer}.get(store, tier)
    (got,) = normalise(good(name="x", store=store))["tiers"]
    assert got["store"] == store
    assert bool(datamap.file_tiers(normalise(good(name="x", store=store)))) is stores.STORES[store].has_files


@pytest.mark.parametrize("key", ["name", "store", "path", "owner", "services"])
def test_a_required_key_that_is_missing_is_one_problem(key):
    for value in ("leave out", None):
        (problem,) = problems(tier(**{key: value}))
        assert (problem.key, problem.reason) == (key, "missing")
        assert problem.tier == ("number 1" if key == "name" else "chat")


@pytest.mark.parametrize("state", ["planned", "absent"])
def test_services_are_needed_by_what_runs_only(state):
    for make in (tier, peer):
        normalise(make(state=state, services=[]))
        assert keys(make(services=[])) == [(make()["name"], "services")]


@pytest.mark.parametrize("key", ["bucket", "endpoint"])
def test_a_bucket_tier_needs_its_bucket(key):
    assert keys(bucket(**{key: None})) == [("obj", key)]


FOREIGN: list[Any] = [
    (tier, {"bucket": "kv-prod", "endpoint": "https://x", "prefix": "", "peers": ["a"]}),
    (bucket, {"path": "/srv/x", "owner": "vllm", "services": ["vllm.service"], "volume": VOLUME, "max_bytes": "1G",
              "max_files": 5, "peers": ["a"]}),
    (peer, {"path": "/srv/x", "owner": "vllm", "volume": VOLUME, "max_bytes": "1G", "max_files": 5,
            "bucket": "kv-prod", "endpoint": "https://x", "prefix": ""}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("make", "key", "value"), [(make, key, value) for make, some in FOREIGN for key, value in some.items()]
)
def test_a_key_of_another_kind_of_store_is_one_problem(make, key, value):
    for foreign in (value, {"nonsense": [1]}):
        (problem,) = problems(make(**{key: foreign}))
        assert problem.key == key and problem.reason == f"store {make()['store']} has no {key}"


def test_an_unknown_key_is_answered_with_the_nearest():
    (problem,) = problems(tier(retention_minuts=60))
    assert str(problem) == (
        "host gpu1, tier chat, key retention_minuts: unknown key. Fix: did you mean retention_minutes."
    )
    assert keys(tier(**{"a\nb": 1, "": 1})) == [("chat", "''"), ("chat", "'a\\nb'")]


def test_retention_longer_than_the_prompt_log_needs_a_reason():
    (problem,) = problems(tier(retention_minutes=90), prompt_log=60)
    assert problem.key == "retention_minutes" and "lower it to 60 or say why in retention_reason" in problem.fix
    normalise(tier(retention_minutes=90, retention_reason="approved by the DPO"), prompt_log=60)
    normalise(tier(retention_minutes=60), prompt_log=60)
    assert keys(tier(retention_minutes=90, retention_reason="\n"), prompt_log=60) == [("chat", "retention_reason")]


@pytest.mark.parametrize("value", [0, -1, "a day", 1.5, True, None, float("nan"), 10**5000, [60]], ids=lambda _: "")
def test_a_bad_prompt_log_is_one_problem_and_no_echo(value):
    (problem,) = problems(tier(retention_minutes=43200), prompt_log=value)
    assert (problem.tier, problem.key) == ("-", "llmhost_prompt_log_retention_minutes")


def test_the_prompt_log_may_come_as_text():
    assert normalise(tier(), prompt_log="60")["tiers"][0]["retention_minutes"] == 60


def test_a_cap_leaves_a_tenth_of_the_volume():
    normalise(tier(volume=VOLUME, max_bytes="9G"))
    (problem,) = problems(tier(volume=VOLUME, max_bytes="9217M"))
    assert problem.key == "max_bytes" and "90 %" in problem.reason and "9216M" in problem.fix
    normalise(tier(volume={"backend": "existing"}, max_bytes="900T"))


# -- tiers together


def test_names_are_unique():
    assert keys(tier(), tier(path="/srv/b"), tier(path="/srv/c")) == [("chat", "name")] * 2


@pytest.mark.parametrize(
    ("first", "second"),
    [("/srv/kv", "/srv/kv"), ("/srv/kv", "/srv/kv/a/b"), ("/srv/kv/a/b", "/srv/kv")],
)
def test_no_tier_lies_in_another(first, second):
    (problem,) = problems(tier(path=first), tier(name="b", path=second))
    assert (problem.tier, problem.key) == ("b", "path") and "tier chat" in problem.reason


def test_paths_are_compared_by_components():
    normalise(tier(path="/srv/kv"), tier(name="b", path="/srv/kv2"), tier(name="c", path="/srv/k"))


@pytest.mark.parametrize("state", ["planned", "absent"])
def test_no_state_frees_a_place(state):
    assert keys(tier(state=state), tier(name="b")) == [("b", "path")]


def test_no_image_lies_in_a_tier_or_serves_two():
    def with_image(file, **changes):
        return tier(volume={**VOLUME, "source": {"file": file, "size": "1G"}}, **changes)

    assert keys(with_image("/srv/chat/x.img")) == [("chat", "volume.source.file")]
    assert keys(with_image("/srv/b/x.img"), tier(name="b", path="/srv/b")) == [("chat", "volume.source.file")]
    assert keys(with_image("/srv/x.img"), with_image("/srv/x.img", name="b", path="/srv/b")) == [
        ("b", "volume.source.file")
    ]
    assert keys(with_image("/srv/x"), with_image("/srv/x/y", name="b", path="/srv/b")) == [("b", "volume.source.file")]
    normalise(with_image("/srv/x.img"), with_image("/srv/y.img", name="b", path="/srv/b"))


def test_two_bucket_tiers_have_two_prefixes():
    assert keys(bucket(), bucket(name="b")) == [("b", "prefix")]
    assert keys(bucket(prefix="a"), bucket(name="b", prefix="a")) == [("b", "prefix")]
    normalise(bucket(prefix="a"), bucket(name="b", prefix="b"), bucket(name="c", endpoint="https://other.example"))


def test_a_service_may_write_several_tiers():
    normalise(tier(), tier(name="b", path="/srv/b"))


def test_all_mistakes_of_a_map_come_at_once():
    bad = [
        tier(name="A", path="/etc/kv", owner="root", services=["x"], expire_every_minutes=7, max_bytes=5, pfad=1,
             volume={"backend": "dmcrypt", "source": {"file": "/dev/sdb", "size": 1}}),
        "text",
        tier(name="b", store="nfs", retention_minutes=99),
        tier(name="b", path="/srv/b", bucket="kv-prod"),
    ]  # fmt: skip
    assert keys(*bad, prompt_log=60) == sorted(
        [("A", key) for key in ("name", "path", "owner", "services", "expire_every_minutes", "max_bytes", "pfad",
                                "volume.source.file", "volume.source.size")]
        + [("number 2", "-"), ("b", "store"), ("b", "retention_minutes"), ("b", "bucket"), ("b", "name")]
    )  # fmt: skip


@pytest.mark.parametrize("tiers", [None, {}, "x", 5, True, {"a": 1}, datetime.date(2026, 1, 1)])
def test_what_is_no_list_is_one_problem(tiers):
    with pytest.raises(MapError) as caught:
        datamap.normalise(tiers, "gpu1", 60)
    assert [problem.key for problem in caught.value.problems] == ["llmhost_tiers"]


@pytest.mark.parametrize("entry", [None, [], "chat", 5, True, 1.5])
def test_what_is_no_mapping_is_one_problem(entry):
    assert keys(entry) == [("number 1", "-")]


@pytest.mark.parametrize("host", ["", "a\nb", None, 5, "x" * 300, ["gpu1"]])
def test_a_host_without_a_usable_name_is_one_problem(host):
    with pytest.raises(MapError) as caught:
        datamap.normalise([tier()], host, 60)
    (problem,) = caught.value.problems
    assert problem.key == "host" and str(problem).isprintable()


@pytest.mark.parametrize("name", ["a\nb", "x" * 10**5, "\u2028", ""])
def test_a_hostile_name_makes_no_second_line(name):
    (problem,) = problems(tier(name=name))
    assert problem.key == "name" and str(problem).isprintable() and len(str(problem)) < 400


# -- what comes from Ansible


class Text(str):
    pass


class Number(int):
    pass


class Mapping(dict):
    pass


class Sequence(list):
    pass


def tagged(value):
    """As Ansible 2.19 hands values over: in subclasses of Python's types."""
    if isinstance(value, dict):
        return Mapping({Text(key): tagged(item) for key, item in value.items()})
    if isinstance(value, list):
        return Sequence(tagged(item) for item in value)
    if isinstance(value, str):
        return Text(value)
    return Number(value) if type(value) is int else value


def types(value):
    yield type(value)
    if isinstance(value, dict):
        for key, item in value.items():
            yield type(key)
            yield from types(item)
    if isinstance(value, list):
        for item in value:
            yield from types(item)


def everything():
    """A map that uses every key."""
    chat = tier(volume=VOLUME, max_bytes="1G", max_files=10, retention_minutes=90, retention_reason="approved",
                purpose="chat", data_owner="team", expire_every_minutes=10, grace_minutes=1, tmp_grace_minutes=30,
                dir_grace_minutes=30, full_pass_hours=12, state="present")  # fmt: skip
    numbered = tier(name="b", path="/srv/b", owner=998, volume={"backend": "existing"})
    gone = tier(name="old", path="/srv/old", state="absent", services=[])
    return [chat, numbered, gone, bucket(), peer(peers=["gpu2"])]


def test_subclasses_of_plain_types_are_taken_and_left_behind():
    wanted = normalise(*everything(), prompt_log=60)
    got = datamap.normalise(tagged(everything()), Text("gpu1"), Number(60))
    assert got == wanted
    assert set(types(got)) <= {dict, list, str, int, bool, type(None)}
    again = datamap.validate(tagged(wanted))
    assert again == wanted and set(types(again)) <= {dict, list, str, int, bool, type(None)}
    assert json.loads(json.dumps(got)) == got


def test_the_map_shares_nothing_with_what_it_was_made_of():
    raw = everything()
    before = copy.deepcopy(raw)
    document = normalise(*raw, prompt_log=60)
    document["tiers"][0]["services"].append("x")
    document["tiers"][0]["volume"]["source"]["size"] = 1
    assert raw == before
    assert normalise(tier(services=None, state="planned"))["tiers"][0]["services"] is not KEYS["services"][1]


# -- the document on the host


def test_validate_gives_back_what_normalise_gave():
    document = normalise(*everything(), prompt_log=60)
    assert datamap.validate(document) == document
    assert datamap.validate(json.loads(json.dumps(document))) == document


def test_a_vanished_tier_is_valid_on_the_host_only():
    document = datamap.merge(normalise(tier()), normalise(tier(name="b", path="/srv/b")))
    assert [one["state"] for one in document["tiers"]] == ["present", "vanished"]
    assert datamap.validate(document) == document
    assert keys(tier(state="vanished")) == [("chat", "state")]


def changed(document, *path, value):
    document = copy.deepcopy(document)
    place = document
    for step in path[:-1]:
        place = place[step]
    if value == "drop":
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return document


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("schema",), 2), (("schema",), True), (("schema",), 1.0), (("schema",), "1"), (("schema",), "drop"),
        (("host",), None), (("host",), 5), (("host",), "a\nb"), (("host",), "drop"), (("more",), 1),
        (("tiers",), None), (("tiers",), {}), (("tiers",), [None]), (("tiers", 0), []), (("tiers", 0), {}),
        (("prompt_log_retention_minutes",), 0), (("prompt_log_retention_minutes",), "60"),
        (("prompt_log_retention_minutes",), True), (("prompt_log_retention_minutes",), 30),
        (("prompt_log_retention_minutes",), "drop"),
        (("tiers", 0, "path"), "/etc"), (("tiers", 0, "path"), None), (("tiers", 0, "path"), "/srv/b"),
        (("tiers", 0, "purpose"), "drop"), (("tiers", 0, "more"), None), (("tiers", 0, "name"), "b"),
        (("tiers", 0, "owner"), "root"), (("tiers", 1, "owner"), "998"), (("tiers", 0, "state"), "gone"),
        (("tiers", 0, "max_bytes"), "1G"), (("tiers", 0, "max_bytes"), 0), (("tiers", 0, "max_bytes"), -1),
        (("tiers", 0, "max_bytes"), True), (("tiers", 0, "max_bytes"), 1.0), (("tiers", 0, "max_bytes"), 10 << 30),
        (("tiers", 0, "max_bytes"), 10**5000), (("tiers", 0, "max_bytes"), float("nan")),
        (("tiers", 0, "volume", "source", "size"), "10G"), (("tiers", 0, "volume", "source", "size"), 1),
        (("tiers", 0, "volume", "source", "size"), 10**5000), (("tiers", 0, "volume", "source", "size"), True),
        (("tiers", 0, "volume", "source"), None), (("tiers", 0, "volume", "fstype"), None),
        (("tiers", 0, "volume"), []), (("tiers", 0, "volume", "source"), [1]), (("tiers", 0, "services"), None),
        (("tiers", 0, "retention_minutes"), None), (("tiers", 0, "retention_minutes"), 90.0),
        (("tiers", 0, "expire_every_minutes"), 10.0), (("tiers", 3, "prefix"), None),
    ],
    ids=lambda value: mapkeys.show(value, 40),
)  # fmt: skip
def test_a_document_that_was_tampered_with_is_refused(path, value):
    with pytest.raises(MapError):
        datamap.validate(changed(normalise(*everything(), prompt_log=60), *path, value=value))


needs_root = pytest.mark.skipif(not ROOT, reason="the map belongs to root")


def load_problem(path):
    with pytest.raises(MapError) as caught:
        datamap.load(str(path))
    (problem,) = caught.value.problems
    assert problem.fix and str(problem).isprintable()
    return problem.reason


@needs_root
def test_the_host_s_map_is_read_back(tmp_path):
    document = normalise(*everything(), prompt_log=60)
    (tmp_path / "tiers.json").write_text(json.dumps(document))
    assert datamap.load(str(tmp_path / "tiers.json")) == document


@needs_root
def test_no_file_but_root_s_own_small_plain_one_is_read(tmp_path):
    good = tmp_path / "good.json"
    good.write_text(json.dumps(normalise(tier())))
    (tmp_path / "link.json").symlink_to(good)
    (tmp_path / "dir.json").mkdir()
    os.mkfifo(tmp_path / "fifo.json")
    foreign = tmp_path / "foreign.json"
    foreign.write_bytes(good.read_bytes())
    os.chown(foreign, 12345, 12345)
    big = tmp_path / "big.json"
    with open(big, "wb") as file:
        file.truncate(2 << 20)
    assert "no data map on this host" in load_problem(tmp_path / "none.json")
    assert "symbolic link" in load_problem(tmp_path / "link.json")
    assert "not a regular file" in load_problem(tmp_path / "dir.json")
    assert "not a regular file" in load_problem(tmp_path / "fifo.json")
    assert "belongs to uid 12345" in load_problem(foreign)
    assert "larger than" in load_problem(big)
    with pytest.raises(MapError):
        datamap.load("/etc/llmhost/\0")
    assert load_problem(good / "below.json")


@needs_root
@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"\xff\xfe", b"null", b"[]", b'"x"', b"NaN", b"[" * 100000, b'{"a":' * 100000, b"9" * 10000,
     b'{"schema": 1}', b'{"schema": 1, "host": "x", "tiers": [' + b"[" * 500 + b"]" * 500 + b"]}",
     b'{"schema": 1, "host": "\\ud800", "tiers": [], "prompt_log_retention_minutes": 60}'],
    ids=lambda data: mapkeys.show(data, 20),
)  # fmt: skip
def test_a_broken_map_is_a_map_error(tmp_path, data):
    (tmp_path / "tiers.json").write_bytes(data)
    with pytest.raises(MapError):
        datamap.load(str(tmp_path / "tiers.json"))


# -- a changed map


def merged(old, new, prompt_log=1440):
    document = datamap.merge(normalise(*old), normalise(*new, prompt_log=prompt_log))
    assert datamap.validate(document) == document, "the host could not read what merge made"
    return {one["name"]: one["state"] for one in document["tiers"]}


def refused(old, new):
    with pytest.raises(MapError) as caught:
        datamap.merge(normalise(*old), normalise(*new))
    return [(problem.tier, problem.key) for problem in caught.value.problems]


def test_the_first_map_is_taken_as_it_is():
    assert datamap.merge(None, normalise(tier())) == normalise(tier())


def test_the_same_map_again_changes_nothing():
    document = normalise(*everything())
    assert datamap.merge(document, document) == document


def test_a_tier_that_left_the_map_keeps_expiring_until_it_is_absent():
    other = tier(name="b", path="/srv/b")
    first = datamap.merge(normalise(tier(), other), normalise(other))
    assert {one["name"]: one["state"] for one in first["tiers"]} == {"b": "present", "chat": "vanished"}
    assert [one["name"] for one in datamap.file_tiers(first)] == ["b", "chat"]
    still = datamap.merge(first, normalise(other))
    assert still == first
    back = datamap.merge(still, normalise(tier(), other))
    assert {one["name"]: one["state"] for one in back["tiers"]} == {"chat": "present", "b": "present"}
    absent = datamap.merge(still, normalise(other, tier(state="absent", services=[])))
    assert {one["name"]: one["state"] for one in absent["tiers"]} == {"b": "present", "chat": "absent"}
    assert {one["name"] for one in datamap.merge(absent, normalise(other))["tiers"]} == {"b"}


def test_what_was_never_there_leaves_no_trace():
    assert merged([tier(state="planned"), bucket(), peer()], [tier(name="b", path="/srv/b")]) == {"b": "present"}


def test_a_tier_lives_on_under_another_name():
    assert merged([tier()], [tier(name="talk")]) == {"talk": "present"}
    assert merged([tier()], [tier(name="talk", owner="llm")]) == {"talk": "present"}


def test_a_volume_does_not_change_its_name():
    own = {"backend": "dmcrypt", "source": {"file": "/var/lib/llmhost/chat.img", "size": "1G"}}
    old = tier(volume=own)
    assert refused([old], [tier(name="talk", volume=own)]) == [("talk", "name")]
    # Else nothing would be found of the volume that is to go.
    assert refused([old], [tier(name="talk", state="absent")]) == [("talk", "name")]
    assert merged([old], [tier(state="absent")]) == {"chat": "absent"}
    mounted = tier(volume={"backend": "existing"})
    assert merged([mounted], [tier(name="talk", volume={"backend": "existing"})]) == {"talk": "present"}


def test_a_place_that_is_declared_absent_is_given_up_whatever_its_name():
    assert merged([tier()], [tier(name="talk", state="absent")]) == {"talk": "absent"}


def test_a_tier_cannot_move_away_from_its_blocks():
    assert refused([tier()], [tier(path="/srv/new")]) == [("chat", "path")]
    assert refused([tier()], [tier(path="/srv/new", state="absent")]) == [("chat", "path")]
    assert refused([tier()], [bucket(name="chat")]) == [("chat", "path")]
    assert merged([tier(state="absent")], [tier(path="/srv/new")]) == {"chat": "present"}
    assert merged([tier()], [tier(name="new", path="/srv/new")]) == {"new": "present", "chat": "vanished"}


def test_another_store_cannot_take_over_blocks_that_it_does_not_know():
    slots = tier(name="slots", store="llamacpp_slots")
    assert refused([tier()], [slots]) == [("slots", "store")]
    assert refused([tier()], [tier(store="llamacpp_slots")]) == [("chat", "store")]
    assert merged([tier(state="absent")], [slots]) == {"slots": "present"}


def test_a_tier_in_use_cannot_become_planned():
    assert refused([tier()], [tier(state="planned")]) == [("chat", "state")]


@pytest.mark.parametrize("path", ["/srv", "/srv/chat/a"])
def test_no_new_tier_lies_around_or_inside_one_that_vanished(path):
    old = [tier(path="/srv/x/chat")]
    new = "/srv/x" if path == "/srv" else "/srv/x/chat/a"
    assert refused(old, [tier(name="new", path=new)]) == [("chat", "path")]


def test_no_new_tier_takes_the_image_of_one_that_vanished():
    old = [tier(volume=VOLUME)]
    assert refused(old, [tier(name="new", path="/srv/new", volume=VOLUME)]) == [("chat", "volume.source.file")]


def test_a_refusal_names_what_to_do():
    with pytest.raises(MapError) as caught:
        datamap.merge(normalise(tier()), normalise(tier(path="/srv/new")))
    text = str(caught.value)
    assert text.startswith("host gpu1, tier chat, key path: ") and "/srv/chat" in text and "`state: absent`" in text


def test_a_vanished_tier_obeys_a_shorter_prompt_log():
    old = normalise(tier(), tier(name="b", path="/srv/b", retention_minutes=2880, retention_reason="approved"))
    document = datamap.merge(old, normalise(tier(name="c", path="/srv/c"), prompt_log=60))
    assert {one["name"]: one["retention_minutes"] for one in document["tiers"]} == {"c": 60, "chat": 60, "b": 2880}
    assert datamap.validate(document) == document
    assert merged([tier()], [tier(name="c", path="/srv/c")], prompt_log=60)


# -- anything at all

ODD: list[Any] = [
    None, True, 0, -1, 1.5, 60, 5, "60", "", "x", "a\nb", "9" * 5000, [], [[]], {}, "1G", "/srv/chat", "/etc", "root",
    "vllm_fs", "vllm_obj", "vllm_p2p", "present", "vanished", ["vllm.service"], VOLUME, datetime.date(2026, 1, 1),
]  # fmt: skip
HUGE = st.just(5000).map(lambda digits: 10**digits)
VALUES = st.recursive(
    st.sampled_from(ODD) | HUGE | st.integers() | st.floats() | st.text(max_size=10) | st.binary(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
TIERS = st.dictionaries(st.sampled_from(sorted(KEYS)) | st.text(max_size=5), VALUES, max_size=8)
NEARLY = TIERS.map(lambda extra: {**tier(), **extra}) | TIERS


@settings(max_examples=100, deadline=None)
@given(
    tiers=st.lists(NEARLY | VALUES, max_size=3) | VALUES,
    host=st.just("gpu1") | VALUES,
    prompt_log=st.just(1440) | VALUES,
)
def test_no_map_whatsoever_raises_anything_but_map_error(tiers, host, prompt_log):
    try:
        document = datamap.normalise(tiers, host, prompt_log)
    except MapError as error:
        assert error.problems
        assert all(str(problem).isprintable() for problem in error.problems)
    else:
        assert datamap.validate(json.loads(json.dumps(document))) == document


DOCUMENT = normalise(*everything(), prompt_log=60)
PLACES = st.one_of(
    st.sampled_from(["schema", "host", "tiers", "prompt_log_retention_minutes", "more"]).map(lambda key: (key,)),
    st.tuples(st.just("tiers"), st.integers(0, 4), st.sampled_from([*KEYS, "more"])),
    st.tuples(st.just("tiers"), st.just(0), st.just("volume"), st.sampled_from(["backend", "source", "key", "fstype"])),
    st.tuples(st.just("tiers"), st.just(0), st.just("volume"), st.just("source"), st.sampled_from(["file", "size"])),
)


@settings(max_examples=100, deadline=None)
@given(path=PLACES, value=VALUES)
def test_a_document_with_one_value_changed_is_valid_as_it_stands_or_refused(path, value):
    document = changed(DOCUMENT, *path, value=value)
    try:
        assert datamap.validate(document) == document
    except MapError as error:
        assert error.problems


@settings(max_examples=50, deadline=None)
@given(document=VALUES | st.fixed_dictionaries({"schema": st.just(1), "host": VALUES, "tiers": VALUES}))
def test_no_document_whatsoever_raises_anything_but_map_error(document):
    with pytest.raises(MapError):
        datamap.validate(document)


SPOTS = ["/srv/a", "/srv/a/b", "/srv/c", "/srv/d"]
STATES = st.sampled_from(["present", "planned", "absent"])
SOME = st.lists(
    st.builds(
        lambda name, path, store, state, image: tier(
            name=name, path=path, store=store, state=state,
            volume={**VOLUME, "source": {"file": f"/srv/images/{image}.img", "size": "1G"}} if image else None,
        ),
        st.sampled_from("abcd"), st.sampled_from(SPOTS), st.sampled_from(["vllm_fs", "llamacpp_slots"]), STATES,
        st.sampled_from(["", "", "x", "y"]),
    ),
    max_size=3,
)  # fmt: skip


@settings(max_examples=120, deadline=None)
@given(histories=st.lists(st.tuples(SOME, st.sampled_from([30, 60, 1440])), min_size=2, max_size=5))
def test_no_history_of_maps_forgets_a_tier_or_makes_one_that_the_host_cannot_read(histories):
    host: Any = None
    for tiers, prompt_log in histories:
        new, wrong = datamap.check(tiers, "gpu1", prompt_log)
        if wrong:
            continue
        try:
            after = datamap.merge(host, new)
        except MapError:
            continue
        assert datamap.validate(after) == after
        for before in datamap.file_tiers(host) if host else []:
            here = [one for one in after["tiers"] if one["path"] == before["path"]]
            assert len(here) == 1, "a place is forgotten"
            assert here[0]["state"] == "absent" or here[0]["store"] == before["store"]
            assert here[0]["state"] != "planned"
        host = after


# -- small things


def test_a_tier_is_found_by_name():
    document = normalise(*everything(), prompt_log=60)
    assert datamap.tier_named(document, "b")["path"] == "/srv/b"
    with pytest.raises(KeyError, match="known: chat, b, old, obj, peer"):
        datamap.tier_named(document, "x")
    with pytest.raises(KeyError, match="known: none"):
        datamap.tier_named(normalise(), "x")


def test_names_on_the_host():
    (one,) = normalise(tier(name="my-chat"))["tiers"]
    assert datamap.mapper_name(one) == "llmhost_my_chat"
    assert datamap.state_dir(one) == "/var/lib/llmhost/state/my-chat"
    assert datamap.STATE_ROOT.startswith(mapkeys.LIB_ROOT + "/")


@given(
    first=st.from_regex(mapkeys._TIER_NAME, fullmatch=True), second=st.from_regex(mapkeys._TIER_NAME, fullmatch=True)
)
def test_two_tiers_never_share_a_mapper(first, second):
    assert (datamap.mapper_name({"name": first}) == datamap.mapper_name({"name": second})) is (first == second)
