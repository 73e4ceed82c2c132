#!/bin/sh
# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# Stores a block a second under the names that vLLM gives them, from inside a container.
umask 0077
while :; do
    name=$(cat /proc/sys/kernel/random/uuid /proc/sys/kernel/random/uuid | sha256sum | cut -c1-64)
    leaf=/kv/Qwen_Qwen3-8B_0123456789ab_r0/$(echo "$name" | cut -c1-3)/$(echo "$name" | cut -c4-5)_g0
    mkdir -p "$leaf" && echo "KV of a prompt" >"$leaf/$name.bin"
    sleep 1
done
