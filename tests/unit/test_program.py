# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The bytes of kvtier."""

from __future__ import annotations

import ast
import io
import marshal
import subprocess
import sys
import zipfile
from pathlib import Path

from ansible_collections.llmhost.hardening.plugins.module_utils import kv
from ansible_collections.llmhost.hardening.plugins.module_utils.kv import program

PACKAGE = Path(kv.__file__).parent
MODULES = PACKAGE.parent.parent / "modules"
PREFIX = "ansible_collections.llmhost.hardening.plugins.module_utils.kv"


def unpacked() -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(program.build())) as archive:
        assert archive.testzip() is None
        return {name: archive.read(name) for name in archive.namelist()}


def test_kvtier_holds_the_sources_of_this_package_unchanged() -> None:
    files = unpacked()
    assert {"__main__.py", "kv/__init__.py", "kv/cli.py", "kv/prepare.py", "kv/datamap.py"} <= files.keys()
    for name, data in files.items():
        if name.startswith("kv/") and name.endswith(".py"):
            assert data == (PACKAGE / name[3:]).read_bytes()


def test_kvtier_lacks_nothing_that_it_imports() -> None:
    files = unpacked()
    for name, data in files.items():
        if name.endswith(".pyc"):
            continue
        for wanted in program.imported(data):
            assert f"kv/{wanted}.py" in files or wanted.isupper(), f"{name} imports {wanted}"


def test_kvtier_is_known_again_however_its_bytecode_was_written() -> None:
    built = program.build()
    assert program.is_current(built)
    for wrong in (b"", built[:-40], built.replace(b"kv.cli", b"kv.clo"), built.replace(b"python3 -IS", b"python3 -SI")):
        assert not program.is_current(wrong)


def test_kvtier_with_foreign_bytecode_in_it_is_replaced() -> None:
    """The source alone is no proof: what runs is the bytecode beside it."""
    buffer = io.BytesIO()
    buffer.write(program.SHEBANG)
    with zipfile.ZipFile(io.BytesIO(program.build())) as old, zipfile.ZipFile(buffer, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            if name == "kv/cli.pyc":
                data = data[:16] + marshal.dumps(compile("print('mine')", "kv/cli.py", "exec"))
            new.writestr(name, data)
    assert not program.is_current(buffer.getvalue())


def test_kvtier_is_packed_the_same_way_each_time() -> None:
    with zipfile.ZipFile(io.BytesIO(program.build())) as archive:
        assert archive.namelist() == sorted(archive.namelist())
        for entry in archive.infolist():
            assert entry.date_time == (1980, 1, 1, 0, 0, 0)
            assert entry.compress_type == zipfile.ZIP_STORED


def test_kv_host_carries_the_entry_of_kvtier() -> None:
    """Ansible packs what a module imports, directly or not: with cli comes all that kvtier is made of."""
    tree = ast.parse((MODULES / "kv_host.py").read_bytes())
    names = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == PREFIX
        for alias in node.names
    }
    assert program.ENTRY in names


def test_a_module_makes_the_same_kvtier_from_its_zip(tmp_path: Path) -> None:
    carrier = tmp_path / "carrier.zip"
    with zipfile.ZipFile(carrier, "w") as archive:
        for path in PACKAGE.glob("*.py"):
            archive.write(path, f"other/kv/{path.name}")
        archive.writestr("other/__init__.py", "")
    code = (
        "import sys; sys.path[:0] = sys.argv[1:]; from other.kv import program as p; sys.stdout.buffer.write(p.build())"
    )
    done = subprocess.run([sys.executable, "-I", "-c", code, str(carrier)], capture_output=True, check=True)
    assert program.is_current(done.stdout)


def test_kvtier_runs_isolated_and_alone(tmp_path: Path) -> None:
    kvtier = tmp_path / "kvtier"
    kvtier.write_bytes(program.build())
    assert program.build().startswith(b"#!/usr/bin/python3 -IS\n")
    shown = subprocess.run([sys.executable, "-IS", str(kvtier), "--help"], capture_output=True, text=True, check=False)
    assert shown.returncode == 0, shown.stderr
    assert "prepare" in shown.stdout


def test_a_module_out_of_a_zip_is_compiled_once(tmp_path: Path) -> None:
    """Ansible sends no bytecode; Python's own importer would compile each module again to name its file."""
    archive = tmp_path / "modules.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        packed.writestr("utils/__init__.py", "")
        packed.write(PACKAGE.parent / "compiled_once.py", "utils/compiled_once.py")
        for path in PACKAGE.glob("*.py"):
            packed.write(path, f"utils/kv/{path.name}")
    count = """
import sys
compiled = []
sys.addaudithook(lambda event, args: compiled.append(str(args[1])) if event == "compile" and args[0] else None)
sys.path.insert(0, sys.argv[1])
from utils import compiled_once
from utils.kv import judge
print(judge.__file__, *(name for name in compiled if "judge" in name))
"""
    done = subprocess.run([sys.executable, "-c", count, str(archive)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [f"{archive}/utils/kv/judge.py"] * 2
