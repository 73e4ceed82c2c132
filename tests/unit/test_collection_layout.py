# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rules that hold for every file, module and role of the collection, whoever wrote it."""

from __future__ import annotations

import ast
import fnmatch
import re
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
PLUGINS = sorted(ROOT.glob("plugins/**/*.py"))
MODULES = sorted(ROOT.glob("plugins/modules/*.py"))
FILTERS = sorted(ROOT.glob("plugins/filter/*.yml"))
KV = sorted(ROOT.glob("plugins/module_utils/kv/**/*.py"))
S3 = sorted(ROOT.glob("plugins/module_utils/s3/**/*.py"))
ROLES = sorted(path for path in ROOT.glob("roles/*") if path.is_dir())
STORES = sorted(ROOT.glob("plugins/module_utils/kv/stores*.py"))
DOCUMENTATION = {"DOCUMENTATION", "EXAMPLES", "RETURN"}
STORE_PATTERNS = re.compile(r"\.bin\b|o_direct_probe|_g\\d|_r\\d|\.safetensors\b|\.kvcache\b")


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def read_yaml(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def constants(body: list[ast.stmt]) -> dict[str, str]:
    """The string constants that are assigned at this level."""
    return {
        target.id: statement.value.value
        for statement in body
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Constant)
        for target in statement.targets
        if isinstance(target, ast.Name) and isinstance(statement.value.value, str)
    }


