# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Stands where vLLM stands: asks for its key, appends what it saw to a file, quotes the request if that is wanted."""

import http.server
import json
import sys

with open("/etc/vllm/api-key") as file:
    KEY = "Bearer " + file.read().strip()
SEEN = sys.argv[1]


class Engine(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        allowed = self.headers["Authorization"] == KEY
        if allowed:
            with open(SEEN, "a") as seen:
                seen.write(json.dumps([self.headers["X-Llmhost-Tenant"], self.path, body.decode()]) + "\n")
        status = 401 if not allowed else 400 if b'"quote"' in body else 200
        answer = body if status == 400 else b"{}"
        self.send_response(status)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


http.server.ThreadingHTTPServer(("127.0.0.1", 8000), Engine).serve_forever()
