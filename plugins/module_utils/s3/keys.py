# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which keys of a bucket are a tier's: by its prefix and, where the store is known, by the shape of the whole key.

Some servers keep `a//b` as `a/b` (SeaweedFS does), so both spellings are the tier's. The shape keeps what others
store beside it from being taken for the tier's.
"""

from __future__ import annotations

from ..kv import stores
from ..kv.stores_model import BLOCK, Dir


class Keys:
    """The keys of one tier. prefix: the engine's own setting; key_prefix: given instead, taken as it is."""

    def __init__(self, prefix: str | None = None, store: str | None = None, key_prefix: str | None = None) -> None:
        if (prefix is None) == (key_prefix is None):
            raise ValueError("exactly one of prefix and key_prefix says which keys are the tier's")
        self.prefix = stores.key_prefix(prefix) if prefix is not None else str(key_prefix)
        # Where a server that folds slashes puts the same keys.
        self.folded = self.prefix
        if prefix is not None:
            self.folded = prefix + "/" if prefix else ""
        self.shape: Dir | None = None
        if store is not None:
            known = stores.STORES.get(store)
            if known is None or known.keys is None:
                named = ", ".join(sorted(one.name for one in stores.STORES.values() if one.keys is not None))
                raise ValueError(f"store {store} keeps no objects; stores that do: {named}")
            self.shape = known.keys
        self._directory: tuple[str, Dir | None] = ("", None)

    def owns(self, key: str) -> bool:
        """True if the key is one of the tier's blocks."""
        for start in (self.prefix, self.folded):
            if key.startswith(start):
                return self.shape is None or self._fits(key[len(start) :])
        return False

    def has_folder(self, folder: str) -> bool:
        """True if the tier's blocks may lie under this name, which ends with a slash."""
        for start in (self.prefix, self.folded):
            if folder.startswith(start):
                return self.shape is None or self._level(folder[len(start) :].rstrip("/")) is not None
        return False

    def _fits(self, rest: str) -> bool:
        directory, _slash, name = rest.rpartition("/")
        # Keys come sorted: the directory of one is mostly that of the one before.
        if self._directory[1] is None or self._directory[0] != directory:
            self._directory = (directory, self._level(directory))
        level = self._directory[1]
        file = level.file_for(name) if level is not None else None
        return file is not None and file.kind == BLOCK

    def _level(self, directory: str) -> Dir | None:
        level = self.shape
        for part in directory.split("/"):
            level = level.dir_for(part) if level is not None else None
        return level
