# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Writes the report of a fleet on the controller. No host is touched."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from ansible_collections.llmhost.hardening.plugins.filter.audit_table import audit_table
from ansible_collections.llmhost.hardening.plugins.module_utils.kv import datamap, fsio
from ansible_collections.llmhost.hardening.plugins.module_utils.report import document, junit, page

# Above this many hosts the tables are left to the report.
_MOST_TABLES = 20


def _data_map(known: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    """The host's data map out of its variables, None if that is mistaken: then the host was not audited either."""
    try:
        minutes = known.get("llmhost_prompt_log_retention_minutes")
        return datamap.normalise(known.get("llmhost_tiers") or [], name, *([] if minutes is None else [minutes]))
    except datamap.MapError:
        return None


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
                "found": {"type": "str", "default": "llmhost_audit_result"},
                "fail_on": {"type": "str", "choices": ["high", "any", "none"], "default": "high"},
                "title": {"type": "str", "default": "KV state of the fleet"},
                "merge": {"type": "list", "elements": "path", "default": []},
            }
        )
        now = time.time()
        hostvars = (task_vars or {}).get("hostvars", {})
        hosts = []
        tables: list[str] = []
        for name in options["hosts"]:
            known = hostvars.get(name, {})
            answer = known.get(options["audit"])
            hosts.append(document.host(name, answer, _data_map(known, name), known.get(options["found"])))
            if len(options["hosts"]) <= _MOST_TABLES and isinstance((answer or {}).get("audit"), Mapping):
                tables += [*audit_table(answer["audit"]), ""]
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
            failures=document.failures(report, options["fail_on"]),
            tables=tables or [f"{len(hosts)} hosts, {len(failing)} of them fail; see {directory}/report.html"],
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
