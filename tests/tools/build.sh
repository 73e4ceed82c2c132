#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# Builds the artifact and installs it into an empty path, as an operator would; does nothing when no source changed.
set -euo pipefail
cd "$(dirname "$0")/../.."

# Two targets at once must not build over each other.
mkdir -p .build
exec 9>.build/build.lock
flock 9

sources=$(tests/tools/sources.sh | xargs -0 sha256sum | sha256sum)
if [ -f .build/artifact/.sources ] && [ "$(cat .build/artifact/.sources)" = "$sources" ]; then exit 0; fi

rm -rf .build/artifact .build/collections .build/tree
mkdir -p .build/artifact .build/collections .build/tree
# From a copy of the sources only: what lies about in the work tree never gets into an artifact.
tests/tools/sources.sh | rsync -a --from0 --files-from=- . .build/tree/
ansible-galaxy collection build -v --output-path "$PWD/.build/artifact" .build/tree >.build/artifact/build.log ||
    { cat .build/artifact/build.log >&2; exit 1; }
ansible-galaxy collection install --offline --no-deps -p .build/collections .build/artifact/*.tar.gz >>.build/artifact/build.log ||
    { cat .build/artifact/build.log >&2; exit 1; }
echo "$sources" >.build/artifact/.sources
echo "built $(ls .build/artifact/*.tar.gz), installed into .build/collections"
