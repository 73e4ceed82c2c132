# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""KV-13 of running engines: how settings are found in arguments and files, and what is made of them."""

from __future__ import annotations

import json
import mmap
import os
import signal
import subprocess
import sys

import pytest

from ansible_collections.llmhost.hardening.plugins.module_utils.kv import (
    arguments,
    datamap,
    discovery,
    evidence_engine,
    judge_engine,
    judge_tier,
    offload_model,
    offload_render,
)
from ansible_collections.llmhost.hardening.plugins.module_utils.kv import offload_units as text
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.evidence_engine import Running
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.evidence_tier import Host

MAP = datamap.normalise(
    [
        {"name": "chat", "store": "vllm_fs", "path": "/srv/kv", "owner": "vllm", "services": ["vllm.service"]},
        {"name": "slots", "store": "llamacpp_slots", "path": "/srv/slots", "owner": "llama", "services": ["l.service"]},
        {"name": "pages", "store": "sglang_file", "path": "/srv/pages", "owner": "sgl", "services": ["s.service"]},
    ],
    "gpu1",
)
CHAT, SLOTS, PAGES = MAP["tiers"]
SETTINGS = {"tiers": {"chat": {}}, "cpu_bytes_to_use": "8G"}
RENDERED = offload_render.render(SETTINGS, MAP, "0.33.0", "3.12")
CONFIG = f"{text.HEADER}\n# Engine: chat\n{offload_render.config_text(RENDERED.config)}"
EXTRA = json.dumps(RENDERED.transfer["kv_connector_extra_config"])
TRANSFER = json.dumps(RENDERED.transfer)
PYTHON = ("/opt/vllm/bin/python3", "/opt/vllm/bin/vllm")


def running(*words, config=None, unit="vllm.service", version="0.33.0", python="3.12", **more):
    return Running(7, unit, (*PYTHON, "serve", "m", *words), config, version, "/x", python, **more)


def verdict(*processes, tier=CHAT, records=()):
    return judge_engine.settings_safe(tier, MAP["tiers"], processes, records)


def codes(result):
    return [one["code"] for engine in result.evidence["engines"] for one in engine["findings"]]


def test_settings_that_the_role_rendered_pass_wherever_they_stand():
    for one in (
        running("--config", text.config_path("chat"), config=CONFIG),
        running("--kv-transfer-config", TRANSFER),
        running("--kv_transfer_config=" + TRANSFER),
        running(
            "--kv-transfer-config.kv_connector", "OffloadingConnector", "--kv-transfer-config.kv_role", "kv_both",
            "--kv-transfer-config.kv_connector_extra_config", EXTRA,
        ),
        running("--kv-offloading-size", "4"),
    ):  # fmt: skip
        assert verdict(one).status == "pass", verdict(one)


def test_arguments_win_over_the_file():
    bad = json.dumps(dict(RENDERED.transfer, kv_connector="ExampleConnector"))
    result = verdict(running("--config", "/x.yaml", "--kv-transfer-config", bad, config=CONFIG))
    assert (result.status, codes(result)) == ("fail", ["denied-connector"])


