#!/usr/bin/python
# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The verdict about one bucket."""

from __future__ import annotations

DOCUMENTATION = r"""
module: bucket_lifecycle_info
short_description: Does a bucket keep the retention of a KV tier?
version_added: 0.1.0
author:
  - llmhost contributors (@llmhost)
description:
  - Judges a bucket by its lifecycle rules, by what makes rules hold or fail (versioning, locks, replication), and by
    the age of what really lies there, against the server's own clock.
  - Changes nothing. A bucket that is wrong or cannot be asked is a RV(status), not a failure of the module.
extends_documentation_fragment:
  - llmhost.hardening.attributes
  - llmhost.hardening.attributes.read_only
  - llmhost.hardening.bucket
  - llmhost.hardening.bucket.rules
options:
  retention_minutes:
    description: How long the tier's data may live.
    type: int
    required: true
  grace_minutes:
    description:
      - How much older than its retention something may be before it counts as overdue, for a sweeper's interval. Counts
        only where a sweeper has left a record (O(sweep_state_dir)).
    type: int
    default: 0
  max_entries:
    description: How many keys, versions and uploads are listed at most.
    type: int
    default: 100000
  accept:
    description: Codes of findings that are known and accepted. They are returned, and count for nothing.
    type: list
    elements: str
    default: []
  sweep_state_dir:
    description:
      - Where kvsweep leaves its run records on the host that runs the module. If its job for this bucket has one, a
        living sweeper keeps what rules cannot.
    type: path
  sweep_interval_minutes:
    description: Minutes between two passes of the sweeper. Two of them without a good pass make it stale.
    type: int
    default: 5
  canaries_file:
    description:
      - File of canary prompts on the host that runs the module, root's, in the form of C(/etc/llmhost/canaries.json)
        (docs/controls.md, KV-10). Those whose C(tier) is O(tier), with or without C(HOST/) before it, are looked for
        in a listing of names. Each needs a C(version), since no engine is asked. Needs O(store).
    type: path
seealso:
  - module: llmhost.hardening.bucket_lifecycle
  - module: llmhost.hardening.kv_prefix_probe
"""

EXAMPLES = r"""
- name: Does the bucket keep a week?
  llmhost.hardening.bucket_lifecycle_info:
    bucket: kv-prod
    endpoint: https://s3.internal.example
    prefix: qwen
    store: vllm_obj
    retention_minutes: 10080
    credentials_file: /etc/llmhost/s3-credentials
  delegate_to: localhost
  register: bucket

- name: Fail if it does not
  ansible.builtin.assert:
    that: bucket.kept
    fail_msg: "{{ bucket.message }}"
"""

RETURN = r"""
asked:
  description:
    - What the answer is about, O(bucket), O(endpoint), O(prefix) and O(retention_minutes), and C(time), when this host
      gave it, in seconds since 1970 (UTC).
  returned: success
  type: dict
status:
  description:
    - V(ok), the rules keep the retention and nothing is overdue; V(absent), no rule acts on the tier's keys;
      V(insufficient), the rules leave something; V(not_enforceable), no rule of whole days can keep this retention.
    - V(denied), V(unsupported), V(no_bucket), V(unreachable) and V(unknown) say why nobody knows.
  returned: success
  type: str
  sample: insufficient
kept:
  description: Is the retention kept, by rules or by a living sweeper?
  returned: success
  type: bool
kept_by:
  description: V(rules), V(sweeper) or V(nothing).
  returned: success
  type: str
message:
  description: The verdict in one line, with what to do.
  returned: success
  type: str
findings:
  description: Everything that is wrong or worth knowing.
  returned: success
  type: list
  elements: dict
  contains:
    code:
      description: Stable name of the finding, see docs/buckets.md.
      type: str
    message:
      description: What was found.
      type: str
    breaks:
      description: Can data outlive its retention because of it?
      type: bool
    remedy:
      description: What to do.
      type: str
    accepted:
      description: Is its code in O(accept)?
      type: bool
days:
  description: Days of the longest rule that keeps the retention, none if there is none.
  returned: success
  type: int
worst_minutes:
  description: How long the rules let an object live, none if no rule surely expires it.
  returned: success
  type: int
key_prefix:
  description: What the tier's keys begin with on this server.
  returned: success
  type: str
rules:
  description: The rules of the bucket, one line each.
  returned: success
  type: list
  elements: str
bucket:
  description:
    - What is known of the bucket, C(versioning), C(lock_days), C(destinations), C(public), C(encrypted), C(server).
  returned: success
  type: dict
proof:
  description:
    - What was listed. Counts of C(objects), C(versions), C(delete_markers) and C(uploads), each with C(seen), C(bytes),
      C(overdue), C(oldest_minutes) and C(samples); C(complete) says whether everything was seen.
  returned: success
  type: dict
canaries:
  description: What the listing shows of each canary prompt of the tier.
  returned: success
  type: list
  elements: dict
  contains:
    number:
      description: Its place in the file, from 1; 0 if the file itself is wrong.
      type: int
    blocks:
      description: How many objects the prompt would fill.
      type: int
    unsalted:
      description: How many of them are there under names without a salt.
      type: int
    salted:
      description: How many are there under names with its tenant's salt, none if no salt was given.
      type: int
    problem:
      description: Why it could not be looked for, none if it could.
      type: str
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.llmhost.hardening.plugins.module_utils.s3 import client, errors, options, verdict


def main() -> None:
    """Ansible calls this."""
    module = AnsibleModule(
        argument_spec={
            **options.CONNECTION,
            **options.KEYS,
            **options.RULES,
            "max_entries": {"type": "int", "default": 100000},
            "retention_minutes": {"type": "int", "required": True},
            "grace_minutes": {"type": "int", "default": 0},
            "accept": {"type": "list", "elements": "str", "default": []},
            "sweep_state_dir": {"type": "path"},
            "sweep_interval_minutes": {"type": "int", "default": 5},
            "canaries_file": {"type": "path"},
        },
        required_one_of=options.ONE_OF,
        mutually_exclusive=options.ONE_OF,
        required_together=options.TOGETHER,
        supports_check_mode=True,
    )
    missing = client.missing_boto3()
    if missing is not None:
        module.fail_json(msg=str(missing), exception=client.BOTO_ERROR)
    try:
        result = verdict.look(module.params)
    except (options.BadOption, errors.S3Error) as error:
        module.fail_json(msg=f"{options.where(module.params)}: {error}")
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()
