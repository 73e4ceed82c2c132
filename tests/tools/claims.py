#!/usr/bin/env python
# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What every vLLM release from 0.22 says in its own code about offload settings and about what can remove a block.

claims.py            compare every release on the package index with claims.json; a difference fails with its lines
claims.py --write    write claims.json anew, after reading the difference
claims.py --pinned   compare only the releases in claims.json (what the gate needs, from the cache)
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import wheels

HERE = Path(__file__).resolve().parent
TABLE = HERE / "claims.json"
FIRST = (0, 22)

OFFLOAD = "vllm/v1/kv_offload/"
TIERING = OFFLOAD + "tiering/"
CONNECTOR = "vllm/distributed/kv_transfer/kv_connector/v1/offloading"
SIMPLE = "vllm/distributed/kv_transfer/kv_connector/v1/simple_cpu_offload_connector.py"
COMPILED = "vllm/fs_io_C.abi3.so"
SINGLE = (
    "vllm/_version.py",
    "vllm/config/cache.py",
    "vllm/config/kv_events.py",
    "vllm/config/kv_transfer.py",
    "vllm/distributed/kv_transfer/kv_connector/factory.py",
    "vllm/utils/argparse_utils.py",
    "vllm/utils/hashing.py",
    "vllm/v1/core/kv_cache_utils.py",
    "vllm/v1/__init__.py",
    "vllm/v1/metrics/__init__.py",
    "vllm/v1/metrics/cache_hit_source.py",
)
# Calls that take a name or an object away, or empty or replace what is there.
REMOVERS = set(
    "unlink remove removedirs rmdir rmtree rename renames replace truncate ftruncate delete delete_object "
    "delete_objects clear_bucket abort_multipart_upload punch_hole".split()
)
LIBC = REMOVERS | {
    "syscall",
    "unlinkat",
    "renameat",
    "renameat2",
    "fallocate",
    "posix_fallocate",
    "ftruncate64",
    "truncate64",
}
# What every tier's constructor gets from the engine, not from the operator.
ENGINE_GIVES = {"self", "offloading_spec", "primary_kv_view", "tier_type", "backpressure_detector", "kwargs"}
PRESSURE = {"self", "policy"}
SETTINGS = ("extra_config", "kv_connector_extra_config")


def wanted(name: str) -> bool:
    if name in (*SINGLE, SIMPLE, COMPILED):
        return True
    return name.endswith(".py") and name.startswith((OFFLOAD, CONNECTOR))


def tree_of(root: Path, name: str) -> ast.Module | None:
    path = root / name
    return ast.parse(path.read_text(encoding="utf-8")) if path.is_file() else None


def text(node: ast.AST | None) -> str:
    return " ".join(ast.unparse(node).split()) if node is not None else ""


def parameters(function: ast.FunctionDef) -> Iterator[tuple[str, str]]:
    """Each parameter of a function with its default, `required` where it has none."""
    spec = function.args
    plain = [*spec.posonlyargs, *spec.args]
    gap = len(plain) - len(spec.defaults)
    for number, argument in enumerate(plain):
        yield argument.arg, text(spec.defaults[number - gap]) if number >= gap else "required"
    for argument, default in zip(spec.kwonlyargs, spec.kw_defaults, strict=True):
        yield argument.arg, text(default) if default else "required"
    if spec.kwarg:
        yield spec.kwarg.arg, "**"


def fields(module: ast.Module, name: str) -> Iterator[tuple[str, str]]:
    """Annotated fields of a class with their defaults."""
    for node in ast.walk(module):
        if isinstance(node, ast.ClassDef) and node.name == name:
            for item in node.body:
                if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                    yield item.target.id, text(item.value) if item.value else "required"


def registered(module: ast.Module, call: str) -> Iterator[tuple[str, str, str]]:
    """Name, module and class of each entry of one of vLLM's registries."""
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == call:
            values = [str(item.value) for item in node.args if isinstance(item, ast.Constant)]
            if len(values) == 3:
                yield values[0], values[1], values[2]


def tiers(root: Path) -> Iterator[str]:
    factory = tree_of(root, TIERING + "factory.py")
    for tier, module, name in registered(factory, "register_tier") if factory else ():
        path = module.replace(".", "/") + ".py"
        yield f"tier {tier}: {path} {name}"
        source = tree_of(root, path)
        for node in ast.walk(source) if source else ():
            if isinstance(node, ast.ClassDef) and node.name == name:
                for item in node.body:
                    if isinstance(item, ast.FunctionDef) and item.name == "__init__":
                        for key, default in parameters(item):
                            if default == "**":
                                yield f"tier {tier}: takes any other key in silence"
                            elif key not in ENGINE_GIVES:
                                yield f"key {tier}: {key} = {default}"
                            elif key == "backpressure_detector":
                                yield f"key {tier}: backpressure = None"
    for node in ast.walk(tree_of(root, TIERING + "p2p/manager.py") or ast.Module([], [])):
        if isinstance(node, ast.Raise) and "PYTHONHASHSEED must be set" in text(node):
            yield "tier p2p: needs PYTHONHASHSEED"
    pressure = tree_of(root, TIERING + "backpressure.py")
    for node in ast.walk(pressure) if pressure else ():
        if isinstance(node, ast.ClassDef) and node.name == "EMABackpressureDetector":
            for item in node.body:
                if isinstance(item, ast.FunctionDef) and item.name == "__init__":
                    yield from (f"key backpressure: {key}" for key, _default in parameters(item) if key not in PRESSURE)
    store = tree_of(root, TIERING + "obj/config.py")
    for key, default in fields(store, "ObjStoreConfig") if store else ():
        yield f"key obj.store_config: {key} = {default}"


