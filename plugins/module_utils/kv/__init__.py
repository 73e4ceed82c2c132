# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is known of KV stores, with the standard library alone: modules import it on managed hosts, kvtier holds it."""

from __future__ import annotations

import os
import sys
import zipimport


class _CompilesOnce(zipimport.zipimporter):
    """Python's own importer compiles a module once more, to tell the name of its file (3.9 to 3.13, zipimport.py)."""

    def get_filename(self, fullname: str) -> str:
        return os.path.join(self.archive, self.prefix, fullname.rpartition(".")[2] + ".py")


# Ansible sends modules as a zip without bytecode, so half of what importing this package costs a host is that.
if __spec__ is not None and isinstance(__spec__.loader, zipimport.zipimporter):
    for _place in __path__:
        sys.path_importer_cache[_place] = _CompilesOnce(_place)
