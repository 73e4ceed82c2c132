#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# Every linter runs to the end, so one call shows all there is to mend.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit

out=.build/lint
rm -rf "$out"
mkdir -p "$out"
declare -A jobs=()
names=()
check() {
    local name=$1
    shift
    "$@" >"$out/$name" 2>&1 &
    jobs[$name]=$!
    names+=("$name")
}

mapfile -d '' -t plugins < <(tests/tools/sources.sh | grep -z '^plugins/.*\.py$')
# Tests themselves are proved by running.
mapfile -d '' -t tooling < <(tests/tools/sources.sh | grep -zE '^(tests|benchmarks)/.*\.py$' | grep -zv '/test_[^/]*$')
mapfile -d '' -t shell < <(tests/tools/sources.sh | xargs -0 grep -lZE '^#!.*\b(ba)?sh\b' --)

check ruff ruff check -q --output-format concise .
check mypy-plugins mypy --python-version 3.10 "${plugins[@]/#/.build/pythonpath/ansible_collections/llmhost/hardening/}"
check mypy-tooling mypy --python-version 3.11 --cache-dir .build/cache/mypy-tooling "${tooling[@]}"
check yamllint yamllint --strict .
check ansible-lint ansible-lint --nocolor
check shellcheck shellcheck "${shell[@]}"
check antsibull-changelog antsibull-changelog lint
check reuse reuse lint
check secrets tests/tools/no_secrets.py
check role-readmes tests/tools/gen_roles.py --check
check antsibull-docs antsibull-docs lint-collection-docs --plugin-docs --skip-rstcheck .

failed=()
for name in "${names[@]}"; do
    if wait "${jobs[$name]}"; then
        printf 'lint: %-20s ok\n' "$name"
    else
        printf 'lint: %-20s FAILED\n' "$name"
        cat "$out/$name"
        failed+=("$name")
    fi
done
if [ ${#failed[@]} -gt 0 ]; then
    echo "lint: failed: ${failed[*]}" >&2
    exit 1
fi
