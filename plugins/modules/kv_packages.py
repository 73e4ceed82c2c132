#!/usr/bin/python
# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: kv_packages
short_description: Install what the roles call on a host
description:
  - Installs programs that are not there, by the package names of the host's distribution, with C(apt-get) or C(dnf).
  - Needs nothing on the host but Python, also in check mode, where the modules for packages of ansible-core need
    libraries of their own.
  - A program that is there is left alone, whoever brought it. Nothing is ever upgraded or removed.
  - Run on Debian 12 and 13. The names of the RHEL family were not run.
version_added: 0.1.0
options:
  needs:
    description: What has to be there.
    type: list
    elements: str
    choices: [boto3, cron, cryptsetup, mkfs.ext4, mkfs.xfs, setfacl, systemd-cryptsetup, tpm2]
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
  - module: ansible.builtin.package
"""

EXAMPLES = r"""
- name: Install setfacl and cron where they are missing
  llmhost.hardening.kv_packages:
    needs: [setfacl, cron]
"""

RETURN = r"""
missing:
  description: Those of O(needs) that were not there.
  returned: success
  type: list
  elements: str
packages:
  description: The packages that were installed, or in check mode would be.
  returned: success
  type: list
  elements: str
units:
  description: The services that go with them, by their names on this distribution.
  returned: success
  type: dict
  sample: {cron: cron.service}
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.llmhost.hardening.plugins.module_utils import running
from ansible_collections.llmhost.hardening.plugins.module_utils.kv import packages


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "needs": {"type": "list", "elements": "str", "choices": sorted(packages.NEEDS), "required": True}
        },
        supports_check_mode=True,
    )
    act = not module.check_mode
    module.exit_json(**running.refusing(module, lambda: packages.ensure(module.params["needs"], act)))


if __name__ == "__main__":
    main()
