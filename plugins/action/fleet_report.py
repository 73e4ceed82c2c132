# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Writes the report of a fleet on the controller. No host is touched."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from ansible_collections.llmhost.hardening.plugins.module_utils.kv import fsio
from ansible_collections.llmhost.hardening.plugins.module_utils.report import document, junit, page


class ActionModule(ActionBase):
    _requires_connection = False
    _supports_check_mode = True
    _supports_diff = False

    def run(self, tmp: Any = None, task_vars: Any = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        _checked, options = self.validate_argument_spec(
            argument_spec={
                "dest": {"type": "path", "required": True},
                "hosts": {"type": "list", "elements": "str", "default": []},
                "audit": {"type": "str", "default": "llmhost_audit_result"},
                "found": {"type": "str", "default": "llmhost_found_result"},
                "data_map": {"type": "str", "default": "llmhost_audit_map"},
                "title": {"type": "str", "default": "KV state of the fleet"},
                "merge": {"type": "list", "elements": "path", "default": []},
            }
        )
        now = time.time()
        hostvars = (task_vars or {}).get("hostvars", {})
        hosts = []
        for name in options["hosts"]:
            known = hostvars.get(name, {})
            hosts.append(document.host(name, *(known.get(options[key]) for key in ("audit", "data_map", "found"))))
        report = document.build(hosts, now, options["title"])
        if options["merge"]:
            report = self._merged(options["merge"], [report] if hosts else [], now)
        texts = {
            "report.json": json.dumps(report, indent=1, sort_keys=True, default=str) + "\n",
            "report.junit.xml": junit.render(report),
            "report.html": page.render(report),
        }
        directory = os.path.abspath(options["dest"])
        if not self._task.check_mode:
            try:
                os.makedirs(directory, mode=0o700, exist_ok=True)
                for name, text in texts.items():
                    fsio.write_atomic(os.path.join(directory, name), text.encode("utf-8", "backslashreplace"), 0o600)
            except OSError as error:
                raise AnsibleActionFail(f"the report cannot be written to {directory}: {error.strerror}") from error
        failing = [host["name"] for host in report["hosts"] if host["verdict"] != "pass"]
        result.update(
            changed=False,
            dest=directory,
            verdict=report["verdict"],
            counts=report["counts"],
            hosts_failing=failing,
            hosts_undeclared=[host["name"] for host in report["hosts"] if host["undeclared"]],
        )
        return result

    @staticmethod
    def _merged(paths: list[str], reports: list[Any], now: float) -> dict[str, Any]:
        for path in paths:
            try:
                reports.append(json.loads(Path(path).read_text(encoding="utf-8")))
            except (OSError, ValueError) as error:
                raise AnsibleActionFail(f"{path} is no report that can be merged: {error}") from error
        try:
            return document.merge(reports, now)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise AnsibleActionFail(f"the reports cannot be merged: {error}") from error
