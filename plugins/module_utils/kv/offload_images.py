# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The vLLM release in a container image: by the image's labels where the host has it, else by the tag of vLLM's own."""

from __future__ import annotations

import json
import re
from typing import Any, Callable

from . import system
from .discovery import Installed
from .system import HostError

_TAG = re.compile(
    r"(?:^|/)vllm(?:-openai|-cpu)?:v?(\d+\.\d+(?:\.\d+)?(?:(?:rc|\.post|\.dev)\d+)?)(?:-[\w.-]+)?$", re.ASCII
)
_VERSION = re.compile(r"v?(\d+\.\d+(?:\.\d+)?(?:(?:rc|\.post|\.dev)\d+)?)(?:\+[\w.]+)?", re.ASCII)
_LABEL = "org.opencontainers.image."
_ABOUT = (_LABEL + "title", _LABEL + "source", "name")
Inspect = Callable[[str, str], str]


def by_tag(image: str) -> str | None:
    """The release that a tag of an image named vllm says; other images count their own releases."""
    match = _TAG.search(image.partition("@")[0])
    return match.group(1) if match else None


def by_labels(text: str) -> tuple[str | None, str | None]:
    """Release and Python in what `podman image inspect` or `docker image inspect` prints.

    A version counts only if the labels are about vLLM: else they are those of the distribution below.
    """
    try:
        config: Any = json.loads(text)[0]["Config"]
    except (ValueError, LookupError, TypeError):
        return None, None
    if not isinstance(config, dict):
        return None, None
    labels = config.get("Labels")
    labels = labels if isinstance(labels, dict) else {}
    about = [str(labels.get(key) or "").rstrip("/").rpartition("/")[2].lower() for key in _ABOUT]
    match = _VERSION.fullmatch(str(labels.get(_LABEL + "version") or labels.get("version") or ""))
    release = match.group(1) if match and any(re.match(r"vllm(?:\b|-)", one) for one in about) else None
    python = None
    for one in config.get("Env") or ():
        found = re.fullmatch(r"PYTHON_VERSION=(3\.\d{1,3})(?:\.\d+)?", str(one), re.ASCII)
        python = found.group(1) if found else python
    return release, python


def _inspect(runtime: str, image: str) -> str:
    try:
        done = system.run([runtime, "image", "inspect", "--", image])
    except HostError:
        return ""
    return done.stdout if done.returncode == 0 else ""


def installed(image: str | None, target: str, inspect: Inspect = _inspect) -> Installed:
    """What is known of an image without starting or fetching it."""
    if image is None:
        return Installed(None, None, "there is no image")
    runtime = "podman" if target == "quadlet" else "docker"
    labelled, python = by_labels(inspect(runtime, image))
    tagged = by_tag(image)
    if labelled and tagged and labelled != tagged:
        return Installed(None, python, f"the tag of {image} says {tagged}, its labels say {labelled}")
    if labelled:
        return Installed(labelled, python, f"labels of {image}")
    if tagged:
        return Installed(tagged, python, f"tag of {image}")
    return Installed(None, python, f"neither labels nor tag of {image} tell a vLLM release")
