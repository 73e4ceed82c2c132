# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs a module of the collection as Ansible does, in this process: arguments in, one JSON object back."""

from __future__ import annotations

import contextlib
import importlib
import io
import json

from ansible.module_utils import basic

MODULES = "ansible_collections.llmhost.hardening.plugins.modules."


def run(module, check=False, **arguments):
    """The answer of a module to these arguments."""
    arguments = {"ANSIBLE_MODULE_ARGS": {**arguments, "_ansible_check_mode": check}}
    # What AnsiballZ sets before it calls main(); the profile is of ansible-core 2.19 and later.
    basic._ANSIBLE_ARGS = json.dumps(arguments).encode()
    basic._ANSIBLE_PROFILE = "legacy"
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.suppress(SystemExit):
        importlib.import_module(MODULES + module).main()
    return json.loads(output.getvalue())
