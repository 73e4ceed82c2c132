# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whatever stands in a map, a file, a process table or an answer: the project's own errors, never a traceback."""

from __future__ import annotations

import json
import os
import socket
import string
import threading
from typing import Any

import module_runner
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ansible_collections.llmhost.hardening.plugins.module_utils.kv import (
    arguments,
    datamap,
    discovery,
    encryption,
    fsio,
    index,
    offload_found,
    offload_plan,
    posture,
    state,
    tables,
    tokenizer,
)
from ansible_collections.llmhost.hardening.plugins.module_utils.s3 import document, listing, sweep_state
from ansible_collections.llmhost.hardening.plugins.module_utils.salt import engine as salt_engine
from ansible_collections.llmhost.hardening.plugins.module_utils.salt import settings as salt_settings

# LLMHOST_FUZZ=50 looks fifty times as long.
TIMES = int(os.environ.get("LLMHOST_FUZZ", "1"))
# The gate asks the same each time; LLMHOST_FUZZ looks further.
how: dict[str, Any] = {"deadline": None, "suppress_health_check": list(HealthCheck), "derandomize": TIMES == 1}
quick = settings(max_examples=60 * TIMES, **how)

HOSTILE = [
    "",
    "\0",
    "\n",
    "../..",
    "/",
    "-1",
    "1e999",
    "NaN",
    "\ud800",
    "٣",
    "{{ 1 }}",
    "%s",
    "a" * 5000,
    "\u2028",
    "G",
    "0x1",
]
words = st.sampled_from(HOSTILE) | st.text(max_size=20)
numbers = st.integers() | st.floats() | st.sampled_from([2**63, -(2**63), 10**400])
atoms = st.none() | st.booleans() | numbers | words


def trees(keys=words):
    """Whatever YAML and JSON can hold, below these keys."""
    return st.recursive(
        atoms, lambda below: st.lists(below, max_size=3) | st.dictionaries(keys, below, max_size=4), max_leaves=12
    )


GOOD_TIER = {
    "name": "chat",
    "store": "vllm_fs",
    "path": "/var/lib/vllm-kv",
    "owner": "vllm",
    "services": ["vllm.service"],
    "volume": {
        "backend": "dmcrypt",
        "source": {"file": "/var/lib/llmhost/chat.img", "size": "200G"},
        "key": "ephemeral",
    },
}
GOOD_MAP = datamap.normalise([GOOD_TIER], "gpu1", 1440)
MAP_DATA = json.loads(json.dumps(GOOD_MAP.data if hasattr(GOOD_MAP, "data") else GOOD_MAP))


def paths(node, at=()):
    """Every place in a document."""
    yield at
    below = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in below:
        yield from paths(value, (*at, key))


def spoil(good, place, value):
    """A copy with one place replaced."""
    if not place:
        return value
    copy = dict(good) if isinstance(good, dict) else list(good)
    copy[place[0]] = spoil(copy[place[0]], place[1:], value)
    return copy


def spoiled(good):
    """Documents that are good but for one place: these get past the first check."""
    return st.builds(spoil, st.just(good), st.sampled_from(list(paths(good))), trees())


def told(error) -> bool:
    return bool(str(error).strip())


@quick
@given(trees(st.sampled_from([*GOOD_TIER, "retention_minutes"])) | spoiled([GOOD_TIER]), st.just(1440) | atoms)
def test_an_inventory_is_a_map_or_a_list_of_mistakes(tiers, prompt_log):
    try:
        datamap.normalise(tiers, "gpu1", prompt_log)
    except datamap.MapError as error:
        assert told(error) and error.problems


@quick
@given(trees() | spoiled(MAP_DATA))
def test_the_map_on_a_host_is_sound_or_refused(data):
    try:
        datamap.validate(data)
    except datamap.MapError as error:
        assert told(error)


@quick
@given(st.binary(max_size=300) | spoiled(MAP_DATA).map(lambda data: json.dumps(data).encode("utf-8", "surrogatepass")))
def test_the_file_of_the_map_is_sound_or_refused(tmp_path_factory, data):
    file = tmp_path_factory.mktemp("map") / "tiers.json"
    file.write_bytes(data)
    file.chmod(0o600)
    try:
        datamap.load(str(file))
    except datamap.MapError as error:
        assert told(error)


ENGINE = {
    "name": "chat",
    "unit": "vllm.service",
    "settings": {"cpu_bytes_to_use": "8G", "tiers": {"chat": {"n_read_threads": 8}}},
}


@quick
@given(trees(st.sampled_from([*ENGINE, "engine", "state", "exec"])) | spoiled([ENGINE]))
def test_the_list_of_engines_is_entries_or_problems(entries):
    _found, problems = offload_plan.parse(entries, "gpu1")
    assert all(told(problem) for problem in problems)


