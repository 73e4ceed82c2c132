#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# Makes this machine able to run every make target: Debian packages, then the pinned tools in .build/venv. Safe to repeat.
set -euo pipefail
cd "$(dirname "$0")/../.."

# What the tools and the test bed need from Debian 12 or 13.
PACKAGES=(
    acl
    binutils
    ca-certificates
    cryptsetup-bin
    nftables
    debian-archive-keyring
    e2fsprogs
    gcc
    git
    libnginx-mod-http-lua
    make
    mmdebstrap
    nginx
    openssh-client
    python3-venv
    qemu-system-x86
    qemu-utils
    rsync
)
[ "$(id -u)" = 0 ] || PACKAGES+=(uidmap)
# What one target needs beyond that.
read -ra more <<<"${LLMHOST_PACKAGES:-}"
PACKAGES+=("${more[@]}")

fail() { printf 'setup: %s\n' "$*" >&2; exit 1; }

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"
    elif sudo -n true 2>/dev/null || { [ -t 0 ] && command -v sudo >/dev/null; }; then sudo -- "$@"
    else return 77
    fi
}

install_packages() {
    command -v dpkg-query >/dev/null ||
        fail "this is not a Debian system; install the equivalents of: ${PACKAGES[*]}. Then run again with LLMHOST_SKIP_APT=1."
    local missing=() package
    for package in "${PACKAGES[@]}"; do
        dpkg-query -W -f '${db:Status-Status}\n' "$package" 2>/dev/null | grep -qx installed || missing+=("$package")
    done
    [ ${#missing[@]} = 0 ] && return
    echo "setup: installing ${missing[*]}"
    local status=0 nginx=
    # A new nginx would serve Debian's default site to the network; the tests start their own.
    [[ -d /run/systemd/system && " ${missing[*]} " = *" nginx "* ]] && nginx=nginx.service
    [ -z "$nginx" ] || as_root systemctl mask --runtime --quiet "$nginx" || nginx=
    as_root env DEBIAN_FRONTEND=noninteractive sh -c \
        'apt-get update -q && apt-get install -qy --no-install-recommends "$@"' sh "${missing[@]}" </dev/null || status=$?
    [ -z "$nginx" ] || { as_root systemctl unmask --runtime --quiet "$nginx"; as_root systemctl disable --quiet "$nginx"; } || true
    [ "$status" = 77 ] && fail "packages are missing and sudo is not available; as root run:
    apt-get update && apt-get install -y --no-install-recommends ${missing[*]}"
    [ "$status" = 0 ] || fail "apt-get could not install: ${missing[*]}"
}

# The pinned ansible-core runs on these; a pyenv shim may answer to a name and still not work, so each is tried.
find_python() {
    local name
    for name in python3 python3.13 python3.12 python3.11 /usr/bin/python3; do
        if "$name" -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; then
            echo "$name"
            return
        fi
    done
    fail "Python 3.11, 3.12 or 3.13 with venv is needed for the pinned ansible-core ($(python3 --version 2>&1) is what 'python3' is here).
    Debian 12 and 13 have it: apt-get install -y python3 python3-venv"
}

make_venv() {
    local stamp=.build/venv/.requirements lock=tests/requirements.lock python
    sha256sum --quiet --check "$stamp" 2>/dev/null && .build/venv/bin/python -c '' 2>/dev/null && return
    python=$(find_python)
    echo "setup: making .build/venv with $("$python" --version)"
    rm -rf .build/venv
    "$python" -m venv .build/venv
    # pip brings uv, checked against its hashes in the lock; uv brings the rest in seconds where pip takes a minute.
    sed -n '/^uv==/,/^[^ ]*==/{/^uv==\|^  /p}' "$lock" >.build/uv.txt
    .build/venv/bin/pip install -q --disable-pip-version-check --require-hashes --only-binary :all: -r .build/uv.txt 2>.build/setup.log ||
        { cat .build/setup.log >&2; fail "pip could not install uv (the messages above say why)"; }
    .build/venv/bin/uv pip sync -q --python .build/venv/bin/python --require-hashes --only-binary :all: "$lock" ||
        fail "uv could not install the tools of $lock (the messages above say why)"
    sha256sum "$lock" >"$stamp"
}

# Tests import the working tree by the collection's own name.
link_pythonpath() {
    mkdir -p .build/pythonpath/ansible_collections/llmhost
    ln -sfn ../../../.. .build/pythonpath/ansible_collections/llmhost/hardening
}

mkdir -p .build
exec 9>.build/setup.lock
flock 9
[ -n "${LLMHOST_SKIP_APT:-}" ] || install_packages
make_venv
link_pythonpath
