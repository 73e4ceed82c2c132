#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# Makes .build/venv-boto3-1.34: the tools of .build/venv with an old boto3 in front of the pinned one. Prints its Python.
set -euo pipefail
cd "$(dirname "$0")/../.."

PINS=tests/buckets/boto3-1.34.txt
place=.build/venv-boto3-1.34
if ! sha256sum --quiet --check "$place/.pins" 2>/dev/null; then
    rm -rf "$place"
    uv venv -q --python .build/venv/bin/python "$place"
    uv pip install -q --python "$place/bin/python" --no-deps --require-hashes -r "$PINS"
    # Whatever it lacks comes from the other one, which stands behind it in the path.
    find "$PWD/.build/venv/lib" -maxdepth 2 -name site-packages >"$(find "$place/lib" -maxdepth 2 -name site-packages)/behind.pth"
    sha256sum "$PINS" >"$place/.pins"
fi
"$place/bin/python" -c 'import boto3; assert boto3.__version__.startswith("1.34."), boto3.__version__'
echo "$PWD/$place/bin/python"
