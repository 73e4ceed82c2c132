#!/usr/bin/python
# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: kv_block_info
short_description: Count readable, overdue, foreign and leftover files in one directory of KV blocks
version_added: 0.1.0
author:
  - llmhost contributors (@llmhost)
description:
  - Walks through one directory that an engine keeps KV blocks in and counts what it finds.
  - The directory is a tier of the data map (O(tier)) or any other (O(path) with O(store)), declared or not.
  - Uses the same walk and judgements as M(llmhost.hardening.kv_audit), follows no symlink, and changes nothing.
extends_documentation_fragment:
  - llmhost.hardening.attributes
  - llmhost.hardening.attributes.read_only
options:
  tier:
    description:
      - Name of a tier in the data map. Path, store, owner, retention and graces come from there.
      - Exactly one of O(tier) and O(path) is needed.
    type: str
  data_map:
    description:
      - The normalised data map, as the filter P(llmhost.hardening.data_map#filter) returns it. Only with O(tier).
      - Default is the map that is installed on the host, C(/etc/llmhost/tiers.json).
    type: dict
  path:
    description:
      - Absolute path of the directory.
    type: path
  store:
    description:
      - The kind of store, which says which names are blocks, for example V(vllm_fs) or V(llamacpp_slots). Needed with
        O(path). All stores stand in the collection's C(docs/stores.md).
    type: str
  owner:
    description:
      - Account name or uid that everything there should belong to. Default is the tier's account or, with O(path), the
        owner of the directory.
    type: str
  retention_minutes:
    description:
      - Blocks of at least this age, in minutes, are counted as overdue. Default is the tier's retention or, with
        O(path), V(1440).
    type: int
  max_offenders:
    description:
      - How many offenders are named at most, from V(0) to V(20).
    type: int
    default: 20
  max_seconds:
    description:
      - How many seconds the walk may take. One that did not end says RV(info.complete=false).
    type: int
    default: 60
seealso:
  - module: llmhost.hardening.kv_audit
"""

EXAMPLES = r"""
- name: What lies in the tier chat?
  llmhost.hardening.kv_block_info:
    tier: chat
  register: blocks

- name: Look at a directory that is in no data map
  llmhost.hardening.kv_block_info:
    path: /srv/kv
    store: vllm_fs
    owner: vllm
    retention_minutes: 60
  register: blocks

- name: Show the files that everybody may read
  ansible.builtin.debug:
    msg: "{{ blocks.info.loose }} loose, for example {{ blocks.info.offenders }}"
"""

RETURN = r"""
info:
  description: What was counted. Only C(path), C(store) and C(exists) are there if the directory does not exist.
  returned: success
  type: dict
  contains:
    path:
      description: The directory.
      type: str
    store:
      description: The kind of store.
      type: str
    exists:
      description: Does the directory exist?
      type: bool
    owner_uid:
      description: The uid that everything should belong to.
      type: int
    directory:
      description: Owner, mode, ACLs and ancestors of the directory itself.
      type: dict
    complete:
      description: Did the walk see everything in time?
      type: bool
    seconds:
      description: How many seconds the walk took.
      type: float
    errors:
      description: How often which error kept a directory from being read.
      type: dict
    blocks:
      description: Number of blocks.
      type: int
    block_bytes:
      description: Bytes in blocks.
      type: int
    temps:
      description: Number of temporaries and probes.
      type: int
    temp_bytes:
      description: Bytes in temporaries and probes.
      type: int
    configs:
      description: Number of the store's configuration files.
      type: int
    dirs:
      description: Number of directories.
      type: int
    reachable:
      description: Files that another account can get to by modes and ACLs of the directory and those above it.
      type: int
    readable:
      description: Those of them that the other account can also read.
      type: int
    loose:
      description: Files whose own mode or ACL opens them to others, whether they can be reached or not.
      type: int
    loose_dirs:
      description: The same for directories below the root.
      type: int
    overdue:
      description: Blocks of at least O(retention_minutes).
      type: int
    future:
      description: Files whose time lies in the future.
      type: int
    oldest_age_seconds:
      description: Age of the oldest block in seconds; none if there is no block.
      type: int
    newest_age_seconds:
      description: Age of the newest block in seconds; none if there is no block.
      type: int
    ages:
      description: Pairs of an upper bound in seconds (none for the last) and the number of blocks up to that age.
      type: list
      elements: list
    stale_temps:
      description: Temporaries older than their grace.
      type: int
    stale_temp_bytes:
      description: Bytes in them.
      type: int
    strangers:
      description: Entries that the store does not know.
      type: int
    stranger_names:
      description: The first of them.
      type: list
      elements: str
    foreign_owner:
      description: Entries that belong to another account.
      type: int
    hardlinks:
      description: Files with a second name.
      type: int
    not_regular:
      description: Symlinks, pipes, devices and directories where a block belongs.
      type: int
    offenders:
      description: The first O(max_offenders) entries that something is wrong with, and what.
      type: list
      elements: dict
      contains:
        path:
          description: Path below the directory, control characters escaped.
          type: str
        why:
          description: What is wrong with it.
          type: str
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.llmhost.hardening.plugins.module_utils.kv import blockinfo, datamap, fsio, mapkeys, walk


def _target(params: dict) -> dict:
    """Path, store, owner and limits in minutes from the options, completed from the tier that they name."""
    if params["tier"] is None:
        known = {"path": mapkeys.clean_path(params["path"]), "store": params["store"], "owner": None}
        known.update(retention_minutes=1440, tmp_grace_minutes=60, dir_grace_minutes=60)
    else:
        known = datamap.tier_named(datamap.given_or_own(params["data_map"]), params["tier"])
        if not known["path"]:
            raise ValueError("tier {name} (store {store}) keeps no files".format(**known))
    return dict(known, **{key: params[key] for key in ("owner", "retention_minutes") if params[key] is not None})


def main() -> None:
    """Ansible calls this."""
    module = AnsibleModule(
        argument_spec={
            "tier": {"type": "str"},
            "data_map": {"type": "dict"},
            "path": {"type": "path"},
            "store": {"type": "str"},
            "owner": {"type": "str"},
            "retention_minutes": {"type": "int"},
            "max_offenders": {"type": "int", "default": 20},
            "max_seconds": {"type": "int", "default": 60},
        },
        required_one_of=[("tier", "path")],
        mutually_exclusive=[("tier", "path"), ("tier", "store")],
        required_by={"path": "store", "data_map": "tier"},
        supports_check_mode=True,
    )
    params = module.params
    try:
        target = _target(params)
        minutes = (target["retention_minutes"], target["tmp_grace_minutes"], target["dir_grace_minutes"])
        info = blockinfo.describe(
            target["path"],
            blockinfo.store_named(target["store"]),
            None if target["owner"] is None else blockinfo.uid_of(target["owner"]),
            walk.Policy(*(60 * number for number in minutes)),
            max(0, params["max_offenders"]),
            params["max_seconds"],
        )
    except (datamap.MapError, fsio.UnsafePath, OSError, ValueError) as error:
        module.fail_json(msg=str(error))
    except KeyError as error:
        module.fail_json(msg=str(error.args[0]))
    module.exit_json(changed=False, info=info)


if __name__ == "__main__":
    main()
