# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The only file that knows boto3: connection, credentials, and answers that are checked before they are believed.

Many servers answer a question that they do not know with 200 and another document, which the client library turns into
an empty success. So the root element of every answer is compared with what was asked for.
"""

from __future__ import annotations

import base64
import hashlib
import os
import socket
import stat
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping
from email.utils import parsedate_to_datetime
from functools import lru_cache, partial
from typing import Any, NamedTuple

from . import document, errors, listing
from .errors import S3Error, Seen

try:
    # Boto3's own lower half: the upper one takes a tenth of a second to load and is not needed.
    import botocore.config
    import botocore.exceptions
    import botocore.loaders
    import botocore.session

    BOTO_ERROR = None
except ImportError:
    BOTO_ERROR = traceback.format_exc()

# Ways to credentials that a credentials file can describe.
_OF_A_FILE = ("assume-role", "shared-credentials-file", "custom-process")
LIFECYCLE_SIZE = "x-amz-transition-default-minimum-object-size"

_ROOTS = {
    "GetBucketLifecycleConfiguration": document.ROOT,
    "GetBucketVersioning": "VersioningConfiguration",
    "GetObjectLockConfiguration": "ObjectLockConfiguration",
    "GetBucketReplication": "ReplicationConfiguration",
    "GetBucketEncryption": "ServerSideEncryptionConfiguration",
    "GetBucketPolicyStatus": "PolicyStatus",
    "GetBucketAcl": "AccessControlPolicy",
    "DeleteObjects": "DeleteResult",
}


class Settings(NamedTuple):
    """How to get to a bucket. Credentials not given come from the environment, the profile or the machine."""

    bucket: str
    endpoint: str | None = None
    region: str = "us-east-1"
    path_style: bool = True
    ca_bundle: str | None = None
    profile: str | None = None
    credentials_file: str | None = None
    access_key: str | None = None
    secret_key: str | None = None
    session_token: str | None = None
    timeout: int = 30


class Answer(NamedTuple):
    """A successful answer: what the library made of it, its bytes, its headers in lower case."""

    parsed: dict[str, Any]
    body: bytes
    headers: Mapping[str, str]

    def date(self) -> float | None:
        """The server's time, in seconds since 1970."""
        try:
            return parsedate_to_datetime(self.headers["date"]).timestamp()
        except (KeyError, TypeError, ValueError, IndexError):
            return None


def missing_boto3() -> S3Error | None:
    """The error to give where boto3 is missing, which names this interpreter and this host."""
    if BOTO_ERROR is None:
        return None
    where = f"{sys.executable} on {socket.gethostname()}"
    fix = "install it for that interpreter (Debian: apt install python3-boto3), or name one that has it"
    return S3Error(errors.USAGE, f"boto3 is missing for {where}", fix)


