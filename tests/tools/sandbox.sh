#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# `make harden`: the installed artifact against INVENTORY, or against a disposable host with a running vLLM writer.
set -euo pipefail
cd "$(dirname "$0")/../.."

export ANSIBLE_CALLBACK_RESULT_FORMAT=yaml
read -ra args <<<"${ARGS:-}"
# Nothing but the artifact may answer to the collection's name.
unset PYTHONPATH

if [ -n "${INVENTORY:-}" ]; then
    # The inventory may need plugins that the operator installed.
    ANSIBLE_COLLECTIONS_PATH+=:$HOME/.ansible/collections:/usr/share/ansible/collections
    exec ansible-playbook -i "$INVENTORY" llmhost.hardening.harden "${args[@]}"
fi

release=${RELEASE:-bookworm}
name=sandbox-$release
bed() { python tests/testbed/bed.py "$@"; }

finish() {
    local status=$?
    if [ -n "${KEEP:-}" ]; then
        echo "sandbox: $name stays up; log in with: make shell, end it with: make down"
    else
        bed down "$name" || echo "sandbox: $name could not be ended; try: make down" >&2
    fi
    exit "$status"
}

bed down "$name" >/dev/null
trap finish EXIT
echo "sandbox: starting $name"
bed up "$name" --release "$release" >/dev/null
rm -rf .build/sandbox
mkdir -p .build/sandbox/group_vars
bed inventory "$name" >.build/sandbox/inventory.yml
ansible-playbook -i .build/sandbox/inventory.yml tests/testbed/sandbox.yml
ansible-playbook -i .build/sandbox/inventory.yml llmhost.hardening.harden "${args[@]}"
