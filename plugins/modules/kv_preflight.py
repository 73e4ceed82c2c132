#!/usr/bin/python
# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Refuse a host that a later step would refuse, before anything is changed."""

from __future__ import annotations

DOCUMENTATION = r"""
module: kv_preflight
short_description: Refuse a host before anything on it is changed
version_added: 0.1.0
description:
  - Judges a host against its data map and fails with every reason why the roles of this collection must not touch it,
    one line each, naming host, tier, key, reason and fix.
  - Looks at Python, systemd and dm-crypt, at accounts and writers' units, at what lies in each tier's path and below
    its mount, at images and the room for them, at crypttab, fstab and open mappings.
  - Changes nothing.
options:
  data_map:
    description: The normalised data map, as the filter P(llmhost.hardening.data_map#filter) returns it.
    type: dict
    required: true
  wipe:
    description: Devices whose present content is given up, as of P(llmhost.hardening.kv_volume#module).
    type: list
    elements: dict
    default: []
    suboptions:
      device:
        description: The device exactly as the data map names it.
        type: str
        required: true
      serial:
        description: The serial number that the device itself reports.
        type: str
        required: true
extends_documentation_fragment:
  - llmhost.hardening.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
  idempotent:
    support: full
author:
  - llmhost contributors (@llmhost)
seealso:
  - module: llmhost.hardening.kv_volume
  - module: llmhost.hardening.kv_access
"""

EXAMPLES = r"""
- name: Refuse before anything is changed
  llmhost.hardening.kv_preflight:
    data_map: "{{ llmhost_tiers | llmhost.hardening.data_map(inventory_hostname) }}"
"""

RETURN = r"""
problems:
  description: Every reason to refuse, each with host, tier, key, reason and fix.
  returned: failure
  type: list
  elements: dict
volumes:
  description: What M(llmhost.hardening.kv_volume) will do, a list of steps for each tier with a volume of ours.
  returned: success
  type: list
  elements: dict
  sample: [{tier: chat, steps: ["allocate /var/lib/llmhost/chat.img (200G)"]}]
"""

import sys

from ansible.module_utils.basic import AnsibleModule

WIPE = {
    "type": "list",
    "elements": "dict",
    "default": [],
    "options": {"device": {"type": "str", "required": True}, "serial": {"type": "str", "required": True}},
}


def main() -> None:
    module = AnsibleModule(
        argument_spec={"data_map": {"type": "dict", "required": True}, "wipe": WIPE},
        supports_check_mode=True,
    )
    if sys.version_info < (3, 9):  # noqa: UP036  what ruff takes for granted is what is asked here
        module.fail_json(
            msg="Python %d.%d runs this module; 3.9 is needed. Fix: set ansible_python_interpreter to a newer python3."
            % sys.version_info[:2]
        )
    # Older Pythons cannot even read this code.
    from ansible_collections.llmhost.hardening.plugins.module_utils.kv import datamap, preflight, system

    try:
        document = datamap.validate(module.params["data_map"], "data_map")
        facts = preflight.gather(document)
        problems = preflight.judge(document, facts, module.params["wipe"])
        if problems:
            raise datamap.MapError(problems)
        for text in preflight.warnings(document, facts):
            module.warn(text)
        module.exit_json(
            changed=False,
            volumes=preflight.plan(document, facts),
        )
    except datamap.MapError as error:
        module.fail_json(msg=str(error), problems=[problem._asdict() for problem in error.problems])
    except (system.HostError, OSError) as error:
        module.fail_json(msg=str(error))


if __name__ == "__main__":
    main()
