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
  - Refuses an engine whose version must not lose blocks while it runs, unless the tier's C(expire) is V(stopped), and a
    retention that becomes shorter than blocks that lie there are old, unless O(shorten) names the tier.
  - Says what the roles will cost the host, engines that need a restart and caches that are lost, as far as it can be
    told beforehand.
  - Changes nothing.
options:
  restart:
    description: The value of C(llmhost_restart) that the forecast is made for.
    type: str
    choices: [never, when_needed]
    default: never
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
  shorten:
    description:
      - Names of tiers whose blocks may go because their retention becomes shorter than they are old. The playbook and
        the roles take it from C(-e llmhost_shorten_retention=NAME) of the command line alone.
    type: list
    elements: str
    default: []
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
  register: compared

- name: What it will cost
  ansible.builtin.debug:
    msg: "{{ compared.forecast.lines }}"
"""

RETURN = r"""
buckets:
  description: Tiers with a bucket, those that the host remembers and the map no longer names included.
  returned: success
  type: list
  elements: str
  sample: [chat]
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
forecast:
  description: What the roles will cost this host.
  returned: success
  type: dict
  contains:
    restarts:
      description: Units whose running processes need a restart.
      type: list
      elements: dict
      contains:
        unit:
          description: The unit.
          type: str
          sample: vllm.service
        reasons:
          description: What its processes lack.
          type: list
          elements: str
          sample: ["umask is 0022, not 0077"]
        memory_bytes:
          description: Bytes of the memory tier that its processes have mapped and lose.
          type: int
          sample: 0
        start_seconds:
          description: Seconds that its last start took; null for a unit that does not tell systemd when it is ready.
          type: float
          sample: 95.2
        by_hand:
          description: True for a container without a unit of its own, which nobody restarts but you.
          type: bool
          sample: false
    caches:
      description: Tiers whose blocks will be lost.
      type: list
      elements: dict
      contains:
        tier:
          description: Name of the tier.
          type: str
          sample: chat
        path:
          description: Its path.
          type: str
          sample: /var/lib/vllm-kv
        blocks:
          description: How many blocks.
          type: int
          sample: 512
        bytes:
          description: Bytes of blocks and temporaries.
          type: int
          sample: 1073741824
        complete:
          description: False if counting was ended after 20 seconds; there are more then.
          type: bool
          sample: true
        seconds:
          description: Age of the oldest block in seconds, which is how long the cache took to gather; null if untold.
          type: float
          sample: 7200.0
        fate:
          description: Why they are lost.
          type: str
          sample: "destroyed when the volume is mounted over them: they lie on storage that is not the tier's"
        units:
          description: The units whose restart does it, where it is a restart.
          type: list
          elements: str
          sample: []
    destroys:
      description: Whether this run, with O(restart) as given, takes a cache from the host.
      type: bool
      sample: true
    lines:
      description: The same in lines for people; empty if the run costs nothing.
      type: list
      elements: str
      sample: ["gpu1: vllm.service needs a restart, left to you (llmhost_restart: never): umask is 0022, not 0077"]
"""

import sys

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.llmhost.hardening.plugins.module_utils import options


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "data_map": options.DATA_MAP,
            "restart": {"type": "str", "choices": ["never", "when_needed"], "default": "never"},
            "wipe": options.WIPE,
            "shorten": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )
    if sys.version_info < (3, 9):  # noqa: UP036  what ruff takes for granted is what is asked here
        module.fail_json(
            msg="Python %d.%d runs this module; 3.9 is needed. Fix: set ansible_python_interpreter to a newer python3."
            % sys.version_info[:2]
        )
    # Older Pythons cannot even read this code.
    from ansible_collections.llmhost.hardening.plugins.module_utils import running
    from ansible_collections.llmhost.hardening.plugins.module_utils.kv import (
        datamap,
        forecast,
        preflight,
        preflight_expiry,
    )

    shorten = module.params["shorten"]

    def work() -> None:
        document = running.data_map(module)
        facts = preflight.gather(document)
        ahead = preflight_expiry.gather(document, facts.init == "systemd")
        problems = preflight.judge(document, facts, module.params["wipe"])
        problems += preflight_expiry.judge(document, ahead, shorten)
        if problems:
            raise datamap.MapError(problems)
        for text in preflight.warnings(document, facts) + preflight_expiry.warnings(document, ahead, shorten):
            module.warn(text)
        module.exit_json(
            changed=False,
            volumes=preflight.plan(document, facts),
            buckets=preflight.bucket_tiers(document),
            forecast=forecast.gather(document, facts.volumes, gone=facts.gone).as_result(module.params["restart"]),
        )

    running.refusing(module, work)


if __name__ == "__main__":
    main()
