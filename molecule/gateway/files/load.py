# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Asks for acme on four kept connections as long as the first file is there; writes to the second what went wrong."""

import http.client
import os
import sys
import threading

running, report = sys.argv[1:]
open(running, "w").close()
failed, asked = [], [0] * 4


def client(number):
    connection = http.client.HTTPConnection("127.0.0.1", 8100, timeout=20)
    headers = {"Content-Type": "application/json", "Authorization": "Bearer sk-acme"}
    while os.path.exists(running):
        try:
            connection.request("POST", "/v1/completions", b'{"cache_salt":"evil"}', headers)
            answer = connection.getresponse()
            answer.read()
            if answer.status != 200:
                failed.append(answer.status)
        except OSError as error:
            failed.append(repr(error))
            connection.close()
        asked[number] += 1


threads = [threading.Thread(target=client, args=(number,)) for number in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
with open(report, "w") as file:
    file.write(f"{sum(asked)} {failed}\n")
