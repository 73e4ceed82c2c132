# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Prints status and body of the answer to METHOD PORT PATH, asked on this host without any credential."""

import http.client
import sys

method, port, path = sys.argv[1:]
connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=20)
connection.request(method, path, b"{}" if method == "POST" else None)
answer = connection.getresponse()
print(answer.status)
print(answer.read().decode())
