# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Sends the requests of a JSON file ([key, path, body], ...) through the gateway; prints statuses and answers."""

import http.client
import json
import sys

answers = []
connection = http.client.HTTPConnection("127.0.0.1", 8100, timeout=20)
for key, path, body in json.load(sys.stdin):
    headers = {"Content-Type": "application/json", "Authorization": "Bearer " + key}
    connection.request("POST", path, body.encode("latin-1"), headers)
    answer = connection.getresponse()
    answers.append([answer.status, answer.read().decode("latin-1")])
print(json.dumps(answers))
