# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rendered settings and computed names against the own classes of every vLLM release from 0.22, out of their wheels."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import claims
import pytest

from ansible_collections.llmhost.hardening.plugins.module_utils.kv import (
    blocknames,
    datamap,
    offload_judge,
    offload_render,
    prefixprobe,
)
from ansible_collections.llmhost.hardening.plugins.module_utils.kv import offload_table as table
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.offload_model import Engine

pytestmark = pytest.mark.integration

CLASSES = Path(__file__).with_name("engine_classes.py")
FETCH = Path(__file__).resolve().parents[1] / "testbed" / "writer" / "fetch.py"
MAP = datamap.normalise(
    [
        {"name": "chat", "store": "vllm_fs", "path": "/srv/llmhost-test", "owner": "vllm", "services": ["v.service"]},
        {
            "name": "bucket",
            "store": "vllm_obj",
            "bucket": "kv-prod",
            "endpoint": "https://s3.example",
            "prefix": "qwen",
        },
        {"name": "peers", "store": "vllm_p2p", "services": ["v.service"]},
    ],
    "gpu1",
)
TOKENS = [int.from_bytes(os.urandom(2), "big") for _turn in range(48)]
COMPILED = [version for version in table.RELEASES if table.within(table.COMPILED_WRITER, version)]


@cache
def tree(version):
    """The release's files, with empty libraries in the place of torch's, of which the writer uses nothing."""
    root = claims.tree(version)
    stubs = root / "torch" / "lib"
    extension = root / claims.COMPILED
    if extension.exists() and not stubs.exists():
        listing = subprocess.run(["readelf", "-d", extension], capture_output=True, text=True, check=True).stdout
        needed = [line.split("[")[1].split("]")[0] for line in listing.splitlines() if "(NEEDED)" in line]
        fresh = root / "torch" / f".new-{os.getpid()}"
        fresh.mkdir(parents=True)
        for name in needed:
            if name.startswith(("libtorch", "libc10", "libnvrtc", "libcuda", "libnv")):
                flags = [
                    "-shared",
                    "-nostdlib",
                    "-s",
                    f"-Wl,-soname,{name}",
                    "-o",
                    fresh / name,
                    "-x",
                    "c",
                    "/dev/null",
                ]
                subprocess.run(["gcc", *flags], check=True)
        fresh.rename(stubs)
    return root


