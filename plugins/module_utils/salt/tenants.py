# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The gateway's tenants: what an operator may write, and the file with one line for each that nginx reads."""

from __future__ import annotations

import re
from typing import Any

from . import derive

DIGEST = re.compile(r"[0-9a-f]{64}")
KEYS = {"name", "epoch", "key_sha256", "certificate_sha256", "no_persist"}
# What people write who mean the digest of a key.
CLEAR = {"key", "api_key", "token", "secret", "password"}
# sha256 of what a template or an empty variable leaves.
WORTHLESS = {
    derive.hashlib.sha256(text.encode()).hexdigest() for text in ("", "\n", "None", "null", "changeme", "test", "EMPTY")
}

Reason = tuple[str, str, str]


def problems(tenants: Any, identity: str) -> list[Reason]:
    """Everything that is wrong with a list of tenants: which tenant or key, why, what to do."""
    if not isinstance(tenants, list):
        return [("tenants", "it is not a list", "give a list of tenants, each with name and epoch")]
    found: list[Reason] = []
    seen: set[str] = set()
    owners: dict[str, str] = {}
    for index, tenant in enumerate(tenants):
        if not isinstance(tenant, dict):
            found.append((f"tenants[{index}]", "it is not a dictionary", "give name, epoch and key_sha256"))
            continue
        name = tenant.get("name")
        where = f"tenant {name}" if isinstance(name, str) else f"tenants[{index}]"
        found += [(where, why, fix) for why, fix in _of_one(tenant, identity)]
        if isinstance(name, str):
            if name in seen:
                found.append((where, "the name stands twice", "tenants are told apart by name; remove one"))
            seen.add(name)
        for digest in _digests(tenant):
            owner = owners.setdefault(digest, where)
            if owner != where:
                found.append((where, f"a credential of it is one of {owner} too", "give each its own"))
    return found


def _digests(tenant: dict[str, Any]) -> list[str]:
    values = [tenant.get("key_sha256") or [], tenant.get("certificate_sha256") or []]
    return [digest for value in values if isinstance(value, list) for digest in value if isinstance(digest, str)]


def _of_one(tenant: dict[str, Any], identity: str) -> list[tuple[str, str]]:
    found = []
    clear = sorted(CLEAR & tenant.keys())
    if clear:
        # The value is not repeated: it may be a real key.
        found.append(
            (
                f"{clear[0]} holds a key in clear in the inventory",
                "write key_sha256 with what `printf %s KEY | sha256sum` prints, and replace the key: it was read",
            )
        )
    unknown = sorted(str(key) for key in tenant.keys() - KEYS - CLEAR)
    if unknown:
        found.append((f"{', '.join(unknown)} is no key of a tenant", "keys are " + ", ".join(sorted(KEYS))))
    name, epoch = tenant.get("name"), tenant.get("epoch")
    if not isinstance(name, str) or not derive.TENANT.fullmatch(name):
        found.append((f"name {name!r} is not 1 to 64 of a-z, 0-9 and -, beginning with no -", "choose such a name"))
    if not isinstance(epoch, str) or not derive.EPOCH.fullmatch(epoch):
        found.append((f"epoch {epoch!r} is not a text of 1 to 64 of A-Z, a-z, 0-9, '.', _ and -", 'write epoch: "1"'))
    if not isinstance(tenant.get("no_persist", False), bool):
        found.append(("no_persist is neither true nor false", "write true or false"))
    for key in ("key_sha256", "certificate_sha256"):
        digests = tenant.get(key, [])
        if not isinstance(digests, list) or not all(isinstance(d, str) and DIGEST.fullmatch(d) for d in digests):
            found.append((f"{key} is not a list of SHA-256 digests of 64 lower-case hexadecimal digits", _HOW[key]))
        elif len(set(digests)) != len(digests):
            found.append((f"{key} names a digest twice", "remove one"))
        elif WORTHLESS & set(digests):
            found.append((f"{key} is the digest of nothing or of a word that anybody tries", _HOW[key]))
    needed = {"api_key": "key_sha256", "client_certificate": "certificate_sha256"}.get(identity)
    if needed and not tenant.get(needed):
        found.append((f"it has no {needed}, so nobody can be this tenant", _HOW[needed]))
    return found


_HOW = {
    "key_sha256": "write what `printf %s KEY | sha256sum` prints, for a key from a random source",
    "certificate_sha256": "write what `openssl x509 -in CERT -outform DER | sha256sum` prints",
}

HEADER = """\
# Written by llmhost.hardening; changes here are lost. One line for each tenant, read at start and reload:
# NAME epoch=EPOCH key=SHA256-OF-AN-API-KEY... certificate=SHA256-OF-ITS-DER... no_persist
"""


def line(tenant: dict[str, Any]) -> str:
    """The line of one tenant."""
    words = [tenant["name"], "epoch=" + tenant["epoch"]]
    words += ["key=" + digest for digest in tenant.get("key_sha256") or []]
    words += ["certificate=" + digest for digest in tenant.get("certificate_sha256") or []]
    return " ".join(words + (["no_persist"] if tenant.get("no_persist") else []))


def render(tenants: list[dict[str, Any]]) -> str:
    """The tenants file."""
    return HEADER + "".join(line(tenant) + "\n" for tenant in tenants)
