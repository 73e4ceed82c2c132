# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from ansible.errors import AnsibleFilterError
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template

from ansible_collections.llmhost.hardening.plugins.filter import data_map as plugin
from ansible_collections.llmhost.hardening.plugins.module_utils.kv import datamap

FILTER_DIR = Path(plugin.__file__).resolve().parent


def tier(**changes):
    good = {
        "name": "chat",
        "store": "vllm_fs",
        "path": "/var/lib/vllm-kv",
        "owner": "vllm",
        "services": ["vllm.service"],
    }
    return {**good, **changes}


def test_the_filter_gives_the_normaliser_s_document():
    assert plugin.data_map([tier()], "gpu1", 60) == datamap.normalise([tier()], "gpu1", 60)


def test_what_the_filter_gives_is_accepted_by_the_host():
    document = plugin.data_map(
        [tier(volume={"backend": "dmcrypt", "source": {"file": "/srv/a.img", "size": "1G"}})], "gpu1"
    )
    assert datamap.validate(json.loads(json.dumps(document))) == document


def test_a_bad_map_fails_with_every_mistake():
    with pytest.raises(AnsibleFilterError) as error:
        plugin.data_map([tier(path="relative"), tier(store="vlm_fs")], "gpu1", 60)
    for expected in ("host gpu1, tier chat, key path:", "did you mean vllm_fs", "the name stands twice"):
        assert expected in str(error.value)


def test_problems_are_the_same_mistakes_as_lines():
    bad = [tier(retention_minutes=90), tier(name="Other")]
    with pytest.raises(AnsibleFilterError) as error:
        plugin.data_map(bad, "gpu1", 60)
    assert plugin.data_map_problems(bad, "gpu1", 60) == str(error.value).splitlines()
    assert plugin.data_map_problems([tier()], "gpu1", 60) == []


def test_a_map_that_came_through_templates_holds_plain_values_only():
    """Ansible wraps text and numbers in types of its own; type() checks on the way would refuse them."""
    raw = tier(retention_minutes="{{ minutes }}", path="/var/lib/{{ 'vllm' }}-kv")
    templates = {key: trust_as_template(value) if isinstance(value, str) else value for key, value in raw.items()}
    templar = Templar(loader=DataLoader(), variables={"minutes": 30})
    minutes = templar.template(trust_as_template("{{ minutes }}"))
    document = plugin.data_map(templar.template([templates]), "gpu1", minutes)

    def types(value):
        yield type(value)
        for below in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            yield from types(below)

    assert set(types(document)) <= {dict, list, str, int, bool, type(None)}
    assert document["prompt_log_retention_minutes"] == 30


@pytest.mark.parametrize("name", sorted(plugin.FilterModule().filters()))
def test_each_filter_is_documented_beside_itself(name):
    pages = yaml.safe_load((FILTER_DIR / f"{name}.yml").read_text(encoding="utf-8"))
    assert pages["DOCUMENTATION"]["name"] == name
    assert set(pages) == {"DOCUMENTATION", "EXAMPLES", "RETURN"}
