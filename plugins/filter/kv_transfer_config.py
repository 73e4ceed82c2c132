# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""vLLM's offload settings on the controller: rendered from the data map for one release, or refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from ansible.errors import AnsibleFilterError

from ansible_collections.llmhost.hardening.plugins.module_utils.kv import datamap, offload_render


def _render(settings: Any, data_map: Any, version: Any, python: Any) -> offload_render.Rendered:
    try:
        document = datamap.validate(data_map, "data_map")
    except datamap.MapError as error:
        raise AnsibleFilterError(str(error)) from error
    return offload_render.render(settings, document, version and str(version), python and str(python))


def kv_transfer_config(settings: Any, data_map: Any, version: Any, python: Any = None) -> Any:
    rendered = _render(settings, data_map, version, python)
    if rendered.problems:
        raise AnsibleFilterError("\n".join(str(problem) for problem in rendered.problems))
    # Plain values: what Ansible's own text and number types carry along has no place in the engine's file.
    return json.loads(json.dumps(rendered.transfer))


def kv_transfer_config_problems(settings: Any, data_map: Any, version: Any, python: Any = None) -> list[str]:
    return [str(problem) for problem in _render(settings, data_map, version, python).problems]


class FilterModule:
    def filters(self) -> dict[str, Callable[..., Any]]:
        return {
            "kv_transfer_config": kv_transfer_config,
            "kv_transfer_config_problems": kv_transfer_config_problems,
        }
