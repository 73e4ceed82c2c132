# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What can be read of a bucket: each question with its answer, or why there is none. Nothing is judged here."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from . import document, errors, proof
from .document import Rule
from .errors import S3Error
from .keys import Keys

ON, OFF, SUSPENDED = "Enabled", "Off", "Suspended"
_EVERYBODY = ("/groups/global/AllUsers", "/groups/global/AuthenticatedUsers")
_RGW_REQUEST = re.compile(r"tx[0-9a-f]{15,}-")
MAX_HEADS = 10


@dataclass
class Evidence:
    """Answers about one bucket. None: there is none (rules) or nobody knows (all others); `unread` says why.

    refusal: why nothing is known about rules.
    """

    endpoint: str = ""
    rules: list[Rule] | None = None
    refusal: S3Error | None = None
    versioning: str | None = None
    mfa_delete: bool = False
    lock_enabled: bool | None = None
    lock_days: int | None = None
    held: list[str] = field(default_factory=list)
    destinations: list[str] | None = None
    public: bool | None = None
    encrypted: bool | None = None
    skew_seconds: float | None = None
    server: str = ""
    size_default: str | None = None
    proof: proof.Proof | None = None
    unread: dict[str, str] = field(default_factory=dict)

    @property
    def versioned(self) -> bool:
        """True unless it is known that no old version is kept."""
        return self.versioning != OFF


def rules_of(bucket: Any) -> tuple[list[Rule] | None, Any]:
    """The rules of the bucket, None where the server says that there are none, and the answer they came in."""
    answer = bucket.lifecycle()
    if answer is None:
        return None, None
    try:
        return document.parse(answer.body), answer
    except document.NotALifecycle as error:
        raise S3Error(errors.UNKNOWN, f"the lifecycle document cannot be read: {error}", "report this") from None


def versioning_of(bucket: Any) -> tuple[str, bool]:
    """The state of versioning, and whether deletions need MFA."""
    parsed = bucket.call("GetBucketVersioning").parsed
    return parsed.get("Status") or OFF, parsed.get("MFADelete") == "Enabled"


def server_of(headers: Mapping[str, str]) -> str:
    """What kind of server answers, as far as it shows; only for hints."""
    if _RGW_REQUEST.match(headers.get("x-amz-request-id", "")) or "ceph" in headers.get("server", "").lower():
        return "Ceph RGW"
    return headers.get("server", "").split("/")[0][:40]


def gather(bucket: Any, keys: Keys, allowed_minutes: float, limits: Mapping[str, Any]) -> Evidence:
    """Everything about the bucket; raises S3Error only where there is no bucket to ask."""
    found = Evidence(endpoint=bucket.settings.endpoint or "https://s3.amazonaws.com")
    answer = None
    try:
        found.rules, answer = rules_of(bucket)
    except S3Error as error:
        if error.kind not in (errors.UNSUPPORTED, errors.DENIED, errors.UNKNOWN):
            raise
        found.refusal = error
    try:
        head = bucket.head()
    except S3Error:
        # What the first answer said is more than what a HEAD can say.
        if found.refusal is not None:
            raise found.refusal from None
        raise
    found.server = server_of(head.headers)
    if answer is not None:
        found.size_default = answer.headers.get("x-amz-transition-default-minimum-object-size")
    date = head.date()
    found.skew_seconds = None if date is None else date - time.time()
    for name, ask in (
        ("versioning", _versioning),
        ("object lock", _lock),
        ("replication", _replication),
        ("policy status", _public),
        ("encryption", _encryption),
    ):
        try:
            ask(bucket, found)
        except S3Error as error:
            found.unread[name] = str(error)
    found.proof = proof.prove(bucket, keys, allowed_minutes, found.versioned, **limits)
    if found.lock_enabled:
        _holds(bucket, found)
    return found


def _versioning(bucket: Any, found: Evidence) -> None:
    try:
        found.versioning, found.mfa_delete = versioning_of(bucket)
    except S3Error as error:
        if error.kind != errors.UNSUPPORTED:
            raise
        # A server without the call has no old versions either.
        found.versioning = OFF


def _lock(bucket: Any, found: Evidence) -> None:
    found.lock_enabled = False
    try:
        parsed = bucket.call("GetObjectLockConfiguration").parsed
    except S3Error as error:
        if error.kind not in (errors.ABSENT, errors.UNSUPPORTED):
            found.lock_enabled = None
            raise
        return
    lock = parsed.get("ObjectLockConfiguration", {})
    found.lock_enabled = lock.get("ObjectLockEnabled") == "Enabled"
    default = lock.get("Rule", {}).get("DefaultRetention", {})
    if default:
        found.lock_days = int(default.get("Days") or 0) + 366 * int(default.get("Years") or 0)


def _replication(bucket: Any, found: Evidence) -> None:
    try:
        parsed = bucket.call("GetBucketReplication").parsed
    except S3Error as error:
        if error.kind not in (errors.ABSENT, errors.UNSUPPORTED):
            raise
        found.destinations = []
        return
    rules = parsed.get("ReplicationConfiguration", {}).get("Rules", [])
    found.destinations = sorted(
        {str(rule.get("Destination", {}).get("Bucket", "?")) for rule in rules if rule.get("Status") != "Disabled"}
    )


def _public(bucket: Any, found: Evidence) -> None:
    problem = None
    for operation in ("GetBucketPolicyStatus", "GetBucketAcl"):
        try:
            parsed = bucket.call(operation).parsed
        except S3Error as error:
            if error.kind not in (errors.ABSENT, errors.UNSUPPORTED):
                problem = error
            continue
        open_ = bool(parsed.get("PolicyStatus", {}).get("IsPublic"))
        for grant in parsed.get("Grants", []):
            open_ = open_ or str(grant.get("Grantee", {}).get("URI", "")).endswith(_EVERYBODY)
        found.public = bool(found.public) or open_
    if problem is not None and not found.public:
        found.public = None
        raise problem


def _encryption(bucket: Any, found: Evidence) -> None:
    try:
        bucket.call("GetBucketEncryption")
    except S3Error as error:
        if error.kind != errors.ABSENT:
            raise
        found.encrypted = False
        return
    found.encrypted = True


def _holds(bucket: Any, found: Evidence) -> None:
    """Objects that the lock keeps, among the first that are overdue or seen."""
    samples = found.proof.objects.samples if found.proof else []
    for key in samples[:MAX_HEADS]:
        try:
            parsed = bucket.call("HeadObject", Key=key).parsed
        except S3Error:
            continue
        if parsed.get("ObjectLockLegalHoldStatus") == "ON" or parsed.get("ObjectLockMode"):
            found.held.append(proof.printable(key))
