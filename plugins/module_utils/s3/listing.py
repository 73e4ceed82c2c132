# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Pages of listings, read from the server's bytes: the client library takes most of a sweep's time for it.

The result has the library's names, for what this package asks of a page. Times are seconds since 1970.
"""

from __future__ import annotations

import calendar
import re
from datetime import datetime, timezone
from functools import lru_cache
from typing import Any
from urllib.parse import unquote
from xml.etree.ElementTree import Element

from . import document

ROOTS = {
    "ListObjectsV2": "ListBucketResult",
    "ListObjectVersions": "ListVersionsResult",
    "ListMultipartUploads": "ListMultipartUploadsResult",
}
_LISTS = {"Contents": "Contents", "Version": "Versions", "DeleteMarker": "DeleteMarkers", "Upload": "Uploads"}
_TIMES = ("LastModified", "Initiated")
# Names of keys, which a server that was asked for it sends encoded.
_NAMES = ("Key", "NextKeyMarker", "KeyMarker")
_PLAIN = ("Key", "VersionId", "UploadId")

# What nearly every server writes, read without the detour of fromisoformat.
_PLAIN_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?Z", re.ASCII)
_FRACTION = re.compile(r"\.(\d+)(?=(?:[+-][0-9:]+)?$)", re.ASCII)


class BadPage(Exception):
    """A page that lacks what every page has."""


def parse(operation: str, body: bytes) -> dict[str, Any]:
    """A page of this listing; document.NotALifecycle if the answer is another document."""
    tree = document.tree(body)
    space, _brace, root = tree.tag.rpartition("}")
    if root != ROOTS[operation]:
        raise document.NotALifecycle(root, f"the answer is a {root}")
    skip = len(space) + 1 if space else 0
    encoded = any(child.tag[skip:] == "EncodingType" and child.text == "url" for child in tree)
    page: dict[str, Any] = {"Contents": [], "Versions": [], "DeleteMarkers": [], "Uploads": [], "CommonPrefixes": []}
    for child in tree:
        name = child.tag[skip:]
        if name in _LISTS:
            page[_LISTS[name]].append(_entry(child, skip, encoded))
        elif name == "CommonPrefixes":
            texts = [one.text or "" for one in child if one.tag[skip:] == "Prefix"]
            page[name] += [unquote(text) if encoded else text for text in texts]
        elif name == "IsTruncated":
            page[name] = child.text == "true"
        elif name.startswith("Next") and child.text:
            page[name] = unquote(child.text) if encoded and name in _NAMES else child.text
    return page


def _entry(element: Element, skip: int, encoded: bool) -> dict[str, Any]:
    entry: dict[str, Any] = {}
    for child in element:
        name, text = child.tag[skip:], child.text or ""
        if name in _PLAIN:
            entry[name] = unquote(text) if encoded and name == "Key" else text
        elif name in _TIMES:
            entry[name] = moment(text)
        elif name == "Size":
            entry[name] = int(text) if text.isdecimal() and len(text) < 20 else 0
        elif name == "IsLatest":
            entry[name] = text == "true"
    if "Key" not in entry or not any(name in entry for name in _TIMES):
        raise BadPage("an entry has no key or no time")
    return entry


def moment(text: str) -> float:
    """Seconds since 1970 of a time as servers write it."""
    if _PLAIN_TIME.fullmatch(text):
        try:
            seconds = int(text[11:13]) * 3600 + int(text[14:16]) * 60 + int(text[17:19])
            return _day(text[:10]) + seconds + (float("0" + text[19:-1]) if len(text) > 20 else 0.0)
        except ValueError:
            pass
    # Before Python 3.11 a fraction has three or six digits; what stands behind six is not looked at by newer ones.
    whole = _FRACTION.sub(lambda m: f".{m.group(1):0<6.6}", text.replace("Z", "+00:00"), 1)
    try:
        found = datetime.fromisoformat(whole)
    except ValueError:
        raise BadPage("an entry has a time that is none") from None
    return (found if found.tzinfo else found.replace(tzinfo=timezone.utc)).timestamp()


@lru_cache(maxsize=64)
def _day(text: str) -> int:
    year, month, day = (int(part) for part in text.split("-"))
    datetime(year, month, day)
    return calendar.timegm((year, month, day, 0, 0, 0))
