# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A permission counts only if it was given with -e."""

from __future__ import annotations

import pytest
from ansible import context
from ansible.module_utils.common.collections import ImmutableDict
from ansible.parsing.dataloader import DataLoader
from ansible.utils import vars as ansible_vars

from ansible_collections.llmhost.hardening.plugins.lookup import extra_var


def ask(monkeypatch: pytest.MonkeyPatch, *given: str) -> list[object]:
    monkeypatch.setattr(context, "CLIARGS", ImmutableDict(extra_vars=given))
    for cached in ("extra_vars", "_extra_vars"):
        if hasattr(ansible_vars.load_extra_vars, cached):
            monkeypatch.delattr(ansible_vars.load_extra_vars, cached)
    lookup = extra_var.LookupModule(loader=DataLoader())
    monkeypatch.setattr(lookup, "set_options", lambda **_: None)
    monkeypatch.setattr(lookup, "get_option", lambda name: [])
    return lookup.run(["kv_volume_wipe"], variables={"kv_volume_wipe": [{"device": "from the inventory"}]})


def test_what_the_inventory_says_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ask(monkeypatch) == [[]]


def test_what_the_command_line_says_does(monkeypatch: pytest.MonkeyPatch) -> None:
    given = '{"kv_volume_wipe": [{"device": "/dev/disk/by-id/x", "serial": "1"}]}'
    assert ask(monkeypatch, given) == [[{"device": "/dev/disk/by-id/x", "serial": "1"}]]
