#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# ansible-test sanity on the sources, each ansible-core in a venv of its own (ansible-test adds to it).
set -euo pipefail
cd "$(dirname "$0")/../.."

# What an ansible-core is installed as, and the Pythons of its controllers, the lowest first.
core_is() {
    case $1 in
        2.17) release=2.17.14 pythons="3.10 3.11 3.12" ;;
        2.18) release=2.18.19 pythons="3.11 3.12 3.13" ;;
        2.19) release=$(sed -n 's/^ansible-core==//p' tests/requirements.txt) pythons="3.11 3.12 3.13" ;;
        2.20) release=2.20.10 pythons="3.12 3.13 3.14" ;;
        2.21) release=2.21.5 pythons="3.12 3.13 3.14" ;;
        *) return 1 ;;
    esac
}
cores=(2.17 2.18 2.19 2.20 2.21)

# Where ansible-test finds every Python of this machine that a controller or a managed host may have.
links=$PWD/.build/core/pythons
link_pythons() {
    local python interpreter
    rm -rf "$links"
    mkdir -p "$links"
    for python in 3.9 3.10 3.11 3.12 3.13 3.14; do
        if interpreter=$(tests/tools/pythons.py "$python" 2>/dev/null); then ln -s "$interpreter" "$links/python$python"; fi
    done
}

# Sets here: the Pythons of this machine that may be the core's controller.
pythons_of() {
    local python
    core_is "$1" || { echo "sanity: CORE=$1 is not one of ${cores[*]}" >&2; exit 2; }
    here=()
    for python in $pythons; do [ ! -e "$links/python$python" ] || here+=("$python"); done
}

# The gate: the lowest and the newest ansible-core that a Python of this machine runs, the one under its lowest Python,
# the other under its newest; beside that one, only the lowest Python of managed hosts is linked.
gate() {
    local core lowest="" newest="" first status=0
    link_pythons
    for core in "${cores[@]}"; do
        pythons_of "$core"
        [ ${#here[@]} -gt 0 ] || continue
        [ -n "$lowest" ] || { lowest=$core first=${here[0]}; }
        newest=$core
    done
    [ -n "$newest" ] || { echo "sanity: no Python that an ansible-core needs; install one (apt or pyenv)" >&2; exit 1; }
    pythons_of "$newest"
    CORE=$lowest ONLY=$first tests/tools/sanity.sh || status=$?
    [ "$newest" = "$lowest" ] || CORE=$newest ONLY=${here[-1]} tests/tools/sanity.sh || status=$?
    exit "$status"
}

[ -n "${CORE:-}" ] || gate
core=$CORE
link_pythons
pythons_of "$core"
[ ${#here[@]} -gt 0 ] || { echo "sanity: ansible-core $core needs one of Python $pythons; install one (apt or pyenv)" >&2; exit 1; }
if [ -n "${ONLY:-}" ]; then
    [[ " ${here[*]} " == *" $ONLY "* ]] || { echo "sanity: ONLY=$ONLY is none of ${here[*]}" >&2; exit 2; }
    here=("$ONLY")
    lowest=$(find "$links" -mindepth 1 -name 'python*' -printf '%f\n' | sort -V | head -n 1)
    find "$links" -mindepth 1 -name 'python*' ! -name "$lowest" ! -name "python$ONLY" -delete
fi

# A shim of pyenv answers to the name of a Python that it does not run.
path=$(tr : '\n' <<<"$PATH" | grep -v '/shims$' | paste -sd:)

# ansible-test keeps its caches in HOME; they belong into .build, the user's pip settings stay in force.
home=$PWD/.build/core/home
mkdir -p "$home/.ansible/test/cache"
ln -sfn "$HOME/.config" "$home/.config"

# ansible-core in a venv of its own under a Python (ansible-test adds to it); sets venv.
install_core() {
    local internal pip bootstrap
    venv=$PWD/.build/core/$release-$1
    if [ ! -f "$venv/.complete" ]; then
        rm -rf "$venv"
        uv venv -q --seed --python "$links/python$1" "$venv"
        uv pip install -q --python "$venv/bin/python" "ansible-core==$release"
        touch "$venv/.complete"
    fi
    # ansible-test fetches get-pip from a site of its own; the same pip comes from the package index as a wheel.
    internal=$(echo "$venv"/lib/python*/site-packages/ansible_test/_internal)
    while read -r pip; do
        bootstrap=$home/.ansible/test/cache/get_pip_${pip//./_}.py
        [ ! -f "$bootstrap" ] || continue
        "$venv/bin/python" -m pip download -q --disable-pip-version-check --no-deps --only-binary :all: -d "$home" "pip==$pip"
        cat >"$bootstrap" <<EOF
import subprocess
import sys
wheel = "$home/pip-$pip-py3-none-any.whl"
sys.exit(subprocess.call([sys.executable, wheel + "/pip", "install", "-q", "--no-index", wheel]))
EOF
    done < <(sed -n "/def get_venv_packages/,/^def r/s/^.*pip='\(.*\)',/\1/p" "$internal/python_requirements.py" | sort -u)
}

# A copy under the collection's name, as ansible-test wants it; a repository of its own, or it would list ours, where .build is ignored.
tree=.build/core/tree/ansible_collections/llmhost/hardening
rm -rf "$tree"
mkdir -p "$tree"
tests/tools/sources.sh | rsync -a --from0 --files-from=- . "$tree/"
git -C "$tree" init -q
git -C "$tree" add --all

log=$PWD/.build/core/sanity-$core.log
: >"$log"
status=0
# The Python, then options of ansible-test.
run() {
    local python=$1
    shift
    echo "ansible-test sanity: ansible-core $release, Python $python${*:+, $*}"
    install_core "$python"
    (cd "$tree" && env -u PYTHONPATH HOME="$home" PATH="$venv/bin:$links:$path" \
        ansible-test sanity --color no --requirements "$@") >"$log.now" 2>&1 || status=$?
    grep -vE '^(Collecting|Processing|Installing|Looking in|Using cached|Successfully installed|WARNING: Location|\[notice\]| )' "$log.now" || true
    cat "$log.now" >>"$log"
    rm "$log.now"
}
# Everything under the first Python of a controller; what is compiled and imported, under each that is linked.
# shellcheck disable=SC2086 # ARGS is a list of words
run "${here[0]}" ${ARGS:-}
if [ ${#here[@]} -gt 1 ]; then
    # The tests that depend on it.
    # shellcheck disable=SC2086
    run "${here[-1]}" --test ansible-doc --test pylint --test validate-modules ${ARGS:-}
fi
if grep -q "All targets skipped" "$log"; then
    echo "sanity: ansible-test saw no file" >&2
    status=1
fi
[ "$status" = 0 ] && echo "sanity: $(grep -c '^Running sanity test' "$log") tests clean (whole log: ${log#"$PWD/"})"
exit "$status"
