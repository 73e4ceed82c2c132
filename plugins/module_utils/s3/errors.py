# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What went wrong with a bucket, in words of ours: one kind, one reason and one remedy for each class of error.

Servers' own messages are not repeated where they may hold credentials, and many servers send none.
"""

from __future__ import annotations

from typing import NamedTuple

DENIED, NO_BUCKET, UNSUPPORTED, UNREACHABLE, UNKNOWN = "denied", "no_bucket", "unsupported", "unreachable", "unknown"
# Not of the bucket but of the call: nothing was sent.
USAGE = "usage"
# An answer that is no failure: there is nothing of the kind that was asked for.
ABSENT = "absent"

_KEYS = "check the access key and secret of this endpoint"
_REGION = "set region to the bucket's own"
_CUT = (UNREACHABLE, "the connection was cut", "run again; look at proxies and the server's log")
_PROXY = "check the endpoint and the proxy settings (HTTPS_PROXY, NO_PROXY) of this host"

# Error code of the server -> kind, reason, remedy.
_CODES: dict[str, tuple[str, str, str]] = {
    "NoSuchBucket": (NO_BUCKET, "the bucket does not exist", "create it, or correct the bucket or the endpoint"),
    "InvalidAccessKeyId": (DENIED, "the server does not know the access key", _KEYS),
    "SignatureDoesNotMatch": (DENIED, "the secret key is wrong, or a proxy changes the requests", _KEYS),
    "AccessDenied": (DENIED, "the credentials have no right to do this", "grant it (docs/buckets.md lists the rights)"),
    "AllAccessDisabled": (DENIED, "access to the bucket is disabled", "ask its owner"),
    "ExpiredToken": (DENIED, "the session token has expired", "get new temporary credentials"),
    "ExpiredTokenException": (DENIED, "the session token has expired", "get new temporary credentials"),
    "TokenRefreshRequired": (DENIED, "the session token has expired", "get new temporary credentials"),
    "InvalidToken": (DENIED, "the session token is not valid", "get new temporary credentials"),
    "RequestTimeTooSkewed": (DENIED, "the clock of this host and the server's differ too much", "set the clock (NTP)"),
    "RequestExpired": (DENIED, "the clock of this host and the server's differ too much", "set the clock (NTP)"),
    "AuthorizationHeaderMalformed": (DENIED, "the requests are signed for another region", _REGION),
    "AuthorizationQueryParametersError": (DENIED, "the requests are signed for another region", _REGION),
    "IllegalLocationConstraintException": (DENIED, "the requests are signed for another region", _REGION),
    "PermanentRedirect": (UNREACHABLE, "the bucket is served by another endpoint or region", _REGION + " or endpoint"),
    "TemporaryRedirect": (UNREACHABLE, "the server sends us to another endpoint", "set endpoint to that one"),
    "NotImplemented": (UNSUPPORTED, "the server does not implement this", "use kvsweep instead of lifecycle rules"),
    "MethodNotAllowed": (UNSUPPORTED, "the server does not implement this", "use kvsweep instead of lifecycle rules"),
    "XNotImplemented": (UNSUPPORTED, "the server does not implement this", "use kvsweep instead of lifecycle rules"),
    "SlowDown": (UNKNOWN, "the server is overloaded", "run again later"),
    "ServiceUnavailable": (UNKNOWN, "the server is not available", "run again later"),
    "InternalError": (UNKNOWN, "the server failed", "look at its log and run again"),
}
_NOTHING = {
    "NoSuchLifecycleConfiguration",
    "NoSuchBucketPolicy",
    "ObjectLockConfigurationNotFoundError",
    "ReplicationConfigurationNotFoundError",
    "ServerSideEncryptionConfigurationNotFoundError",
    "NoSuchPublicAccessBlockConfiguration",
    "OwnershipControlsNotFoundError",
}
# Class of the client library's exception -> kind, reason, remedy. By name: the library may not be there.
_EXCEPTIONS: dict[str, tuple[str, str, str]] = {
    "SSLError": (
        UNREACHABLE,
        "the certificate of the endpoint is not trusted",
        "give ca_bundle the authority that signed it; never switch verification off",
    ),
    "EndpointConnectionError": (UNREACHABLE, "nothing answers there", "start the server or correct the endpoint"),
    "ConnectTimeoutError": (UNREACHABLE, "nothing answers there in time", "check the endpoint, routes and firewalls"),
    "ReadTimeoutError": (UNREACHABLE, "the server stopped answering", "look at its load and run again"),
    "ConnectionClosedError": _CUT,
    "ResponseStreamingError": _CUT,
    "IncompleteReadError": _CUT,
    "ProxyConnectionError": (UNREACHABLE, "the proxy does not answer", _PROXY),
    "HTTPClientError": (UNREACHABLE, "the connection failed", _PROXY),
    "ResponseParserError": (UNREACHABLE, "the answer is not S3's (a proxy or a web page?)", _PROXY),
    "NoCredentialsError": (
        USAGE,
        "no credentials were found",
        "give access_key and secret_key, credentials_file, profile, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY "
        "in the environment",
    ),
    "PartialCredentialsError": (USAGE, "the credentials are incomplete", "give access key and secret together"),
    "CredentialRetrievalError": (USAGE, "the credentials could not be had from their provider", "look at its log"),
    "TokenRetrievalError": (USAGE, "the login of this profile has expired", "log in again"),
    "UnauthorizedSSOTokenError": (USAGE, "the login of this profile has expired", "log in again"),
    "SSOTokenLoadError": (USAGE, "the login of this profile has expired", "log in again"),
    "ProfileNotFound": (USAGE, "there is no such profile", "name one of the credentials file or ~/.aws/config"),
    "ConfigParseError": (
        USAGE,
        "the credentials file cannot be parsed",
        "write it as AWS credentials files are",
    ),
    "ConfigNotFound": (USAGE, "the credentials or config file is missing", "write it or name another"),
    "InvalidRegionError": (USAGE, "the region is not a region name", "write letters, digits and -"),
    "InvalidConfigError": (USAGE, "the config file is wrong", "correct it"),
    "ParamValidationError": (USAGE, "a value is not one that S3 takes", "correct the bucket or the prefix"),
    "InvalidEndpointURLError": (USAGE, "the endpoint is no URL", "write https://HOST[:PORT]"),
}


class S3Error(Exception):
    """An error with its kind; the text names what happened and what to do."""

    def __init__(self, kind: str, reason: str, fix: str, code: str = "") -> None:
        super().__init__(f"{reason}{f' ({code})' if code else ''}. Fix: {fix}.")
        self.kind, self.reason, self.fix, self.code = kind, reason, fix, code


class Seen(NamedTuple):
    """What an answer of the server was like."""

    status: int
    root: str
    location: str = ""
    region: str = ""


def of_answer(code: str, seen: Seen) -> S3Error:
    """The error that a server's refusal means. code: its own, or the HTTP status where it sent none."""
    if code in _NOTHING:
        return S3Error(ABSENT, "there is none", "nothing to do", code)
    region = f": {_plain(seen.region)}" if seen.region else ""
    if seen.root.lower() == "html" or (seen.root not in ("", "Error") and seen.status >= 300):
        return S3Error(UNREACHABLE, "a web page or another service answered, not S3", _PROXY, f"HTTP {seen.status}")
    if code in _CODES:
        kind, reason, fix = _CODES[code]
        return S3Error(kind, reason, fix + (region if fix.startswith(_REGION) else ""), code)
    return _of_status(code, seen, region)