def settings(root: Path, names: Iterable[str]) -> Iterator[str]:
    """Keys that the offloading code asks kv_connector_extra_config for, wherever it does."""
    for name in names:
        module = tree_of(root, name) if name.endswith(".py") and name.startswith((OFFLOAD, CONNECTOR, SIMPLE)) else None
        for node in ast.walk(module) if module else ():
            key: ast.expr | None = None
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("get", "pop"):
                key, owner = node.args[0] if node.args else None, text(node.func.value)
            elif isinstance(node, ast.Subscript):
                key, owner = node.slice, text(node.value)
            if not isinstance(key, ast.Constant) or not isinstance(key.value, str):
                continue
            if name == TIERING + "factory.py" and owner in ("tier_config", "bp_config"):
                yield f"key {'every tier' if owner == 'tier_config' else 'backpressure'}: {key.value}"
            elif owner.rpartition(".")[2] in SETTINGS:
                default = ""
                if isinstance(node, ast.Call) and len(node.args) > 1:
                    default = " = " + text(node.args[1])
                yield f"key {'simple' if name == SIMPLE else 'extra_config'}: {key.value}{default}"
            elif name.startswith(CONNECTOR) and owner in ("params", "kv_transfer_params"):
                yield f"key per request: {key.value}"


def fixed(root: Path) -> Iterator[str]:
    for name, classname in (("kv_transfer", "KVTransferConfig"), ("kv_events", "KVEventsConfig")):
        module = tree_of(root, f"vllm/config/{name}.py")
        for key, default in fields(module, classname) if module else ():
            yield f"key {classname}: {key} = {default}"
    specs = tree_of(root, OFFLOAD + "factory.py")
    for name, _module, _class in registered(specs, "register_spec") if specs else ():
        yield f"spec {name}"
    factory = tree_of(root, "vllm/distributed/kv_transfer/kv_connector/factory.py")
    for name, _module, _class in registered(factory, "register_connector") if factory else ():
        yield f"connector {name}"


def naming(root: Path) -> Iterator[str]:
    """The rules of block names: the first parent's seed and what a salt adds."""
    module = tree_of(root, "vllm/v1/core/kv_cache_utils.py")
    for node in ast.walk(module) if module else ():
        if isinstance(node, ast.Assign) and text(node.targets[0]) == "DEFAULT_NONE_HASH_SEED":
            yield f"names: default seed {text(node.value)}"
        if isinstance(node, ast.Assign) and text(node.targets[0]) == "NONE_HASH":
            yield f"names: first parent {text(node.value)}"
        if isinstance(node, ast.AnnAssign) and text(node.target) == "cache_salt_keys":
            yield f"names: salt adds {text(node.value)}"


def removals(root: Path, names: Iterable[str]) -> Iterator[str]:
    """Every call in the file and object tiers that can take a block away, with the function it stands in."""
    for name in names:
        if not name.startswith((TIERING + "fs/", TIERING + "obj/", OFFLOAD + "file_mapper")):
            continue
        module = tree_of(root, name)
        for function in ast.walk(module) if module else ():
            if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
                continue
            for node in ast.walk(function):
                if not isinstance(node, ast.Call):
                    continue
                owner = text(node.func.value) if isinstance(node.func, ast.Attribute) else ""
                called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                if called == "replace" and len(node.args) > 1 and owner != "os":
                    continue  # of a string
                if called in REMOVERS:
                    yield f"removes {name.removeprefix(OFFLOAD)} {function.name}: {text(node)}"


def compiled(root: Path) -> Iterator[str]:
    """What the compiled writer offers and which removing calls of the C library it imports."""
    path = root / COMPILED
    if not path.is_file():
        return
    shown = subprocess.run(["readelf", "--dyn-syms", "-W", path], capture_output=True, text=True, check=True).stdout
    for line in shown.splitlines():
        columns = line.split()
        if len(columns) >= 8 and columns[6] == "UND" and columns[7].partition("@")[0] in LIBC:
            yield f"removes {COMPILED}: imports {columns[7].partition('@')[0]}"
    data = path.read_bytes()
    for name in (b"batch_lookup", b"batch_store_block", b"batch_load_block"):
        if b"\0" + name + b"\0" in data:
            yield f"compiled: offers {name.decode()}"


def facts_of(root: Path, names: list[str]) -> list[str]:
    found: list[str] = []
    for part in (tiers(root), settings(root, names), fixed(root), naming(root), removals(root, names), compiled(root)):
        found += part
    return sorted(set(found))


