# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The report of a fleet: what it says, in which form, and that nothing from a host runs in it."""

from __future__ import annotations

import json
import re
import time
from html.parser import HTMLParser
from pathlib import Path
from xml.dom import minidom

import pytest
import yaml

from ansible_collections.llmhost.hardening.plugins.module_utils.report import assets, document, junit, page, plots

ROOT = Path(__file__).resolve().parents[2]
NOW = 1_795_993_300.0
HOSTILE = "<script>pwned()</script><img src=x onerror=pwned()>\"'&\x00\x1b[2J\u202e]]>\ud800</pre></details>"
AGES = [[60, 3], [3600, 40], [86400, 20], [172800, 2], [None, 0]]


def result(control="KV-03", status="pass", tier="chat", **evidence):
    names = {"title": "owned and closed", "severity": "high", "message": "why", "remedy": "kvtier prepare chat"}
    return {**names, "control": control, "tier": tier, "status": status, "evidence": evidence}


def audited(name="gpu1", *results, history=(), found=(), problems=()):
    ages = result("KV-06", limit_seconds=86700, oldest_age_seconds=4000, overdue=0, ages=AGES)
    answer = {"audit": {"time": NOW, "results": [ages, *results]}, "history": list(history)}
    answer["history_problems"] = list(problems)
    tiers = [{"name": "chat", "store": "vllm_fs", "path": "/var/lib/vllm-kv", "retention_minutes": 1440}]
    return document.host(name, answer, {"tiers": tiers}, {"found": {"tiers": list(found)}})


def report(*hosts):
    return document.build(hosts, NOW)


class Seen(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.words, self._script = [], [], [], False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data):
        self.words.append(data)


# -- verdicts


@pytest.mark.parametrize(
    ("status", "verdict"),
    [("pass", "pass"), ("waived", "pass"), ("fail", "fail"), ("unknown", "fail"), ("odd", "fail")],
)
def test_a_fleet_passes_if_every_host_does_and_unknown_is_never_a_pass(status, verdict):
    assert report(audited("a"), audited("b", result(status=status)))["verdict"] == verdict


@pytest.mark.parametrize(
    ("answer", "state"),
    [
        ({"unreachable": True, "msg": "no"}, "unreachable"),
        ({"failed": True}, "failed"),
        ({}, "not audited"),
        (None, "not audited"),
    ],
)
def test_a_host_that_gave_no_audit_fails_and_is_named(answer, state):
    made = report(audited("a"), document.host("b", answer))
    assert made["verdict"] == "fail" and made["hosts"][1]["state"] == state
    assert made["counts"]["hosts_not_audited"] == 1
    assert "Could not be audited" in page.render(made) and "<error" in junit.render(made)


def test_no_host_at_all_is_no_pass():
    assert report()["verdict"] == "fail"


def test_what_no_data_map_names_fails_the_host_and_stands_in_the_data_map():
    there = {"store": "vllm_fs", "path": "/var/lib/vllm-kv/", "sure": "running"}
    extra = {
        "store": "sglang_file",
        "path": "/tmp/hicache",
        "sure": "running",
        "found": [{"kind": "process", "pid": 7}],
    }
    assert audited("a", found=[there])["verdict"] == "pass"
    made = report(audited("a", found=[there, extra]))
    assert made["verdict"] == "fail" and made["hosts"][0]["undeclared"][0]["where"] == "/tmp/hicache"
    assert "not in the data map" in page.render(made) and "process 7" in junit.render(made)


def test_any_control_that_the_audit_returns_is_shown():
    made = report(audited("a", result("KV-99", "fail")))
    assert [one["control"] for one in made["controls"]] == ["KV-06", "KV-99"] and "KV-99" in page.render(made)


def test_a_waiver_is_listed_with_its_end():
    waived = result(status="waived", waiver={"until": "2027-03-31", "reason": "ticket 4711"})
    made = report(audited("a", waived))
    assert made["waivers"][0]["until"] == "2027-03-31" and "ticket 4711" in page.render(made)


