# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the salt gateway's module finds on a host, refuses, writes and asks of systemd."""

from __future__ import annotations

import http.server
import os
import subprocess
import threading

import module_runner
import pytest

from ansible_collections.llmhost.hardening.plugins.module_utils.kv import system
from ansible_collections.llmhost.hardening.plugins.module_utils.salt import derive, engine, host, render, settings

KEY = "8b1f6f0a5d3c47e29ab0c1d2e3f405162738495a6b7c8d9eafb0c1d2e3f4a5b6"
DIGEST = "a3" * 32
# Before a test replaces them.
ENGINES, NETWORK, VERSION = engine.engines, engine.open_to_network, engine.version_of
pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="files of root's own can be made by root only")


class Host:
    """A host below a directory; systemd is asked and remembered, the gateway says what it was last started with."""

    def __init__(self, root, monkeypatch):
        self.places = render.Places(
            **{name: str(root / name) for name in ("config", "tenants", "key", "verify", "lua", "run", "credentials")}
        )
        self.root, self.asked, self.active, self.enabled, self.stuck = root, [], False, False, False
        self.says = None
        (root / "lua").mkdir()
        (root / "lua/a.lua").write_text("1")
        (root / "engine.key").write_text("secret-of-the-engine")
        (root / "engine.key").chmod(0o400)
        monkeypatch.setattr(host, "UNIT_DIR", str(root))
        monkeypatch.setattr(host, "WAIT", 0.3)
        monkeypatch.setattr(host, "PAUSE", 0)
        monkeypatch.setattr(render, "ACCOUNT", "root")
        monkeypatch.setattr(host, "running", lambda _settings: self.says if self.active else None)
        monkeypatch.setattr(engine, "engines", list)
        monkeypatch.setattr(engine, "open_to_network", lambda _upstream: False)
        monkeypatch.setattr(engine, "version_of", lambda _upstream: None)
        monkeypatch.setattr(system, "show", self.show)
        monkeypatch.setattr(system, "run", self.run)
        monkeypatch.setattr(system, "daemon_reload", lambda: self.asked.append("daemon-reload"))

    def show(self, units, _properties):
        states = {
            "ActiveState": "active" if self.active else "inactive",
            "UnitFileState": "enabled" if self.enabled else "",
            "NeedDaemonReload": "no",
        }
        return {units[0]: states}

    def run(self, argv, _timeout=0):
        verb = argv[1]
        if argv[0] == "systemctl":
            self.asked.append(verb)
            self.enabled = {"enable": True, "disable": False}.get(verb, self.enabled)
            self.active = {"start": True, "restart": True, "stop": False}.get(verb, self.active)
            if verb in ("start", "restart", "reload") and not self.stuck:
                self.take_up()
        return subprocess.CompletedProcess(argv, 0, "its journal", "")

    def take_up(self):
        config = (self.root / "config").read_text()
        self.says = {
            "config": config.split('config_id = "')[1].split('"')[0],
            "key": derive.key_id(derive.parse_key((self.root / "key").read_text())),
            "tenants": derive.text_id((self.root / "tenants").read_bytes()),
        }

    def given(self, **changes):
        tenant = {"name": "acme", "epoch": "1", "key_sha256": [DIGEST]}
        key_file = str(self.root / "engine.key")
        return {"engine_version": "0.29.0", "engine_key_file": key_file, "tenants": [tenant], **changes}

    def converge(self, key=None, **changes):
        """What is done for these settings: action and files written."""
        given = self.given(**changes)
        assert settings.problems(given, "gpu1") == []
        self.asked.clear()
        todo = host.plan(settings.complete(given), key, self.places)
        if todo.action == "wait":
            self.says = host.wanted(todo.settings, todo.key, self.places, host.code_id(self.places))
        host.apply(todo, self.places) if todo.changed else None
        return todo.action, sorted(os.path.basename(file.path) for file in todo.files)


@pytest.fixture
def gpu1(tmp_path, monkeypatch):
    return Host(tmp_path, monkeypatch)


def mode(path):
    return oct(path.stat().st_mode & 0o777)


def test_a_fresh_host_gets_a_random_key_and_a_second_run_changes_nothing(gpu1):
    action, files = gpu1.converge()
    assert action == "start" and files == ["config", "key", "llmhost-gateway.service", "tenants"]
    assert gpu1.asked == ["daemon-reload", "enable", "start"]
    assert (mode(gpu1.root / "key"), mode(gpu1.root / "tenants")) == ("0o400", "0o640")
    first = (gpu1.root / "key").read_text()
    derive.parse_key(first)
    assert gpu1.converge() == ("", []) and gpu1.asked == []
    assert (gpu1.root / "key").read_text() == first
    assert list(gpu1.root.glob("*.new")) == []


