# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is found on a host that nobody prepared: a made-up /proc and file tree."""

from __future__ import annotations

import json
import os
import time

import module_runner
import pytest
from fixtures import HOSTILE, Tree

from ansible_collections.llmhost.hardening.plugins.module_utils.kv import (
    listeners,
    loosely,
    stores,
    stores_settings,
    stray,
    system,
    tiers_found,
)

FS = {
    "kv_connector": "OffloadingConnector",
    "kv_connector_extra_config": {"secondary_tiers": [{"type": "fs", "root_dir": "/var/lib/vllm-kv"}]},
}


class Host:
    def __init__(self, path):
        self.root, self.proc = path / "root", path / "proc"
        self.root.mkdir()
        self.proc.mkdir()
        self.mounts("1", "1 0 8:1 / / rw - ext4 /dev/sda1 rw")
        (self.proc / "1/ns").mkdir()
        (self.proc / "1/ns/mnt").symlink_to("mnt:[1]")

    def mounts(self, pid, *lines):
        (self.proc / pid).mkdir(exist_ok=True)
        (self.proc / pid / "mountinfo").write_text("\n".join(lines) + "\n")

    def process(self, pid, *words, env=None, cwd="/", unit="vllm.service", namespace="mnt:[1]", root="/"):
        base = self.proc / str(pid)
        base.mkdir(exist_ok=True)
        (base / "status").write_text("Name:\tpython3\nUmask:\t0022\nUid:\t0\t0\t0\t0\n")
        (base / "stat").write_text(f"{pid} (x) S {' '.join(['0'] * 50)}\n")
        (base / "cmdline").write_bytes(b"".join(os.fsencode(word) + b"\0" for word in words))
        (base / "cgroup").write_text(f"0::/system.slice/{unit}\n")
        (base / "ns").mkdir()
        (base / "ns/mnt").symlink_to(namespace)
        (base / "cwd").symlink_to(cwd)
        (base / "root").symlink_to(root)
        if env is not None:
            (base / "environ").write_bytes(b"".join(f"{key}={value}".encode() + b"\0" for key, value in env.items()))
        return base

    def put(self, path, text):
        place = self.root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)

    def find(self, **options):
        return tiers_found.find(str(self.proc), str(self.root), **{"scan_seconds": 0, **options})

    def places(self, **options):
        return [(one["store"], one["path"], one["sure"]) for one in self.find(**options)["tiers"]]


@pytest.fixture
def host(tmp_path):
    return Host(tmp_path)


def transfer(settings=None):
    return "--kv-transfer-config", json.dumps(settings or FS)


# -- what settings say


@pytest.mark.parametrize(
    ("words", "environment", "expected"),
    [
        (("vllm", "serve", "m", *transfer()), {}, [("vllm_fs", "/var/lib/vllm-kv")]),
        (("vllm", "serve", "--kv-transfer-config=" + json.dumps(FS)), {}, [("vllm_fs", "/var/lib/vllm-kv")]),
        (
            (
                "vllm",
                "serve",
                "--kv_transfer_config.kv_connector=ExampleConnector",
                "--kv-transfer-config.kv_connector_extra_config.shared_storage_path",
                "/a",
            ),
            {},
            [("vllm_example", "/a")],
        ),
        (("vllm", "serve", *transfer({"kv_connector": "ExampleConnector"})), {}, [("vllm_example", "/tmp")]),
        (
            ("vllm", "serve", *transfer({"kv_connector": "ExampleHiddenStatesConnector"})),
            {},
            [("vllm_hidden_states", "/tmp")],
        ),
        (
            (
                "vllm",
                "serve",
                *transfer({"kv_connector": "MultiConnector", "kv_connector_extra_config": {"connectors": [FS]}}),
            ),
            {},
            [("vllm_fs", "/var/lib/vllm-kv")],
        ),
        (("vllm", "serve"), {"LMCACHE_LOCAL_DISK": "file:///c"}, [("lmcache_disk", "/c")]),
        (("vllm", "serve"), {"LMCACHE_REMOTE_URL": "fs://host:0/d/"}, [("lmcache_fs", "/d/")]),
        (
            ("python3", "-m", "sglang.launch_server", "--hicache-storage-backend", "file"),
            {},
            [("sglang_file", "/tmp/hicache")],
        ),
        (
            ("python3", "-m", "sglang.launch_server", "--hicache-storage-backend=nixl"),
            {"SGLANG_HICACHE_NIXL_BACKEND_STORAGE_DIR": "/n"},
            [("sglang_nixl", "/n")],
        ),
        (("/usr/bin/llama-server", "--slot-save-path", "/s"), {}, [("llamacpp_slots", "/s")]),
        (("python3", "-m", "dynamo.vllm"), {"DYN_KVBM_DISK_CACHE_GB": "8"}, [("dynamo_kvbm", "/tmp")]),
        (("vllm", "serve"), {"FLEXKV_SSD_CACHE_DIR": "/x;/y"}, [("flexkv", "/x"), ("flexkv", "/y")]),
        (("mooncake_client",), {"MOONCAKE_OFFLOAD_FILE_STORAGE_PATH": "/m"}, [("mooncake", "/m")]),
        (("vllm", "serve", "m"), {}, []),
        (("vllm", "serve", "--kv-transfer-config", "{"), {}, []),
    ],
)
def test_each_way_to_name_a_place_is_understood(words, environment, expected):
    found = stores_settings.named(words, environment, lambda path: None)
    assert [(one.store, one.path) for one in found.places] == expected