def attributes(documentation: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The attributes of a module with those of its fragments, as Ansible merges them."""
    merged: dict[str, dict[str, Any]] = {}
    for fragment in documentation.get("extends_documentation_fragment", []):
        file, _dot, part = fragment.removeprefix("llmhost.hardening.").partition(".")
        source = tree(ROOT / f"plugins/doc_fragments/{file}.py")
        (body,) = (node.body for node in source.body if isinstance(node, ast.ClassDef))
        document = yaml.safe_load(constants(body)[part.upper() or "DOCUMENTATION"])
        for key, value in document.get("attributes", {}).items():
            merged.setdefault(key, {}).update(value)
    for key, value in documentation.get("attributes", {}).items():
        merged.setdefault(key, {}).update(value)
    return merged


def undocumented(values: dict[str, Any], where: str, needs: set[str]) -> list[str]:
    """Every documented value, at any depth, that lacks one of these keys."""
    missing = []
    for key, value in values.items():
        missing += [f"{where}.{key} has no {need}" for need in sorted(needs - value.keys())]
        below = value.get("contains") or value.get("suboptions") or {}
        missing += undocumented(below, f"{where}.{key}", needs - {"returned"})
    return missing


def sources() -> list[Path]:
    listed = subprocess.run([ROOT / "tests/tools/sources.sh"], check=True, capture_output=True, text=True).stdout
    return [ROOT / item for item in listed.split("\0") if item]


def test_the_collection_has_all_its_parts() -> None:
    assert [role.name for role in ROLES] == [
        "cache_salt_gateway",
        "engine_offload",
        "kv_access",
        "kv_bucket",
        "kv_retention",
        "kv_volume",
        "preflight",
    ]
    assert {path.stem for path in ROOT.glob("playbooks/*.yml")} >= {"harden", "audit"}
    assert {path.stem for path in FILTERS} == {
        "audit_table",
        "data_map",
        "data_map_problems",
        "kv_transfer_config",
        "kv_transfer_config_problems",
        "salt_gateway_problems",
        "tenant_salt",
    }
    assert KV and MODULES


@pytest.mark.parametrize("role", ROLES, ids=name)
def test_role_has_readme_spec_and_meta(role: Path) -> None:
    for file in ("README.md", "meta/argument_specs.yml", "meta/main.yml", "defaults/main.yml", "tasks/main.yml"):
        assert (role / file).is_file(), f"{name(role)} lacks {file}"
    assert read_yaml(role / "meta/main.yml")["galaxy_info"]["description"]


@pytest.mark.parametrize("role", ROLES, ids=name)
def test_role_argument_spec_equals_its_defaults(role: Path) -> None:
    options = read_yaml(role / "meta/argument_specs.yml")["argument_specs"]["main"]["options"]
    optional = {key: option["default"] for key, option in options.items() if not option.get("required")}
    assert optional == read_yaml(role / "defaults/main.yml")


@pytest.mark.parametrize("role", ROLES, ids=name)
def test_role_variables_are_documented(role: Path) -> None:
    spec = read_yaml(role / "meta/argument_specs.yml")["argument_specs"]["main"]
    assert {"short_description", "description", "version_added"} <= spec.keys()
    assert undocumented(spec["options"], name(role), {"description", "type"}) == []


def test_roles_agree_about_a_variable_they_share() -> None:
    seen: dict[str, tuple[str, Any]] = {}
    for role in ROLES:
        for key, option in read_yaml(role / "meta/argument_specs.yml")["argument_specs"]["main"]["options"].items():
            rest = {part: value for part, value in option.items() if part != "description"}
            first = seen.setdefault(key, (role.name, rest))
            assert first[1] == rest, f"{key} differs between {first[0]} and {role.name}"


def test_every_module_is_in_the_action_group() -> None:
    group = read_yaml(ROOT / "meta/runtime.yml")["action_groups"]["llmhost"]
    assert group == [path.stem for path in MODULES]


@pytest.mark.parametrize("module", MODULES, ids=name)
def test_module_is_documented(module: Path) -> None:
    text = constants(tree(module).body)
    assert text.keys() >= DOCUMENTATION
    documentation = yaml.safe_load(text["DOCUMENTATION"])
    assert documentation["module"] == module.stem
    assert re.fullmatch(r"\d+\.\d+\.\d+", documentation["version_added"])
    assert undocumented(documentation.get("options", {}), module.stem, {"description", "type"}) == []
    assert undocumented(yaml.safe_load(text["RETURN"]), module.stem, {"description", "type", "returned"}) == []
    said = attributes(documentation)
    for attribute in ("check_mode", "diff_mode", "idempotent"):
        assert "support" in said.get(attribute, {}), f"{module.stem} does not say whether it has {attribute}"


@pytest.mark.parametrize("module", MODULES, ids=name)
def test_module_examples_are_named_tasks_that_call_it(module: Path) -> None:
    examples = yaml.safe_load(constants(tree(module).body)["EXAMPLES"])
    assert all(task["name"] for task in examples)
    assert any(f"llmhost.hardening.{module.stem}" in task for task in examples)


@pytest.mark.parametrize("filter_", FILTERS, ids=name)
def test_filter_is_documented(filter_: Path) -> None:
    text = read_yaml(filter_)
    assert {"name", "version_added", "short_description", "description", "options"} <= text["DOCUMENTATION"].keys()
    assert text["DOCUMENTATION"]["name"] == filter_.stem
    assert all(task["name"] for task in yaml.safe_load(text["EXAMPLES"]))
    assert undocumented(text["DOCUMENTATION"]["options"], filter_.stem, {"description", "type"}) == []
    assert undocumented(text["RETURN"], filter_.stem, {"description", "type"}) == []


@pytest.mark.parametrize("path", KV, ids=name)
def test_kv_needs_the_standard_library_only(path: Path) -> None:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.ImportFrom):
            # kvtier is this package alone: what lies above it is not on the host.
            assert node.level <= 1, f"line {node.lineno} reaches above kv/"
            roots = [node.module or ""] if not node.level else []
        else:
            roots = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        for root in roots:
            assert root.partition(".")[0] in sys.stdlib_module_names, f"{root} is not the standard library's"


@pytest.mark.parametrize("path", S3, ids=name)
def test_s3_needs_the_standard_library_and_kv_and_only_its_client_needs_boto3(path: Path) -> None:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.ImportFrom) and node.level:
            # kvsweep is these two packages alone.
            assert node.level == 1 or (node.module or "kv").partition(".")[0] == "kv", f"line {node.lineno}"
            continue
        roots = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        roots += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        for root in {one.partition(".")[0] for one in roots}:
            allowed = {"boto3", "botocore"} if path.stem == "client" else set()
            assert root in sys.stdlib_module_names | allowed, f"{root} is not the standard library's"


def literals(path: Path) -> list[tuple[int, str]]:
    """Line and value of every string that the program works with: neither docstrings nor documentation."""
    passive = {
        id(node.value)
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Expr)
        or (isinstance(node, ast.Assign) and any(getattr(target, "id", "") in DOCUMENTATION for target in node.targets))
    }
    return [
        (node.lineno, node.value)
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in passive
    ]


@pytest.mark.parametrize("path", [path for path in PLUGINS if path not in STORES], ids=name)
def test_only_the_store_registry_knows_file_names(path: Path) -> None:
    assert [(line, value) for line, value in literals(path) if STORE_PATTERNS.search(value)] == []


def test_the_registry_is_where_those_names_are() -> None:
    assert any(STORE_PATTERNS.search(value) for path in STORES for _line, value in literals(path))


@pytest.mark.parametrize("path", PLUGINS, ids=name)
def test_plugin_is_short_and_never_asserts(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 500
    # `python -O` drops asserts, and a traceback is no message.
    assert [node.lineno for node in ast.walk(tree(path)) if isinstance(node, ast.Assert)] == []


@pytest.mark.parametrize("path", [path for path in PLUGINS if path not in KV and path.stat().st_size], ids=name)
def test_plugin_names_the_licence_as_ansible_test_wants_it(path: Path) -> None:
    head = path.read_text(encoding="utf-8")[:600]
    assert "# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)" in head


def test_every_file_carries_its_licence() -> None:
    covered = [
        pattern
        for annotation in tomllib.loads((ROOT / "REUSE.toml").read_text(encoding="utf-8"))["annotations"]
        for pattern in annotation["path"]
    ]
    files = [
        path for path in sources() if not any(fnmatch.fnmatch(name(path), glob.replace("**/", "*")) for glob in covered)
    ]
    assert len(files) > 20
    needed = (b"SPDX-FileCopyrightText: ", b"SPDX-License-Identifier: GPL-3.0-or-later")
    assert [name(path) for path in files if not all(line in path.read_bytes()[:700] for line in needed)] == []


def test_harden_takes_the_leave_to_wipe_a_disk_in_every_comparison_with_the_host():
    """One that did not would refuse the very disk that another was allowed to take, and none may read it elsewhere."""
    plays = yaml.safe_load((ROOT / "playbooks/harden.yml").read_text())
    tasks = [task for play in plays for task in play["tasks"] if "llmhost.hardening.kv_preflight" in task]
    given = [task["llmhost.hardening.kv_preflight"].get("wipe") for task in tasks]
    assert len(given) == 2 and set(given) == {"{{ lookup('llmhost.hardening.extra_var', 'kv_volume_wipe') }}"}
