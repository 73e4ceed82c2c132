# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Options that modules share. Read by every Python that a host may have, to be told that it is too old."""

DATA_MAP = {"type": "dict", "required": True}
WIPE = {
    "type": "list",
    "elements": "dict",
    "default": [],
    "options": {"device": {"type": "str", "required": True}, "serial": {"type": "str", "required": True}},
}
