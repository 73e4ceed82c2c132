# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Single files out of large wheels on the package index, by range requests: a few KB instead of 300 MB a version."""

from __future__ import annotations

import io
import json
import os
import re
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

INDEX = os.environ.get("LLMHOST_INDEX", "https://pypi.org/simple")
TIMEOUT = 60
CHUNK = 1 << 16
TAIL = 1 << 20  # the directory of a wheel of some ten thousand files


class IndexProblem(Exception):
    """The package index did not give what was asked for."""


class Wheel(NamedTuple):
    """A wheel on the index."""

    version: str
    name: str
    url: str
    size: int


def cache_dir() -> Path:
    return Path(os.environ.get("LLMHOST_CACHE") or Path.home() / ".cache" / "llmhost")


def _open(url: str, headers: dict[str, str]) -> bytes:
    request = urllib.request.Request(url, headers=headers | {"User-Agent": "llmhost-tests"})
    for left in (2, 1, 0):
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
                if "Range" in headers and answer.status != 206:
                    raise IndexProblem(f"{url} does not answer range requests")
                data: bytes = answer.read()
                return data
        except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
            if not left:
                raise IndexProblem(f"{url}: {error} (is PyPI or its mirror reachable?)") from error
    raise AssertionError


def key(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))


def wheels(project: str, platform: str = "manylinux_2_28_x86_64") -> dict[str, Wheel]:
    """The final releases of a project that have a wheel for that platform; of several builds the last."""
    text = _open(f"{INDEX}/{project}/", {"Accept": "application/vnd.pypi.simple.v1+json"})
    found: dict[str, tuple[int, Wheel]] = {}
    for file in json.loads(text)["files"]:
        parts = file["filename"].removesuffix(".whl").split("-")
        if not file["filename"].endswith(".whl") or not parts[-1].endswith(platform) or file.get("yanked"):
            continue
        version, build = parts[1], int(parts[2]) if len(parts) == 6 else 0
        if re.fullmatch(r"[0-9.]+(?:\.post\d+)?", version) and build >= found.get(version, (0,))[0]:
            found[version] = (build, Wheel(version, file["filename"], file["url"], file["size"]))
    return {version: found[version][1] for version in sorted(found, key=key)}


class Remote(io.RawIOBase):
    """A remote file that can be sought in; what was read stays in memory."""

    def __init__(self, wheel: Wheel) -> None:
        self.wheel, self.at, self.parts = wheel, 0, {}  # type: tuple[Wheel, int, dict[int, bytes]]
        start = max(0, wheel.size - TAIL)
        self.tail_at, self.tail = start, self._get(start, wheel.size)

    def _get(self, start: int, end: int) -> bytes:
        return _open(self.wheel.url, {"Range": f"bytes={start}-{end - 1}"})

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.at

    def seek(self, offset: int, whence: int = 0) -> int:
        self.at = offset + (0, self.at, self.wheel.size)[whence]
        return self.at

    def read(self, size: int = -1) -> bytes:
        end = self.wheel.size if size < 0 else min(self.wheel.size, self.at + size)
        if self.at >= self.tail_at:
            data = self.tail[self.at - self.tail_at : end - self.tail_at]
        else:
            data = b"".join(self._chunk(number) for number in range(self.at // CHUNK, -(-end // CHUNK)))
            data = data[self.at % CHUNK :][: end - self.at]
        self.at = end
        return data

    def _chunk(self, number: int) -> bytes:
        if number not in self.parts:
            start = number * CHUNK
            self.parts[number] = self._get(start, min(start + CHUNK, self.wheel.size))
        return self.parts[number]


def extract(wheel: Wheel, wanted: Callable[[str], bool], keep: Path) -> Iterable[Path]:
    """Files of the wheel for which wanted(name) holds, below keep; fetched once, whole or not there."""
    stamp = keep / ".files"
    if not stamp.exists():
        with zipfile.ZipFile(Remote(wheel)) as archive:
            names = sorted((info.header_offset, info.filename) for info in archive.infolist() if wanted(info.filename))
            for _offset, name in names:
                path = keep / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(archive.read(name))
        keep.mkdir(parents=True, exist_ok=True)
        stamp.write_text("".join(f"{name}\n" for name in sorted(name for _offset, name in names)))
    return [keep / name for name in stamp.read_text().splitlines()]
