#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# Builds the artifact of an older commit and installs it into .build/upgrade/old; prints that directory.
set -euo pipefail
cd "$(dirname "$0")/../.."

# A commit of before expiry had an index; a tag, once there are releases.
old=${OLD:-879f5d6}
work=$PWD/.build/upgrade

git rev-parse -q --verify "$old^{commit}" >/dev/null ||
    { echo "upgrade: no commit $old here (a shallow clone?): git fetch --unshallow" >&2; exit 1; }
rm -rf "$work"
mkdir -p "$work/tree" "$work/artifact"
git archive "$old" | tar -x -C "$work/tree"
{
    ansible-galaxy collection build --output-path "$work/artifact" "$work/tree"
    # What is installed elsewhere would count as this one.
    ANSIBLE_COLLECTIONS_PATH=$work/old ansible-galaxy collection install --offline --no-deps -p "$work/old" "$work"/artifact/*.tar.gz
} >"$work/build.log" 2>&1 || { cat "$work/build.log" >&2; exit 1; }
echo "$work/old"
