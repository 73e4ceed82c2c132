# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What runs on managed hosts compiles and imports under every Python they may have."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import pythons

ROOT = Path(__file__).resolve().parents[2]
# As in the zipapp: the package alone on the path, isolated from everything installed.
PROGRAM = """
import importlib, pathlib, sys, warnings
warnings.simplefilter("error")
plugins = pathlib.Path(sys.argv[1])
files = sorted(plugins.rglob("*.py"))
for file in files:
    compile(file.read_bytes(), str(file), "exec", dont_inherit=True)
sys.path.insert(0, str(plugins))
modules = sorted(file.parent.name + "." + file.stem for file in (plugins / "module_utils").glob("*/*.py"))
for module in modules:
    importlib.import_module("module_utils." + module)
print(len(files), len(modules))
"""


@pytest.mark.parametrize("version", pythons.MANAGED)
def test_plugins_work_under_python(version: str) -> None:
    python = pythons.find(version)
    if python is None:
        pytest.skip(f"Python {version} is not on this machine")
    done = subprocess.run([python, "-IBc", PROGRAM, str(ROOT / "plugins")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert min(map(int, done.stdout.split())) > 0