def test_a_new_tenant_needs_neither_reload_nor_restart(gpu1):
    gpu1.converge()
    two = [*gpu1.given()["tenants"], {"name": "bob", "epoch": "1", "key_sha256": ["b" * 64]}]
    assert gpu1.converge(tenants=two) == ("wait", ["tenants"])
    assert gpu1.asked == ["daemon-reload"]


def test_configuration_and_code_are_reloaded_key_and_unit_restart(gpu1):
    gpu1.converge()
    assert gpu1.converge(max_body_bytes=1 << 20) == ("reload", ["config"])
    (gpu1.root / "lua/a.lua").write_text("2")
    assert gpu1.converge(max_body_bytes=1 << 20) == ("reload", ["config"])
    assert gpu1.converge(KEY)[0] == "restart"
    assert (gpu1.root / "key").read_text() == KEY + "\n"
    assert gpu1.converge(KEY.upper()) == ("", [])
    tls = {"tls_certificate": str(gpu1.root / "engine.key"), "tls_key": str(gpu1.root / "engine.key")}
    assert gpu1.converge(KEY, **tls) == ("restart", ["config", "llmhost-gateway.service"])


def test_a_gateway_that_does_not_take_it_up_is_a_failure_and_the_next_run_tries_again(gpu1):
    gpu1.converge()
    gpu1.stuck = True
    with pytest.raises(system.HostError, match=r"(?s)has not taken up.*still the old config.*its journal"):
        gpu1.converge(max_body_bytes=1 << 20)
    gpu1.stuck = False
    assert gpu1.converge(max_body_bytes=1 << 20) == ("reload", [])


def test_the_last_hop_s_file_holds_digests_only_and_goes_with_its_setting(gpu1):
    gpu1.converge(KEY, verify=True)
    text = (gpu1.root / "verify").read_text()
    salt = derive.salt(bytes.fromhex(KEY), "acme", "1")
    assert derive.hashlib.sha256(salt.encode()).hexdigest() in text and salt not in text and KEY not in text
    assert "verify" in gpu1.converge(KEY)[1] and not (gpu1.root / "verify").exists()


def test_no_diff_shows_the_key(gpu1):
    todo = host.plan(settings.complete(gpu1.given()), KEY, gpu1.places)
    shown = str([file.diff() for file in todo.files])
    assert KEY not in shown and "(a secret)" in shown


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda key: key.chmod(0o440), "other accounts could read it"),
        (lambda key: key.write_text("00" * 32), "no random source"),
        (lambda key: key.write_bytes(b"\xff"), "cannot be read as a key"),
        (lambda key: os.chown(key, 65534, 0), "not root's own file"),
        (lambda key: (key.rename(str(key) + "x"), key.symlink_to(str(key) + "x")), "not root's own file"),
    ],
)
def test_a_key_that_is_none_or_was_readable_is_refused(gpu1, change, reason):
    gpu1.converge()
    change(gpu1.root / "key")
    (problem,) = host.problems(settings.complete(gpu1.given()), "gpu1", gpu1.places)
    assert reason in problem.reason and "run again" in problem.fix


def test_the_engine_s_key_must_be_there_and_closed(gpu1):
    file = gpu1.root / "engine.key"
    for change, reason in ((lambda: file.chmod(0o644), "open to other accounts"), (file.unlink, "cannot be used")):
        change()
        (problem,) = host.problems(settings.complete(gpu1.given()), "gpu1", gpu1.places)
        assert reason in problem.reason and problem.key == "cache_salt_gateway_engine_key_file"


def test_absent_leaves_nothing_and_is_done_once(gpu1):
    gpu1.converge(KEY, verify=True)
    gpu1.asked.clear()
    todo = host.plan_absent(gpu1.places)
    assert KEY not in str([file.diff() for file in todo.files])
    host.apply_absent(todo, gpu1.places)
    assert gpu1.asked == ["disable", "stop", "daemon-reload"]
    assert not host.plan_absent(gpu1.places).changed
    assert sorted(path.name for path in gpu1.root.iterdir()) == ["engine.key", "lua"]


# The engines that run


def process(root, pid, argv, environ=""):
    (root / str(pid)).mkdir()
    (root / str(pid) / "cmdline").write_text("\0".join(argv) + "\0")
    (root / str(pid) / "environ").write_text(environ)


SERVE = ["/opt/vllm/bin/python3", "-m", "vllm.entrypoints.openai.api_server", "--model", "m"]


