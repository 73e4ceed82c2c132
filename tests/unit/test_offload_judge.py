# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every refusal of KV-13, each broken on purpose; and what is rendered passes the same judge."""

from __future__ import annotations

import copy
import dataclasses
import json
import pathlib
import re

import pytest
import yaml
from ansible.errors import AnsibleFilterError

from ansible_collections.llmhost.hardening.plugins.filter import kv_transfer_config as plugin
from ansible_collections.llmhost.hardening.plugins.module_utils.kv import (
    datamap,
    offload_engines,
    offload_judge,
    offload_model,
    offload_plan,
    offload_render,
)
from ansible_collections.llmhost.hardening.plugins.module_utils.kv import offload_table as table
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.judge import FAIL, PASS, UNKNOWN

MAP = datamap.normalise(
    [
        {"name": "chat", "store": "vllm_fs", "path": "/var/lib/vllm-kv", "owner": "vllm", "services": ["vllm.service"]},
        {
            "name": "old",
            "store": "vllm_fs",
            "path": "/srv/old",
            "owner": "vllm",
            "services": ["v.service"],
            "state": "absent",
        },
        {
            "name": "bucket",
            "store": "vllm_obj",
            "bucket": "kv-prod",
            "endpoint": "https://s3.example",
            "prefix": "qwen",
        },
        {"name": "peers", "store": "vllm_p2p", "services": ["vllm.service"]},
        {"name": "ring", "store": "kvcr", "path": "/srv/kvcr", "owner": "vllm", "services": ["vllm.service"]},
        {"name": "slots", "store": "llamacpp_slots", "path": "/srv/slots", "owner": "llama", "services": ["l.service"]},
        {
            "name": "simple",
            "store": "vllm_simple_disk",
            "path": "/srv/simple",
            "owner": "vllm",
            "services": ["v.service"],
        },
        {"name": "llmd", "store": "llmd_fs", "path": "/srv/llmd", "owner": "vllm", "services": ["v.service"]},
    ],
    "gpu1",
)
ENGINE = offload_model.Engine("0.33.0", (3, 12), MAP["tiers"])
SETTINGS = {"tiers": {"chat": {}}, "cpu_bytes_to_use": "8G"}


