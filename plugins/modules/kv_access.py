#!/usr/bin/python
# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Prepare units and drop-ins: only the account gets in."""

from __future__ import annotations

DOCUMENTATION = r"""
module: kv_access
short_description: Close tiers to everybody but their account
version_added: 0.1.0
description:
  - Writes and enables a prepare unit for each tier (C(llmhost-tier@NAME.service), which sets owner, mode 0700 and a
    closed default ACL at every mount) and a drop-in for each unit that writes it, starts the prepare units and verifies
    what they did.
  - Removes prepare units and drop-ins that it wrote and the map no longer wants; tiers that vanished keep theirs.
  - Blocks that lie below other people's mounts are destroyed as M(llmhost.hardening.kv_volume) does.
  - Never restarts a writer; RV(restart_pending) says which ones run without the drop-in's effect.
options:
  data_map:
    description: The normalised data map, as the filter P(llmhost.hardening.data_map#filter) returns it.
    type: dict
    required: true
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
  - module: llmhost.hardening.kv_host
"""

EXAMPLES = r"""
- name: Close tiers to everybody but their account
  llmhost.hardening.kv_access:
    data_map: "{{ llmhost_tiers | llmhost.hardening.data_map(inventory_hostname) }}"
  register: access

- name: Restart what runs without the new settings
  ansible.builtin.systemd_service:
    name: "{{ item }}"
    state: restarted
  loop: "{{ access.restart_pending }}"
  when: llmhost_restart == 'when_needed'
"""

RETURN = r"""
restart_pending:
  description: Units whose running processes do not have the effect of their drop-in yet.
  returned: success
  type: list
  elements: str
containers_pending:
  description:
    - Containers without a unit of their own (docker, podman by hand) that still see the directory below a tier's mount
      and must be restarted, one line each.
  returned: success
  type: list
  elements: str
restart_reasons:
  description: Why, for each of these units.
  returned: success
  type: dict
  sample: {vllm.service: ["umask is 0022, not 0077"]}
steps:
  description: What was done, or in check mode what would be.
  returned: success
  type: list
  elements: str
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.llmhost.hardening.plugins.module_utils import options, running
from ansible_collections.llmhost.hardening.plugins.module_utils.kv import absent, access, datamap


def main() -> None:
    module = AnsibleModule(
        argument_spec={"data_map": options.DATA_MAP},
        supports_check_mode=True,
    )
    result = running.change(module, lambda act: _run(running.data_map(module), act))
    for text in result["containers_pending"]:
        module.warn(f"not restarted, whatever llmhost_restart is: {text}")
    module.exit_json(**result)


def _run(document: datamap.Document, act: bool) -> dict[str, Any]:
    gone = absent.look_all(document, own=False)
    absent.refuse(gone, document["host"])
    return absent.end_prepared(act, absent.finish(gone, document, act, access.run(document, act)))


if __name__ == "__main__":
    main()
