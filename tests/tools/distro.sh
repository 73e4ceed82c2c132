#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# Hardens a host made from a distribution's own cloud image (IMAGE=ubuntu-24.04); UNREACHED=0: an image that cannot be
# fetched is no failure.
set -euo pipefail
cd "$(dirname "$0")/../.."

unreached() { echo "distro: NOT RUN: $1 cannot be fetched from here" >&2; exit "${UNREACHED:-1}"; }

image=${IMAGE:-}
case $image in
    ubuntu-22.04 | ubuntu-24.04 | ubuntu-26.04)
        base=https://cloud-images.ubuntu.com/releases/${image#ubuntu-}/release
        file=$image-server-cloudimg-amd64.img sums=SHA256SUMS ;;
    rocky-9 | rocky-10)
        base=https://dl.rockylinux.org/pub/rocky/${image#rocky-}/images/x86_64
        file=Rocky-${image#rocky-}-GenericCloud-Base.latest.x86_64.qcow2 sums=$file.CHECKSUM ;;
    *) echo "distro: IMAGE is one of ubuntu-22.04 ubuntu-24.04 ubuntu-26.04 rocky-9 rocky-10" >&2; exit 2 ;;
esac
for program in curl cloud-localds qemu-system-x86_64; do
    command -v "$program" >/dev/null || { echo "distro: $program is missing (apt install curl cloud-image-utils qemu-system-x86)" >&2; exit 1; }
done

cache=${XDG_CACHE_HOME:-$HOME/.cache}/llmhost/distro
work=$PWD/.build/distro
rm -rf "$work"
mkdir -p "$cache" "$work"
curl -fsSL --retry 2 -o "$work/sums" "$base/$sums" || unreached "$base/$sums"
# Both forms: "HASH *FILE" and "SHA256 (FILE) = HASH".
want=$(sed -nE "s/^([0-9a-f]{64}) [ *]$file\$/\1/p; s/^SHA256 \($file\) = ([0-9a-f]{64})\$/\1/p" "$work/sums" | head -n 1)
[ -n "$want" ] || { echo "distro: $base/$sums does not name $file" >&2; exit 1; }
check() { echo "$want  $cache/$file" | sha256sum --check --quiet >/dev/null 2>&1; }
check || curl -fsSL --retry 2 -o "$cache/$file" "$base/$file" || unreached "$base/$file"
check || { echo "distro: $cache/$file is not what $sums says" >&2; exit 1; }

ssh-keygen -q -t ed25519 -N '' -f "$work/key"
cat >"$work/user-data" <<EOF
#cloud-config
disable_root: false
users: [{name: root, ssh_authorized_keys: ["$(cat "$work/key.pub")"]}]
EOF
echo "instance-id: llmhost" >"$work/meta-data"
cloud-localds "$work/seed.img" "$work/user-data" "$work/meta-data"
qemu-img create -q -f qcow2 -F qcow2 -b "$cache/$file" "$work/disk.qcow2" 20G
port=$(python -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
accel=tcg
[ ! -w /dev/kvm ] || accel=kvm
qemu-system-x86_64 -accel "$accel" -cpu max -m 2048 -smp 2 -display none -serial "file:$work/console.log" \
    -drive "file=$work/disk.qcow2,if=virtio" -drive "file=$work/seed.img,if=virtio,format=raw" \
    -netdev "user,id=net,hostfwd=tcp:127.0.0.1:$port-:22" -device virtio-net-pci,netdev=net &
guest=$!
trap 'kill "$guest" 2>/dev/null; wait "$guest" 2>/dev/null || true' EXIT

cat >"$work/inventory.yml" <<EOF
all:
  hosts:
    $image:
      ansible_host: 127.0.0.1
      ansible_port: $port
      ansible_user: root
      ansible_ssh_private_key_file: $work/key
      ansible_ssh_common_args: -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null
EOF
unset PYTHONPATH
ansible-playbook -i "$work/inventory.yml" tests/tools/distro.yml
