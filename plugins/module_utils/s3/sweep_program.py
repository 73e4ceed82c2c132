# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The program kvsweep as bytes: a zipapp of this package and what it uses of kv, packed as kvtier is."""

from __future__ import annotations

import ast
import pkgutil

from ..kv import program

ENTRY = ("s3", "sweep_cli")
ROOT = "llmhost_sweep"
MAIN = f"""# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
import sys

from {ROOT}.s3.sweep_cli import main

sys.exit(main(sys.argv[1:]))
""".encode()
PYTHON = "/usr/bin/python3"


def _source(package: str, name: str) -> bytes:
    here = __package__ or "s3"
    data = pkgutil.get_data(here.rpartition(".")[0] + "." + package, name + ".py")
    if data is None:
        raise FileNotFoundError(f"{package}/{name} is not at hand")
    return data


def imported(package: str, source: bytes) -> set[tuple[str, str]]:
    """Modules of both packages that a source of one of them imports."""
    names: set[tuple[str, str]] = set()
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.ImportFrom) or node.level not in (1, 2):
            continue
        first, _dot, rest = (node.module or "").partition(".")
        if node.level == 1:
            names |= {(package, first)} if first else {(package, alias.name) for alias in node.names}
        else:
            names |= {(first, rest)} if rest else {(first, alias.name) for alias in node.names}
    return names


def sources() -> dict[str, bytes]:
    """Sources by their path in the zip."""
    found: dict[tuple[str, str], bytes] = {("kv", "__init__"): b"", ("s3", "__init__"): b""}
    pending = {ENTRY}
    while pending:
        module = pending.pop()
        found[module] = _source(*module)
        pending |= {one for one in imported(module[0], found[module]) if not one[1].isupper()} - found.keys()
    files = {f"{ROOT}/{package}/{name}.py": source for (package, name), source in found.items()}
    files[f"{ROOT}/__init__.py"] = b""
    files["__main__.py"] = MAIN
    return files


def shebang(python: str = PYTHON) -> bytes:
    return f"#!{python} -I\n".encode()


def is_current(data: bytes, python: str = PYTHON) -> bool:
    """True if data is what build() gives, however its bytecode was written."""
    return program.is_packed(data, sources(), shebang(python))


def build(python: str = PYTHON) -> bytes:
    """The executable zip."""
    return program.pack(sources(), shebang(python))
