# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""docs/stores.md says what the registry says, all of it and nothing else."""

from __future__ import annotations

import re

import gen_stores
import pytest

STORES = gen_stores.registry().STORES
TEXT = gen_stores.page(STORES)


def section(name):
    return TEXT.partition(f"\n## {name}\n")[2].partition("\n## ")[0]


def test_the_committed_page_is_the_generated_one():
    assert gen_stores.PAGE.read_text(encoding="utf-8") == TEXT, "run tests/tools/gen_stores.py"


def test_check_fails_on_a_page_of_another_registry(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("sys.argv", ["gen_stores.py", "--check"])
    assert gen_stores.main() == 0
    monkeypatch.setattr(gen_stores, "ROOT", tmp_path)
    monkeypatch.setattr(gen_stores, "registry", lambda: type("R", (), {"STORES": STORES}))
    monkeypatch.setattr(gen_stores, "PAGE", tmp_path / "stores.md")
    assert gen_stores.main() == 1
    (tmp_path / "stores.md").write_text(TEXT + "x")
    assert gen_stores.main() == 1 and "run tests/tools/gen_stores.py" in capsys.readouterr().err
    monkeypatch.setattr("sys.argv", ["gen_stores.py"])
    assert gen_stores.main() == 0 and (tmp_path / "stores.md").read_text() == TEXT


def test_every_store_has_one_section_and_one_row():
    assert re.findall(r"^## (.*)$", TEXT, re.MULTILINE) == ["Overview", *sorted(STORES)]
    assert re.findall(r"^\| \[(\w+)\]", TEXT, re.MULTILINE) == sorted(STORES)


@pytest.mark.parametrize("name", sorted(STORES))
def test_a_section_says_all_that_is_known(name):
    store, text = STORES[name], section(name)
    for known in (store.title, store.removing, store.evidence, gen_stores.expires(store), *store.default_paths):
        assert known in text
    for danger in store.dangers:
        assert f"- {danger.text} ({danger.source})" in text
    if store.layout is not None:
        assert all(f"{kind:<7}{path}\n" in text for kind, path in gen_stores.names(store.layout))


def test_when_a_store_expires():
    assert gen_stores.expires(STORES["vllm_fs"]) == "live from 0.28"
    assert gen_stores.expires(STORES["llamacpp_slots"]) == "live"
    assert gen_stores.expires(STORES["lmcache_disk"]) == "stopped"
    assert gen_stores.expires(STORES["vllm_obj"]) == "no files on the host"


def test_names_are_whole_paths_with_their_kind():
    names = list(gen_stores.names(STORES["llama_cpp_python_disk"].layout))
    assert ("block", "[0-9a-f]{2}/[0-9a-f]{2}/[0-9a-f]{28}\\.val") in names
    assert ("empty", "[0-9a-f]{2}/") in names
    assert "begins with qsgg" in dict(gen_stores.names(STORES["llamacpp_slots"].layout))["block"]


def test_a_changed_entry_changes_the_page():
    changed = {**STORES, "vllm_fs": STORES["vllm_fs"]._replace(removing="something else")}
    assert gen_stores.page(changed) != TEXT