def good(*tiers, **extra):
    """Settings that nothing is wrong with, for 0.33."""
    tiers = tiers or ({"type": "fs", "root_dir": "/var/lib/vllm-kv"},)
    extra = {"spec_name": "TieringOffloadingSpec", "cpu_bytes_to_use": 1 << 30, "secondary_tiers": list(tiers), **extra}
    return {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": extra}


def obj(**store):
    store = {"bucket": "kv-prod", "endpoint_override": "https://s3.example", "scheme": "https", **store}
    return {
        "type": "obj",
        "prefix": "qwen",
        "store_config": {key: value for key, value in store.items() if value is not None},
    }


def fs(**more):
    return {"type": "fs", "root_dir": "/var/lib/vllm-kv", **more}


def kvcr(**more):
    return {"type": "kvcr", "control_host": "10.0.0.1", "control_ports": [7000], **more}


def other(connector, **extra):
    return {"kv_connector": connector, "kv_role": "kv_both", "kv_connector_extra_config": extra}


def multi(*connectors):
    return other("MultiConnector", connectors=list(connectors))


def codes(config, **engine):
    return [one.code for one in offload_judge.judge(config, dataclasses.replace(ENGINE, **engine))]


@pytest.mark.parametrize(
    "config",
    [
        None,
        good(),
        good(fs(n_read_threads=4, n_write_threads=4, enable_kv_events=False, locality="LOCAL")),
        good(obj()),
        good(obj(endpoint_override="http://127.0.0.1:9000", scheme="http")),
        good(obj(endpoint_override="localhost:9000", scheme=None)),
        good({"type": "p2p", "host": "10.0.0.1", "port": 5710}),
        good({"type": "p2p"}),
        good(kvcr(g3={"paths": ["/srv/kvcr/a.kvcr"], "capacity_bytes_per_file": 1})),
        good(fs(backpressure={"backpressure_cls": "EMABackpressureDetector"})),
        multi(good()),
        other("SimpleCPUOffloadConnector", cpu_bytes_to_use=1 << 30),
        other("SimpleCPUOffloadConnector", kv_offload_backend="disk", disk_path="/srv/simple/cache"),
    ],
    ids=lambda value: json.dumps(value)[:60],
)
def test_settings_that_are_safe_pass(config):
    assert offload_judge.judge(config, ENGINE) == []


REFUSED = [
    ("unknown-key", good(fs(max_bytes=5))),
    ("unknown-key", good(chunk_size=256)),
    ("unknown-key", {**good(), "kv_rank": 0}),
    ("unknown-key", {**good(), 5: 0}),
    ("unknown-key", good({"type": "p2p", "authentication": "none"})),
    ("unknown-key", good(obj(sse="aws:kms"))),
    ("unknown-key", other("SimpleCPUOffloadConnector", root_dir="/x")),
    ("unknown-key", other("P2pNcclConnector")),
    ("tier-type", good({"type": "fs_python", "root_dir": "/var/lib/vllm-kv"})),
    ("tier-type", good({"type": "example"})),
    ("tier-type", good({"root_dir": "/var/lib/vllm-kv"})),
    ("not-a-mapping", []),
    ("not-a-mapping", good("fs")),
    ("not-a-mapping", good(secondary_tiers={})),
    ("missing-key", good(cpu_bytes_to_use=None)),
    ("missing-key", {key: value for key, value in good().items() if key != "kv_role"}),
    ("missing-key", multi()),
    ("value", good(fs(n_read_threads=0))),
    ("value", good(fs(n_read_threads=True))),
    ("value", good(offload_prompt_only="false")),
    ("value", good(block_size=16, blocks_per_chunk=2)),
    ("value", good(store_threshold=2)),
    ("value", good(spec_name="CPUOffloadingSpec")),
    ("value", good(spec_name="NoSuchSpec")),
    ("value", {**good(), "kv_role": "both"}),
    ("value", good(obj(endpoint_override="https://user:secret@s3.example"))),
    ("http-endpoint", good(obj(scheme="http"))),
    ("http-endpoint", good(obj(scheme=None))),
    ("http-endpoint", good(obj(endpoint_override="http://s3.example"))),
    ("inline-credentials", good(obj(access_key="AKIA"))),
    ("inline-credentials", good(obj(secret_key="s3cr3t"))),
    ("inline-credentials", good(obj(session_token="s3cr3t"))),
    ("outside-import", good(spec_module_path="evil")),
    ("outside-import", good(cache_policy_module_path="evil")),
    ("outside-import", good(fs(module_path="evil"))),
    ("outside-import", good({"type": "Mine", "module_path": "evil"})),
    ("outside-import", {**good(), "kv_connector_module_path": "evil"}),
    ("outside-import", good(fs(backpressure={"backpressure_cls": "evil.Detector"}))),
    ("outside-import", good(backpressure={"backpressure_cls": "EMABackpressureDetector", "policy_cls": "evil.P"})),
    ("outside-import", good(kvcr(policy="evil.Policy"))),
    ("denied-connector", other("ExampleConnector", shared_storage_path="/var/lib/vllm-kv")),
    ("denied-connector", other("SharedStorageConnector")),
    ("denied-connector", other("HF3FSKVConnector")),
    ("denied-connector", other("LMCacheConnectorV1")),
    ("denied-connector", multi(good(), other("ExampleConnector"))),
    ("custom-save-path", other("ExampleHiddenStatesConnector", allow_custom_save_path=True)),
    ("open-peer", good({"type": "p2p", "host": "0.0.0.0"})),
    ("open-peer", good({"type": "p2p", "host": "::"})),
    ("open-peer", good({"type": "p2p", "host": "*"})),
    ("open-peer", good(kvcr(control_host="0.0.0.0"))),
    ("open-peer", good({"type": "kvcr", "control_ports": [7000]})),
    ("undeclared-place", good(fs(root_dir="/tmp"))),
    ("undeclared-place", good(fs(root_dir="/var/lib/vllm-kv/../other"))),
    ("undeclared-place", good(fs(root_dir="/srv/old"))),
    ("undeclared-place", good(fs(root_dir="var/lib/vllm-kv"))),
    ("undeclared-place", good(obj(bucket="other"))),
    ("undeclared-place", good({**obj(), "prefix": "other"})),
    ("undeclared-place", good(kvcr(g3={"paths": ["/tmp/a.kvcr"]}))),
    ("undeclared-place", good(kvcr(g3={}))),
    ("undeclared-place", other("SimpleCPUOffloadConnector", kv_offload_backend="disk", disk_path="/tmp/x")),
    ("undeclared-place", other("SimpleCPUOffloadConnector", kv_offload_backend="disk")),
    ("generated-text", good(offload_prompt_only=False)),
]


@pytest.mark.parametrize(("code", "config"), REFUSED, ids=lambda value: value if isinstance(value, str) else "")
def test_what_is_unsafe_is_refused_with_its_code(code, config):
    found = offload_judge.judge(config, ENGINE)
    assert code in [one.code for one in found]
    assert offload_judge.status(found) == FAIL
    for one in found:
        assert one.reason and one.remedy and one.key and one.code in offload_model.CODES
        assert "s3cr3t" not in str(one) and "AKIA" not in str(one) and "user:secret" not in str(one)


@pytest.mark.parametrize(
    ("code", "engine"),
    [
        ("weak-hash", {"hash_algorithm": "xxhash"}),
        ("weak-hash", {"hash_algorithm": "xxhash_cbor"}),
        ("value", {"hash_algorithm": "md5"}),
        ("seed-as-secret", {"hash_seed": "3735928559"}),
        ("seed-as-secret", {"hash_seed": "random"}),
        ("hidden-model", {"model": "./tiny"}),
        ("hidden-model", {"model": "../tiny"}),
        ("old-python", {"python": (3, 11)}),
        ("open-events", {"events": {"enable_kv_cache_events": True}}),
        ("open-events", {"events": {"enable_kv_cache_events": True, "endpoint": "tcp://*:5557"}}),
        ("open-events", {"events": {"enable_kv_cache_events": True, "endpoint": "tcp://10.0.0.1:5557"}}),
        ("open-events", {"events": {"publisher": "zmq", "endpoint": "tcp://0.0.0.0:1"}}),
        (
            "open-events",
            {"events": {"enable_kv_cache_events": True, "endpoint": "ipc:///run/x", "replay_endpoint": "tcp://*:2"}},
        ),
        ("unknown-key", {"events": {"auth": "none"}}),
        ("not-a-mapping", {"events": "yes"}),
        ("generated-text", {"prompt_only": False}),
    ],
)
def test_what_stands_around_the_connector_is_judged_too(code, engine):
    assert code in codes(good(), **engine)


@pytest.mark.parametrize(
    "engine",
    [
        {"events": {"enable_kv_cache_events": True, "endpoint": "ipc:///run/vllm/events"}},
        {"events": {"enable_kv_cache_events": True, "endpoint": "tcp://127.0.0.1:5557"}},
        {"events": {"enable_kv_cache_events": False}},
        {"hash_algorithm": "sha256_cbor"},
        {"hash_seed": "0"},
        {"model": "/models/tiny"},
        {"model": "Qwen/Qwen3-8B"},
    ],
)
def test_what_is_safe_around_it_passes(engine):
    assert codes(good(), **engine) == []


def test_every_code_is_refused_by_some_test():
    tested = {code for code, _config in REFUSED}
    tested |= {"weak-hash", "seed-as-secret", "hidden-model", "old-python", "open-events"}
    running = {"open-memory", "unread-settings"}  # of processes: tests/unit/test_judge_engine.py
    assert tested | running | {"unknown-version", "unjudged-connector"} == set(offload_model.CODES)


def test_the_page_lists_every_code_and_every_setting():
    page = (pathlib.Path(__file__).resolve().parents[2] / "docs" / "engine-settings.md").read_text()
    listed = re.findall(r"^\| `([a-z-]+)` \|", page.partition("## Refusals")[2].partition("## llama")[0], re.MULTILINE)
    assert sorted(listed) == sorted({*offload_model.CODES, *offload_engines.CODES})
    assert all(f"| `{key}` |" in page for key in offload_render.SETTINGS)
    for key in offload_plan.Entry.__dataclass_fields__:
        assert re.search(rf"^\| .*`{'exec' if key == 'command' else key}`", page, re.MULTILINE), key


def test_what_nobody_can_judge_is_unknown_and_never_passes():
    for engine in ({"version": None}, {"version": "0.34.0"}, {"version": "0.33.1"}, {"version": "0.30.0rc1"}):
        found = offload_judge.judge(good(), dataclasses.replace(ENGINE, **engine))
        assert [one.code for one in found] == ["unknown-version"] and offload_judge.status(found) == UNKNOWN
    for config in (other("NixlConnector"), other("Mine"), good({"type": "Mine", "module_path": "ours"})):
        found = offload_judge.judge(config, dataclasses.replace(ENGINE, allow_modules=("ours",)))
        assert offload_judge.status(found) == UNKNOWN
    assert codes(good(), python=None) == ["old-python"]
    assert codes(good(), tiers=None) == ["undeclared-place"]
    assert offload_judge.status([]) == PASS


def test_an_unknown_release_does_not_hide_what_is_wrong_in_all_of_them():
    assert codes(good(obj(secret_key="x")), version="0.40.0") == ["unknown-version", "inline-credentials"]


def test_an_allowed_module_is_allowed_and_no_other():
    assert "outside-import" not in codes(good(spec_module_path="ours"), allow_modules=("ours",))
    assert "outside-import" in codes(good(spec_module_path="ours.evil"), allow_modules=("ours",))


def test_llmd_needs_a_declared_directory_and_closed_events():
    module = {"spec_name": "SharedStorageOffloadingSpec", "spec_module_path": "llmd_fs_backend.spec"}
    allowed = {"allow_modules": ("llmd_fs_backend.spec",)}
    assert codes(other("OffloadingConnector", **module, shared_storage_path="/srv/llmd"), **allowed) == []
    # A declared tier of that store allows its module, and only that.
    assert codes(other("OffloadingConnector", **module, shared_storage_path="/srv/llmd")) == []
    without = [tier for tier in MAP["tiers"] if tier["store"] != "llmd_fs"]
    undeclared = codes(other("OffloadingConnector", **module, shared_storage_path="/srv/llmd"), tiers=without)
    assert set(undeclared) == {"outside-import", "undeclared-place"}
    assert "outside-import" in codes(
        other("OffloadingConnector", **{**module, "spec_module_path": "llmd_fs_backend.x"})
    )
    assert "undeclared-place" in codes(other("OffloadingConnector", **module, shared_storage_path="/tmp"), **allowed)
    events = {"enable_events": True, "storage_events_endpoint": "tcp://*:5559"}
    config = other("OffloadingConnector", **module, shared_storage_path="/srv/llmd", **events)
    assert "open-events" in codes(config, **allowed)


def test_the_drop_in_for_llmd_on_the_page_passes():
    page = (pathlib.Path(__file__).resolve().parents[2] / "docs" / "engine-settings.md").read_text()
    config = json.loads(re.search(r"--kv-transfer-config '(\{.*\})'", page).group(1))
    tiers = re.search(r"^  - (\{name: llmd.*\})$", page, re.MULTILINE).group(1)
    document = datamap.normalise([yaml.safe_load(tiers)], "gpu1")
    assert codes(config, tiers=document["tiers"]) == []


def test_lmcache_in_the_engine_is_for_one_tenant():
    assert "denied-connector" not in codes(other("LMCacheConnectorV1"), several_tenants=False)


@pytest.mark.parametrize(
    ("version", "config", "code"),
    [
        ("0.22.1", good({"type": "fs", "root_dir": "/var/lib/vllm-kv"}), "tier-type"),
        ("0.22.1", good({"type": "fs_python", "root_dir": "/var/lib/vllm-kv"}), "generated-text"),
        ("0.24.0", good({"type": "p2p", "host": "10.0.0.1"}), "tier-type"),
        ("0.25.1", good({"type": "p2p"}), "open-peer"),
        ("0.25.1", good(fs(locality="LOCAL")), "unknown-key"),
        ("0.25.1", good(obj()), "inline-credentials"),
        ("0.29.0", good(kvcr()), "tier-type"),
        ("0.30.0", good(backpressure={}), "unknown-key"),
        ("0.32.0", good(tier_poll_interval_s=1), "unknown-key"),
        ("0.27.0", good(), "old-python"),
    ],
)
def test_the_release_decides(version, config, code):
    assert code in codes(config, version=version, python=(3, 11))
    newer = codes(config, version="0.33.0", python=(3, 12))
    assert code not in newer or code in ("tier-type",)


def test_the_bare_writer_runs_on_any_python():
    assert "old-python" not in codes(good(), version="0.26.0", python=(3, 10))


# Rendering


def render(settings=..., version="0.33.0", python="3.12.3", document=...):
    return offload_render.render(
        SETTINGS if settings is ... else settings, MAP if document is ... else document, version, python
    )


@pytest.mark.parametrize("version", table.RELEASES)
def test_a_tier_is_rendered_for_every_release_and_passes_its_own_judge(version):
    settings = dict(SETTINGS, offload_prompt_only=not version.startswith("0.22"))
    rendered = render(settings, version)
    assert rendered.problems == []
    (tier,) = rendered.transfer["kv_connector_extra_config"]["secondary_tiers"]
    assert tier == {"type": "fs_python" if version.startswith("0.22") else "fs", "root_dir": "/var/lib/vllm-kv"}
    assert rendered.transfer["kv_connector_extra_config"]["cpu_bytes_to_use"] == 8 << 30


def test_all_kinds_of_tiers_are_rendered_from_the_map():
    tiers = {"chat": {"n_read_threads": 4}, "bucket": {"store_config": {"region": "eu"}}, "peers": {"host": "10.0.0.1"}}
    rendered = render(dict(SETTINGS, tiers={**tiers, "ring": {"control_host": "10.0.0.1", "control_ports": [1]}}))
    assert rendered.problems == []
    fs_, obj_, p2p_, kvcr_ = rendered.transfer["kv_connector_extra_config"]["secondary_tiers"]
    assert fs_ == {"type": "fs", "root_dir": "/var/lib/vllm-kv", "n_read_threads": 4}
    assert obj_ == {
        "type": "obj",
        "prefix": "qwen",
        "store_config": {
            "bucket": "kv-prod",
            "endpoint_override": "https://s3.example",
            "scheme": "https",
            "region": "eu",
        },
    }
    assert p2p_ == {"type": "p2p", "host": "10.0.0.1"} and kvcr_["control_host"] == "10.0.0.1"


def test_the_same_settings_give_the_same_bytes():
    again = copy.deepcopy(SETTINGS)
    assert offload_render.config_text(render().config) == offload_render.config_text(render(again).config)
    assert json.loads(offload_render.config_text(render().config))["kv-transfer-config"] == render().transfer


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ([], "settings"),
        ({"tiers": {"chat": {}}, "cpu_bytes": "8G"}, "unknown key. Fix: did you mean cpu_bytes_to_use"),
        ({"tiers": ["chat"], "cpu_bytes_to_use": "8G"}, "wrong type"),
        ({"cpu_bytes_to_use": "8G"}, "no tier is named"),
        ({"tiers": {"chat": {}}}, "[missing-key]"),
        ({"tiers": {"chat": {}}, "cpu_bytes_to_use": "8GB"}, "ambiguous"),
        ({"tiers": {"nope": {}}, "cpu_bytes_to_use": "8G"}, "no such tier"),
        ({"tiers": {"slots": {}}, "cpu_bytes_to_use": "8G"}, "llamacpp_slots is no tier of vLLM"),
        ({"tiers": {"old": {}}, "cpu_bytes_to_use": "8G"}, "the tier is absent"),
        ({"tiers": {"chat": {"root_dir": "/tmp"}}, "cpu_bytes_to_use": "8G"}, "the data map says this"),
        ({"tiers": {"chat": {"type": "p2p"}}, "cpu_bytes_to_use": "8G"}, "the data map says this"),
        ({"tiers": {"bucket": {"store_config": {"scheme": "http"}}}, "cpu_bytes_to_use": "8G"}, "the data map says"),
        (dict(SETTINGS, extra={"secondary_tiers": []}), "place of its own"),
        (dict(SETTINGS, extra={"offload_prompt_only": False}), "place of its own"),
        (dict(SETTINGS, tenants="many"), "tenants"),
        (dict(SETTINGS, environment={"AWS_SECRET_ACCESS_KEY": "s3cr3t"}), "[inline-credentials]"),
        (dict(SETTINGS, environment={"HF_TOKEN": "s3cr3t"}), "[inline-credentials]"),
        (dict(SETTINGS, environment={"PYTHONHASHSEED": "1"}), "[seed-as-secret]"),
        (dict(SETTINGS, environment={"A B": "1"}), "no name of a variable"),
        (dict(SETTINGS, environment={"A": "1\n2"}), "no line of text"),
        (dict(SETTINGS, tiers={"bucket": {"store_config": {"secret_key": "s3cr3t"}}}), "[inline-credentials]"),
    ],
)
def test_a_refusal_names_host_tier_key_reason_and_fix(settings, words):
    problems = [str(problem) for problem in render(settings).problems]
    assert any(words in problem for problem in problems)
    assert all(
        problem.startswith("host gpu1, tier ") and ", key " in problem and "Fix: " in problem for problem in problems
    )
    assert "s3cr3t" not in "".join(problems)