def test_an_argument_of_ten_thousand_dots_does_not_end_the_look():
    words = ("vllm", "serve", "m", "--kv-transfer-config." + "a." * 10_000 + "a=1")
    assert stores_settings.named(words, {}, lambda path: None).places == []


def test_a_program_is_known_by_its_name_as_a_word_of_the_command():
    pattern = stores.ENGINES["vllm"].programs
    for line in ("vllm\0serve", "/usr/bin/vllm", "python3\0-m\0vllm.entrypoints.openai.api_server"):
        assert pattern.search(line)
    for line in ("vllmx\0serve", "/models/my-vllm", "llama-server"):
        assert not pattern.search(line)


def test_a_settings_file_is_read_and_one_that_cannot_be_is_said():
    words = ("vllm", "serve", "--config", "/c.yaml")
    yaml = "# ours\nkv-transfer-config:\n  kv_connector_extra_config:\n"
    yaml += "    secondary_tiers:\n    - type: fs\n      root_dir: /kv\n"
    found = stores_settings.named(words, {}, {"/c.yaml": yaml}.get)
    assert [(one.store, one.path) for one in found.places] == [("vllm_fs", "/kv")]
    assert "cannot be read" in stores_settings.named(words, {}, lambda path: None).unread[0]
    assert "is not understood" in stores_settings.named(words, {}, lambda path: "a: &b c").unread[0]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: 1\nb:\n- x\n- y: 2\n  z: '3'\n", {"a": "1", "b": ["x", {"y": "2", "z": "3"}]}),
        ('a: {"b": [1]}\n', {"a": {"b": [1]}}),
        ("a: |\n  {\n  }\n", {"a": "{\n}"}),
        ("a: b # c\n", {"a": "b"}),
        ("a: &x b", None),
        ("[" * 100000, None),
        ("a:\n" * 10000, None),
        ("- " * 5000 + "a", None),
        ("\t- x", None),
        ("", None),
    ],
)
def test_yaml_is_read_where_it_is_plain_and_refused_where_it_is_not(text, value):
    assert loosely.parse(text) == value


# -- processes


def test_a_running_engine_names_its_tier_with_all_that_is_known(host):
    host.process(7, "python3", "/venv/bin/vllm", "serve", *transfer(), env={})
    (tier,) = host.find()["tiers"]
    (found,) = tier["found"]
    assert (tier["store"], tier["path"], tier["sure"]) == ("vllm_fs", "/var/lib/vllm-kv", "running")
    assert (found["pid"], found["user"], found["umask"], found["unit"]) == (7, "root", "0022", "vllm.service")


def test_a_relative_path_is_below_the_working_directory(host):
    host.process(7, "/usr/bin/llama-server", "--slot-save-path", "slots", cwd="/srv/llama", env={})
    assert host.places() == [("llamacpp_slots", "/srv/llama/slots", "running")]


def test_a_path_inside_a_container_is_shown_as_the_host_sees_it(host):
    host.mounts("1", "1 0 8:1 / / rw - ext4 /dev/sda1 rw", "2 1 8:2 / /srv rw - xfs /dev/sdb rw")
    host.mounts("7", "9 0 0:50 / / rw - overlay overlay rw", "10 9 8:2 /cache/kv /kv rw - xfs /dev/sdb rw")
    host.process(7, "/usr/bin/llama-server", "--slot-save-path", "/kv/a", namespace="mnt:[2]", env={})
    assert host.places() == [("llamacpp_slots", "/srv/cache/kv/a", "running")]


def test_a_path_that_only_the_container_sees_has_no_path_on_the_host(host):
    host.mounts("7", "9 0 0:50 / / rw - tmpfs tmpfs rw")
    host.process(7, "/usr/bin/llama-server", "--slot-save-path", "/kv", namespace="mnt:[2]", env={})
    (tier,) = host.find()["tiers"]
    assert (tier["path"], tier["inside"]) == (None, "/kv")


