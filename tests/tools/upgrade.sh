#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# A host that an older artifact hardened is hardened by this one: the volume stays open, blocks stay, the next run changes nothing.
set -euo pipefail
cd "$(dirname "$0")/../.."

release=${RELEASE:-bookworm}
# A commit of before expiry had an index; a tag, once there are releases.
old=${OLD:-879f5d6}
name=upgrade-$release
work=$PWD/.build/upgrade
unset PYTHONPATH

git rev-parse -q --verify "$old^{commit}" >/dev/null ||
    { echo "upgrade: no commit $old here (a shallow clone?): git fetch --unshallow" >&2; exit 1; }
rm -rf "$work"
mkdir -p "$work/tree" "$work/artifact" "$work/old" "$work/group_vars"
git archive "$old" | tar -x -C "$work/tree"
ansible-galaxy collection build --output-path "$work/artifact" "$work/tree" >"$work/build.log" || { cat "$work/build.log" >&2; exit 1; }
ansible-galaxy collection install --offline --no-deps -p "$work/old" "$work"/artifact/*.tar.gz >>"$work/build.log"

bed() { python tests/testbed/bed.py "$@"; }
finish() {
    local status=$?
    [ -n "${KEEP:-}" ] || bed down "$name"
    exit "$status"
}
bed down "$name" >/dev/null
trap finish EXIT
bed up "$name" --release "$release" >/dev/null
bed inventory "$name" >"$work/inventory.yml"
ansible-playbook -i "$work/inventory.yml" tests/testbed/sandbox.yml

harden() { ansible-playbook -i "$work/inventory.yml" llmhost.hardening.harden "$@" | tee "$work/last.log"; }
# The volume's start, its device and how many blocks it holds; the program that cron calls.
look() {
    bed ssh "$name" 'readlink /run/systemd/units/invocation:systemd-cryptsetup@llmhost_chat.service
        findmnt -n -o SOURCE,UUID /var/lib/vllm-kv; sha256sum /usr/local/sbin/kvtier' </dev/null
}
echo "upgrade: harden with $old"
ANSIBLE_COLLECTIONS_PATH=$work/old harden
look >"$work/before"
echo "upgrade: check, then harden with this tree"
harden --check --diff
harden
look >"$work/after"
diff <(head -n 2 "$work/before") <(head -n 2 "$work/after") || { echo "upgrade: the volume was opened anew" >&2; exit 1; }
! cmp -s "$work/before" "$work/after" || { echo "upgrade: kvtier is still the old one" >&2; exit 1; }
harden
grep -qE 'changed=0 .*failed=0' "$work/last.log" || { echo "upgrade: the second run changes something" >&2; exit 1; }
bed ssh "$name" '/usr/local/sbin/kvtier status' </dev/null
echo "upgrade: volume and blocks stayed, kvtier is the new one, the next run changes nothing"
