#!/usr/bin/python
# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: fleet_report
short_description: Write one report over all hosts, for people, for CI and for programs
version_added: 0.1.0
author:
  - llmhost contributors (@llmhost)
description:
  - Writes C(report.html), C(report.json) and C(report.junit.xml) on the controller out of what
    M(llmhost.hardening.kv_audit) and M(llmhost.hardening.kv_tier_info) returned for each host, and of the host's
    variables C(llmhost_tiers) and C(llmhost_prompt_log_retention_minutes).
  - Touches no host. Run it once for the play; hosts that could not be reached are in the report too.
  - The files hold paths and names of models, but no secret. They are written for the calling account alone (0600).
extends_documentation_fragment:
  - llmhost.hardening.attributes
attributes:
  check_mode:
    support: full
    details:
      - Makes the report and writes no file.
  diff_mode:
    support: N/A
    details:
      - The files are of the controller and hold the time.
  idempotent:
    support: full
    details:
      - Never reports a change, though the files are written anew.
options:
  dest:
    description:
      - Directory on the controller. It is made (0700) if it is missing.
    type: path
    required: true
  hosts:
    description:
      - The hosts that the report is about.
    type: list
    elements: str
    default: []
  audit:
    description:
      - Name of the variable in which the result of M(llmhost.hardening.kv_audit) was registered.
    type: str
    default: llmhost_audit_result
  found:
    description:
      - Name of the variable in which the result of M(llmhost.hardening.kv_tier_info), or of
        M(llmhost.hardening.kv_audit) with its option C(discover), was registered.
    type: str
    default: llmhost_audit_result
  fail_on:
    description:
      - Which findings RV(failures) counts. V(high) those of high severity, V(any) all, V(none) none.
      - A host that was not audited is counted by all of them; what no data map names by V(high) and V(any).
    type: str
    choices:
      - high
      - any
      - none
    default: high
  title:
    description:
      - Title of the report.
    type: str
    default: KV state of the fleet
  merge:
    description:
      - More C(report.json) files, of other runs. Of each host the newest audit counts.
    type: list
    elements: path
    default: []
seealso:
  - module: llmhost.hardening.kv_audit
"""

EXAMPLES = r"""
- name: Write the report
  run_once: true
  llmhost.hardening.fleet_report:
    dest: report
    hosts: "{{ ansible_play_hosts_all }}"

- name: One report out of the runs of two controllers
  llmhost.hardening.fleet_report:
    dest: report
    merge:
      - eu/report.json
      - us/report.json
"""

RETURN = r"""
dest:
  description: The directory.
  returned: success
  type: str
verdict:
  description: V(pass) if every host was audited, passes, and holds nothing that its data map does not name.
  returned: success
  type: str
counts:
  description: Numbers of hosts, and of results of each status.
  returned: success
  type: dict
failures:
  description: One line for each host that fails by O(fail_on), and why.
  returned: success
  type: list
  elements: str
  sample: ["gpu1: 2 findings: KV-03, KV-12"]
tables:
  description: Each host's results as lines for a person; of more than 20 hosts one line for all.
  returned: success
  type: list
  elements: str
hosts_failing:
  description: The hosts that do not pass.
  returned: success
  type: list
  elements: str
hosts_undeclared:
  description: The hosts that hold KV state which no data map names.
  returned: success
  type: list
  elements: str
"""
