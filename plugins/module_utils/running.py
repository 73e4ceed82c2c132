# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""How a module that knows a host runs: one change at a time, none in check mode, every refusal in words."""

from __future__ import annotations

from typing import Any, Callable, NoReturn, Protocol, TypeVar

from . import compiled_once  # noqa: F401  # pylint: disable=unused-import
from .kv import datamap, system

Result = TypeVar("Result")


class Module(Protocol):
    """What is used here of an AnsibleModule."""

    params: dict[str, Any]
    check_mode: bool

    def fail_json(self, msg: str, **result: Any) -> NoReturn:
        """Ends the module."""


def refusing(module: Module, work: Callable[[], Result]) -> Result:
    """What work() gives; what stops it is how the module fails."""
    try:
        return work()
    except datamap.MapError as error:
        module.fail_json(msg=str(error), problems=[problem._asdict() for problem in error.problems])
    except (system.HostError, OSError) as error:
        module.fail_json(msg=str(error))


def change(module: Module, work: Callable[[bool], Result]) -> Result:
    """What work(act) gives: act is false in check mode, otherwise no other play changes this host meanwhile."""

    def alone() -> Result:
        with system.exclusive():
            return work(True)

    return refusing(module, (lambda: work(False)) if module.check_mode else alone)


def data_map(module: Module) -> datamap.Document:
    """The module's data map, checked."""
    return datamap.validate(module.params["data_map"], "data_map")
