#!/usr/bin/python
# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: kv_prefix_probe
short_description: Can whoever lists a store recognise a known prompt prefix?
version_added: 0.1.0
author:
  - llmhost contributors (@llmhost)
description:
  - Computes the names that vLLM gives the blocks of a known prompt and looks for them in a directory, a bucket or a
    listing that was made elsewhere.
  - Names are a function of the tokens, the release, the hash algorithm and the salt. If a prompt that was sent without
    the tenant's salt is found, so would be any other prompt that somebody guesses.
  - Use canary prompts made up for the purpose, never a real one. Token ids stand in the log of the module's call.
  - Looks at names only, reads no block and changes nothing.
extends_documentation_fragment:
  - llmhost.hardening.attributes
  - llmhost.hardening.attributes.read_only
  - llmhost.hardening.bucket
requirements:
  - boto3 1.26 or newer for the interpreter that runs the module, for buckets
options:
  token_ids:
    description:
      - The prompt as token ids. Exactly one of O(token_ids) and O(text) is needed.
    type: list
    elements: int
  text:
    description:
      - The prompt as text, which the engine at O(tokenizer_url) turns into tokens.
    type: str
  tokenizer_url:
    description:
      - The engine's tokenizer endpoint, for example V(http://127.0.0.1:8000/tokenize). Plain http on loopback only.
    type: str
  model:
    description:
      - The model's name for the tokenizer endpoint, if it serves several.
    type: str
  version:
    description:
      - The vLLM release that wrote the store.
    type: str
    required: true
  block_size:
    description:
      - Tokens in one block, the engine's C(--block-size).
    type: int
    default: 16
  blocks_per_chunk:
    description:
      - Blocks in one file or object, as in the engine's settings.
    type: int
    default: 1
  hash_algorithm:
    description:
      - The engine's C(--prefix-caching-hash-algo).
    type: str
    choices:
      - sha256
      - sha256_cbor
    default: sha256
  salt:
    description:
      - The C(cache_salt) of the tenant. Without it, unsalted blocks are looked for.
    type: str
  hash_seed:
    description:
      - The engine's C(PYTHONHASHSEED). Leave it out if that is not set.
    type: str
  path:
    description:
      - Root of a file system tier. Exactly one of O(path), O(tier), O(bucket) and O(keys) is needed.
    type: path
  tier:
    description:
      - Name of a tier in the host's data map, on a file system or in a bucket. Bucket, endpoint and prefix are then
        those of the map.
    type: str
  bucket:
    description:
      - Name of a bucket, whose keys are listed, with one of O(prefix) and O(key_prefix), a thousand with each request,
        until all blocks are found.
    type: str
    required: false
  prefix:
    description:
      - The engine's own C(prefix) setting, empty if it has none. vLLM writes keys below C(PREFIX//), or keys that begin
        with a slash. With O(bucket), one of O(prefix) and O(key_prefix) is needed.
    type: str
  store:
    description:
      - The kind of store, which says how the tier's keys look. Other keys under the prefix are not the tier's.
    type: str
    default: vllm_obj
  max_seconds:
    description: How long the listing of a bucket may take. What is not found by then makes the module fail.
    type: int
    default: 60
  data_map:
    description:
      - The normalised data map for O(tier). Default is the one that is installed on the host.
    type: dict
  keys:
    description:
      - Paths or object keys of a listing that was made elsewhere.
    type: list
    elements: str
seealso:
  - module: llmhost.hardening.kv_audit
"""

EXAMPLES = r"""
- name: Is the canary prompt in the store without a salt?
  llmhost.hardening.kv_prefix_probe:
    text: "{{ canary }}"
    tokenizer_url: http://127.0.0.1:8000/tokenize
    version: 0.33.0
    tier: chat
  register: probe

- name: The same in a bucket
  llmhost.hardening.kv_prefix_probe:
    token_ids: [1, 887, 4310, 15, 92, 6, 3047, 18, 220, 41, 9, 77, 5, 640, 31, 2]
    version: 0.33.0
    bucket: kv-prod
    endpoint: https://s3.internal.example
    prefix: qwen
    credentials_file: /etc/llmhost/s3-credentials
  delegate_to: localhost
  register: probe

- name: Names must tell nothing
  ansible.builtin.assert:
    that: not probe.found
    fail_msg: "{{ probe.present }} of {{ probe.blocks }} blocks of the canary are there: requests miss the gateway"
"""

RETURN = r"""
found:
  description: Is any block of the prompt there?
  returned: success
  type: bool
  sample: false
predictable:
  description: Can the names be known at all? Before vLLM 0.29 only if C(PYTHONHASHSEED) is set.
  returned: success
  type: bool
  sample: true
reason:
  description: Why the names cannot be known; empty if they can.
  returned: success
  type: str
  sample: ""
