#!/usr/bin/python
# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Close swap, dumps, hibernation, left shared memory and copies."""

from __future__ import annotations

DOCUMENTATION = r"""
module: kv_spill
short_description: Close the other ways by which KV blocks leave memory
version_added: 0.1.0
author:
  - llmhost contributors (@llmhost)
description:
  - Does the parts that are asked for and undoes those of an earlier run that are not asked for any more.
  - What it masked is kept in C(/etc/llmhost/spill.json); files that it wrote begin with its own line; entries of
    C(/etc/fstab) that it took out are kept there as comments. A host that asked for nothing is left as it is.
  - Refuses to turn swap off while memory has no room for what is in it.
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
  parts:
    description:
      - V(backups) keeps the tiers' paths in C(/etc/llmhost/backup-exclude), one per line, for C(--exclude-from) of
        backup programs.
      - V(core_dumps) makes systemd-coredump keep nothing. The writers' own limits are set by
        M(llmhost.hardening.kv_access).
      - V(crash_kernel) masks C(kdump-tools.service) and C(kdump.service) and unloads the crash kernel, whose dump holds
        keys and blocks.
      - V(hibernation) masks the targets of systemd by which memory is written to disk.
      - V(index) adds the tiers' paths to C(PRUNEPATHS) in C(/etc/updatedb.conf), if that is there.
      - V(orphans) removes C(/dev/shm/vllm_offload_*) that no process maps, when a writer stops and at boot.
    type: list
    elements: str
    choices:
      - backups
      - core_dumps
      - crash_kernel
      - hibernation
      - index
      - orphans
    default: []
  swap:
    description:
      - V(leave) changes nothing, and puts back what an earlier run changed.
      - V(off) turns off what is in the clear and takes it out of C(/etc/fstab).
      - V(encrypted) does the same and brings C(/var/lib/llmhost/swap.img) behind a random key made at each boot.
      - Swap in memory (zram) or on plain dm-crypt with a random key is left on by all of them.
    type: str
    choices:
      - leave
      - "off"
      - encrypted
    default: leave
  swap_size:
    description: Size of the file for O(swap=encrypted), in bytes or with a unit, for example V(4G).
    type: str
seealso:
  - module: llmhost.hardening.kv_audit
"""

EXAMPLES = r"""
- name: No cores, no left memory, no swap in the clear
  llmhost.hardening.kv_spill:
    data_map: "{{ llmhost_tiers | llmhost.hardening.data_map(inventory_hostname) }}"
    parts:
      - core_dumps
      - orphans
    swap: "off"
"""

RETURN = r"""
steps:
  description: What was done, or in check mode what would be.
  returned: success
  type: list
  elements: str
  sample: ["write /etc/systemd/coredump.conf.d/50-llmhost.conf", "turn off swap on /dev/vda2"]
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.llmhost.hardening.plugins.module_utils import options, running
from ansible_collections.llmhost.hardening.plugins.module_utils.kv import mapkeys, spill, spill_swap, system


def _bytes(size: str | None) -> int | None:
    try:
        return int(mapkeys.parse_size(size)) if size else None
    except ValueError as error:
        fix = "write a whole number and M, G or T, for example 4G"
        raise system.HostError(f"swap_size: {error}. Fix: {fix}") from error


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "data_map": options.DATA_MAP,
            "parts": {"type": "list", "elements": "str", "choices": list(spill.PARTS), "default": []},
            "swap": {"type": "str", "choices": list(spill_swap.CHOICES), "default": spill_swap.LEAVE},
            "swap_size": {"type": "str"},
        },
        supports_check_mode=True,
    )
    parts, swap, size = (module.params[name] for name in ("parts", "swap", "swap_size"))
    result = running.change(module, lambda act: spill.run(running.data_map(module), parts, swap, _bytes(size), act=act))
    module.exit_json(**result)


if __name__ == "__main__":
    main()