def test_history_shows_its_gaps_and_its_breaks():
    lines = [{"time": NOW + step, "verdict": "pass", "tiers": {}} for step in (0, 3600, 20000)]
    made = report(audited("a", history=lines, problems=["the chain is broken"]))
    assert made["hosts"][0]["gaps"] == [{"from": NOW + 3600, "to": NOW + 20000}]
    text = page.render(made)
    assert "the chain is broken" in text and 'class="gap"' in text and text.count('class="growth"') == 2


# -- hostile words


def hostile_report():
    bad = result(HOSTILE, "fail", HOSTILE, **{HOSTILE: HOSTILE, "waiver": HOSTILE})
    bad.update(title=HOSTILE, severity=HOSTILE, message=HOSTILE, remedy=HOSTILE)
    found = {key: HOSTILE for key in ("store", "path", "inside", "sure")}
    answer = {
        "audit": {"time": NOW, "results": [bad, dict(bad, status="waived", control="KV-02")]},
        "history_problems": [HOSTILE],
    }
    known = {
        "tiers": [dict(found, found=[{"kind": HOSTILE}])],
        "unread": [HOSTILE],
        "listeners": [{"address": HOSTILE}],
    }
    tiers = [{"name": HOSTILE, "store": HOSTILE, "path": HOSTILE, "purpose": HOSTILE}]
    lost = document.host("b" + HOSTILE, {"unreachable": True, "msg": HOSTILE})
    return report(document.host(HOSTILE, answer, {"tiers": tiers}, {"found": known}), lost)


def test_nothing_from_a_host_becomes_markup():
    plain, seen = Seen(page.render(report(audited("a")))), Seen(page.render(hostile_report()))
    assert seen.tags.count("script") == plain.tags.count("script") == 1
    assert "img" not in seen.tags and not [key for key, _value in seen.attributes if key.startswith("on")]
    assert "\x1b" not in "".join(seen.words) and "\u202e" not in "".join(seen.words)


def test_the_policy_lets_our_script_and_style_run_and_nothing_else():
    text = page.render(hostile_report())
    policy = re.search(r'Policy" content="([^"]*)"', text).group(1)
    assert "default-src &#x27;none&#x27;" in policy and "unsafe" not in policy
    for part in (assets.SCRIPT, assets.STYLE):
        assert page._hash(part) in policy and part in text


def test_junit_is_xml_whatever_a_host_says():
    made = minidom.parseString(junit.render(hostile_report()).encode("utf-8"))
    assert made.documentElement.tagName == "testsuites"


@pytest.mark.parametrize(
    "junk", [None, 5, "x", [], [5], {"results": 5}, {"results": [5, {}]}, {"results": [{"evidence": 5, "tier": None}]}]
)
def test_a_broken_answer_is_a_host_that_did_not_pass_and_crashes_nothing(junk):
    made = report(document.host("a", {"audit": junk, "history": junk}, junk, junk))
    page.render(made), junit.render(made), json.dumps(made)
    assert made["verdict"] == "fail" or made["hosts"][0]["counts"]["unknown"] == 0


# -- form


def test_the_page_is_one_file_that_asks_for_nothing():
    text = page.render(report(audited("a")))
    seen = Seen(text)
    assert not [
        value for key, value in seen.attributes if key in ("src", "action") or (key == "href" and value[0] != "#")
    ]
    assert "url(" not in text and "@import" not in text


def test_the_data_map_comes_first():
    titles = re.findall(r"<h2>([^<]*)</h2>", page.render(report(audited("a", result(status="fail")))))
    assert titles[:2] == ["Data map", "Hosts and controls"]


