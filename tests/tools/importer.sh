#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# galaxy-importer on the artifact, as Galaxy runs it; a warning fails.
set -euo pipefail
cd "$(dirname "$0")/../.."

mkdir -p .build/importer
cat >.build/importer/galaxy-importer.cfg <<EOF
[galaxy-importer]
CHECK_CHANGELOG = True
CHECK_REQUIRED_TAGS = True
LOG_LEVEL_MAIN = INFO
RUN_ANSIBLE_DOC = True
RUN_ANSIBLE_LINT = True
RUN_FLAKE8 = False
EOF
artifact=$(echo "$PWD"/.build/artifact/*.tar.gz)
log=$PWD/.build/importer/log
cd .build/importer
status=0
GALAXY_IMPORTER_CONFIG=$PWD/galaxy-importer.cfg python -m galaxy_importer.main "$artifact" >"$log" 2>&1 || status=$?
if [ "$status" != 0 ] || grep -E '(^|\s)(WARNING|ERROR|CRITICAL)' "$log"; then
    cat "$log" >&2
    echo "importer: Galaxy would not take $artifact without complaint" >&2
    exit 1
fi
echo "importer: no complaint about $(basename "$artifact")"
