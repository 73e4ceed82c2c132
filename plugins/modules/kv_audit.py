#!/usr/bin/python
# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: kv_audit
short_description: Judge every control over every KV tier of a host
version_added: 0.1.0
author:
  - llmhost contributors (@llmhost)
description:
  - Collects evidence about each tier of a host's data map and judges the controls KV-01 to
    KV-16 over it. What each control means stands in the collection's C(docs/controls.md).
  - Looks at every engine that runs or is configured and at the directories that engines write to by default. A place
    that no tier names fails KV-01 as a result of its own, whose tier is C(undeclared:PLACE).
  - Changes nothing and needs nothing on the host but Python. Works on hosts that the collection never configured
    if O(data_map) is given.
  - Never fails because of what it finds; look at RV(audit.verdict) or RV(failed_controls).
  - What cannot be judged is V(unknown), never V(pass). Run it as root, else much is V(unknown).
extends_documentation_fragment:
  - llmhost.hardening.attributes
  - llmhost.hardening.attributes.read_only
options:
  data_map:
    description:
      - The normalised data map, as the filter P(llmhost.hardening.data_map#filter) returns it.
      - Default is the map that is installed on the host, C(/etc/llmhost/tiers.json).
    type: dict
  waivers:
    description:
      - Findings that are accepted for a time. A control that fails or is V(unknown) becomes V(waived) until its date.
      - A waiver that has expired or lacks something has no effect and is reported as a finding of its own.
      - A waiver for a tier that the host does not have is ignored, so one list serves a whole fleet.
    type: list
    elements: dict
    default: []
    suboptions:
      control:
        description: Id of the control, for example V(KV-02).
        type: str
      tier:
        description: Name of the tier.
        type: str
      reason:
        description: Why the finding is accepted.
        type: str
      until:
        description: Last day (UTC) on which the waiver holds, as C(YYYY-MM-DD).
        type: str
  discover:
    description:
      - Also scan local file systems for trees that nothing names, as M(llmhost.hardening.kv_tier_info) does.
      - Return all that was found in RV(found).
    type: bool
    default: false
  scan_seconds:
    description:
      - With O(discover), how many seconds the scan for trees that nothing names may take. V(0) leaves it out.
    type: int
    default: 10
  max_seconds:
    description:
      - How many seconds the walks through all tiers may take together. A tier whose walk does not end in its share is
        judged by the record of its last full pass, else it is V(unknown).
      - Of a tier whose last full pass counted more than 50000 blocks and is no older than C(full_pass_hours), half a
        second is walked, unless O(full).
    type: int
    default: 60
  full:
    description: Walk through every tier whole, however large, if O(max_seconds) lets it.
    type: bool
    default: false
  buckets:
    description:
      - Answers of M(llmhost.hardening.bucket_lifecycle_info) about the host's bucket tiers, by the tier's name, for the
        control KV-09. The playbooks C(audit) and C(harden) ask for them where C(kv_bucket_host) says.
      - A bucket tier without an answer here is V(unknown). Without this option no bucket is judged, V(not_applicable).
    type: dict
seealso:
  - module: llmhost.hardening.kv_block_info
  - module: llmhost.hardening.bucket_lifecycle_info
"""

EXAMPLES = r"""
- name: Audit a host that the collection has hardened
  llmhost.hardening.kv_audit:
  register: kv

- name: Audit a host that the collection has never touched, with one accepted finding
  llmhost.hardening.kv_audit:
    data_map: "{{ llmhost_tiers | llmhost.hardening.data_map(inventory_hostname) }}"
    waivers:
      - control: KV-02
        tier: chat
        reason: the disk encrypts by itself, ticket 4711
        until: "2027-03-31"
  register: kv

- name: Show the findings
  ansible.builtin.debug:
    msg: "{{ kv.audit | llmhost.hardening.audit_table }}"

- name: Stop where a control does not hold
  ansible.builtin.assert:
    that: kv.audit.verdict == 'pass'
"""

RETURN = r"""
audit:
  description: The whole audit.
  returned: success
  type: dict
  contains:
    schema:
      description: Version of this structure.
      type: int
      sample: 1
    host:
      description: The host's name in the data map.
      type: str
      sample: gpu1
    time:
      description: When the audit was made, in seconds since 1970 (UTC).
      type: float
      sample: 1795993200.0
    map_digest:
      description: SHA-256 of the data map that was judged.
      type: str
      sample: 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
    verdict:
      description: V(pass) if nothing fails or is unknown, else V(fail).
      type: str
      sample: fail
    counts:
      description: How many results have each status.
      type: dict
      sample: {"pass": 7, "fail": 1, "unknown": 0, "not_applicable": 0, "waived": 0}
    results:
      description: One entry for each control and tier.
      type: list
      elements: dict
      contains:
        control:
          description: Id of the control; V(WAIVER) for a waiver that is void.
          type: str
          sample: KV-03
        title:
          description: Title of the control.
          type: str
          sample: owned and closed
        severity:
          description: V(high), V(medium) or V(low).
          type: str
          sample: high
        tier:
          description: Name of the tier; V(-) for the host, C(undeclared:PLACE) for a place that is in no tier.
          type: str
          sample: chat
        status:
          description: V(pass), V(fail), V(unknown), V(not_applicable) or V(waived).
          type: str
          sample: fail
        message:
          description: One line that says why.
          type: str
          sample: /var/lib/vllm-kv is 0755, not 0700
        evidence:
          description: What the judgement rests on. Sizes are in bytes, times in seconds unless the name says otherwise.
          type: dict
          sample: {"running": true}
        remedy:
          description: What to do about it; empty for a pass.
          type: str
          sample: kvtier prepare chat
failed_controls:
  description: Control and tier of each result that fails or is unknown.
  returned: success
  type: list
  elements: str
  sample: ["KV-03 chat"]
buckets_unasked:
  description: Tiers whose bucket would have to be asked and about which O(buckets) says nothing.
  returned: success
  type: list
  elements: str
found:
  description: What was found, as M(llmhost.hardening.kv_tier_info) returns it.
  returned: with O(discover)
  type: dict
history:
  description:
    - Time, verdict and tiers of at most 200 past audits of this host, evenly taken out of what C(kvtier audit) kept.
    - Times are in seconds since 1970 (UTC).
  returned: success
  type: list
  elements: dict
history_gaps:
  description: The last 100 times of more than two hours without an audit, with C(from) and C(to).
  returned: success
  type: list
  elements: dict
history_problems:
  description: Where the hash chain of the history is broken or damaged.
  returned: success
  type: list
  elements: str
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.llmhost.hardening.plugins.module_utils import running
from ansible_collections.llmhost.hardening.plugins.module_utils.kv import controls, datamap, history, tiers_found


def main() -> None:
    """Ansible calls this."""
    waiver = {key: {"type": "str"} for key in ("control", "tier", "reason", "until")}
    module = AnsibleModule(
        argument_spec={
            "data_map": {"type": "dict"},
            "waivers": {"type": "list", "elements": "dict", "default": [], "options": waiver},
            "discover": {"type": "bool", "default": False},
            "scan_seconds": {"type": "int", "default": 10},
            "max_seconds": {"type": "int", "default": 60},
            "full": {"type": "bool", "default": False},
            "buckets": {"type": "dict"},
        },
        supports_check_mode=True,
    )
    discover = module.params["discover"]

    def look():
        document = datamap.given_or_own(module.params["data_map"])
        options = {name: module.params[name] for name in ("waivers", "max_seconds", "buckets", "full")}
        past = history.read()
        found = tiers_found.look(max(0, module.params["scan_seconds"]) if discover else 0)
        return controls.audit(document, past=past, found=found, **options), past, found

    audit, past, found = running.refusing(module, look)
    failed = [
        "{control} {tier}".format(**result) for result in audit["results"] if result["status"] in ("fail", "unknown")
    ]
    asked = module.params["buckets"] or {}
    unasked = [
        one["tier"]
        for one in audit["results"]
        if one["control"] == "KV-09" and one["status"] == "unknown" and one["tier"] not in asked
    ]
    answer = {"audit": audit, "failed_controls": failed, "buckets_unasked": unasked, **history.summary(past)}
    if discover:
        if "error" in found:
            module.fail_json(msg=f"the host cannot be looked at: {found['error']}", audit=audit)
        answer["found"] = found
    module.exit_json(changed=False, **answer)


if __name__ == "__main__":
    main()
