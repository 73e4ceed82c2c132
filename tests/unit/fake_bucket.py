# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Stand-ins for a bucket: what the code under test asks for, answered from memory."""

from __future__ import annotations

import email.utils

from ansible_collections.llmhost.hardening.plugins.module_utils.s3 import document, errors
from ansible_collections.llmhost.hardening.plugins.module_utils.s3.client import Answer, Settings
from ansible_collections.llmhost.hardening.plugins.module_utils.s3.errors import S3Error

NOW = 1_800_000_000


def absent():
    return S3Error(errors.ABSENT, "there is none", "nothing")


class FakeBucket:
    """Answers by operation: a parsed dict, an S3Error to raise, or a function of the arguments."""

    def __init__(self, rules=None, *, now=NOW, **answers):
        self.settings = Settings("kv", "https://s3.example")
        self.rules, self.now, self.answers = rules, now, answers
        self.puts = []
        self.calls = []
        self.change = lambda rules: rules
        self.reads = None

    def headers(self):
        return {"date": email.utils.formatdate(self.now, usegmt=True)}

    def call(self, operation, **arguments):
        self.calls.append((operation, arguments))
        answer = self.answers.get(operation, {})
        if callable(answer):
            answer = answer(**arguments)
        if isinstance(answer, Exception):
            raise answer
        return Answer(answer, b"", self.headers())

    def head(self):
        return self.call("HeadBucket")

    def pages(self, operation, prefix, start=None, size=1000):
        answer = self.answers.get(operation, [])
        if callable(answer):
            answer = answer(prefix=prefix, start=start)
        if isinstance(answer, Exception):
            raise answer
        for page in answer or [{}]:
            self.calls.append((operation, prefix))
            yield Answer(page, b"", self.headers())

    def lifecycle(self):
        answer = self.answers.get("lifecycle")
        if isinstance(answer, Exception):
            raise answer
        rules = self.reads.pop(0) if self.reads else self.rules
        if isinstance(rules, Exception):
            raise rules
        return None if rules is None else Answer({}, xml(rules), self.headers())

    def put_lifecycle(self, rules, size_default):
        self.puts.append((rules, size_default))
        (parsed,) = [document.parse(xml_of(rules))]
        self.rules = self.change(parsed)


def xml_of(rendered) -> bytes:
    inside = "".join(f"<Rule>{_xml(rule)}</Rule>" for rule in rendered)
    return f"<LifecycleConfiguration>{inside}</LifecycleConfiguration>".encode()


def xml(rules) -> bytes:
    return xml_of([document.render(rule) for rule in rules])


def _xml(value) -> str:
    names = {"Tags": "Tag", "Transitions": "Transition", "NoncurrentVersionTransitions": "NoncurrentVersionTransition"}
    out = ""
    for key, one in value.items():
        for item in one if isinstance(one, list) else [one]:
            text = _xml(item) if isinstance(item, dict) else "true" if item is True else str(item)
            out += f"<{names.get(key, key)}>{text}</{names.get(key, key)}>"
    return out


def entry(key, minutes, **more):
    return {"Key": key, "LastModified": NOW - 60 * minutes, "Size": 10, **more}