@quick
@given(
    st.lists(
        words | st.sampled_from(["--kv-transfer-config", "--config", "serve", "vllm", "{}", "[", '{"a": NaN}']),
        max_size=6,
    ),
    st.none() | st.text(max_size=60) | trees().map(lambda tree: yaml.safe_dump(tree, allow_unicode=False)),
)
def test_the_command_line_of_an_engine_is_read_or_left(argv, config):
    offload_found.settings_of(argv, config)
    arguments.is_server(argv)
    offload_found.config_file(argv)


@quick
@given(st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_crypttab_and_fstab_of_others_are_rows(data):
    tables.rows(data)
    mine = tables.with_line(data, lambda row: row[:1] == ("llmhost_chat",), "llmhost_chat /img /dev/urandom plain")
    assert b"llmhost_chat /img /dev/urandom plain" in mine


mount_line = st.builds(
    " ".join, st.lists(words | st.sampled_from(["-", "0:1", "36", "\\040", "\\999", "\\"]), max_size=12)
)


@quick
@given(st.lists(mount_line, max_size=4).map("\n".join))
def test_a_mount_table_is_mounts_or_less(text):
    table = encryption.parse_mounts(text)
    encryption.mount_of("/var/lib/vllm-kv", table)


@quick
@given(st.binary(max_size=120))
def test_crypttab_is_an_entry_or_none(tmp_path_factory, data):
    root = tmp_path_factory.mktemp("root")
    (root / "crypttab").write_bytes(data)
    roots = encryption.Roots(etc=str(root))
    encryption.crypttab_entry("llmhost_chat", roots)
    encryption.layer_key("llmhost_chat", "crypt", roots)


@quick
@given(st.binary(max_size=80) | st.binary(max_size=40).map(lambda data: b"\2\0\0\0" + data))
def test_an_access_list_of_the_kernel_is_entries_or_refused(data):
    try:
        posture.acl_opens(posture.parse_acl(data))
    except ValueError as error:
        assert told(error)


@quick
@given(st.binary(max_size=300))
def test_an_index_is_leaves_or_nothing(data):
    index.decode(data, 1, 2)
    try:
        index.decode_unit(data)
    except ValueError as error:
        assert told(error)


TIER = datamap.tier_named(GOOD_MAP, "chat")
RECORD = json.loads(json.dumps(state.new_record(TIER, 1e9)))


@quick
@given(trees() | spoiled(RECORD))
def test_a_record_is_sound_or_no_record(record):
    assert state.valid(record, TIER) in (True, False)


@quick
@given(st.binary(max_size=200))
def test_a_small_file_of_json_is_read_or_refused(tmp_path_factory, data):
    file = tmp_path_factory.mktemp("json") / "file"
    file.write_bytes(data)
    try:
        fsio.read_json(str(file))
    except (ValueError, OSError, fsio.UnsafePath) as error:
        assert told(error)


xml_names = st.sampled_from(
    "LifecycleConfiguration Rule ID Status Filter Prefix And Tag Key Value Expiration Days Date Error Code Message "
    "ListBucketResult Contents LastModified Size IsTruncated NextContinuationToken Upload UploadId Initiated x".split()
)
xml = st.recursive(
    words.map(lambda text: "".join(one for one in text if one in string.printable and one not in "<>&\x0b\x0c")),
    lambda below: st.builds(
        lambda name, parts: f"<{name}>{''.join(parts)}</{name}>", xml_names, st.lists(below, max_size=4)
    ),
    max_leaves=15,
)
answers = st.binary(max_size=120) | st.builds(
    lambda name, body: f"<{name}>{body}</{name}>".encode(),
    st.sampled_from(["LifecycleConfiguration", "ListBucketResult", "Error"]),
    xml,
)


@quick
@given(answers)
def test_an_answer_about_rules_is_rules_or_refused(body):
    try:
        document.show(document.parse(body))
    except document.NotALifecycle as error:
        assert told(error)


@quick
@given(st.sampled_from(["ListObjectsV2", "ListObjectVersions", "ListMultipartUploads"]), answers)
def test_a_page_of_a_listing_is_entries_or_refused(operation, body):
    try:
        listing.parse(operation, body)
    except (listing.BadPage, document.NotALifecycle) as error:
        assert told(error)


@pytest.mark.parametrize(
    "name, text", [("Size", "9" * 5000), ("LastModified", "2026-01-01T00:00:00.1e999Z"), ("LastModified", "9" * 5000)]
)
def test_a_number_that_no_server_means_is_none(name, text):
    entry = {"Key": "a", "LastModified": "2026-01-01T00:00:00.5Z", name: text}
    body = "".join(f"<{key}>{value}</{key}>" for key, value in entry.items())
    try:
        page = listing.parse(
            "ListObjectsV2", f"<ListBucketResult><Contents>{body}</Contents></ListBucketResult>".encode()
        )
    except listing.BadPage as error:
        assert told(error)
    else:
        assert page["Contents"] == [{"Key": "a", "Size": 0, "LastModified": listing.moment(entry["LastModified"])}]


# Deeper than Python's own stack: anybody may write such a file, start such a process, answer such a request.
DEEP = "[" * 100_000


def test_what_is_nested_too_deep_is_refused_with_a_message(tmp_path):
    file = tmp_path / "deep.json"
    file.write_text(DEEP)
    file.chmod(0o600)
    with pytest.raises(fsio.UnsafePath, match="not JSON"):
        fsio.read_json(str(file))
    with pytest.raises(datamap.MapError, match="not JSON"):
        datamap.load(str(file))
    document.parse(
        b"<LifecycleConfiguration>" + b"<Rule>" * 50_000 + b"</Rule>" * 50_000 + b"</LifecycleConfiguration>"
    )


def test_a_command_line_that_is_nested_too_deep_is_still_read():
    argv = ["vllm", "serve", "model", "--kv-transfer-config" + ".a" * 50_000, "1"]
    transfer = offload_found.settings_of(argv).transfer
    assert isinstance(transfer, dict)
    assert offload_found.settings_of(["vllm", "serve", "--kv-transfer-config", DEEP]).transfer == DEEP
    assert offload_found.settings_of(["vllm", "serve", "--config", "f"], DEEP).transfer is None


@pytest.mark.parametrize("answer", [DEEP, "no JSON", "{}", "[1", "\xff"])
@pytest.mark.parametrize("head", ["HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n", "", "SSH-2.0-x\r\n"])
def test_an_engine_that_answers_nonsense_is_said_to(head, answer):
    server = socket.create_server(("127.0.0.1", 0))
    port = server.getsockname()[1]

    def serve():
        for _turn in range(2):
            connection, _peer = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall((head + answer).encode("latin-1"))

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    with server:
        with pytest.raises(ValueError) as error:
            tokenizer.tokenize(f"http://127.0.0.1:{port}/tokenize", "text", None)
        assert told(error.value)
        assert salt_engine.version_of(f"127.0.0.1:{port}") is None
        thread.join(10)


@quick
@given(trees())
def test_a_job_of_the_sweeper_is_sound_or_refused(job):
    try:
        sweep_state.check_job(job, "name")
    except sweep_state.BadJob as error:
        assert told(error)


SALT = {
    "engine_version": "0.29.0",
    "engine_key_file": "/etc/vllm/api-key",
    "tenants": [{"name": "acme", "epoch": "1", "key_sha256": ["5c" * 32]}],
}


@quick
@given(trees(st.sampled_from([*salt_settings.DEFAULTS, "x"])) | spoiled(SALT))
def test_settings_of_the_gateway_are_judged(given_):
    if isinstance(given_, dict):
        assert all(told(problem) for problem in salt_settings.problems(given_, "gpu1"))


process_file = st.binary(max_size=80) | st.sampled_from(
    [b"1 (a) b) S 1 1", b"0::/system.slice/vllm.service\n", b"Uid:\tx\n"]
)


@quick
@given(
    st.dictionaries(
        st.sampled_from("cmdline comm cgroup environ limits stat status coredump_filter mountinfo maps".split()),
        process_file,
    )
)
def test_a_process_table_is_processes_or_less(tmp_path_factory, files):
    proc = tmp_path_factory.mktemp("proc")
    (proc / "77").mkdir()
    (proc / "stat").write_bytes(b"btime x\n")
    os.symlink("/nowhere\n", proc / "77/exe")
    for name, data in files.items():
        (proc / "77" / name).write_bytes(data)
    found = discovery.processes(str(proc))
    discovery.engines(TIER, proc=str(proc))
    assert [process.pid for process in found] in ([], [77])


# Every module that takes a document: in check mode, so that nothing is touched whatever gets through.
TAKES = {
    "kv_access": ("data_map", MAP_DATA),
    "kv_audit": ("data_map", MAP_DATA),
    "kv_engine": ("data_map", MAP_DATA),
    "kv_host": ("data_map", MAP_DATA),
    "kv_preflight": ("data_map", MAP_DATA),
    "kv_volume": ("data_map", MAP_DATA),
    "salt_gateway": ("settings", SALT),
}


@pytest.mark.parametrize("module", TAKES)
@settings(max_examples=12 * TIMES, **how)
@given(data=st.data())
def test_a_module_answers_a_hostile_document_with_a_message(module, data):
    name, good = TAKES[module]
    given_ = data.draw(
        st.dictionaries(words, trees(), max_size=3) | spoiled(good).filter(lambda one: isinstance(one, dict))
    )
    more = {"engines": []} if module == "kv_engine" else {"max_seconds": 1} if module == "kv_audit" else {}
    try:
        # Ansible itself refuses lone surrogates before any module sees them.
        text = json.dumps(given_, ensure_ascii=False)
        text.encode()
    except (UnicodeError, ValueError):
        return
    answer = module_runner.run(module, check=True, **{name: json.loads(text)}, **more)
    assert answer.get("failed") is not True or told(answer["msg"])
    assert "Traceback" not in json.dumps(answer)
