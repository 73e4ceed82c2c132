# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What was given with -e on this command line, and nothing that a file of the inventory says."""

from __future__ import annotations

DOCUMENTATION = r"""
name: extra_var
author: llmhost contributors (@llmhost)
version_added: 0.1.0
short_description: A variable as it was given with -e
description:
  - Gives the value of a variable only if it was given with C(-e) for this very run. The same variable in an inventory,
    in group or host variables, in a play or a role does not count.
  - For permissions that must never lie around in a file, like the one to wipe a disk.
options:
  _terms:
    description: Name of one variable.
    type: list
    elements: str
    required: true
  default:
    description: What to give where it was not given with C(-e).
    type: raw
    default: []
"""

EXAMPLES = r"""
- name: Show which disks may be wiped
  ansible.builtin.debug:
    msg: "{{ lookup('llmhost.hardening.extra_var', 'kv_volume_wipe') }}"
"""

RETURN = r"""
_raw:
  description: The value, or the default.
  type: raw
"""

from typing import Any

from ansible.plugins.lookup import LookupBase
from ansible.utils.vars import load_extra_vars


class LookupModule(LookupBase):
    """The lookup."""

    def run(self, terms: list[str], variables: Any = None, **kwargs: Any) -> list[Any]:
        """One value for each name."""
        self.set_options(var_options=variables, direct=kwargs)
        given = load_extra_vars(self._loader)
        return [given.get(name, self.get_option("default")) for name in terms]
