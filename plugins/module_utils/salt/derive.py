# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A tenant's salt from the key of the site: base64url(HMAC-SHA256(K, label NUL tenant NUL epoch))."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re

LABEL = "llmhost-cache-salt-v1"
TENANT = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
EPOCH = re.compile(r"[A-Za-z0-9._-]{1,64}")
KEY_BYTES = 32
# 32 random bytes have fewer different values than this once in 10^13 keys; typed ones nearly always.
MIN_DIFFERENT = 18


class SaltError(Exception):
    """A value that no salt may be made from; the text is for the operator and never holds a key."""


def parse_key(text: str) -> bytes:
    """The key that a key file holds: 64 hexadecimal digits, from a random source."""
    digits = text[:-1] if text.endswith("\n") else text
    if not re.fullmatch(r"[0-9a-f]{64}|[0-9A-F]{64}", digits):
        raise SaltError("it is not 64 hexadecimal digits (32 random bytes), as `openssl rand -hex 32` prints them")
    key = bytes.fromhex(digits)
    if len(set(key)) < MIN_DIFFERENT:
        raise SaltError("its bytes repeat themselves: no random source made it; `openssl rand -hex 32` does")
    return key


def salt(key: bytes, tenant: str, epoch: str, label: str = LABEL) -> str:
    """43 characters of [A-Za-z0-9_-]; no two (label, tenant, epoch) are encoded alike, for none may hold a NUL."""
    if len(key) != KEY_BYTES:
        raise SaltError("the key is not 32 bytes")
    if not TENANT.fullmatch(tenant):
        raise SaltError(f"tenant {tenant!r}: a name is 1 to 64 of a-z, 0-9 and -, and begins with no -")
    if not EPOCH.fullmatch(epoch):
        raise SaltError(f"tenant {tenant}: epoch {epoch!r} is not 1 to 64 of A-Z, a-z, 0-9, '.', _ and -")
    if not EPOCH.fullmatch(label):
        raise SaltError(f"label {label!r} is not 1 to 64 of A-Z, a-z, 0-9, '.', _ and -")
    message = "\0".join((label, tenant, epoch)).encode("ascii")
    return base64.urlsafe_b64encode(hmac.new(key, message, hashlib.sha256).digest()).decode().rstrip("=")


def key_id(key: bytes) -> str:
    """Names a key without telling it."""
    return hmac.new(key, b"llmhost-key-id", hashlib.sha256).hexdigest()[:16]


def text_id(text: bytes) -> str:
    """Names a file's content."""
    return hashlib.sha256(text).hexdigest()[:16]
