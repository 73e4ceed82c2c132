# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Everything on a host that a role could change, one line each: files, mounts, mappings, loop devices, accounts.

With --content what a file says and who may read it counts, not when and where it was written.
"""

import glob
import hashlib
import os
import stat
import sys

# What a host writes by itself, and where Ansible puts what it runs.
LEFT_OUT = ("/proc", "/sys", "/dev", "/run", "/tmp", "/var/tmp", "/var/log", "/root", "/var/lib/systemd")
LEFT_OUT += ("/var/lib/chrony",)
CONTENT = "--content" in sys.argv
# The image of a volume in use is written to all the time; its size is all that is told.
LARGE = 16 << 20
READ = ("/etc", "/srv", "/usr/local", "/var/lib/llmhost", "/var/spool/cron")


def digest(path):
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def show(path):
    info = os.lstat(path)
    fields = [path, oct(info.st_mode), info.st_uid, info.st_gid]
    if not CONTENT:
        fields += [info.st_ino, info.st_mtime_ns, info.st_ctime_ns]
    if stat.S_ISREG(info.st_mode):
        if not CONTENT:
            fields.append(info.st_size)
        if path.startswith(READ):
            fields.append(digest(path) if info.st_size < LARGE else info.st_size)
    elif stat.S_ISLNK(info.st_mode):
        fields.append(os.readlink(path))
    return "\t".join(map(str, fields))


# What is still to be written would change an image's time between two looks.
os.sync()
for top, names, files in os.walk("/"):
    names[:] = sorted(name for name in names if os.path.join(top, name) not in LEFT_OUT)
    for name in sorted(names + files):
        print(show(os.path.join(top, name)).encode("unicode_escape").decode())
with open("/proc/self/mountinfo") as table:
    # A mount's number is its own; the rest of the line tells what is mounted where.
    print("".join(sorted(line.split(" ", 2)[2] for line in table if " /run/user/" not in line)))
for disk in sorted(glob.glob("/dev/disk/by-id/virtio-bed-?")):
    print(disk, digest(disk))
for name in sorted(os.listdir("/sys/block")):
    base = "/sys/block/" + name
    for leaf in ("dm/name", "dm/uuid", "loop/backing_file", "size"):
        if os.path.exists(f"{base}/{leaf}"):
            with open(f"{base}/{leaf}") as file:
                print(name, leaf, file.read().strip())
