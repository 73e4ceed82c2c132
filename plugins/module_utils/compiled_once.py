# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Whoever imports this before the modules of kv has each of them compiled once out of Ansible's zip, not twice.

Ansible sends a module without bytecode, so compiling is much of what a short module costs a host.
"""

from __future__ import annotations

import os
import sys
import zipimport

from . import kv


class Importer(zipimport.zipimporter):
    """Python's own compiles a module once more, to tell the name of its file (3.9 to 3.13, zipimport.py)."""

    def get_filename(self, fullname: str) -> str:
        """The path of a module that lies below the place of this importer."""
        return os.path.join(self.archive, self.prefix, fullname.rpartition(".")[2] + ".py")


if isinstance(kv.__spec__.loader, zipimport.zipimporter):
    for _place in kv.__path__:
        sys.path_importer_cache[_place] = Importer(_place)