@pytest.mark.parametrize(
    ("one", "status", "code"),
    [
        (running("--kv-transfer-config", "{not json"), "fail", "not-a-mapping"),
        (running("--kv-transfer-config", TRANSFER, "--api-key", "s3cr3t"), "fail", "inline-credentials"),
        (running("--kv-transfer-config", TRANSFER, "--prefix-caching-hash-algo", "xxhash"), "fail", "weak-hash"),
        (running("--kv-transfer-config", TRANSFER, "--model", "./m"), "fail", "hidden-model"),
        (running("--kv-events-config", '{"enable_kv_cache_events": true}'), "fail", "open-events"),
        (running("--kv-events-config.enable_kv_cache_events", "true"), "fail", "open-events"),
        (running("--kv-offloading-size", "4", "--kv-offloading-backend", "lmcache"), "fail", "denied-connector"),
        (running("--kv-transfer-config", TRANSFER, python="3.11"), "fail", "old-python"),
        (running("--kv-transfer-config", TRANSFER, python=None), "unknown", "old-python"),
        (running("--kv-transfer-config", TRANSFER, version=None), "unknown", "unknown-version"),
        (running("--kv-transfer-config", TRANSFER, version="0.34.0"), "unknown", "unknown-version"),
        (running("--config", "/x.yaml", config=None), "unknown", "unread-settings"),
        (running("--config", "/x", config="kv_transfer_config:\n  kv_connector: X\n"), "unknown", "unread-settings"),
        (running("--kv-transfer-config", TRANSFER.replace("/srv/kv", "/tmp")), "fail", "undeclared-place"),
        (
            running("--kv-transfer-config", TRANSFER, memory=[{"path": "/dev/shm/x", "bytes": 1, "mode": "0644"}]),
            "fail",
            "open-memory",
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_running_engine_is_told(one, status, code):
    result = verdict(one)
    assert (result.status, code in codes(result)) == (status, True)
    assert code in offload_model.CODES and f"[{code}]" in result.message and result.remedy
    assert "s3cr3t" not in str(result)


def test_an_engine_without_offload_settings_is_not_judged_and_that_is_said():
    for one in (
        running(),
        running("--config", "/x.yaml", config="port: 8000\n"),
        Running(7, None, ("VLLM::EngineCore",)),
    ):
        result = verdict(one)
        assert result.status == "not_applicable" and "none of 1 processes" in result.message
    assert verdict().status == "not_applicable"


def test_the_worst_of_several_engines_decides():
    good, bad = running("--kv-transfer-config", TRANSFER), running("--kv-transfer-config", "{}")
    assert verdict(good, bad).status == "fail" and len(verdict(good, bad).evidence["engines"]) == 2


def test_what_the_operator_declared_to_the_role_counts():
    answers = json.loads(TRANSFER)
    answers["kv_connector_extra_config"]["offload_prompt_only"] = False
    one = running("--kv-transfer-config", json.dumps(answers))
    assert codes(verdict(one)) == ["generated-text"]
    assert verdict(one, records=[{"unit": "vllm.service", "prompt_only": False}]).status == "pass"
    assert verdict(one, records=[{"unit": "other.service", "prompt_only": False}]).status == "fail"
    for broken in ({"prompt_only": "no"}, {"allow_modules": 5}, {"prompt_only": None}):
        assert verdict(one, records=[{"unit": "vllm.service", **broken}]).status == "fail"


def test_other_engines_are_judged_by_their_own_rules():
    llama = Running(7, "l.service", ("/usr/bin/llama-server", "--slot-save-path", "/srv/slots"))
    assert verdict(llama, tier=SLOTS).status == "pass"
    for words in (("--slot-save-path", "/tmp"), ("--api-key", "s3cr3t"), ("--host", "0.0.0.0")):
        result = verdict(Running(7, "l.service", ("/usr/bin/llama-server", *words)), tier=SLOTS)
        assert result.status == "fail" and "s3cr3t" not in str(result)
    sglang = Running(7, "s.service", ("/opt/s/bin/python", "-m", "sglang.launch_server"))
    assert verdict(sglang, tier=PAGES).status == "fail"
    assert verdict(Running(7, "s.service", ("/bin/sleep", "1")), tier=PAGES).status == "not_applicable"


def test_a_peer_tier_is_audited_by_its_engines_although_it_has_no_directory():
    raw = {"name": "peers", "store": "vllm_p2p", "services": ["vllm.service"]}
    document = datamap.normalise([raw], "gpu1")
    extra = {
        "spec_name": "TieringOffloadingSpec",
        "cpu_bytes_to_use": 1,
        "secondary_tiers": [{"type": "p2p", "host": "::"}],
    }
    config = {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": extra}
    words = (*PYTHON, "serve", "m", "--kv-transfer-config", json.dumps(config))
    process = discovery.Process(1 << 22, 990, "vllm", words, "vllm.service", 1, 0o77, "0", 0)

    def audited(*processes):
        host = Host(0.0, 1440, True, processes, True, None, None, document["tiers"])
        return {one["control"]: one for one in judge_tier.audit_tier(document["tiers"][0], host, 0.0)}

    assert {one["status"] for one in audited().values()} == {"not_applicable"}
    found = audited(process)
    assert found["KV-13"]["status"] == "fail" and "[open-peer]" in found["KV-13"]["message"]
    assert found["KV-02"]["status"] == "not_applicable"


def test_a_server_is_told_from_its_helpers():
    assert arguments.is_server((*PYTHON, "serve", "m"))
    assert arguments.is_server(("python3", "-m", "vllm.entrypoints.openai.api_server"))
    assert not arguments.is_server(("VLLM::EngineCore",))


@pytest.mark.parametrize("hostile", ["[" * 100000, '{"a":' * 50000, "\x00", "null", "[1]", '{"kv_role": NaN}'])
def test_hostile_arguments_are_judged_and_end_nothing(hostile):
    assert verdict(running("--kv-transfer-config", hostile)).status in ("fail", "not_applicable")
    assert verdict(running("--config", "/x", config=hostile)).status in ("not_applicable", "unknown")


def test_what_a_process_was_told_is_read_from_proc(tmp_path):
    config = tmp_path / "chat.yaml"
    config.write_text(CONFIG)
    name = f"/dev/shm/vllm_offload_llmhost-test-{os.getpid()}.mmap"
    script = (
        "import mmap, os, sys, time\n"
        f"fd = os.open({name!r}, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600); os.ftruncate(fd, 4096)\n"
        "held = mmap.mmap(fd, 4096); print('up', flush=True); sys.stdin.read()\n"
    )
    argv = [sys.executable, "-c", script, "--config", config.name]
    with subprocess.Popen(argv, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout.readline() == b"up\n"
            me = next(one for one in discovery.processes() if one.pid == child.pid)
            (one,) = evidence_engine.running([me], [discovery.Found(child.pid, "x", "0.33.0", "/y")])
            assert one.config == CONFIG and one.version == "0.33.0"
            assert one.memory == [{"path": name, "bytes": mmap.PAGESIZE, "mode": "0600"}]
            assert one.python == "%d.%d" % sys.version_info[:2] or one.python is None
            config.unlink()
            os.mkfifo(config)
            signal.alarm(10)  # whoever opens a pipe and waits is ended, and the test with it
            (one,) = evidence_engine.running([me], [])
            signal.alarm(0)
            assert not one.config
            config.unlink()
            (one,) = evidence_engine.running([me], [])
            assert one.config is None
        finally:
            os.unlink(name)
            child.stdin.close()
            child.wait(10)


@pytest.mark.skipif(os.geteuid() != 0, reason="the record must be root's")
def test_only_a_record_of_root_is_believed(tmp_path):
    path = tmp_path / "engines.json"
    assert evidence_engine.declared(str(path)) == []
    path.write_text('{"engines": [{"unit": "a.service"}, {"unit": 5}, 7]}')
    assert evidence_engine.declared(str(path)) == [{"unit": "a.service"}]
    os.chown(path, 4242, 4242)
    assert evidence_engine.declared(str(path)) == []
    os.chown(path, 0, 0)
    path.write_text("[]")
    assert evidence_engine.declared(str(path)) == []
