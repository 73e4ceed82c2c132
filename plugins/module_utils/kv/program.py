# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The program kvtier as bytes: a zipapp of this package, made from the copy that is running.

It works from a checkout and from an Ansible module's own zip and holds what cli imports, directly or not, and nothing
else: each source, and its bytecode for the Python that made it (another Python ignores that and reads the source),
because a program that cron starts every minute should not compile itself every minute.
"""

from __future__ import annotations

import ast
import importlib.util
import io
import marshal
import pkgutil
import zipfile
from types import CodeType

# Isolated, and without `site`: nothing but the standard library is used, and looking for more takes time.
SHEBANG = b"#!/usr/bin/python3 -IS\n"
ENTRY = "cli"
MAIN = b"""# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
import sys

from kv.cli import main

sys.exit(main(sys.argv[1:]))
"""
# The oldest date that a zip can hold: the bytes must not depend on when they were made.
_EPOCH = (1980, 1, 1, 0, 0, 0)


def _source(name: str) -> bytes:
    data = pkgutil.get_data(__package__, name + ".py")
    if data is None:
        raise FileNotFoundError(f"{__package__}: {name} is not at hand")
    return data


def imported(source: bytes) -> set[str]:
    """Names of this package's modules that a source of it imports."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.level == 1:
            names |= {node.module} if node.module else {alias.name for alias in node.names}
    return names


def sources() -> dict[str, bytes]:
    """Sources of the package that kvtier needs, by module name."""
    found = {"__init__": _source("__init__")}
    pending = {ENTRY}
    while pending:
        name = pending.pop()
        found[name] = _source(name)
        # `from . import NAME` may also name a constant of the package.
        constants = {other for other in imported(found[name]) if other.isupper()}
        pending |= imported(found[name]) - constants - found.keys()
    return found


def _code(path: str, source: bytes) -> CodeType:
    code: CodeType = compile(source, path, "exec", dont_inherit=True)
    return code


def _bytecode(path: str, source: bytes) -> bytes:
    # Flag 1: matched by hash and never checked against the source, which lies beside it in the same file.
    flags = (1).to_bytes(4, "little")
    return importlib.util.MAGIC_NUMBER + flags + importlib.util.source_hash(source) + marshal.dumps(_code(path, source))


def _is_bytecode(data: bytes, path: str, source: bytes) -> bool:
    """True if data is what _bytecode() means: marshal may write the same code in different bytes."""
    head = len(importlib.util.MAGIC_NUMBER) + 12
    if data[:head] != _bytecode(path, source)[:head]:
        return False
    try:
        # Root's own file, and a code object is compared, never run.
        return bool(marshal.loads(data[head:]) == _code(path, source))  # noqa: S302
    except (ValueError, EOFError, TypeError):
        return False


def _files() -> dict[str, bytes]:
    files = {f"kv/{name}.py": source for name, source in sources().items()}
    files["__main__.py"] = MAIN
    return files


def is_current(program: bytes) -> bool:
    """True if program is what build() gives, however its bytecode was written."""
    return is_packed(program, _files(), SHEBANG)


def build() -> bytes:
    """The executable zip."""
    return pack(_files(), SHEBANG)


def is_packed(program: bytes, wanted: dict[str, bytes], shebang: bytes) -> bool:
    """True if program is what pack() gives of these sources, however its bytecode was written."""
    if not program.startswith(shebang):
        return False
    try:
        with zipfile.ZipFile(io.BytesIO(program)) as archive:
            found = {name: archive.read(name) for name in archive.namelist()}
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):
        return False
    if set(found) != {*wanted, *(name + "c" for name in wanted)}:
        return False
    return all(
        found[name] == source and _is_bytecode(found[name + "c"], name, source) for name, source in wanted.items()
    )


def pack(sources_: dict[str, bytes], shebang: bytes) -> bytes:
    """An executable zip of sources by path, each with its bytecode."""
    files = dict(sources_)
    files.update({name + "c": _bytecode(name, source) for name, source in sources_.items()})
    buffer = io.BytesIO()
    buffer.write(shebang)
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for path in sorted(files):
            entry = zipfile.ZipInfo(path, _EPOCH)
            entry.external_attr = 0o644 << 16
            # The default is the system that writes; 3 is Unix.
            entry.create_system = 3
            archive.writestr(entry, files[path])
    return buffer.getvalue()