class Bucket:
    """One bucket. Every call gives a checked Answer or raises S3Error."""

    def __init__(self, settings: Settings) -> None:
        absent = missing_boto3()
        if absent is not None:
            raise absent
        self.settings, self.name = settings, settings.bucket
        # Batches are deleted by several threads, each with its own last answer.
        self._last = threading.local()
        self._header: dict[str, str] = {}
        try:
            self.client = self._connect(settings)
        except S3Error:
            raise
        except (botocore.exceptions.BotoCoreError, ValueError, OSError) as error:
            if isinstance(error, ValueError) and not isinstance(error, botocore.exceptions.BotoCoreError):
                raise S3Error(errors.USAGE, "the endpoint is no URL", "write https://HOST[:PORT]") from None
            raise errors.of_exception(error, "connecting") from None

    def _connect(self, settings: Settings) -> Any:
        for path in (settings.ca_bundle, settings.credentials_file):
            if path is not None and not os.path.isfile(path):
                raise S3Error(errors.USAGE, f"{path} is no file on {socket.gethostname()}", "name one that is there")
        core = botocore.session.Session(profile=settings.profile)
        core.register_component("data_loader", _loader())
        if settings.credentials_file is not None:
            _closed(settings.credentials_file)
            core.set_config_variable("credentials_file", settings.credentials_file)
            # The environment would win over the file that the operator named.
            chain = core.get_component("credential_provider")
            chain.providers = [provider for provider in chain.providers if provider.METHOD in _OF_A_FILE]
        if (settings.access_key is None) != (settings.secret_key is None):
            raise S3Error(errors.USAGE, "the credentials are incomplete", "give access_key and secret_key together")
        client = core.create_client(
            "s3",
            endpoint_url=settings.endpoint,
            region_name=settings.region,
            aws_access_key_id=settings.access_key,
            aws_secret_access_key=settings.secret_key,
            aws_session_token=settings.session_token,
            verify=settings.ca_bundle or True,
            config=botocore.config.Config(
                s3={"addressing_style": _style(settings)},
                connect_timeout=min(settings.timeout, 10),
                read_timeout=settings.timeout,
                retries={"max_attempts": 2, "mode": "standard"},
                signature_version="s3v4",
                user_agent_extra="llmhost.hardening",
            ),
        )
        client.meta.events.register("after-call.s3", self._seen)
        for operation, root in listing.ROOTS.items():
            client.meta.events.register("before-parse.s3." + operation, partial(_spare, root))
        for operation in ("PutBucketLifecycleConfiguration", "DeleteObjects"):
            client.meta.events.register("before-call.s3." + operation, self._checksum)
        return client

    def _seen(self, http_response: Any, **_more: Any) -> None:
        self._last.body, self._last.headers = http_response.content, http_response.headers

    def _checksum(self, params: dict[str, Any], **_more: Any) -> None:
        """The checksum that old servers demand; new libraries send only newer ones."""
        body = params["body"]
        data = body.encode() if isinstance(body, str) else body
        try:
            digest = hashlib.md5(data, usedforsecurity=False).digest()
        except ValueError:
            # FIPS: the library's own checksum has to do.
            return
        params["headers"]["Content-MD5"] = base64.b64encode(digest).decode()
        params["headers"].update(self._header)

    def call(self, operation: str, **arguments: Any) -> Answer:
        """One call, by S3's own name for it."""
        self._last.body, self._last.headers = b"", {}
        method = getattr(self.client, _snake(operation))
        try:
            parsed = method(Bucket=self.name, **arguments)
        except botocore.exceptions.ClientError as error:
            raise self._refusal(error) from None
        except botocore.exceptions.BotoCoreError as error:
            raise errors.of_exception(error, operation) from None
        body = self._last.body or b""
        headers = {str(key).lower(): str(value) for key, value in dict(self._last.headers or {}).items()}
        if operation in listing.ROOTS:
            return Answer(_page(operation, body), b"", headers)
        wanted = _ROOTS.get(operation)
        # A quiet deletion of everything may be answered with an empty document, but with one.
        if wanted is not None and (root := document.root_of(body)) != wanted:
            raise _other_root(operation, root, len(body))
        return Answer(parsed, body, headers)

    def _refusal(self, error: Any) -> S3Error:
        meta = error.response.get("ResponseMetadata", {})
        headers = {str(key).lower(): value for key, value in (meta.get("HTTPHeaders") or {}).items()}
        body = self._last.body or b""
        seen = Seen(
            int(meta.get("HTTPStatusCode") or 0),
            document.root_of(body) if body else "",
            str(headers.get("location") or error.response.get("Error", {}).get("Endpoint") or ""),
            str(headers.get("x-amz-bucket-region") or error.response.get("Error", {}).get("Region") or ""),
        )
        return errors.of_answer(str(error.response.get("Error", {}).get("Code") or ""), seen)

    # What the rest of this package asks for.

    def lifecycle(self) -> Answer | None:
        """The lifecycle document, None where the server says that there is none."""
        try:
            return self.call("GetBucketLifecycleConfiguration")
        except S3Error as error:
            if error.kind == errors.ABSENT:
                return None
            raise

    def put_lifecycle(self, rules: list[dict[str, Any]], size_default: str | None) -> None:
        """Replace the lifecycle document; size_default: a setting of the document that travels in a header."""
        self._header = {LIFECYCLE_SIZE: size_default} if size_default else {}
        try:
            self.call("PutBucketLifecycleConfiguration", LifecycleConfiguration={"Rules": rules})
        finally:
            self._header = {}

    def head(self) -> Answer:
        return self.call("HeadBucket")

    def folder(self, prefix: str) -> Answer:
        """What lies directly under a prefix, whatever lies below it: keys and the names of folders, one page."""
        return self.call("ListObjectsV2", Prefix=prefix, Delimiter="/", MaxKeys=1000)

    def pages(
        self, operation: str, prefix: str, start: Mapping[str, str] | None = None, size: int = 1000
    ) -> Iterator[Answer]:
        """Pages of a listing, one at a time. start: where to go on."""
        position: dict[str, Any] = dict(start or {})
        limit = {"MaxUploads" if operation == "ListMultipartUploads" else "MaxKeys": size}
        while True:
            answer = self.call(operation, Prefix=prefix, **limit, **position)
            yield answer
            following = next_page(operation, answer.parsed)
            if following is None or following == position:
                return
            position = following