def test_a_token_in_a_file_is_no_secret_in_the_environment():
    assert (
        render(dict(SETTINGS, environment={"AWS_SHARED_CREDENTIALS_FILE": "/run/x", "TOKEN_FILE": "/x"})).problems == []
    )


def test_a_peer_tier_gets_the_seed_that_its_release_needs_to_start():
    settings = dict(SETTINGS, tiers={"peers": {"host": "10.0.0.1"}})
    assert render(settings, "0.29.0").problems == []
    assert "[missing-key] a p2p tier" in str(render(settings, "0.28.0").problems[0])
    assert render(dict(settings, environment={"PYTHONHASHSEED": "0"}), "0.28.0").problems == []


def test_a_newer_release_is_not_rendered():
    assert "newer than" in str(render(version="0.34.0").problems[0])
    assert "unknown" in str(render(version=None).problems[0])


def test_the_filter_gives_the_settings_or_one_error_with_every_reason():
    wanted = render().transfer
    assert plugin.kv_transfer_config(SETTINGS, MAP, "0.33.0", "3.12") == wanted
    assert plugin.kv_transfer_config_problems(SETTINGS, MAP, "0.33.0", "3.12") == []
    bad = dict(SETTINGS, tiers={"chat": {"max_bytes": 1}}, prefix_caching_hash_algo="xxhash")
    with pytest.raises(AnsibleFilterError) as error:
        plugin.kv_transfer_config(bad, MAP, "0.33.0", "3.12")
    assert "[unknown-key]" in str(error.value) and "[weak-hash]" in str(error.value)
    assert "host gpu1, tier chat, key kv_connector_extra_config.secondary_tiers[0].max_bytes" in str(error.value)
    assert len(plugin.kv_transfer_config_problems(bad, MAP, "0.33.0", "3.12")) == 2
    with pytest.raises(AnsibleFilterError):
        plugin.kv_transfer_config(SETTINGS, {"tiers": []}, "0.33.0")
    assert set(plugin.FilterModule().filters()) == {"kv_transfer_config", "kv_transfer_config_problems"}