def test_a_mount_that_lies_over_the_place_is_not_taken_for_it():
    outside = system.parse_mounts("1 0 8:1 / / rw - ext4 a rw\n2 1 8:9 / /srv rw - ext4 b rw\n")
    inside = system.parse_mounts("5 0 8:1 /srv /kv rw - ext4 a rw\n")
    assert tiers_found.host_path("/kv/x", inside, outside) is None


def test_an_environment_that_cannot_be_read_is_said(host):
    host.process(7, "vllm", "serve", *transfer())
    found = host.find()
    assert len(found["tiers"]) == 1 and "environment cannot be read" in found["unread"][0]


def test_a_process_that_vanishes_between_two_looks_is_not_there(host, monkeypatch):
    base = host.process(7, "vllm", "serve", *transfer(), env={})
    real = tiers_found.environment_of

    def gone(pid, proc):
        for path in sorted(base.rglob("*"), reverse=True):
            path.unlink() if path.is_symlink() or path.is_file() else path.rmdir()
        base.rmdir()
        return real(pid, proc)

    monkeypatch.setattr(tiers_found, "environment_of", gone)
    assert host.places() == []


def test_no_secret_leaves(host):
    settings = {
        "kv_connector": "OffloadingConnector",
        "kv_connector_extra_config": {
            "secondary_tiers": [
                {
                    "type": "obj",
                    "store_config": {
                        "bucket": "b",
                        "access_key": "AKIAHIDDEN",
                        "secret_key": "HIDDEN2",
                        "endpoint_override": "https://u:HIDDEN3@s3",
                    },
                }
            ]
        },
    }
    env = {"HF_TOKEN": "HIDDEN4", "LMCACHE_REMOTE_URL": "redis://u:HIDDEN5@h", "LMCACHE_LOCAL_DISK": "/x?token=HIDDEN6"}
    host.process(7, "vllm", "serve", "--api-key", "HIDDEN7", *transfer(settings), env=env)
    text = json.dumps(host.find())
    assert "HIDDEN" not in text and '"bucket": "b"' in text and "https://***@s3" in text


@pytest.mark.parametrize("hostile", HOSTILE, ids=repr)
def test_hostile_names_crash_nothing_and_are_shown_on_one_line(host, hostile):
    host.process(7, b"/usr/bin/llama-server", b"--slot-save-path", b"/kv/" + hostile, env={"LMCACHE_CONFIG_FILE": "/n"})
    found = host.find()
    for text in (json.dumps(found), *(str(tier["path"]) for tier in found["tiers"])):
        assert text.isprintable()


def test_three_thousand_processes_take_seconds(host):
    for pid in range(100, 3100):
        host.process(pid, "/usr/bin/sleep", "1", env={})
    host.process(7, "vllm", "serve", *transfer(), env={})
    began = time.monotonic()
    found = host.find()
    assert (found["processes"], found["engines"], len(found["tiers"])) == (3001, 1, 1)
    assert time.monotonic() - began < 10


# -- what is configured


def test_a_unit_with_drop_ins_and_an_environment_file_is_understood(host):
    host.put("/usr/lib/systemd/system/v.service", "[Service]\nExecStart=/bin/old\nUser=vllm\n")
    host.put(
        "/etc/systemd/system/v.service.d/a.conf",
        "[Service]\nUMask=0077\nEnvironmentFile=-/etc/v.env\nExecStart=\nExecStart=/v/bin/vllm serve \\\n m\n",
    )
    host.put("/etc/v.env", "# x\nLMCACHE_CONFIG_FILE=/etc/lm.yaml\n")
    host.put("/etc/lm.yaml", "chunk_size: 256\nlocal_disk: file:///var/lm\n")
    (tier,) = host.find()["tiers"]
    assert (tier["store"], tier["path"], tier["sure"]) == ("lmcache_disk", "/var/lm", "configured")
    assert (tier["found"][0]["unit"], tier["found"][0]["user"]) == ("v.service", "vllm")


def test_quadlets_compose_files_and_containers_are_understood(host):
    slots = "llama-server --slot-save-path /kv"
    host.put("/etc/containers/systemd/q.container", f"[Container]\nExec={slots}\nVolume=/srv/q:/kv:Z\n")
    host.put(
        "/opt/app/compose.yaml",
        f"services:\n  l:\n    image: x\n    command: {slots}\n    volumes:\n      - /srv/c:/kv\n",
    )
    args = slots.split()
    oci = {
        "process": {"args": args},
        "mounts": [{"destination": "/kv", "source": "/srv/p", "type": "bind"}],
    }
    host.put(f"/var/lib/containers/storage/overlay-containers/{'a' * 64}/userdata/config.json", json.dumps(oci))
    docker = {"Path": args[0], "Args": args[1:], "Name": "/d", "MountPoints": {"/kv": {"Source": "/srv/d"}}}
    host.put(f"/var/lib/docker/containers/{'b' * 64}/config.v2.json", json.dumps(docker))
    found = host.find()["tiers"]
    assert [(one["path"], one["found"][0]["kind"]) for one in found] == [
        ("/srv/c", "compose"),
        ("/srv/d", "docker"),
        ("/srv/p", "podman"),
        ("/srv/q", "quadlet"),
    ]