def _of_status(code: str, seen: Seen, region: str) -> S3Error:
    status = seen.status
    shown = _plain(code) or f"HTTP {status}"
    if 300 <= status < 400:
        to = f" to {_plain(seen.location)}" if seen.location else ""
        return S3Error(UNREACHABLE, f"the endpoint redirects{to}", "name that place" + region, shown)
    if status == 401 or status == 403:
        return S3Error(DENIED, *_CODES["AccessDenied"][1:], shown)
    if status == 404 and code in ("", "404", "NotFound"):
        return S3Error(NO_BUCKET, *_CODES["NoSuchBucket"][1:], shown)
    if status in (405, 501):
        return S3Error(UNSUPPORTED, *_CODES["NotImplemented"][1:], shown)
    if status == 407:
        return S3Error(UNREACHABLE, "the proxy wants a login", _PROXY, shown)
    if status == 400 and seen.region:
        return S3Error(DENIED, *_CODES["AuthorizationHeaderMalformed"][1:2], _REGION + region, shown)
    return S3Error(UNKNOWN, "the server refused the request", "look at its log", shown)


def of_exception(error: BaseException, doing: str = "") -> S3Error:
    """The error that an exception of the client library means; it is looked for in its base classes too."""
    for base in type(error).__mro__:
        if base.__name__ in _EXCEPTIONS:
            kind, reason, fix = _EXCEPTIONS[base.__name__]
            return S3Error(kind, reason, fix, base.__name__)
    where = f" while {doing}" if doing else ""
    return S3Error(UNKNOWN, f"the client library failed{where}", "report this", type(error).__name__)


def _plain(text: str) -> str:
    """Text of a stranger's as a short piece of one line; a query may hold credentials."""
    text = "".join(char if char.isprintable() else "?" for char in str(text).partition("?")[0])
    return text[:100]
