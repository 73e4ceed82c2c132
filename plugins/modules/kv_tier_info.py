#!/usr/bin/python
# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: kv_tier_info
short_description: Find every place of a host where LLM servers keep KV state
version_added: 0.1.0
author:
  - llmhost contributors (@llmhost)
description:
  - Finds tiers that run, that are configured, and that lie about, on a host that nobody prepared.
  - Looks at processes (arguments, the variables that name a place, working directory, mount namespace), systemd units
    with their drop-ins, quadlets, compose files, podman and docker containers, the settings files that these name, the
    directories in which engines write unless told otherwise, and scans local file systems for trees of a known layout.
  - Changes nothing, reads no memory of a process and keeps no secret. Keys, tokens and passwords are masked.
  - What cannot be read is said in RV(found.unread). Run it as root, else that is most of it.
extends_documentation_fragment:
  - llmhost.hardening.attributes
  - llmhost.hardening.attributes.read_only
options:
  scan_seconds:
    description:
      - How many seconds the scan for trees that nothing names may take. V(0) leaves it out.
    type: int
    default: 10
  scan_entries:
    description:
      - How many directory entries that scan may look at.
    type: int
    default: 200000
seealso:
  - module: llmhost.hardening.kv_audit
"""

EXAMPLES = r"""
- name: Where is KV state on this host?
  llmhost.hardening.kv_tier_info:
  register: kv

- name: Show each place and how sure it is
  ansible.builtin.debug:
    msg: "{{ item.store }} {{ item.path or item.bucket or item.inside }}: {{ item.sure }}"
  loop: "{{ kv.found.tiers }}"
"""

RETURN = r"""
found:
  description: Everything that was found.
  returned: success
  type: dict
  contains:
    schema:
      description: Version of this structure.
      type: int
    tiers:
      description: One entry for each place.
      type: list
      elements: dict
      contains:
        store:
          description: The kind of store, as in the collection's C(docs/stores.md).
          type: str
        title:
          description: The store's title.
          type: str
        engine:
          description: The engine that writes it.
          type: str
        live_deletion:
          description: May blocks of this store be deleted under a running engine (of a recent version)?
          type: bool
        path:
          description: The directory as the host sees it; none for a bucket, or if it lies inside a container only.
          type: str
        inside:
          description: The directory as the engine sees it.
          type: str
        bucket:
          description: The bucket, for a store in one.
          type: str
        endpoint:
          description: The bucket's endpoint, if one is given.
          type: str
        prefix:
          description: The prefix in the bucket, if one is given.
          type: str
        sure:
          description: V(running) if a process names it, V(configured) if a file does, V(lies there) if nothing does.
          type: str
        found:
          description:
            - How it was found, one entry for each process, file or scan. C(kind) tells which, C(named_by) the
              setting, C(default) whether the place is the engine's default.
            - A process has C(pid), C(engine), C(version), C(user), C(umask), C(unit) and C(container), a file C(file),
              C(unit), C(container), C(user) and C(umask).
          type: list
          elements: dict
    listeners:
      description: Listening TCP sockets of engines, and those on ports that engines open for their own kind.
      type: list
      elements: dict
      contains:
        address:
          description: The address that it is bound to.
          type: str
        port:
          description: The port.
          type: int
        loopback:
          description: Is it reachable from this host or container only?
          type: bool
        kind:
          description: What usually speaks on that port, empty for an ordinary one.
          type: str
        pid:
          description: The process that holds it; none if that is not an engine that was recognised.
          type: int
    unread:
      description: What could not be read or understood, the first 200.
      type: list
      elements: str
    processes:
      description: How many processes were seen.
      type: int
    engines:
      description: How many of them are engines.
      type: int
    scan:
      description: Entries that the scan looked at, its time in seconds, and whether it came to its end.
      type: dict
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.llmhost.hardening.plugins.module_utils.kv import tiers_found


def main() -> None:
    """Ansible calls this."""
    module = AnsibleModule(
        argument_spec={
            "scan_seconds": {"type": "int", "default": 10},
            "scan_entries": {"type": "int", "default": 200000},
        },
        supports_check_mode=True,
    )
    seconds, entries = (max(0, module.params[name]) for name in ("scan_seconds", "scan_entries"))
    try:
        found = tiers_found.find(scan_seconds=seconds, scan_entries=entries)
    except OSError as error:
        module.fail_json(msg=f"the host cannot be looked at: {error}")
    module.exit_json(changed=False, found=found)


if __name__ == "__main__":
    main()
