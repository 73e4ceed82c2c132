#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# Reference pages of the built collection; an error or warning in any documentation fails.
set -euo pipefail
cd "$(dirname "$0")/../.."

rm -rf .build/docs
mkdir -p .build/docs
antsibull-docs collection --use-current --fail-on-error --output-format simplified-rst --squash-hierarchy \
    --dest-dir .build/docs llmhost.hardening
echo "docs: $(find .build/docs -name '*.rst' | wc -l) pages in .build/docs"
