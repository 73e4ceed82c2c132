#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# ansible-builder accepts what the built collection says it needs and makes a build context from it; no image is built.
set -euo pipefail
cd "$(dirname "$0")/../.."

out=$PWD/.build/ee
rm -rf "$out"
mkdir -p "$out"
found=$(ansible-builder introspect "$PWD/.build/collections" 2>&1) || { echo "$found" >&2; exit 1; }
grep -q "boto3.*from collection llmhost.hardening" <<<"$found" ||
    { printf '%s\nee: ansible-builder does not see boto3 in what the collection asks for\n' "$found" >&2; exit 1; }
ansible-builder create -v 1 -f tests/ee/execution-environment.yml -c "$out/context" --output-filename Containerfile >"$out/log" 2>&1 ||
    { cat "$out/log" >&2; exit 1; }
[ -f "$out/context/_build/artifacts/$(basename .build/artifact/*.tar.gz)" ] ||
    { echo "ee: the artifact is not in the build context $out/context" >&2; exit 1; }
echo "ee: ansible-builder $(ansible-builder --version) takes the collection and its definition"