def ask(version, environment=None, **given):
    done = subprocess.run(
        [sys.executable, CLASSES, tree(version)],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        env={name: value for name, value in os.environ.items() if name != "PYTHONHASHSEED"} | (environment or {}),
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def rendered(version, tiers, **more):
    settings = {
        "tiers": tiers,
        "cpu_bytes_to_use": "1M",
        "offload_prompt_only": not version.startswith("0.22"),
        **more,
    }
    result = offload_render.render(settings, MAP, version, "3.12")
    assert result.problems == []
    return result.config


def told(version, config, tmp_path, environment=None):
    """What the release makes of a settings file; its tier goes to a scratch directory."""
    text = offload_render.config_text(config).replace("/srv/llmhost-test", str(tmp_path / "kv"))
    path = tmp_path / "settings.yaml"
    path.write_text(f"# {text.count(chr(10))} lines\n{text}")
    return ask(version, environment, mode="settings", config=str(path))


@pytest.mark.parametrize("version", table.RELEASES)
def test_rendered_settings_are_what_the_release_reads(version, tmp_path):
    """Every key that the table gives to the release's file tier, through its own loader, classes and constructor."""
    kind = "fs" if table.within(table.TIER_TYPES["fs"], version) else "fs_python"
    every = {"n_read_threads": 2, "n_write_threads": 2, "enable_kv_events": False, "locality": "LOCAL"}
    every["backpressure"] = {"backpressure_cls": "EMABackpressureDetector", "policy_cls": "DropStorePolicy"}
    keys = {key: value for key, value in every.items() if key in table.known(table.TIER_KEYS[kind], version)}
    events = {"enable_kv_cache_events": False, "endpoint": "ipc:///run/vllm/events"}
    found = told(version, rendered(version, {"chat": keys}, kv_events=events), tmp_path)
    assert "error" not in found, found
    assert found["offloads"] and found["events"] == "ipc:///run/vllm/events"
    (tier,) = found["tiers"]
    assert (tier["class"], tier["type"]) == ("FileSystemTierManager", kind)
    assert Path(tier["place"]).parent == tmp_path / "kv"
    assert (Path(tier["place"]) / "config.json").is_file()


@pytest.mark.parametrize("version", [v for v in table.RELEASES if table.within(table.OBJ_WITHOUT_INLINE_KEYS, v)])
def test_an_object_tier_and_a_peer_tier_are_built_from_the_map(version, tmp_path):
    tiers = {"bucket": {"io_threads": 2}, "peers": {"host": "127.0.0.1", "port": 5710}}
    environment = {"PYTHONHASHSEED": "0"}
    config = rendered(version, tiers, environment=environment)
    found = told(version, config, tmp_path, environment)
    assert "error" not in found, found
    if table.within(table.P2P_NEEDS_SEED, version):
        assert "PYTHONHASHSEED must be set" in told(version, config, tmp_path)["error"]
    obj, p2p = found["tiers"]
    assert obj["class"] == "ObjectStoreSecondaryTierManager" and p2p["class"] == "P2PSecondaryTierManager"
    assert obj["place"].startswith("qwen//org_model_")


@pytest.mark.parametrize("version", table.RELEASES)
def test_a_key_that_we_refuse_as_unknown_ends_the_release_s_own_start(version, tmp_path):
    """The refusal is no fancy: the file tier's constructor does not know it either."""
    config = rendered(version, {"chat": {}})
    (tier,) = config["kv-transfer-config"]["kv_connector_extra_config"]["secondary_tiers"]
    tier["max_bytes"] = 1
    engine = Engine(version, (3, 12), MAP["tiers"], prompt_only=not version.startswith("0.22"))
    assert [one.code for one in offload_judge.judge(config["kv-transfer-config"], engine)] == ["unknown-key"]
    assert "max_bytes" in told(version, config, tmp_path)["error"]


@pytest.mark.parametrize("version", ["0.25.1", "0.33.0"])
def test_what_the_release_takes_in_silence_is_refused_by_us(version, tmp_path):
    """p2p swallows any key, the connector ignores unknown ones: nobody would notice."""
    config = rendered(version, {"peers": {"host": "127.0.0.1", "port": 5711}})
    extra = config["kv-transfer-config"]["kv_connector_extra_config"]
    extra["max_disk_bytes"] = 1
    extra["secondary_tiers"][0]["authentication"] = "required"
    assert "error" not in told(version, config, tmp_path)
    found = offload_judge.judge(config["kv-transfer-config"], Engine(version, (3, 12), MAP["tiers"]))
    assert [one.code for one in found] == ["unknown-key", "unknown-key"]


CASES = [(None, None), ("tenant \u00fc " * 30, None), (None, "0"), ("s", "42")]


@pytest.mark.parametrize("version", table.RELEASES)
def test_names_are_those_of_the_release_and_are_found_in_its_files(version, tmp_path):
    """Salted or not, seeded or not, both encodings; what nobody can predict differs from run to run."""
    extra = rendered(version, {"chat": {"n_read_threads": 1, "n_write_threads": 1}})["kv-transfer-config"][
        "kv_connector_extra_config"
    ]
    cases = [
        {"algorithm": algorithm, "salt": salt, "seed": seed, "root": str(tmp_path / f"{algorithm}-{number}")}
        for algorithm in blocknames.HASHES
        for number, (salt, seed) in enumerate([*CASES, CASES[0]])
    ]
    found = ask(version, mode="names", extra=extra, tokens=TOKENS, block_size=16, cases=cases)
    assert "error" not in found, found
    assert found["compiled"] == (version in COMPILED)
    for case, names in zip(cases, found["names"], strict=True):
        assert prefixprobe.in_directory(names, case["root"]) == [True] * 3
        known = {"block_size": 16, "version": version, "algorithm": case["algorithm"], "hash_seed": case["seed"]}
        if case["seed"] is None and not table.within(table.SEED_FIXED, version):
            with pytest.raises(blocknames.Unpredictable):
                blocknames.names(TOKENS, salt=case["salt"], **known)
        else:
            assert blocknames.names(TOKENS, salt=case["salt"], **known) == names
            other = blocknames.names(TOKENS, salt="another", **known)
            assert prefixprobe.in_directory(other, case["root"]) == [False] * 3
    first, again = found["names"][0], found["names"][len(CASES)]
    assert (first == again) == table.within(table.SEED_FIXED, version)


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="Python 3.12 and later count no references to None")
@pytest.mark.parametrize("version", COMPILED)
def test_the_compiled_writer_loses_a_reference_to_none_at_every_call(version, tmp_path):
    """Why `old-python` is refused. If this fails, a release has mended it: end the span in offload_table.py."""
    found = ask(version, mode="leak", root=str(tmp_path), calls=300)
    assert "error" not in found, found
    assert found["store"] >= 295 and found["load"] >= 295
