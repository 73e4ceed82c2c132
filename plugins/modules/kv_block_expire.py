#!/usr/bin/python
# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""One expiry pass over one tier or directory."""

from __future__ import annotations

DOCUMENTATION = r"""
module: kv_block_expire
short_description: Delete the KV blocks of one tier whose retention has ended
version_added: 0.1.0
author:
  - llmhost contributors (@llmhost)
description:
  - Does one expiry pass, the same that cron does with C(kvtier expire), over a tier of the data map (O(tier)) or over a
    directory that no map declares (O(path)).
  - Deletes blocks and stale temporaries of the store, and hex directories that have been empty for their grace. Age is
    the time since the file was written. Everything else stays, whatever its age.
  - Works as the tier's own account. Refuses if the path is not the declared mount, if another pass is active, if the
    clock jumped, or if the engine that runs cannot lose blocks safely.
extends_documentation_fragment:
  - llmhost.hardening.attributes
attributes:
  check_mode:
    support: full
    details:
      - Walks the tree and lists what would go.
  diff_mode:
    support: full
    details:
      - Shows the first 1000 paths before, and none of them after.
  idempotent:
    support: partial
    details:
      - A second pass deletes only what ended meanwhile.
options:
  tier:
    description:
      - Name of a tier in the data map. Everything about it comes from there.
      - Exactly one of O(tier) and O(path) is needed.
    type: str
  data_map:
    description:
      - The normalised data map, as the filter P(llmhost.hardening.data_map#filter) returns it. Only with O(tier).
      - Default is the map that is installed on the host, C(/etc/llmhost/tiers.json).
    type: dict
  path:
    description:
      - Absolute path of a directory that is no tier of the host. Nothing is remembered about it between passes, so a
        pass that O(max_seconds) ended begins anew the next time, and a clock that jumped is not noticed.
    type: path
  store:
    description:
      - The kind of store, which says which names are blocks, for example V(vllm_fs) or V(llamacpp_slots). Needed with
        O(path).
    type: str
  owner:
    description:
      - Account name or uid that the directory belongs to and that the pass runs as. Needed with O(path).
    type: str
  retention_minutes:
    description:
      - Blocks of at least this age, in minutes, go. Needed with O(path).
    type: int
  max_bytes:
    description:
      - What blocks may take up in all after those that ended are gone, for example V(160G) (powers of 1024). The oldest
        go first. Only with O(path).
    type: str
  max_files:
    description:
      - How many blocks may be there in all, in the same way. Only with O(path).
    type: int
  stopped:
    description:
      - For stores that lose blocks only while their engine is stopped, for example V(lmcache_disk). Before and during
        the pass makes sure that no process of the host holds or uses the directory and that no unit of the tier is
        active, and refuses otherwise. Without it such a store is always refused. Needs root.
    type: bool
    default: false
  trust_clock:
    description:
      - Expire although the clock jumped since the last pass. Only for a clock that is known to be right now.
    type: bool
    default: false
  max_seconds:
    description:
      - How many seconds the pass may take. The next one goes on where it stopped.
    type: int
    default: 3000
seealso:
  - module: llmhost.hardening.kv_block_info
  - module: llmhost.hardening.kv_audit
"""

EXAMPLES = r"""
- name: Expire the tier chat now
  llmhost.hardening.kv_block_expire:
    tier: chat

- name: What would go?
  llmhost.hardening.kv_block_expire:
    tier: chat
  check_mode: true
  diff: true

- name: Expire a directory that is in no data map
  llmhost.hardening.kv_block_expire:
    path: /srv/kv
    store: vllm_fs
    owner: vllm
    retention_minutes: 60
    max_bytes: 20G

- name: Expire the chunks of an LMCache that is stopped
  llmhost.hardening.kv_block_expire:
    tier: lmcache
    stopped: true
"""

