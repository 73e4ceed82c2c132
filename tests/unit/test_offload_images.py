# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which vLLM release an image holds. No container runtime runs here: what it prints is written by hand."""

from __future__ import annotations

import json

import pytest

from ansible_collections.llmhost.hardening.plugins.module_utils.kv import offload_images

OCI = "org.opencontainers.image."


def printed(labels=None, env=()):
    return json.dumps([{"Id": "sha256:1", "Config": {"Labels": labels, "Env": list(env)}}])


@pytest.mark.parametrize(
    ("image", "release"),
    [
        ("vllm/vllm-openai:v0.33.0", "0.33.0"),
        ("docker.io/vllm/vllm-openai:v0.29.0-cu129", "0.29.0"),
        ("registry:5000/team/vllm-cpu:0.32.0", "0.32.0"),
        ("vllm/vllm-openai:v0.33.0@sha256:" + "a" * 64, "0.33.0"),
        ("vllm/vllm-openai:v0.34.0rc1", "0.34.0rc1"),
        ("vllm/vllm-openai:latest", None),
        ("vllm/vllm-openai@sha256:" + "a" * 64, None),
        ("team/gateway:0.33.0", None),
        ("team/not-vllm:0.33.0", None),
        ("vllm:5000/team/x:0.33.0", None),
    ],
)
def test_a_tag_counts_only_where_the_image_is_vllm(image, release):
    assert offload_images.by_tag(image) == release


def test_labels_of_the_distribution_below_are_not_vllm_s():
    assert offload_images.by_labels(printed({OCI + "version": "22.04", OCI + "ref.name": "ubuntu"})) == (None, None)
    labels = {OCI + "version": "v0.33.0", OCI + "source": "https://github.com/vllm-project/vllm"}
    assert offload_images.by_labels(printed(labels, ["A=1", "PYTHON_VERSION=3.12.11"])) == ("0.33.0", "3.12")


@pytest.mark.parametrize("text", ["", "[]", "null", "[1]", '[{"Config": null}]', '[{"Config": {"Labels": 3}}]', "{"])
def test_what_no_runtime_prints_tells_nothing(text):
    assert offload_images.by_labels(text) == (None, None)


def test_labels_win_and_a_tag_that_says_otherwise_makes_it_unknown():
    labels = {OCI + "version": "0.32.0", OCI + "title": "vllm-openai"}
    asked = []

    def inspect(runtime, image):
        asked.append((runtime, image))
        return printed(labels)

    assert offload_images.installed("mine/engine:1", "quadlet", inspect).version == "0.32.0"
    found = offload_images.installed("vllm/vllm-openai:v0.33.0", "compose", inspect)
    assert found.version is None and "0.33.0" in found.source and "0.32.0" in found.source
    assert [runtime for runtime, _image in asked] == ["podman", "docker"]
    assert offload_images.installed("vllm/vllm-openai:v0.33.0", "compose", lambda *_: "").source.startswith("tag of")
    assert offload_images.installed("x:latest", "compose", lambda *_: "").version is None
