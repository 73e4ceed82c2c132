#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# Engines in containers as operators have them before hardening, one of podman's quadlets and one of docker. No registry
# can be reached, so the image is made of busybox.
set -euo pipefail
install -d -m 0755 /srv/rootfs/bin /srv/rootfs/kv /srv/rootfs/tmp
cp /bin/busybox /srv/rootfs/bin/busybox
for name in sh sleep mkdir sha256sum cut cat echo; do ln -sf busybox /srv/rootfs/bin/$name; done
install -m 0755 /root/writer.sh /srv/rootfs/writer
# Blocks go only under an engine whose version is known, which is read from the names of its packages.
install -d -m 0755 /srv/rootfs/usr/local/lib/python3.12/dist-packages/vllm-0.29.0.dist-info
tar -C /srv/rootfs -c . | podman import --quiet - localhost/writer
tar -C /srv/rootfs -c . | docker import - writer
install -d -o 980 -g 980 -m 0755 /var/lib/quad-kv
install -d -o 991 -g 991 -m 0755 /var/lib/dock-kv
cat >/etc/containers/systemd/quad.container <<UNIT
[Container]
Image=localhost/writer
ContainerName=quad
Network=none
User=980
Group=980
Volume=/var/lib/quad-kv:/kv
PodmanArgs=--umask=0077
PodmanArgs=--ulimit=core=0:0
Exec=/writer

[Service]
Restart=always

[Install]
WantedBy=multi-user.target
UNIT
systemctl daemon-reload
systemctl start quad
docker run --detach --name dock --restart always --network none --ulimit core=0 --user 991:991 \
    --volume /var/lib/dock-kv:/kv writer /writer
