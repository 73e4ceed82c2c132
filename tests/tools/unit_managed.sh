#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# Unit tests of what runs on managed hosts, under each Python they may have (PYTHON=3.9 for one of them).
set -euo pipefail
cd "$(dirname "$0")/../.."

# These are of the control node: filters, and this project's own tools and files.
CONTROLLER=(audit_table ci claims collection_layout collection_pythons docs filter_data_map gen_stores offload_table project salt_derive salt_package)
lock=tests/managed.lock
missing=()
failed=()
for version in ${PYTHON:-3.9 3.10 3.11 3.12 3.13}; do
    python=$(tests/tools/pythons.py "$version" 2>/dev/null) || { missing+=("$version"); continue; }
    venv=.build/managed/$version
    if ! sha256sum --quiet --check "$venv/.requirements" 2>/dev/null; then
        rm -rf "$venv"
        uv venv -q --python "$python" "$venv"
        uv pip sync -q --python "$venv/bin/python" --require-hashes --only-binary :all: "$lock"
        sha256sum "$lock" >"$venv/.requirements"
    fi
    ignored=()
    for name in "${CONTROLLER[@]}"; do ignored+=("--ignore=tests/unit/test_$name.py"); done
    echo "unit tests under Python $version"
    # shellcheck disable=SC2086 # ARGS is a list of words
    "$venv/bin/python" -m pytest -q -p no:cacheprovider "${ignored[@]}" tests/unit ${ARGS:-} || failed+=("$version")
done
[ ${#missing[@]} = 0 ] || echo "unit-managed: NOT RUN under Python ${missing[*]}: not on this machine (pyenv install VERSION brings one)" >&2
[ ${#failed[@]} = 0 ] || { echo "unit-managed: failed under Python ${failed[*]}" >&2; exit 1; }
[ -d .build/managed ] || { echo "unit-managed: none of these Pythons is here" >&2; exit 1; }