def digest(root: Path, names: list[str]) -> str:
    """One digest of all files that were read: what the cache holds is what the table was made from."""
    every = hashlib.sha256()
    for name in sorted(names):
        every.update(name.encode() + b"\0" + hashlib.sha256((root / name).read_bytes()).digest())
    return every.hexdigest()


def cached(version: str) -> Path:
    return wheels.cache_dir() / "claims" / f"vllm-{version}"


def files_of(wheel: wheels.Wheel) -> tuple[Path, list[str]]:
    root = cached(wheel.version)
    return root, [str(path.relative_to(root)) for path in wheels.extract(wheel, wanted, root)]


def releases() -> dict[str, wheels.Wheel]:
    return {version: wheel for version, wheel in wheels.wheels("vllm").items() if wheels.key(version) >= FIRST}


def tree(version: str) -> Path:
    """Files of a release in the table, from the cache or the index, checked against the table's digest."""
    pinned = read_table()["releases"][version]
    wheel = wheels.Wheel(version, pinned["wheel"], pinned["url"], pinned["size"])
    return checked(wheel, wanted, cached(version), pinned["digest"])


def checked(wheel: wheels.Wheel, those: Callable[[str], bool], root: Path, pinned: str) -> Path:
    """Files of a wheel below root, fetched if they are not there, checked against a digest."""
    names = [str(path.relative_to(root)) for path in wheels.extract(wheel, those, root)]
    found = digest(root, names)
    if found != pinned:
        raise wheels.IndexProblem(f"{root} has digest {found}, not the pinned {pinned}: remove it and run again")
    return root


def ranges(versions: list[str], order: list[str]) -> str:
    """Versions as runs of the order: `0.22.0-0.22.1 0.25.0-`; an open end is the newest."""
    runs: list[list[str]] = []
    for version in order:
        if version in versions:
            if runs and order.index(runs[-1][-1]) == order.index(version) - 1:
                runs[-1].append(version)
            else:
                runs.append([version])
    return " ".join(run[0] + ("-" if run[-1] == order[-1] else f"-{run[-1]}" if len(run) > 1 else "") for run in runs)


def expand(text_: str, order: list[str]) -> list[str]:
    """The versions that ranges() wrote down."""
    found = []
    for run in text_.split():
        first, dash, last = run.partition("-")
        end = order.index(last) if last else len(order) - 1 if dash else order.index(first)
        found += order[order.index(first) : end + 1]
    return found


def read_table() -> dict:
    return json.loads(TABLE.read_text(encoding="utf-8"))


def facts_in(table: dict) -> dict[str, list[str]]:
    """version -> its facts, from the table."""
    order = list(table["releases"])
    result: dict[str, list[str]] = {version: [] for version in order}
    for fact, runs in table["facts"].items():
        for version in expand(runs, order):
            result[version].append(fact)
    return result


def make_table(found: dict[str, wheels.Wheel]) -> dict:
    facts: dict[str, list[str]] = {}
    entries = {}
    for version, wheel in found.items():
        root, names = files_of(wheel)
        for fact in facts_of(root, names):
            facts.setdefault(fact, []).append(version)
        entries[version] = {
            "wheel": wheel.name,
            "url": wheel.url,
            "size": wheel.size,
            "digest": digest(root, names),
        }
    order = list(found)
    return {"releases": entries, "facts": {fact: ranges(facts[fact], order) for fact in sorted(facts)}}


def differences(table: dict, now: dict) -> list[str]:
    """One line for each thing that is not as the table has it."""
    lines = []
    before, after = facts_in(table), facts_in(now)
    for version in sorted(before.keys() | after.keys(), key=wheels.key):
        if version not in after:
            lines.append(f"{version}: is in claims.json and no longer on the index")
            continue
        if version not in before:
            lines.append(f"{version}: is on the index and not in claims.json")
            known = before[max(before, key=wheels.key)]
        else:
            known = before[version]
            if table["releases"][version]["digest"] != now["releases"][version]["digest"]:
                lines.append(f"{version}: its files changed")
        lines += [f"{version}: - {fact}" for fact in known if fact not in after[version]]
        lines += [f"{version}: + {fact}" for fact in after[version] if fact not in known]
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--pinned", action="store_true")
    options = parser.parse_args()
    try:
        found = releases()
        if options.pinned:
            found = {version: found[version] for version in read_table()["releases"] if version in found}
        now = make_table(found)
    except wheels.IndexProblem as problem:
        print(f"claims: {problem}", file=sys.stderr)
        return 2
    if options.write:
        TABLE.write_text(json.dumps(now, indent=1) + "\n", encoding="utf-8")
        return 0
    lines = differences(read_table(), now)
    for line in lines:
        print(line)
    if lines:
        print(
            f"claims: {len(lines)} differences between vLLM's releases and tests/tools/claims.json. Read them, mend "
            "plugins/module_utils/kv/offload_table.py, then run tests/tools/claims.py --write",
            file=sys.stderr,
        )
        return 1
    print(f"claims: {len(now['facts'])} facts of {len(now['releases'])} releases, none changed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