def test_a_configured_tier_that_runs_is_one_tier(host):
    host.put("/etc/systemd/system/v.service", "[Service]\nExecStart=/usr/bin/llama-server --slot-save-path /s\n")
    host.process(7, "/usr/bin/llama-server", "--slot-save-path", "/s", env={}, unit="v.service")
    (tier,) = host.find()["tiers"]
    assert tier["sure"] == "running" and {one["kind"] for one in tier["found"]} == {"process", "unit"}


@pytest.mark.parametrize(
    "text", ["", "\0", "[Service]\nExecStart='", "services: [", '{"process": 1}', '{"process": {"args": 5}}']
)
def test_nonsense_in_files_crashes_nothing(host, text):
    for path in (
        "/etc/systemd/system/a.service",
        "/etc/containers/systemd/a.container",
        "/opt/compose.yaml",
        f"/var/lib/containers/storage/overlay-containers/{'a' * 64}/userdata/config.json",
        f"/var/lib/docker/containers/{'b' * 64}/config.v2.json",
    ):
        host.put(path, text)
    assert host.places() == []


# -- what lies there


def test_a_tree_that_nothing_names_is_found_and_ordinary_files_are_not(host):
    tree = Tree(host.root / "data/old/kv")
    tree.block(1)
    host.put("/data/photos/a.bin", "x")
    host.put("/home/u/models/x/model.safetensors", "x")
    assert host.places(scan_seconds=5) == [("vllm_fs", "/data/old/kv", "lies there")]


def test_the_default_directory_of_an_engine_counts_only_with_something_of_its_own_in_it(host):
    host.put("/tmp/hicache/notes.txt", "x")
    assert host.places() == []
    host.put(f"/tmp/hicache/{'a' * 64}_Qwen_0_1.bin", "x")
    assert host.places() == [("sglang_file", "/tmp/hicache", "lies there")]


def test_a_scan_ends_at_its_bound_and_says_so(tmp_path):
    for number in range(50):
        (tmp_path / str(number)).mkdir()
    assert not stray.scan([str(tmp_path)], most=20).complete
    assert not stray.scan([str(tmp_path)], seconds=0).complete
    assert stray.scan([str(tmp_path)]).complete


def test_a_database_that_other_programs_have_too_makes_no_tree_a_store(tmp_path):
    (tmp_path / "GPUCache").mkdir()
    (tmp_path / "GPUCache/cache.db").write_text("SQLite format 3")
    store = stray.STORES["llama_cpp_python_disk"]
    assert stray.recognise(str(tmp_path / "GPUCache"), [store]) is None
    value = tmp_path / "GPUCache/0a/1b" / ("0" * 28 + ".val")
    value.parent.mkdir(parents=True)
    value.write_text("x")
    assert stray.recognise(str(tmp_path / "GPUCache"), [store]) is not None


def test_a_scan_follows_no_symlink(tmp_path):
    Tree(tmp_path / "there/kv").block(1)
    (tmp_path / "here").mkdir()
    (tmp_path / "here/link").symlink_to(tmp_path / "there")
    assert stray.scan([str(tmp_path / "here")]).found == []


# -- listeners


def test_listeners_are_mapped_to_processes(tmp_path):
    line = "   0: {} 00000000:0000 0A 0:0 00:0 0 0 0 {} 1\n"
    table = "header\n" + line.format("0100007F:15B5", 41) + line.format("00000000:164E", 42) + "broken\n"
    for base in (tmp_path / "net", tmp_path / "7/net"):
        base.mkdir(parents=True)
        (base / "tcp").write_text(table)
    (tmp_path / "7/fd").mkdir()
    (tmp_path / "7/fd/3").symlink_to("socket:[42]")
    assert [tuple(one) for one in listeners.of_processes([7, 8], str(tmp_path))] == [
        ("127.0.0.1", 5557, True, "KV events or FlexKV", None),
        ("0.0.0.0", 5710, False, "vLLM p2p tier", 7),
    ]


def test_the_module_changes_nothing_and_answers_on_this_host():
    for check in (False, True):
        answer = module_runner.run("kv_tier_info", check=check, scan_seconds=0)
        assert answer["changed"] is False and answer["found"]["processes"] > 0