@pytest.mark.parametrize(
    ("argv", "environ", "changes", "reason"),
    [
        (SERVE, "", {}, ""),
        (["python3", "-m", "vllm.entrypoints.grpc_server"], "", {}, "answers gRPC"),
        (["/usr/bin/python3", "/opt/vllm/bin/vllm", "serve", "m", "--grpc"], "", {}, "answers gRPC"),
        (
            [*SERVE, "--tool-server", "demo"],
            "",
            {"paths": ["/v1/responses"], "no_tool_server": True},
            "has a tool server",
        ),
        ([*SERVE, "--tool-server", "demo"], "", {}, ""),
        ([*SERVE, "--pooler-config", '{"enable_chunked_processing": true}'], "", {}, "without the salt"),
        ([*SERVE, "--pooler-config", '{"enable_chunked_processing": true}'], "", {"engine_version": "0.32.0"}, ""),
        (SERVE, "A=1\0VLLM_USE_RUST_FRONTEND=1\0", {"verify": True}, "Rust front end"),
        (SERVE, "VLLM_USE_RUST_FRONTEND=0\0", {"verify": True}, ""),
        (["/usr/bin/nginx"], "VLLM_USE_RUST_FRONTEND=1\0", {"verify": True}, ""),
    ],
)
def test_engines_with_a_way_round_the_salt_are_named(tmp_path, gpu1, argv, environ, changes, reason):
    proc = tmp_path / "proc"
    proc.mkdir()
    process(proc, 42, argv, environ)
    found = ENGINES(str(proc))
    problems = engine.problems(settings.complete(gpu1.given(**changes)), found)
    assert [reason in why for why, _fix in problems] == ([True] if reason else [])


@pytest.mark.parametrize(
    ("name", "address", "state", "is_open"),
    [
        ("tcp", "00000000:1F40", "0A", True),
        ("tcp", "0100007F:1F40", "0A", False),
        ("tcp", "00000000:1F41", "0A", False),
        ("tcp", "00000000:1F40", "01", False),
        ("tcp6", "0" * 32 + ":1F40", "0A", True),
        ("tcp6", "0" * 24 + "01000000:1F40", "0A", False),
    ],
)
def test_an_engine_that_listens_for_the_network_is_seen(tmp_path, name, address, state, is_open):
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / name).write_text(f"  sl  local_address ...\n   0: {address} 00000000:0000 {state} 0\n")
    assert NETWORK("127.0.0.1:8000", str(tmp_path)) is is_open


def test_an_engine_that_says_it_is_another_version_is_refused(gpu1, monkeypatch):
    for said, refused in (("0.29.3", False), ("0.27.0", True), ("0.30.0rc1", True), ("dev", True), (None, False)):
        monkeypatch.setattr(engine, "version_of", lambda _upstream, said=said: said)
        found = host.problems(settings.complete(gpu1.given()), "gpu1", gpu1.places)
        assert [f"says it is {said!r}" in problem.reason for problem in found] == ([True] if refused else [])


@pytest.mark.parametrize(
    ("answer", "said"), [(b'{"version":"0.29.0"}', "0.29.0"), (b"[]", None), (b"x", None), (b'{"version":1}', None)]
)
def test_the_engine_is_asked_for_its_version(answer, said):
    class Engine(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            assert self.path == "/version"
            self.send_response(200)
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Engine) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        assert VERSION(f"127.0.0.1:{server.server_port}") == said
    assert VERSION(f"127.0.0.1:{server.server_port}") is None


# The module


def test_the_module_refuses_before_anything_is_looked_at(monkeypatch):
    monkeypatch.setattr(host, "plan", lambda *_: pytest.fail("planned"))
    result = module_runner.run("salt_gateway", check=True, settings={"engine_version": "1"})
    assert result["failed"] and "is no version of vLLM" in result["msg"] and result["problems"][0]["fix"]


def test_check_mode_changes_nothing_and_shows_no_key(gpu1, monkeypatch):
    plan = host.plan
    monkeypatch.setattr(host, "plan", lambda given, key: plan(given, key, gpu1.places))
    monkeypatch.setattr(host, "problems", lambda *_: [])
    result = module_runner.run("salt_gateway", check=True, settings=gpu1.given(), key=KEY)
    assert result["changed"] and result["action"] == "start" and "/v1/chat/completions" in result["paths"]
    assert gpu1.asked == [] and not (gpu1.root / "key").exists()
    # Where the key was passed it is masked, and nowhere else is it at all.
    assert KEY not in str(result)


def test_the_module_tells_a_weak_key_without_repeating_it(gpu1, monkeypatch):
    monkeypatch.setattr(host, "problems", lambda *_: [])
    result = module_runner.run("salt_gateway", check=True, settings=gpu1.given(), key="ab" * 32)
    assert result["failed"] and "no random source" in result["msg"] and "ab" * 32 not in str(result)
