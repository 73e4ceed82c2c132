#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# What an operator types after a boot; then waits for the writers that are named.
set -euo pipefail
printf geheim | cryptsetup open --key-file - /root/outer.img outer
mount /dev/mapper/outer /srv/keys
systemctl start --no-block {kept,lvol,used}-writer
for one in "$@"; do
    for _try in $(seq 120); do
        systemctl is-active --quiet "$one-writer" && break
        sleep 1
    done
    systemctl is-active "$one-writer"
done
