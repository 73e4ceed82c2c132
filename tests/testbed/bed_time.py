# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""NTP answers on loopback with the host's own clock, so that guests without a network report a synchronised one."""

from __future__ import annotations

import socket
import struct
import sys
import time

PORT = 11123
ERA = 2_208_988_800  # 1900 to 1970


def stamp(now: float) -> bytes:
    seconds = int(now)
    return struct.pack("!II", (seconds + ERA) & 0xFFFFFFFF, int((now - seconds) * 2**32))


def answer(request: bytes, received: float, sent: float) -> bytes | None:
    """The reply of a stratum 2 server to a client's packet; None to anything else."""
    if len(request) < 48 or request[0] & 7 != 3:
        return None
    version = request[0] & 0x38
    head = struct.pack("!BBbbII4s", version | 4, 2, request[2] & 0x7F, -20, 0, 16, b"\x7f\x00\x00\x01")
    return head + stamp(received) + request[40:48] + stamp(received) + stamp(sent)


def serve(port: int) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", port))
        while True:
            request, peer = server.recvfrom(512)
            reply = answer(request, time.time(), time.time())
            if reply:
                server.sendto(reply, peer)


def answers(port: int, timeout: float = 0.3) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.settimeout(timeout)
        try:
            client.sendto(b"\x23" + bytes(47), ("127.0.0.1", port))
            return len(client.recv(512)) >= 48
        except OSError:
            return False


if __name__ == "__main__":
    serve(int(sys.argv[1]))
