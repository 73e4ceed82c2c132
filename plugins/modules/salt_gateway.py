#!/usr/bin/python
# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The salt gateway's key, tenants, configuration and unit on a host."""

from __future__ import annotations

DOCUMENTATION = r"""
module: salt_gateway
short_description: Run the salt gateway with these settings
version_added: 0.1.0
description:
  - Writes the salt gateway's key, tenants, nginx configuration and systemd unit, starts it, and waits until it says
    that it has taken them up.
  - The key is made on the host from a random source if there is none. It is never shown, and a key that other accounts
    could read or that no random source made is refused.
  - New tenants and epochs are taken up by the running gateway without a reload. A changed configuration is reloaded, a
    changed key or unit restarts the gateway.
  - The role P(llmhost.hardening.cache_salt_gateway#role) installs what this module needs.
options:
  settings:
    description:
      - The settings, named as the role's variables without their prefix C(cache_salt_gateway_).
      - Not used with O(state=absent).
    type: dict
    default: {}
  key:
    description: The key, 64 hexadecimal digits. Without it the host keeps the one it has, or makes one.
    type: str
  state:
    description: V(absent) stops the gateway and removes its unit, its files and its key.
    type: str
    choices: [present, absent]
    default: present
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
  - plugin: llmhost.hardening.tenant_salt
    plugin_type: filter
"""

EXAMPLES = r"""
- name: Run the salt gateway
  llmhost.hardening.salt_gateway:
    settings:
      engine_version: 0.29.0
      engine_key_file: /etc/vllm/api-key
      tenants:
        - name: acme
          epoch: "1"
          key_sha256: [5c1e5e0f4c1b6a0d3e1f8a7b9c2d4e6f5c1e5e0f4c1b6a0d3e1f8a7b9c2d4e6f]
"""

RETURN = r"""
written:
  description: Files that were written or removed, or in check mode would be.
  returned: success
  type: list
  elements: str
action:
  description: What was done to the unit, C(wait) if the gateway took up new tenants by itself, empty if nothing.
  returned: success
  type: str
  sample: reload
paths:
  description: The endpoints that are open.
  returned: success and state is present
  type: list
  elements: str
problems:
  description: Every reason to refuse, each with host, key, reason and fix; C(tier) is empty.
  returned: failure
  type: list
  elements: dict
"""

import socket

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.llmhost.hardening.plugins.module_utils import running
from ansible_collections.llmhost.hardening.plugins.module_utils.kv import datamap
from ansible_collections.llmhost.hardening.plugins.module_utils.salt import derive, host
from ansible_collections.llmhost.hardening.plugins.module_utils.salt import settings as settings_


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "settings": {"type": "dict", "default": {}},
            "key": {"type": "str", "no_log": True},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
        },
        supports_check_mode=True,
    )
    try:
        todo = running.change(module, lambda act: _work(module, act))
    except derive.SaltError as error:
        module.fail_json(msg=f"host {socket.gethostname()}, the key: {error}")
    for text in todo.warnings:
        module.warn(text)
    module.exit_json(
        changed=todo.changed,
        diff=[file.diff() for file in todo.files],
        written=[file.path for file in todo.files],
        action=todo.action,
        paths=todo.settings.get("paths", []),
    )


def _work(module: AnsibleModule, act: bool) -> host.Plan:
    todo = _plan(module)
    if act and module.params["state"] == "absent":
        host.apply_absent(todo)
    elif act and todo.changed:
        host.apply(todo)
    return todo


def _plan(module: AnsibleModule) -> host.Plan:
    if module.params["state"] == "absent":
        return host.plan_absent()
    given = module.params["settings"]
    name = socket.gethostname()
    problems = settings_.problems(given, name)
    if not problems:
        problems = host.problems(settings_.complete(given), name)
    if problems:
        raise datamap.MapError(problems)
    return host.plan(settings_.complete(given), module.params["key"])


if __name__ == "__main__":
    main()
