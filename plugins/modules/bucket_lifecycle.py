#!/usr/bin/python
# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Lifecycle rules of one tier in one bucket."""

from __future__ import annotations

DOCUMENTATION = r"""
module: bucket_lifecycle
short_description: Set the lifecycle rules of a KV tier and nobody else's
version_added: 0.1.0
author:
  - llmhost contributors (@llmhost)
description:
  - Sets the longest rule of whole days that keeps a retention in minutes, aborts unfinished uploads after one day and,
    where the bucket is versioned, expires old versions and removes delete markers.
  - Where no rule can keep the retention, sets one day as a backstop and says so in RV(enforceable). The sweeper of the
    role kv_bucket keeps the rest.
  - Owns the rules whose ids begin with O(id_prefix) and a digest of the tier's key prefix, and writes every other rule
    back as it was. What the server then has is read until it stays the same and compared in meaning. Where a rule is
    lost or changed, the former document goes back and the module fails.
  - Never makes the call that deletes a lifecycle document (some servers delete the bucket by it), and writes only after
    a valid read of the document and of the bucket in the same run.
extends_documentation_fragment:
  - llmhost.hardening.attributes
  - llmhost.hardening.bucket
  - llmhost.hardening.bucket.rules
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
  idempotent:
    support: full
options:
  state:
    description:
      - V(present) sets the rules of the tier, V(absent) takes them out. The last rule of a bucket stays, disabled,
        because a document cannot be empty.
    type: str
    choices: [present, absent]
    default: present
  retention_minutes:
    description: How long the tier's data may live. Needed with O(state=present).
    type: int
  max_entries:
    description: How many keys are looked at before a rule is set, for such that are not the tier's.
    type: int
    default: 10000
  allow_unsupported:
    description:
      - Do not fail where the server has no lifecycle rules, but say RV(supported=false) and warn. Then only a sweeper
        can keep the retention.
    type: bool
    default: false
  allow_whole_bucket:
    description: Set a rule without a prefix. It takes every object that is or ever will be in the bucket.
    type: bool
    default: false
  allow_foreign_keys:
    description: Set the rule although keys under the prefix are not the tier's (O(store)). It takes them too.
    type: bool
    default: false
seealso:
  - module: llmhost.hardening.bucket_lifecycle_info
"""

EXAMPLES = r"""
- name: Keep a week in the bucket
  llmhost.hardening.bucket_lifecycle:
    bucket: kv-prod
    endpoint: https://s3.internal.example
    prefix: qwen
    store: vllm_obj
    retention_minutes: 10080
    credentials_file: /etc/llmhost/s3-credentials
  delegate_to: localhost

- name: Take our rules out again
  llmhost.hardening.bucket_lifecycle:
    bucket: kv-prod
    endpoint: https://s3.internal.example
    prefix: qwen
    state: absent
    profile: kv
  delegate_to: localhost
"""

RETURN = r"""
days:
  description: Days of the rule.
  returned: state is present
  type: int
enforceable:
  description: Do the rules alone keep the retention? If not, the rule is only a backstop.
  returned: state is present
  type: bool
supported:
  description: Does the server have lifecycle rules?
  returned: success
  type: bool
worst_minutes:
  description: How long the rules let data live.
  returned: state is present
  type: int
key_prefix:
  description: What the tier's keys begin with on this server.
  returned: success
  type: str
rules:
  description: The rules of the bucket as they are now, or in check mode would be, one line each.
  returned: success
  type: list
  elements: str
former:
  description: The lifecycle document as it was before, in the server's own words, empty if there was none.
  returned: success, and failure after something was written
  type: str
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.llmhost.hardening.plugins.module_utils.s3 import client, enforce, errors, options, setting


def main() -> None:
    """Ansible calls this."""
    module = AnsibleModule(
        argument_spec={
            **options.CONNECTION,
            **options.KEYS,
            **options.RULES,
            "max_entries": {"type": "int", "default": 10000},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "retention_minutes": {"type": "int"},
            "allow_unsupported": {"type": "bool", "default": False},
            "allow_whole_bucket": {"type": "bool", "default": False},
            "allow_foreign_keys": {"type": "bool", "default": False},
        },
        required_one_of=options.ONE_OF,
        mutually_exclusive=options.ONE_OF,
        required_together=options.TOGETHER,
        required_if=[("state", "present", ["retention_minutes"])],
        supports_check_mode=True,
    )
    missing = client.missing_boto3()
    if missing is not None:
        module.fail_json(msg=str(missing), exception=client.BOTO_ERROR)
    work = setting.Setting(module.params)
    try:
        result = work.apply(module.check_mode)
    except (options.BadOption, enforce.Refused, errors.S3Error, ValueError) as error:
        module.fail_json(msg=f"{options.where(module.params)}: {error}", former=work.former)
    for text in work.warnings:
        module.warn(text)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
