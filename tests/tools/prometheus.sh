#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# Prints the directory that holds Debian's prometheus and promtool: unpacked into the cache, never installed, since the
# package would start a server that listens on every address.
set -euo pipefail

cache="${LLMHOST_CACHE:-$HOME/.cache/llmhost}/prometheus"
mkdir -p "$cache"
exec 9>"$cache/.lock"
flock 9
if [ ! -x "$cache/usr/bin/promtool" ]; then
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    chmod 755 "$work"
    cd "$work"
    fetch() { apt-get download -q prometheus prometheus-node-exporter >log 2>&1; }
    # A machine that never installed anything has no lists yet.
    if ! fetch && ! { [ "$(id -u)" = 0 ] && apt-get update -q >/dev/null 2>&1 && fetch; }; then
        echo "prometheus.sh: Debian's packages prometheus and prometheus-node-exporter cannot be fetched; run: sudo apt-get update" >&2
        cat log >&2
        exit 1
    fi
    for package in ./*.deb; do dpkg-deb -x "$package" "$cache"; done
fi
echo "$cache/usr/bin"
