# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The history of audits: what was so on which day, and that nobody changed it."""

from __future__ import annotations

import os

import pytest

from ansible_collections.llmhost.hardening.plugins.module_utils.kv import history

DAY = 1_804_032_000.0  # 2027-03-03 00:00 UTC


def line(time, verdict="pass", status="pass"):
    return {
        "schema": 1,
        "time": time,
        "host": "gpu1",
        "map_digest": "0" * 64,
        "verdict": verdict,
        "results": {"KV-04 chat": status},
        "tiers": {"chat": {"block_bytes": 5}},
    }


@pytest.fixture
def kept(tmp_path):
    for hour in range(4):
        history.append(line(DAY + 3600 * hour), str(tmp_path))
    return tmp_path


def read(place):
    return history.read(str(place), owner=None)


def test_what_is_appended_is_read_and_the_chain_holds(kept):
    past = read(kept)
    assert [one["time"] for one in past.lines] == [DAY, DAY + 3600, DAY + 7200, DAY + 10800]
    assert past.problems == [] and os.stat(kept / history.FILE).st_mode & 0o777 == 0o600


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_changed_line_breaks_the_chain(kept, number):
    path = kept / history.FILE
    lines = path.read_text().splitlines(True)
    lines[number] = lines[number].replace('"verdict":"pass"', '"verdict":"fail"')
    path.write_text("".join(lines))
    assert any("broken" in one for one in read(kept).problems)


def test_a_line_taken_out_breaks_the_chain(kept):
    path = kept / history.FILE
    lines = path.read_text().splitlines(True)
    path.write_text("".join(lines[:1] + lines[2:]))
    assert any("broken" in one for one in read(kept).problems)


@pytest.mark.parametrize(
    "junk", ["nonsense", "{", "[]", '{"time": 1e999}', '{"time": "x", "tiers": {}, "results": {}}', "[" * 99999]
)
def test_damage_is_said_and_crashes_nothing(kept, junk):
    with (kept / history.FILE).open("a") as file:
        file.write(junk)
    history.append(line(DAY + 14400), str(kept))
    past = read(kept)
    assert len(past.lines) == 5 and any("damaged" in one for one in past.problems)
    assert not any("broken" in one for one in past.problems)


def test_the_chain_goes_on_over_a_rotation(kept, monkeypatch):
    monkeypatch.setattr(history, "ROTATE_BYTES", 10)
    history.append(line(DAY + 14400), str(kept))
    assert (kept / history.OLDER).exists()
    monkeypatch.setattr(history, "ROTATE_BYTES", 1 << 20)
    past = read(kept)
    assert len(past.lines) == 5 and past.problems == []


def test_a_symlink_in_its_place_is_neither_read_nor_written(tmp_path):
    (tmp_path / "victim").write_text("mine")
    (tmp_path / history.FILE).symlink_to(tmp_path / "victim")
    with pytest.raises(OSError, match="symbolic|loop"):
        history.append(line(DAY), str(tmp_path))
    assert (tmp_path / "victim").read_text() == "mine" and read(tmp_path).problems


def test_a_host_without_history_has_no_finding(tmp_path):
    past = read(tmp_path / "none")
    assert past == history.History([], [])
    assert history.judge([{"control": "KV-07", "status": "pass"}], past, DAY) == [
        {"control": "KV-07", "status": "pass"}
    ]


@pytest.mark.parametrize(("later", "status"), [(3600, "pass"), (8000, "fail")])
def test_a_gap_is_a_finding_of_kv_07(kept, later, status):
    given = [{"control": "KV-07", "status": "pass", "message": "good", "remedy": ""}]
    (result,) = history.judge(given, read(kept), DAY + 10800 + later)
    assert result["status"] == status


def test_a_day_is_answered_and_a_day_without_audits_is_not_a_good_one(kept):
    history.append(line(DAY + 86400 * 2, "fail", "fail"), str(kept))
    past = read(kept)
    assert history.told(past, "2027-03-02")[1] is False
    text, good = history.told(past, "2027-03-04")
    assert good is False and "nobody knows" in text[-1]
    text, good = history.told(past, "2027-03-05")
    assert good is False and "KV-04 chat" in text[0]
    with pytest.raises(ValueError, match="."):
        history.told(past, "3 March")


def test_a_whole_day_of_audits_that_pass_is_a_good_one(tmp_path):
    for hour in range(-2, 26):
        history.append(line(DAY + 3600 * hour), str(tmp_path))
    text, good = history.told(read(tmp_path), "2027-03-03")
    assert good is True and len(text) == 24


def test_an_audit_becomes_a_line():
    audit = {"time": DAY, "host": "h", "map_digest": "d", "verdict": "fail"}
    audit["results"] = [
        {"control": "KV-06", "tier": "chat", "status": "fail", "evidence": {"oldest_age_seconds": 9, "overdue": 1}}
    ]
    kept = history.line_of(audit, {"chat": 3})
    assert kept["results"] == {"KV-06 chat": "fail"}
    assert kept["tiers"] == {"chat": {"oldest_age_seconds": 9, "overdue": 1, "deleted": 3}}
