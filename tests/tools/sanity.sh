#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# ansible-test sanity on the sources, each ansible-core in a venv of its own (ansible-test adds to it).
set -euo pipefail
cd "$(dirname "$0")/../.."

core=${CORE:-2.19}
case $core in
    2.17) release=2.17.14 pythons="3.11 3.12 3.10" ;;
    2.18) release=2.18.19 pythons="3.11 3.12 3.13" ;;
    2.19) release=$(sed -n 's/^ansible-core==//p' tests/requirements.txt) pythons="3.11 3.12 3.13" ;;
    2.20) release=2.20.10 pythons="3.12 3.13" ;;
    2.21) release=2.21.5 pythons="3.12 3.13" ;;
    *) echo "sanity: CORE=$core is not one of 2.17 2.18 2.19 2.20 2.21" >&2; exit 2 ;;
esac
for python in $pythons none; do
    [ "$python" = none ] && { echo "sanity: ansible-core $core needs one of Python $pythons; install one (apt or pyenv)" >&2; exit 1; }
    interpreter=$(tests/tools/pythons.py "$python" 2>/dev/null) && break
done

venv=$PWD/.build/core/$release
if [ ! -f "$venv/.complete" ]; then
    rm -rf "$venv"
    uv venv -q --seed --python "$interpreter" "$venv"
    uv pip install -q --python "$venv/bin/python" "ansible-core==$release"
    touch "$venv/.complete"
fi

# ansible-test keeps its caches in HOME; they belong into .build, the user's pip settings stay in force.
home=$PWD/.build/core/home
mkdir -p "$home/.ansible/test/cache"
ln -sfn "$HOME/.config" "$home/.config"

# ansible-test fetches get-pip from a site of its own; the same pip comes from the package index as a wheel.
internal=$(echo "$venv"/lib/python*/site-packages/ansible_test/_internal)
pip=$(sed -n "/def get_venv_packages/,/^def r/s/^ *pip='\(.*\)',/\1/p" "$internal/python_requirements.py" | head -n 1)
bootstrap=$home/.ansible/test/cache/get_pip_${pip//./_}.py
if [ ! -f "$bootstrap" ]; then
    "$venv/bin/python" -m pip download -q --disable-pip-version-check --no-deps --only-binary :all: -d "$home" "pip==$pip"
    cat >"$bootstrap" <<EOF
import subprocess
import sys
wheel = "$home/pip-$pip-py3-none-any.whl"
sys.exit(subprocess.call([sys.executable, wheel + "/pip", "install", "-q", "--no-index", wheel]))
EOF
fi

# A copy under the collection's name, as ansible-test wants it; a repository of its own, or it would list ours, where .build is ignored.
tree=.build/core/tree/ansible_collections/llmhost/hardening
rm -rf "$tree"
mkdir -p "$tree"
tests/tools/sources.sh | rsync -a --from0 --files-from=- . "$tree/"
git -C "$tree" init -q
git -C "$tree" add --all

echo "ansible-test sanity: ansible-core $release, Python $python"
log=$PWD/.build/core/sanity.log
cd "$tree"
export HOME=$home PATH=$venv/bin:$PATH
unset PYTHONPATH
status=0
# shellcheck disable=SC2086 # ARGS is a list of words
ansible-test sanity --color no --requirements --python "$python" ${ARGS:-} >"$log" 2>&1 || status=$?
grep -vE '^(Collecting|Processing|Installing|Looking in|Using cached|Successfully installed|WARNING: Location|\[notice\]| )' "$log" || true
if grep -q "All targets skipped" "$log"; then
    echo "sanity: ansible-test saw no file" >&2
    status=1
fi
[ "$status" = 0 ] && echo "sanity: $(grep -c '^Running sanity test' "$log") tests clean (whole log: .build/core/sanity.log)"
exit "$status"
