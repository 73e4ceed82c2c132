#!/usr/bin/python
# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: kv_engine
short_description: Give the engines of a host their offload settings
version_added: 0.1.0
author:
  - llmhost contributors (@llmhost)
description:
  - Finds which release of the engine a unit would start and under which Python, renders its offload settings from the
    data map, and writes them as C(/etc/llmhost/engine/NAME.yaml) with a drop-in, a unit, a quadlet or a compose file.
  - Refuses settings that the release does not know or that are unsafe, with a code for each reason. The codes stand in
    C(docs/engine-settings.md).
  - Restarts nothing. Writes no secret, reads none, and touches no file that it did not write.
extends_documentation_fragment:
  - llmhost.hardening.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
  idempotent:
    support: full
options:
  data_map:
    description: The normalised data map, as the filter P(llmhost.hardening.data_map#filter) returns it.
    type: dict
    required: true
  engines:
    description: The engines of the host, see C(docs/engine-settings.md).
    type: list
    elements: dict
    required: true
seealso:
  - module: llmhost.hardening.kv_access
  - plugin: llmhost.hardening.kv_transfer_config
    plugin_type: filter
"""

EXAMPLES = r"""
- name: Give vLLM its tier
  llmhost.hardening.kv_engine:
    data_map: "{{ llmhost_tiers | llmhost.hardening.data_map(inventory_hostname) }}"
    engines:
      - name: chat
        unit: vllm.service
        settings:
          cpu_bytes_to_use: 8G
          tiers:
            chat: {}
"""

RETURN = r"""
engines:
  description: What was found out about each engine.
  returned: success
  type: list
  elements: dict
  contains:
    name:
      description: Name of the engine.
      type: str
    version:
      description: Its release; none for engines whose settings do not depend on it.
      type: str
    python:
      description: The Python that runs it.
      type: str
    source:
      description: Where the release was read.
      type: str
written:
  description: Files that were written, or in check mode would be.
  returned: success
  type: list
  elements: str
removed:
  description: Files that were removed, or in check mode would be.
  returned: success
  type: list
  elements: str
restart_pending:
  description: Units whose processes run without their settings as they are now.
  returned: success
  type: list
  elements: str
problems:
  description: Every reason to refuse, with host, tier, key, reason and fix.
  returned: failure
  type: list
  elements: dict
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.llmhost.hardening.plugins.module_utils import options, running
from ansible_collections.llmhost.hardening.plugins.module_utils.kv import datamap, offload_host


def main() -> None:
    """Ansible calls this."""
    module = AnsibleModule(
        argument_spec={
            "data_map": options.DATA_MAP,
            "engines": {"type": "list", "elements": "dict", "required": True},
        },
        supports_check_mode=True,
    )

    def work(act: bool) -> dict[str, Any]:
        result = offload_host.run(module.params["engines"], running.data_map(module), act=act)
        if problems := result.pop("problems"):
            raise datamap.MapError(problems)
        return result

    result = running.change(module, work)
    for text in result.pop("warnings"):
        module.warn(text)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