blocks:
  description: How many files or objects the prompt would fill.
  returned: success
  type: int
  sample: 3
present:
  description: How many of them are there.
  returned: success
  type: int
  sample: 0
names:
  description: The hash of each, in the order of the prompt, and whether it is there.
  returned: success
  type: list
  elements: dict
  contains:
    name:
      description: Hexadecimal hash.
      type: str
    present:
      description: Is it there?
      type: bool
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.llmhost.hardening.plugins.module_utils.kv import (
    blocknames,
    datamap,
    fsio,
    mapkeys,
    prefixprobe,
    tokenizer,
)
from ansible_collections.llmhost.hardening.plugins.module_utils.s3 import client, errors, options, probe


def _there(names: list, params: dict) -> list:
    """Which of the names are in the store that the options name."""
    if params["keys"] is not None:
        return prefixprobe.in_keys(names, params["keys"])
    if params["path"] is not None:
        return prefixprobe.in_directory(names, mapkeys.clean_path(params["path"]))
    if params["bucket"] is not None:
        return _in_bucket(names, params)
    tier = datamap.tier_named(datamap.given_or_own(params["data_map"]), params["tier"])
    if tier["store"] in ("vllm_fs", "llmd_fs"):
        return prefixprobe.in_directory(names, tier["path"])
    if tier["store"] != "vllm_obj":
        raise ValueError("tier {name} (store {store}) has no blocks with such names".format(**tier))
    of_map = {"bucket": tier["bucket"], "endpoint": tier["endpoint"], "prefix": tier["prefix"] or ""}
    return _in_bucket(names, {**params, **of_map})


def _in_bucket(names: list, params: dict) -> list:
    missing = client.missing_boto3()
    if missing is not None:
        raise missing
    options.check(params)
    bucket = client.Bucket(options.settings(params))
    return prefixprobe.in_names(names, probe.names_in(bucket, options.keys(params), params["max_seconds"]))


def _probe(params: dict) -> dict:
    try:
        blocknames.seed_of(params["version"], params["hash_seed"])
    except blocknames.Unpredictable as error:
        return {"found": False, "predictable": False, "reason": str(error), "blocks": 0, "present": 0, "names": []}
    tokens = params["token_ids"]
    if tokens is None:
        tokens = tokenizer.tokenize(params["tokenizer_url"], params["text"], params["model"])
    names = blocknames.names(
        tokens,
        params["block_size"],
        params["version"],
        params["hash_algorithm"],
        params["salt"],
        params["hash_seed"],
        params["blocks_per_chunk"],
    )
    if not names:
        raise ValueError("%d tokens do not fill one block: use a longer prompt" % len(tokens))
    there = _there(names, params)
    return {
        "found": any(there),
        "predictable": True,
        "reason": "",
        "blocks": len(names),
        "present": sum(there),
        "names": [{"name": name, "present": present} for name, present in zip(names, there)],
    }


def main() -> None:
    """Ansible calls this."""
    module = AnsibleModule(
        argument_spec={
            "token_ids": {"type": "list", "elements": "int", "no_log": False},
            "text": {"type": "str", "no_log": True},
            "tokenizer_url": {"type": "str", "no_log": False},
            "model": {"type": "str"},
            "version": {"type": "str", "required": True},
            "block_size": {"type": "int", "default": 16},
            "blocks_per_chunk": {"type": "int", "default": 1},
            "hash_algorithm": {"type": "str", "choices": ["sha256", "sha256_cbor"], "default": "sha256"},
            "salt": {"type": "str", "no_log": True},
            "hash_seed": {"type": "str", "no_log": True},
            "path": {"type": "path"},
            **options.CONNECTION,
            "bucket": {"type": "str"},
            **options.KEYS,
            "store": {"type": "str", "default": "vllm_obj"},
            "max_seconds": {"type": "int", "default": 60},
            "data_map": {"type": "dict"},
            "keys": {"type": "list", "elements": "str", "no_log": False},
        },
        required_one_of=[("token_ids", "text"), ("path", "tier", "bucket", "keys")],
        mutually_exclusive=[("token_ids", "text"), ("path", "tier", "bucket", "keys"), *options.ONE_OF],
        required_together=options.TOGETHER,
        required_by={"text": "tokenizer_url", "data_map": "tier", "endpoint": "bucket"},
        supports_check_mode=True,
    )
    try:
        result = _probe(module.params)
    except (errors.S3Error, options.BadOption) as error:
        where = module.params["bucket"] or "tier {tier}".format(**module.params)
        module.fail_json(msg=f"{where}: {error}")
    except (datamap.MapError, fsio.UnsafePath, OSError, ValueError) as error:
        module.fail_json(msg=str(error))
    except KeyError as error:
        module.fail_json(msg=str(error.args[0]))
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()
