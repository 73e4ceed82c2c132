# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Knowledge and logic of llmhost.hardening: standard library only, no Ansible; the same code is the modules and kvtier."""

from __future__ import annotations

VERSION = "0.1.0"
