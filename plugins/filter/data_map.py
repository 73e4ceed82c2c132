# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The data map on the controller: the checks that the host's program makes, before any connection is opened."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from ansible.errors import AnsibleFilterError

from ansible_collections.llmhost.hardening.plugins.module_utils.kv import datamap


def data_map(tiers: Any, host: str, prompt_log_retention_minutes: Any = 1440) -> Any:
    try:
        document = datamap.normalise(tiers, str(host), prompt_log_retention_minutes)
    except datamap.MapError as error:
        raise AnsibleFilterError(str(error)) from error
    # Plain values: what Ansible's own text and number types carry along has no place in the host's file.
    return json.loads(json.dumps(document))


def data_map_problems(tiers: Any, host: str, prompt_log_retention_minutes: Any = 1440) -> list[str]:
    _document, problems = datamap.check(tiers, str(host), prompt_log_retention_minutes)
    return [str(problem) for problem in problems]


class FilterModule:
    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"data_map": data_map, "data_map_problems": data_map_problems}
