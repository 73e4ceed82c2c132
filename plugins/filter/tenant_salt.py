# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Salts and the gateway's settings on the controller: the same code as on the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ansible.errors import AnsibleFilterError

from ansible_collections.llmhost.hardening.plugins.module_utils.kv import datamap
from ansible_collections.llmhost.hardening.plugins.module_utils.salt import derive
from ansible_collections.llmhost.hardening.plugins.module_utils.salt import settings as settings_


def tenant_salt(tenant: Any, key: Any, epoch: Any = "1", label: Any = derive.LABEL) -> str:
    try:
        return derive.salt(derive.parse_key(str(key)), str(tenant), str(epoch), str(label))
    except derive.SaltError as error:
        raise AnsibleFilterError(f"tenant_salt: {error}") from error


def salt_gateway_problems(settings: Any, host: str, key_vault: Any = "") -> list[str]:
    found = settings_.problems(dict(settings), str(host))
    if key_vault:
        found += _vault_problems(str(key_vault), str(host))
    return [str(problem) for problem in found]


def _vault_problems(path: str, host: str) -> list[datamap.Problem]:
    """The file is looked at as it lies there: only its first bytes tell whether it is encrypted."""
    variable = "cache_salt_gateway_key_vault"
    try:
        with open(path, "rb") as file:
            encrypted = file.read(15).startswith(b"$ANSIBLE_VAULT;")
    except OSError as error:
        fix = "name a file that `ansible-vault encrypt` made, or leave it empty: the host then makes a key"
        return [datamap.Problem(host, "", variable, f"{path} cannot be read: {error.strerror}", fix)]
    if encrypted:
        return []
    fix = "make a new key (`openssl rand -hex 32`), for this one was read, and encrypt it with `ansible-vault encrypt`"
    return [datamap.Problem(host, "", variable, f"{path} holds the key in clear", fix)]


class FilterModule:
    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"tenant_salt": tenant_salt, "salt_gateway_problems": salt_gateway_problems}
