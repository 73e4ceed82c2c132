#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# Disks of a guest that is down: disks.sh wrong|right FOLDER
# wrong: 0 is missing, 1 is an empty one, 5 is a stranger's, whose SHA-256 is printed; right: as they were.
set -euo pipefail
cd "$2"
case $1 in
    wrong)
        mkdir away
        mv data0.qcow2 data1.qcow2 data5.qcow2 away
        qemu-img create -q -f qcow2 data1.qcow2 512M
        mkdir photos
        echo precious >photos/letter
        PATH=$PATH:/usr/sbin:/sbin mke2fs -q -t ext4 -L photos -d photos stranger.raw 128M
        qemu-img convert -f raw -O qcow2 stranger.raw data5.qcow2
        sha256sum stranger.raw | cut -d ' ' -f 1
        rm -r photos stranger.raw
        ;;
    right)
        if [ -d away ]; then
            mv away/* .
            rmdir away
        fi
        ;;
esac
