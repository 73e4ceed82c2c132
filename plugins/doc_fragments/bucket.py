# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Options that the modules which ask a bucket have in common."""

from __future__ import annotations


class ModuleDocFragment:
    """Connection to a bucket and which of its keys are the tier's; C(bucket.rules) is for what judges or sets rules."""

    DOCUMENTATION = r"""
requirements:
  - boto3 1.26 or newer for the interpreter that runs the module
options:
  bucket:
    description: Name of the bucket.
    type: str
    required: true
  endpoint:
    description: URL of the S3 endpoint. Default is Amazon's.
    type: str
  region:
    description: Region that requests are signed for. Servers that have none mostly take any.
    type: str
    default: us-east-1
  path_style:
    description: Whether the bucket stands in the path and not in the host name. Most servers but Amazon's need it.
    type: bool
    default: true
  ca_bundle:
    description: File of certificate authorities that the endpoint's certificate is checked against.
    type: path
  profile:
    description: Profile of the credentials file or of the account's AWS configuration.
    type: str
  credentials_file:
    description:
      - AWS credentials file on the host that runs the module, readable by its owner only. What the environment says
        counts for nothing then.
    type: path
  access_key:
    description: Access key, with O(secret_key). Default is what the file, profile, environment or machine gives.
    type: str
  secret_key:
    description: Secret key.
    type: str
  session_token:
    description: Session token of temporary credentials.
    type: str
  timeout:
    description: Seconds that one answer may take.
    type: int
    default: 30
  tier:
    description: Name of the tier, for messages.
    type: str
  prefix:
    description:
      - The engine's own C(prefix) setting, empty if it has none. vLLM writes keys below C(PREFIX//), or keys that begin
        with a slash. Exactly one of O(prefix) and O(key_prefix) is needed.
    type: str
  key_prefix:
    description: What the tier's keys begin with, taken as it is.
    type: str
  store:
    description:
      - The kind of store, for example V(vllm_obj), which says how the tier's keys look. Other keys under the prefix are
        not taken for the tier's then.
    type: str
"""

    RULES = r"""
options:
  id_prefix:
    description: What the ids of our rules begin with. A rule with another id is never touched.
    type: str
    default: llmhost
  lag_minutes:
    description: How late the server may be after the midnight at which a rule acts.
    type: int
    default: 1440
  max_seconds:
    description: How long the listing may take.
    type: int
    default: 60
"""