_MARKERS = {
    "ListObjectsV2": {"NextContinuationToken": "ContinuationToken"},
    "ListObjectVersions": {"NextKeyMarker": "KeyMarker", "NextVersionIdMarker": "VersionIdMarker"},
    "ListMultipartUploads": {"NextKeyMarker": "KeyMarker", "NextUploadIdMarker": "UploadIdMarker"},
}


def next_page(operation: str, parsed: Mapping[str, Any]) -> dict[str, Any] | None:
    """Where the page after this one begins, None if it is the last."""
    if not parsed.get("IsTruncated"):
        return None
    found = {ours: parsed[theirs] for theirs, ours in _MARKERS[operation].items() if parsed.get(theirs)}
    if not found:
        raise S3Error(errors.UNKNOWN, "the listing is cut off and does not say where it goes on", "use another server")
    return found


def _other_root(operation: str, root: str, size: int) -> S3Error:
    if not size:
        return S3Error(errors.UNKNOWN, f"{operation}: the answer is empty", "look at the server's log")
    if root.lower() == "html" or not root:
        fix = "check the endpoint and the proxy settings (HTTPS_PROXY, NO_PROXY) of this host"
        return S3Error(errors.UNREACHABLE, f"{operation}: a web page answered, not S3", fix)
    reason = f"{operation}: the server answered with a {root}, so it does not know the question"
    return S3Error(errors.UNSUPPORTED, reason, "use kvsweep instead of lifecycle rules")


def _page(operation: str, body: bytes) -> dict[str, Any]:
    try:
        return listing.parse(operation, body)
    except document.NotALifecycle as error:
        raise _other_root(operation, error.root, len(body)) from None
    except listing.BadPage as error:
        raise S3Error(errors.UNKNOWN, f"{operation}: {error}", "use another server") from None


def _style(settings: Settings) -> str:
    """With an endpoint the library takes "auto" for path style; without, it knows which names no host can have."""
    if settings.path_style:
        return "path"
    return "virtual" if settings.endpoint is not None else "auto"


def _spare(root: str, response_dict: dict[str, Any], **_more: Any) -> None:
    """Keep the library from parsing a page: it would take ten times as long as listing does."""
    if response_dict["status_code"] == 200:
        response_dict["body"] = f"<{root}/>".encode()


@lru_cache(maxsize=1)
def _loader() -> Any:
    """Descriptions of the service, which take longer to read than most calls: read once for all buckets."""
    return botocore.loaders.create_loader()


def _closed(path: str) -> None:
    info = os.stat(path)
    if stat.S_IMODE(info.st_mode) & 0o077:
        mode = stat.S_IMODE(info.st_mode)
        raise S3Error(errors.USAGE, f"{path} (mode {mode:04o}) is open to other accounts", f"chmod 0600 {path}")


def _snake(operation: str) -> str:
    return "".join("_" + char.lower() if char.isupper() else char for char in operation).lstrip("_")
