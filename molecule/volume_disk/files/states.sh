#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# Slices of one disk, each in a state in which it must not be taken, made by the tool that makes it.
# states.sh make|undo DISK
set -euo pipefail
states='ext4 xfs swap swapon gpt gptend dos luks1 luks2 lvm lvmused raid raidused zfs noise end mounted mapped fstab crypttab readonly'
disk=$2
udevadm settle

slice() { echo "/dev/disk/by-id/dm-name-state-$1"; }

zfs_label() {
    python3 - "$1" <<'PY'
import os, struct, sys
with open(sys.argv[1], "r+b") as disk:
    size = disk.seek(0, os.SEEK_END)
    for label in (0, 256 << 10, size - (512 << 10), size - (256 << 10)):
        for block in range(64):
            disk.seek(label + (128 << 10) + (block << 10))
            disk.write(struct.pack("<QQQQQ", 0x00BAB10C, 5000, 7, 1, 1700000000))
PY
}

state() {
    local d
    d=$(slice "$1")
    case $1 in
        ext4) mkfs.ext4 -q "$d" ;;
        # Its superblock: a whole xfs needs more room than a slice has.
        xfs)
            truncate -s 320M /root/xfs.img
            mkfs.xfs -q /root/xfs.img
            dd if=/root/xfs.img of="$d" bs=1M count=1 conv=fsync status=none
            rm /root/xfs.img
            ;;
        swap) mkswap "$d" ;;
        swapon) mkswap "$d" && swapon "$d" ;;
        gpt) echo ',,L' | sfdisk --quiet --no-reread --no-tell-kernel --label gpt "$d" ;;
        gptend)
            echo ',,L' | sfdisk --quiet --no-reread --no-tell-kernel --label gpt "$d"
            dd if=/dev/zero of="$d" bs=1M count=1 conv=fsync status=none
            ;;
        dos) echo ',,L' | sfdisk --quiet --no-reread --no-tell-kernel --label dos "$d" ;;
        luks1) printf x | cryptsetup luksFormat --batch-mode --type luks1 --pbkdf-force-iterations 1000 "$d" - ;;
        luks2) printf x | cryptsetup luksFormat --batch-mode --pbkdf pbkdf2 --pbkdf-force-iterations 1000 "$d" - ;;
        lvm) pvcreate --quiet "$d" ;;
        lvmused) pvcreate --quiet "$d" && vgcreate --quiet theirs "$d" && lvcreate --quiet -n data -l 2 theirs ;;
        raid)
            mdadm --create --quiet --run /dev/md/state-raid --level=1 --raid-devices=2 "$d" missing
            mdadm --stop --quiet /dev/md/state-raid
            ;;
        raidused) mdadm --create --quiet --run /dev/md/state-raidused --level=1 --raid-devices=2 "$d" missing ;;
        zfs) zfs_label "$d" ;;
        noise) dd if=/dev/urandom of="$d" bs=64k count=1 conv=fsync status=none ;;
        end) printf x | dd of="$d" bs=1 seek=$(($(blockdev --getsize64 "$d") - 1)) conv=fsync status=none ;;
        mounted) mkfs.ext4 -q "$d" && mount -o ro,noload "$d" /mnt ;;
        mapped) dmsetup create other --table "0 2048 linear $d 0" ;;
        fstab) echo "$d /x ext4 noauto 0 0" >>/etc/fstab ;;
        crypttab) echo "theirs $d none luks,noauto" >>/etc/crypttab ;;
        readonly) blockdev --setro "$d" ;;
    esac
}

case $1 in
    make)
        # Else udev puts a stopped array together again and starts it after 30 s, which writes to its disk.
        mkdir -p /etc/mdadm
        echo 'AUTO -all' >/etc/mdadm/mdadm.conf
        blkdiscard --force --zeroout "$disk"
        at=0
        for one in $states; do
            # Nobody takes less than 64 MiB for a disk of ZFS.
            size=45056
            [ "$one" != zfs ] || size=133120
            dmsetup create "state-$one" --table "0 $size linear $disk $at"
            at=$((at + size))
        done
        udevadm settle
        for one in $states; do state "$one"; done
        udevadm settle
        sync
        ;;
    undo)
        umount /mnt
        dmsetup remove other
        swapoff "$(slice swapon)"
        mdadm --stop --quiet --scan
        vgchange --quiet -an theirs
        sed -i '/dm-name-state-/d' /etc/fstab /etc/crypttab
        blockdev --setrw "$(slice readonly)"
        for one in $states; do dmsetup remove --retry "state-$one"; done
        wipefs --all --quiet "$disk"
        blkdiscard --force --zeroout "$disk"
        ;;
esac
