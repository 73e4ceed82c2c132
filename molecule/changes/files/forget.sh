#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# A fresh root file system, as far as this collection can tell: nothing of it is left but the data disk.
set -euo pipefail
systemctl stop chat code notes gone disk
systemctl stop var-lib-vllm\\x2dkv.mount srv-code2.mount srv-disk.mount 'systemd-cryptsetup@llmhost_*'
sed -i '/llmhost/d' /etc/crypttab /etc/fstab
rm -rf /etc/llmhost /etc/cron.d/llmhost /usr/local/sbin/kvtier /var/lib/metrics/llmhost.prom
find /etc/systemd/system -name '*llmhost*' -delete
find /etc/systemd/system -type d -empty -delete
systemctl daemon-reload
for path in /var/lib/vllm-kv /srv/code2 /srv/disk; do chattr -i $path; rmdir $path; done
rm -rf /srv/notes /srv/gone /var/lib/llmhost
