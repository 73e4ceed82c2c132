#!/usr/bin/python
# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The sweeper of one bucket on the host that runs it."""

from __future__ import annotations

DOCUMENTATION = r"""
module: bucket_sweeper
short_description: Install kvsweep for a bucket
version_added: 0.1.0
author:
  - llmhost contributors (@llmhost)
description:
  - Writes C(/usr/local/sbin/kvsweep) (the same code as the modules), one job for each bucket and key prefix, and
    C(/etc/cron.d/llmhost-sweep), which runs every job as root.
  - A job may be wanted by tiers of several hosts. It keeps the shortest of their retentions and goes with the last one.
  - Credentials that are handed over as keys, or that only the environment of this run gives, are written into a file of
    the job's own (0600), for cron has no such environment.
  - Needs root. Asks the bucket nothing.
extends_documentation_fragment:
  - llmhost.hardening.attributes
  - llmhost.hardening.bucket
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
    details:
      - Credentials and the program are never shown.
  idempotent:
    support: full
options:
  state:
    description: Whether the tier wants the job.
    type: str
    choices: [present, absent]
    default: present
  tier:
    description: Host and name of the tier that wants the job, for example V(gpu1/chat-bucket).
    type: str
    required: true
  retention_minutes:
    description: How long the tier's data may live. Needed with O(state=present).
    type: int
  interval_minutes:
    description: Minutes between two passes, a divisor of 60.
    type: int
    default: 5
  deletes_per_second:
    description: How many objects are deleted a second at most, on average. V(0) is no limit.
    type: int
    default: 0
  metrics_dir:
    description: Directory of node_exporter's textfile collector on the sweeper's host. Empty for no metrics.
    type: str
    default: ""
  python:
    description: Interpreter that has boto3, for the program's first line.
    type: str
    default: /usr/bin/python3
  program:
    description: Where the program goes.
    type: path
    default: /usr/local/sbin/kvsweep
  config_dir:
    description: Where jobs lie.
    type: path
    default: /etc/llmhost/sweep.d
  state_dir:
    description: Where run records lie.
    type: path
    default: /var/lib/llmhost/sweep
  cron_file:
    description: The file of cron lines.
    type: path
    default: /etc/cron.d/llmhost-sweep
seealso:
  - module: llmhost.hardening.bucket_lifecycle
"""

EXAMPLES = r"""
- name: Sweep the bucket every five minutes from here
  llmhost.hardening.bucket_sweeper:
    bucket: kv-prod
    endpoint: https://s3.internal.example
    prefix: qwen
    store: vllm_obj
    tier: gpu1/chat-bucket
    retention_minutes: 1440
    credentials_file: /etc/llmhost/s3-credentials
  delegate_to: localhost
"""

RETURN = r"""
job:
  description: Name of the job, for C(kvsweep run).
  returned: success
  type: str
  sample: kv-prod-1a2b3c4d
record:
  description: Path of its run record.
  returned: success
  type: str
retention_minutes:
  description: The shortest retention of all tiers that want the job, none if none does.
  returned: success
  type: int
version:
  description: Version of kvsweep.
  returned: success
  type: str
written:
  description: Files that were written or removed, or in check mode would be.
  returned: success
  type: list
  elements: str
"""

from ansible.module_utils.basic import AnsibleModule

# With sweep_cli comes all that kvsweep is made of: Ansible packs what a module imports, directly or not.
from ansible_collections.llmhost.hardening.plugins.module_utils.kv import system
from ansible_collections.llmhost.hardening.plugins.module_utils.s3 import (
    errors,
    options,
    sweep_cli,
    sweep_host,
    sweep_state,
)


def main() -> None:
    """Ansible calls this."""
    module = AnsibleModule(
        argument_spec={
            **options.CONNECTION,
            **options.KEYS,
            "tier": {"type": "str", "required": True},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "retention_minutes": {"type": "int"},
            "interval_minutes": {"type": "int", "default": 5},
            "deletes_per_second": {"type": "int", "default": 0},
            "metrics_dir": {"type": "str", "default": ""},
            "python": {"type": "str", "default": "/usr/bin/python3"},
            "program": {"type": "path", "default": sweep_state.PROGRAM},
            "config_dir": {"type": "path", "default": sweep_state.CONFIG_DIR},
            "state_dir": {"type": "path", "default": sweep_state.STATE_DIR},
            "cron_file": {"type": "path", "default": sweep_state.CRON},
        },
        required_one_of=options.ONE_OF,
        mutually_exclusive=options.ONE_OF,
        required_together=options.TOGETHER,
        required_if=[("state", "present", ["retention_minutes"])],
        supports_check_mode=True,
    )
    params = module.params
    paths = sweep_host.Paths(params["program"], params["config_dir"], params["state_dir"], params["cron_file"])
    try:
        if module.check_mode:
            todo = sweep_host.plan(params, paths)
        else:
            with system.exclusive():
                todo = sweep_host.plan(params, paths)
                sweep_host.apply(todo)
    except (options.BadOption, errors.S3Error, sweep_state.BadJob, system.HostError, OSError) as error:
        module.fail_json(msg=f"{options.where(params)}: {error}")
    module.exit_json(
        changed=bool(todo.directories or todo.changes),
        diff=todo.diffs(),
        job=todo.job,
        record=todo.record,
        retention_minutes=todo.retention,
        version=sweep_cli.VERSION,
        written=[one.path for one in todo.directories] + [one.path for one in todo.changes],
    )


if __name__ == "__main__":
    main()