def test_the_retention_line_stands_where_the_retention_ends():
    text = plots.histogram([[100, 1], [200, 1]], 150)
    left, right = (float(one) for one in re.findall(r'<rect class="bar" x="([\d.]+)"', text))
    line = float(re.search(r'class="limit" x1="([\d.]+)"', text).group(1))
    assert right < line < right + (right - left)
    assert plots.histogram([[100, 0]], 150) == ""


def test_blocks_past_the_retention_are_drawn_as_late():
    assert plots.histogram([[100, 1], [200, 1], [300, 1]], 200).count('class="late"') == 1


def test_a_thousand_hosts_are_rendered_in_seconds_and_some_megabytes():
    made = report(*(audited(f"gpu{n:04}", *(result(f"KV-{c:02}") for c in range(1, 17))) for n in range(1000)))
    began = time.monotonic()
    text = page.render(made)
    assert time.monotonic() - began < 20 and len(text) < 16 << 20
    # A browser that unfolds all of them for paper takes 8 GB.
    assert " class=many>" in text and " class=many>" not in page.render(report(audited("gpu1")))


def test_of_several_runs_the_newest_audit_of_each_host_counts():
    old, new = audited("a", result(status="fail")), audited("a")
    old["time"] = NOW - 5
    lost = document.host("a", {"unreachable": True})
    made = document.merge([report(new), report(old, audited("b")), report(lost)], NOW)
    assert [(one["name"], one["verdict"]) for one in made["hosts"]] == [("a", "pass"), ("b", "pass")]
    with pytest.raises(ValueError, match="schema"):
        document.merge([{"schema": 9}], NOW)


def test_the_schema_of_report_json_is_documented_key_by_key():
    page_text = (ROOT / "docs/report.md").read_text()
    made = json.loads(json.dumps(report(audited("a", found=[{"store": "vllm_obj", "bucket": "b"}]))))
    host = made["hosts"][0]
    for keys in (made, made["counts"], host, host["tiers"][0], host["results"][0], host["undeclared"][0]):
        assert [key for key in keys if f"`{key}`" not in page_text] == []


def test_the_playbook_gives_the_module_what_it_asks_for():
    text = (ROOT / "playbooks/audit.yml").read_text()
    options = yaml.safe_load((ROOT / "plugins/modules/fleet_report.py").read_text().split('r"""')[1].split('"""')[0])
    for key in ("audit", "found"):
        assert options["options"][key]["default"] in text


def test_failures_count_what_was_asked_for_and_always_a_host_without_audit():
    medium = {**result("KV-16", status="fail"), "severity": "medium"}
    made = report(
        audited("a", result("KV-03", status="fail"), medium),
        audited("b", medium),
        audited("c", found=[{"store": "vllm_obj", "bucket": "b"}]),
        document.host("d", {"unreachable": True, "msg": "no route"}),
    )
    lost, stray = "d: unreachable: no route", "c: 1 places that no data map names"
    assert document.failures(made, "high") == ["a: 1 findings: KV-03", stray, lost]
    assert document.failures(made, "any") == ["a: 2 findings: KV-03, KV-16", "b: 1 findings: KV-16", stray, lost]
    assert document.failures(made, "none") == [lost]


def test_a_host_whose_search_did_not_end_does_not_pass():
    answer = {"failed": True, "msg": "the host cannot be looked at", "audit": {"time": NOW, "results": [result()]}}
    made = report(document.host("a", answer))
    assert made["verdict"] == "fail" and "cannot be looked at" in page.render(made)


def test_thinned_history_has_only_the_gaps_that_the_host_counted():
    lines = [{"time": NOW + step, "verdict": "pass", "tiers": {}} for step in (0, 20000, 60000)]
    answer = {
        "audit": {"time": NOW, "results": []},
        "history": lines,
        "history_gaps": [{"from": NOW + 30000, "to": NOW + 50000}],
    }
    made = document.host("a", answer)
    assert len(made["gaps"]) == 1 and plots.growth(made["history"], made["gaps"]).count("polyline") == 2