RETURN = r"""
deleted:
  description: The first 1000 paths below the tier that were deleted, or in check mode would be; odd characters escaped.
  returned: success
  type: list
  elements: str
deleted_count:
  description: How many there are in all.
  returned: always, once the pass began
  type: int
exit_code:
  description: What C(kvtier expire) would have ended with.
  returned: always, once the pass began
  type: int
messages:
  description: What stood in the way, one line each.
  returned: always, once the pass began
  type: list
  elements: str
info:
  description: What the pass did and what is left.
  returned: success
  type: dict
  contains:
    complete:
      description: Did the pass see everything in time?
      type: bool
    seconds:
      description: How many seconds the walk took.
      type: float
    expired:
      description: Blocks deleted because their retention had ended.
      type: int
    expired_bytes:
      description: Bytes in them.
      type: int
    capped:
      description: Blocks deleted because of the limits on bytes and files; in check mode those that would be.
      type: int
    capped_bytes:
      description: Bytes in them.
      type: int
    temps_removed:
      description: Stale temporaries deleted.
      type: int
    dirs_removed:
      description: Empty directories deleted.
      type: int
    blocks:
      description: Blocks that are left.
      type: int
    block_bytes:
      description: Bytes in them.
      type: int
    overdue:
      description: Blocks past their retention that are left. In check mode all of them.
      type: int
    strangers:
      description: Entries that the store does not know. They are never deleted.
      type: int
    errors:
      description: How often which error kept something from being read or deleted.
      type: dict
    version:
      description: Version of the engine that runs, none if none does or needs one.
      type: str
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.llmhost.hardening.plugins.module_utils.kv import (
    account,
    blockinfo,
    datamap,
    expiry,
    holders,
    judge,
    mapkeys,
)

MAX_LISTED = 1000
INFO = """complete seconds expired expired_bytes capped capped_bytes temps_removed dirs_removed blocks block_bytes
overdue strangers errors version""".split()


def _target(params: dict) -> dict:
    """The tier that the options name or describe."""
    if params["tier"] is not None:
        document = datamap.given_or_own(params["data_map"])
        tier = datamap.tier_named(document, params["tier"])
        if tier not in datamap.file_tiers(document):
            raise ValueError("tier {name} (store {store}, state {state}) has nothing to expire".format(**tier))
        return tier
    tier = {key: default for key, (_parse, default) in mapkeys.KEYS.items()}
    tier.update(name="undeclared", services=[], volume=None, path=mapkeys.clean_path(params["path"]))
    tier.update(store=blockinfo.store_named(params["store"]).name, owner=blockinfo.uid_of(params["owner"]))
    for key in ("retention_minutes", "max_files"):
        tier[key] = params[key]
        if params[key] is not None and params[key] < 1:
            raise ValueError(f"{key} is less than 1")
    if params["max_bytes"] is not None:
        tier["max_bytes"] = mapkeys.parse_size(params["max_bytes"])
    return tier


def _pass(tier: dict, check: bool, params: dict) -> tuple:
    """The record of one pass as the account, the first paths that it deleted, and how many they were."""

    def work(stopped=None) -> list:
        gone = expiry.Listed(MAX_LISTED)
        options: dict[str, Any] = {} if params["tier"] is not None else {"state_root": None}
        record = expiry.expire(
            tier,
            delete=not check,
            trust_clock=params["trust_clock"],
            max_seconds=params["max_seconds"],
            on_delete=gone,
            stopped=stopped,
            **options,
        )
        return [record, gone.paths, gone.count]

    if not params["stopped"]:
        return tuple(account.as_owner(tier["owner"], work))
    with holders.sentinel(tier) as stopped:
        return tuple(account.as_owner(tier["owner"], lambda: work(stopped)))


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
            "max_bytes": {"type": "str"},
            "max_files": {"type": "int"},
            "stopped": {"type": "bool", "default": False},
            "trust_clock": {"type": "bool", "default": False},
            "max_seconds": {"type": "int", "default": 3000},
        },
        required_one_of=[("tier", "path")],
        mutually_exclusive=[
            ("tier", key) for key in ("path", "store", "owner", "retention_minutes", "max_bytes", "max_files")
        ],
        required_by={"path": ("store", "owner", "retention_minutes"), "data_map": "tier"},
        supports_check_mode=True,
    )
    try:
        tier = _target(module.params)
        record, listed, count = _pass(tier, module.check_mode, module.params)
    except (datamap.MapError, OSError, RuntimeError, ValueError) as error:
        module.fail_json(msg=str(error))
    except KeyError as error:
        module.fail_json(msg=str(error.args[0]))
    result = {
        "changed": count > 0,
        "deleted_count": count,
        "exit_code": record["exit"],
        "messages": judge.clean(record["messages"]),
    }
    if record["exit"] not in (expiry.OK, expiry.ERRORS, expiry.UNFINISHED):
        module.fail_json(msg="; ".join(result["messages"]), **result)
    for message in result["messages"]:
        module.warn(message)
    if record["exit"] == expiry.UNFINISHED:
        module.warn(expiry.EXIT_CODES[expiry.UNFINISHED])
    if module._diff:
        before = "".join(f"{path}\n" for path in listed)
        result["diff"] = {"before_header": tier["path"], "after_header": tier["path"], "before": before, "after": ""}
    module.exit_json(deleted=listed, info=judge.clean({key: record[key] for key in INFO}), **result)


if __name__ == "__main__":
    main()
