#!/usr/bin/python
# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The program and the data map on a host."""

from __future__ import annotations

DOCUMENTATION = r"""
module: kv_host
short_description: Install kvtier and the data map
version_added: 0.1.0
description:
  - Writes C(/usr/local/sbin/kvtier) (the same code as the modules), C(/etc/llmhost/tiers.json) and the directories of
    run records below C(/var/lib/llmhost/state), each of which belongs to its tier's account.
  - A tier that the host knows and the map no longer names stays in C(tiers.json) as V(vanished) and keeps expiring.
  - A map on the host that cannot be read is replaced only if the new one names every tier that the host is known to
    have.
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
  - module: llmhost.hardening.kv_access
"""

EXAMPLES = r"""
- name: Install kvtier and the data map
  llmhost.hardening.kv_host:
    data_map: "{{ llmhost_tiers | llmhost.hardening.data_map(inventory_hostname) }}"
"""

RETURN = r"""
data_map:
  description: The data map as it lies on the host now, tiers that the given one no longer names included.
  returned: success
  type: dict
  sample: {schema: 1, host: gpu1, prompt_log_retention_minutes: 1440, tiers: []}
version:
  description: Version of kvtier.
  returned: success
  type: str
  sample: 0.1.0
written:
  description: Files and directories that were written, or in check mode would be.
  returned: success
  type: list
  elements: str
stopped:
  description: Tiers whose blocks may go only while their engine is stopped, which root alone can see.
  returned: success
  type: list
  elements: str
removed:
  description: Directories of run records of tiers that are gone, which were removed, or in check mode would be.
  returned: success
  type: list
  elements: str
vanished:
  description: Tiers that the host has and the map no longer names.
  returned: success
  type: list
  elements: str
"""

from ansible.module_utils.basic import AnsibleModule

# With cli comes all that kvtier is made of: Ansible packs what a module imports, directly or not.
from ansible_collections.llmhost.hardening.plugins.module_utils import options, running
from ansible_collections.llmhost.hardening.plugins.module_utils.kv import cli, datamap, host


def main() -> None:
    module = AnsibleModule(
        argument_spec={"data_map": options.DATA_MAP},
        supports_check_mode=True,
    )
    todo = running.change(module, lambda act: _work(running.data_map(module), act))
    for text in todo.warnings:
        module.warn(text)
    module.exit_json(diff=todo.diffs(), version=cli.VERSION, **host.result(todo))


def _work(document: datamap.Document, act: bool) -> host.Plan:
    todo = host.plan(document)
    if todo.problems:
        raise datamap.MapError(todo.problems)
    if act:
        host.apply(todo)
    return todo


if __name__ == "__main__":
    main()
