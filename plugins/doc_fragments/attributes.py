# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What every module of the collection says about check mode, diff mode and idempotence."""

from __future__ import annotations


class ModuleDocFragment:
    """Fragments: C(attributes) names the attributes, C(attributes.read_only) is for modules that change nothing."""

    DOCUMENTATION = r"""
options: {}
attributes:
  check_mode:
    description: Can run in C(check_mode) and return changed status prediction without modifying the target.
  diff_mode:
    description: Returns details on what has changed, or would change, in diff mode.
  idempotent:
    description: When run twice in a row outside check mode with the same options, the second run changes nothing.
  platform:
    description: Target operating systems.
    support: full
    platforms: linux
"""

    READ_ONLY = r"""
options: {}
attributes:
  check_mode:
    support: full
    details:
      - The module only reads.
  diff_mode:
    support: N/A
    details:
      - The module changes nothing.
  idempotent:
    support: full
    details:
      - The module changes nothing.
"""
