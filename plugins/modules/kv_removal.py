#!/usr/bin/python
# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: kv_removal
short_description: Take off a host what a role of this collection wrote
description:
  - Removes what one role wrote and nothing else. What is left over of an older data map goes too.
  - Blocks stay unless O(remove_data) names their tier, the history of audits and the receipts of purges stay unless
    O(remove_evidence) is true. Packages and accounts always stay.
  - C(/usr/local/sbin/kvtier), the data map and the records of expiry go with the last role that needs them.
  - Writers are neither stopped nor restarted. A tier that is still in use is not taken away.
version_added: 0.1.0
options:
  role:
    description: Whose work to undo.
    type: str
    choices: [engine_offload, kv_access, kv_retention, kv_volume]
    required: true
  data_map:
    description:
      - The data map, as the filter P(llmhost.hardening.data_map#filter) makes it. Tiers that the host knows besides are
        taken in.
      - Needed with O(role=kv_volume) and O(role=kv_access), not read with the others.
    type: dict
  remove_data:
    description:
      - Names of tiers whose blocks may go with them. The roles take it from C(-e) of the command line alone.
    type: list
    elements: str
    default: []
  remove_evidence:
    description: Whether the history of audits and the receipts of purges go too, with O(role=kv_retention).
    type: bool
    default: false
  textfile_dir:
    description: Where O(role=kv_retention) wrote metrics; empty for none.
    type: str
    default: ""
extends_documentation_fragment:
  - llmhost.hardening.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
  idempotent:
    support: full
author:
  - llmhost contributors (@llmhost)
seealso:
  - module: llmhost.hardening.kv_volume
  - module: llmhost.hardening.kv_access
"""

EXAMPLES = r"""
- name: Take expiry and audit off the host
  llmhost.hardening.kv_removal:
    role: kv_retention
    textfile_dir: /var/lib/prometheus/node-exporter
"""

RETURN = r"""
removed:
  description: What was removed, or in check mode would be.
  returned: success
  type: list
  elements: str
kept:
  description: What stays, and why.
  returned: success
  type: list
  elements: str
  sample: ["/var/lib/llmhost/audit: the history of audits, evidence"]
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.llmhost.hardening.plugins.module_utils import running
from ansible_collections.llmhost.hardening.plugins.module_utils.kv import removal


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "role": {"type": "str", "choices": list(removal.ROLES), "required": True},
            "data_map": {"type": "dict"},
            "remove_data": {"type": "list", "elements": "str", "default": []},
            "remove_evidence": {"type": "bool", "default": False},
            "textfile_dir": {"type": "str", "default": ""},
        },
        required_if=[("role", "kv_volume", ["data_map"]), ("role", "kv_access", ["data_map"])],
        supports_check_mode=True,
    )
    params = module.params
    told = removal.Told(params["remove_data"], params["remove_evidence"], params["textfile_dir"])

    def work(act: bool) -> dict[str, Any]:
        document = running.data_map(module) if params["data_map"] is not None else {"tiers": []}
        return removal.run(params["role"], document, told, act)

    module.exit_json(**running.change(module, work))


if __name__ == "__main__":
    main()
