# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Stands where the engine stands: takes requests as vLLM does (json.loads of the bytes) and remembers what it saw."""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
from dataclasses import dataclass
from typing import Any

ANSWER = b"{}"


@dataclass
class Seen:
    """One request as it arrived."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes

    @property
    def document(self) -> Any:
        """What Python's own parser, the engine's, makes of the body."""
        return json.loads(self.body)

    def header(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key.lower() == name]


class Upstream:
    """A server on a free port; what it answers depends on the document's `x_answer`."""

    def __init__(self) -> None:
        self.seen: list[Seen] = []
        self.keep = True
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.server = asyncio.run_coroutine_threadsafe(
            asyncio.start_server(self._serve, "127.0.0.1", 0, limit=1 << 24), self.loop
        ).result(10)
        self.port: int = self.server.sockets[0].getsockname()[1]

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.server.close)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(10)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                first, *rest = head.decode("latin-1").split("\r\n")[:-2]
                method, target, _version = first.split(" ")
                headers = [(key, value.strip()) for key, _colon, value in (line.partition(":") for line in rest)]
                length = int(next((value for key, value in headers if key.lower() == "content-length"), "0"))
                body = await reader.readexactly(length)
                if self.keep:
                    self.seen.append(Seen(method, target, headers, body))
                await self._answer(writer, target, body)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(self, writer: asyncio.StreamWriter, target: str, body: bytes) -> None:
        how = b""
        if b"x_answer" in body[:400]:
            how = str(json.loads(body).get("x_answer", "")).encode()
        if how == b"stream":
            writer.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n"
                b"X-Accel-Buffering: yes\r\n\r\n"
            )
            for number in range(5):
                event = b"data: %d\n\n" % number
                writer.write(b"%x\r\n%s\r\n" % (len(event), event))
                await writer.drain()
                await asyncio.sleep(0.2)
            writer.write(b"0\r\n\r\n")
            await writer.drain()
            return
        if how == b"echo-cut":
            # The answer in packets of one byte: wherever the salt is cut, it is found.
            text = b"".join(b"1\r\n%c\r\n" % byte for byte in b'{"error":' + body + b"}")
            writer.write(b"HTTP/1.1 400 Bad Request\r\nTransfer-Encoding: chunked\r\n\r\n" + text + b"0\r\n\r\n")
            await writer.drain()
            return
        if how == b"slow":
            await asyncio.sleep(0.3)
        status, text = b"200 OK", ANSWER
        if how.startswith(b"echo"):
            status, text = b"400 Bad Request" if how == b"echo" else b"200 OK", b'{"error":' + body + b"}"
        if how == b"digest":
            text = hashlib.sha256(body).hexdigest().encode()
        writer.write(
            b"HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (status, len(text), text)
        )
        await writer.drain()
