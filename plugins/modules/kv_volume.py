#!/usr/bin/python
# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Encrypted volumes for the tiers of a host."""

from __future__ import annotations

DOCUMENTATION = r"""
module: kv_volume
short_description: Put tiers on encrypted volumes
version_added: 0.1.0
description:
  - Gives every tier of the data map that has a volume of backend V(dmcrypt) its image file or header, its entries in
    C(/etc/crypttab) and C(/etc/fstab), and mounts it. The key is random, lives in kernel memory only and is new at
    each boot.
  - Blocks that lay in the path before the mount are destroyed, only names that the store registry knows. Names it does
    not know make the module fail before the mount, untouched. What remains below the mount is an empty directory,
    root's, mode 0000 and immutable.
  - A tier with O(data_map) state V(absent) loses its volume, its blocks with the key, its entries, the image or header
    that this collection made, and the directory below its mount. Refused while anything uses it, and if names that the
    store does not know lie in it. The receipt of the destroyed key stays.
  - Never stops or restarts a volume that is open, never replaces a file that this collection did not make.
  - A run that was killed is finished by the next one.
options:
  data_map:
    description: The normalised data map, as the filter P(llmhost.hardening.data_map#filter) returns it.
    type: dict
    required: true
  wipe:
    description:
      - Devices whose present content is given up. Without it a device that carries anything is refused.
      - The role fills it from C(-e kv_volume_wipe=...) only, never from an inventory.
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
    support: full
    details: Shows the collection's own lines of crypttab and fstab; lines of others may hold passwords.
  idempotent:
    support: full
author:
  - llmhost contributors (@llmhost)
seealso:
  - module: llmhost.hardening.kv_preflight
  - module: llmhost.hardening.kv_access
"""

EXAMPLES = r"""
- name: Put tiers on encrypted volumes
  llmhost.hardening.kv_volume:
    data_map: "{{ llmhost_tiers | llmhost.hardening.data_map(inventory_hostname) }}"
"""

RETURN = r"""
volumes:
  description: Each volume, with its tier, mapper name, image and whether it is mounted.
  returned: success
  type: list
  elements: dict
  sample: [{tier: chat, mapper: llmhost_chat, image: /var/lib/llmhost/chat.img, device: null, mounted: true}]
steps:
  description: What was done, or in check mode what would be.
  returned: success
  type: list
  elements: str
destroyed:
  description: Files and bytes that lay in paths before their mount and were destroyed.
  returned: success
  type: dict
  sample: {files: 12000, bytes: 25165824000}
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.llmhost.hardening.plugins.module_utils import options, running
from ansible_collections.llmhost.hardening.plugins.module_utils.kv import absent, datamap, volume_make


def main() -> None:
    module = AnsibleModule(
        argument_spec={"data_map": options.DATA_MAP, "wipe": options.WIPE},
        supports_check_mode=True,
    )
    wipes = module.params["wipe"]
    result = running.change(module, lambda act: _run(running.data_map(module), act, wipes))
    for text in result.pop("notes"):
        module.warn(text)
    module.exit_json(**result)


def _run(document: datamap.Document, act: bool, wipes: list[dict[str, Any]]) -> dict[str, Any]:
    gone = absent.look_all(document, own=True)
    absent.refuse(gone, document["host"])
    result = volume_make.run(document, act, wipes)
    return absent.finish(gone, document, act, result)


if __name__ == "__main__":
    main()
