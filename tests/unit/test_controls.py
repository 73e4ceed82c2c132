# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every control judged on evidence made by hand: a tier that is right passes all, and each single flaw is found."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import time

import pytest

from ansible_collections.llmhost.hardening.plugins.module_utils.kv import (
    controls,
    datamap,
    evidence_host,
    evidence_tier,
    judge_tier,
    namespaces,
    posture,
)
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.containers import View as ContainerView
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.discovery import Found, Process
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.encryption import Key, Roots, Storage
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.evidence_engine import Running
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.evidence_host import Account, Cron, Unit
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.evidence_names import Canary, Names, Server
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.evidence_spill import Spill
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.evidence_tier import (
    Covered,
    Evidence,
    Host,
    Tree,
    View,
)
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.posture import AclEntry, Place
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.state import new_record
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.walk import Survey

NOW = 1_800_000_000.0
UID = 990
PATH = "/srv/kv"
CLOSED = [AclEntry(0x01, None, 7), AclEntry(0x04, None, 0), AclEntry(0x20, None, 0)]
SETTINGS = "--kv-transfer-config=" + json.dumps(
    {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {
            "spec_name": "TieringOffloadingSpec",
            "cpu_bytes_to_use": 1 << 30,
            "secondary_tiers": [{"type": "fs", "root_dir": PATH}],
        },
    }
)
JUDGED = ["KV-%02d" % number for number in (*range(1, 9), *range(10, 17))]


def document(**changes):
    tier = {
        "name": "chat",
        "store": "vllm_fs",
        "path": PATH,
        "owner": "vllm",
        "services": ["vllm.service"],
        "volume": {"backend": "dmcrypt", "source": {"file": "/var/lib/llmhost/chat.img", "size": "1G"}},
        **changes,
    }
    return datamap.normalise([tier], "gpu1", 1440)


def survey(**changes):
    usual = {"blocks": 3, "block_bytes": 300, "configs": 1, "dirs": 4}
    return Survey(**{**usual, "oldest_mtime": NOW - 3600, "newest_mtime": NOW - 60, **changes})


def record(tier, **changes):
    run = new_record(tier, NOW - 101)
    run.update(finished=NOW - 100, exit=0, full=True, blocks=3, block_bytes=300, oldest_mtime=NOW - 3700)
    run.update(seconds=1.0, last_success=NOW - 101, last_full=NOW - 101, measured=NOW - 100)
    return {**run, **changes}


def process(**changes):
    known = Process(77, UID, "vllm", ("vllm",), "vllm.service", 1, 0o077, "0", 0)
    return known._replace(**changes)


def server(**changes):
    return dataclasses.replace(Server(77, "0.29.0", None, "127.0.0.1", True, False), **changes)


def canary(**changes):
    return lambda given: setattr(given.names, "canaries", [dataclasses.replace(Canary(1, 3, 0, 3), **changes)])


def listening(**changes):
    return lambda given: setattr(given.names, "servers", [server(**changes)])


def evidence():
    """A tier with nothing wrong, its engine running."""
    given = document()
    tier = given["tiers"][0]
    key = Key("memory", "good", "a random key that exists in memory only", "llmhost_chat", "aes-xts-plain64", 512)
    storage = Storage(PATH, "253:0", "/dev/mapper/llmhost_chat", "ext4", PATH, "rw", encrypted=True)
    storage.chain = [{"name": "llmhost_chat", "kind": "crypt", "uuid": "CRYPT-PLAIN-llmhost_chat", "detail": "PLAIN"}]
    storage.by, storage.cipher, storage.key_size_bits, storage.key = "llmhost_chat", "aes-xts-plain64", 512, key
    place = Place(PATH, exists=True, uid=UID, gid=UID, mode=0o700, default_acl=list(CLOSED))
    place.ancestors = [("/", 0, 0o755), ("/srv", 0, 0o755)]
    return Evidence(
        tier=tier,
        host=Host(NOW, 1440, True, [], True, given, None),
        place=place,
        storage=storage,
        account=Account("vllm", UID, UID, "/usr/sbin/nologin", ()),
        cron=Cron(True, None),
        tree=Tree(survey()),
        covered=Covered(None, 0, 0, 0, True),
        views=[View(77, True, "same directory")],
        processes=[process()],
        units={"vllm.service": Unit("vllm.service", None, True, "active", "vllm", 0o077, (), True)},
        engines=[Found(77, "vllm.service", "0.29.0", "/venv/lib")],
        running=[Running(77, "vllm.service", ("vllm", "serve", "m", SETTINGS), None, "0.29.0", "/venv/lib", "3.12")],
        names=Names([server()], True, [Canary(1, 3, 0, 3)]),
        record=record(tier),
        spill=Spill(tagged=True, free_bytes=1 << 29, total_bytes=1 << 30, free_files=1000, total_files=2000),
    )


def judge(given):
    return {result["control"]: result for result in judge_tier.judge(given)}


VIEW = ContainerView(88, UID, "python3", "docker-x.scope", "0123456789ab", "/kv", False, True)


def in_container(given, **changes):
    """The tier's engine runs in a container; changes: of what it sees."""
    given.containers = [VIEW._replace(**changes)]
    inside = process(pid=88, uid=given.containers[0].uid, unit="docker-x.scope", container="0123456789ab")
    given.processes, given.views = [inside], [View(88, True, "the volume at another path")]
    return given


def test_an_engine_in_a_container_is_judged_like_any_other():
    results = judge(in_container(evidence()))
    assert {results[name]["status"] for name in ("KV-01", "KV-02", "KV-03")} == {"pass"}


@pytest.mark.parametrize(
    ("changes", "control", "message", "remedy"),
    [
        ({"bare": True}, "KV-02", "has at /kv the directory below the mount of /srv/kv", "docker restart 0123456789ab"),
        ({"uid": 0}, "KV-03", "runs as root and has the tier at /kv", "user:"),
        ({"uid": 12}, "KV-03", "runs as uid 12", "--user"),
    ],
)
def test_a_container_beside_the_volume_or_as_another_account_is_a_finding(changes, control, message, remedy):
    found = judge(in_container(evidence(), **changes))[control]
    assert found["status"] == "fail" and message in found["message"] and remedy in found["remedy"]


def test_a_restart_of_the_unit_is_no_remedy_for_the_umask_of_a_container():
    given = in_container(evidence())
    given.processes = [given.processes[0]._replace(umask=0o022)]
    found = judge(given)["KV-03"]
    assert found["status"] == "fail" and "--umask=0077" in found["remedy"] and "systemctl" not in found["remedy"]


@pytest.mark.parametrize(
    "unit", [Unit("docker.service", None, True, "active"), Unit("q.service", None, True, source="/etc/x/q.container")]
)
def test_units_that_start_containers_need_no_account_of_their_own(unit):
    given = in_container(evidence())
    given.units = {unit.name: unit}
    assert judge(given)["KV-03"]["status"] == "pass"


def test_a_tier_without_a_flaw_passes_every_control():
    results = judge(evidence())
    assert list(results) == JUDGED
    assert {name: (one["status"], one["remedy"]) for name, one in results.items()} == dict.fromkeys(
        JUDGED, ("pass", "")
    )


@pytest.mark.parametrize(
    ("until", "changes", "status", "words"),
    [
        ("9999-12-31", {}, "pass", "declared, not proven, until 9999-12-31: EBS, ticket 7"),
        ("1970-01-02", {}, "fail", "not encrypted"),
        ("9999-12-31", {"local": False}, "fail", "not local"),
    ],
)
def test_encryption_that_no_host_can_see_is_shown_as_declared_and_ends(until, changes, status, words):
    given = evidence()
    attested = {"reason": "EBS, ticket 7", "until": until}
    given.tier = document(volume={"backend": "existing", "attested": attested})["tiers"][0]
    given.storage = Storage(PATH, encrypted=False, problems=["no layer below it encrypts"], **changes)
    result = judge(given)["KV-02"]
    assert result["status"] == status and words in result["message"]
    assert result["evidence"]["attested"] is (until != "1970-01-02")


def test_results_are_plain_json_on_one_line():
    for result in judge_tier.judge(evidence()):
        json.dumps(result)
        assert "\n" not in result["message"]
        assert result["evidence"]


def put(target, name, value):
    """A flaw: one attribute of the evidence (dotted) set to value."""

    def apply(given):
        *parents, last = f"{target}.{name}".strip(".").split(".")
        here = given
        for parent in parents:
            here = getattr(here, parent)
        setattr(here, last, value)

    return apply


def tree(complete=True, **changes):
    return lambda given: setattr(given, "tree", Tree(survey(complete=complete, **changes)))


def tier(**changes):
    return lambda given: given.tier.update(changes)


def run(**changes):
    return lambda given: setattr(given, "record", record(given.tier, **changes))


def key(**changes):
    return lambda given: setattr(given.storage, "key", dataclasses.replace(given.storage.key, **changes))


def proc(**changes):
    return lambda given: setattr(given, "processes", [process(**changes)])


def unit(**changes):
    return lambda given: given.units.update(
        {"vllm.service": dataclasses.replace(given.units["vllm.service"], **changes)}
    )


def both(*flaws):
    return lambda given: [flaw(given) for flaw in flaws]


STOPPED = both(put("", "processes", []), put("", "views", []), put("", "engines", []))

FLAWS = [
    # KV-02
    ("KV-02", put("storage", "encrypted", False), "fail", "not encrypted"),
    ("KV-02", put("storage", "encrypted", None), "unknown", "cannot be told"),
    ("KV-02", put("storage", "local", False), "fail", "not local"),
    ("KV-02", put("storage", "mountpoint", "/"), "fail", "not mounted"),
    ("KV-02", put("storage", "cipher", None), "unknown", "cipher"),
    ("KV-02", put("storage", "chain", [{"name": "other", "kind": "crypt"}]), "fail", "not from llmhost_chat"),
    ("KV-02", put("storage", "chain", [{"name": "llmhost_chat", "kind": "dm lvm"}]), "fail", "not from llmhost_chat"),
    ("KV-02", put("storage", "chain", []), "fail", "not from llmhost_chat"),
    ("KV-02", key(status="bad", reason="key file on clear disk"), "fail", "key file on clear disk"),
    ("KV-02", key(status="unknown", reason="no crypttab"), "unknown", "no crypttab"),
    ("KV-02", put("covered", "entries", 2), "fail", "2 entries"),
    ("KV-02", put("covered", "mode", 0o755), "fail", "0755"),
    ("KV-02", put("covered", "uid", UID), "fail", "uid 990"),
    ("KV-02", put("covered", "immutable", False), "fail", "immutable"),
    ("KV-02", put("covered", "error", "only root"), "unknown", "only root"),
    ("KV-02", put("", "views", [View(9, False, "sees another")]), "fail", "sees another"),
    ("KV-02", put("", "views", [View(9, None, "Permission denied")]), "unknown", "Permission"),
    ("KV-02", put("", "place", Place(PATH, missing=True, error="/srv/kv does not exist")), "fail", "does not exist"),
    ("KV-02", put("", "place", Place(PATH, exists=True, error="Permission denied")), "unknown", "Permission"),
    ("KV-02", put("", "place", Place(PATH, unsafe="/srv is a symlink")), "fail", "symlink"),
    # KV-03
    ("KV-03", put("place", "uid", 0), "fail", "belongs to uid 0"),
    ("KV-03", put("place", "mode", 0o755), "fail", "0755"),
    ("KV-03", put("place", "mode", 0o500), "fail", "0500"),
    ("KV-03", put("place", "acl", [AclEntry(0x02, 1000, 4)]), "fail", "u:1000:r--"),
    ("KV-03", put("place", "default_acl", None), "fail", "no default ACL"),
    ("KV-03", put("place", "default_acl", [AclEntry(0x20, None, 4)]), "fail", "o::r--"),
    ("KV-03", put("place", "acl_error", "the file system has no ACLs"), "unknown", "no ACLs"),
    ("KV-03", put("account", "uid", None), "fail", "no account vllm"),
    ("KV-03", put("account", "uid", 1500), "fail", "system account"),
    ("KV-03", put("account", "shell", "/bin/bash"), "fail", "/bin/bash"),
    ("KV-03", put("account", "shell", ""), "fail", "/bin/sh"),
    ("KV-03", put("account", "sharers", ("eve",)), "fail", "eve"),
    ("KV-03", proc(uid=0), "fail", "runs as uid 0"),
    ("KV-03", proc(umask=None), "unknown", "umask"),
    ("KV-03", proc(umask=0o022), "fail", "restart pending"),
    ("KV-03", proc(core_limit="unlimited"), "fail", "restart pending"),
    ("KV-03", proc(coredump_filter=0x33), "fail", "restart pending"),
    ("KV-03", both(proc(umask=0o022), unit(drop_in=False)), "fail", "umask 0022"),
    ("KV-03", unit(directories=(("StateDirectory", PATH, 0o755),)), "fail", "StateDirectory"),
    ("KV-03", unit(directories=(("StateDirectory", "/srv", 0o755),)), "fail", "StateDirectory"),
    ("KV-03", unit(error="systemctl show told nothing"), "unknown", "systemctl"),
    ("KV-03", both(STOPPED, unit(umask=0o022)), "fail", "will run with umask 0022"),
    ("KV-03", both(STOPPED, unit(user="")), "fail", "will run as root"),
    ("KV-03", put("host", "processes", None), "unknown", "cannot be seen"),
    # KV-04
    ("KV-04", tree(loose=2), "fail", "2 loose"),
    ("KV-04", put("place", "mode", 0o755), "fail", "4 reachable"),
    ("KV-04", put("place", "uid", 1000), "fail", "4 reachable"),
    ("KV-04", both(tree(False), run(last_full=None)), "unknown", "24 h"),
    ("KV-04", both(tree(False), run(last_full=NOW - 25 * 3600)), "unknown", "24 h"),
    ("KV-04", both(tree(False), run(last_full=NOW + 3600)), "unknown", "24 h"),
    ("KV-04", both(tree(False), run(measured=None)), "unknown", "24 h"),
    ("KV-04", both(tree(False), run(full=False, finished=None, exit=None)), "pass", "0 loose"),
    ("KV-04", both(tree(False), put("", "record", None)), "unknown", "24 h"),
    ("KV-04", both(tree(False), run(exit=1)), "unknown", "24 h"),
    ("KV-04", both(tree(False), run(loose=7)), "fail", "7 loose"),
    ("KV-04", both(tree(False, loose=1), run(loose=0)), "fail", "1 loose"),
    ("KV-04", tree(errors={"EACCES": 1}), "pass", "0 loose"),
    ("KV-04", put("", "tree", Tree(error="not mounted")), "unknown", "not mounted"),
    # KV-05
    ("KV-05", put("place", "ancestors", [("/", 0, 0o755), ("/srv", 1000, 0o755)]), "fail", "/srv belongs to uid 1000"),
    ("KV-05", put("place", "ancestors", [("/", 0, 0o755), ("/srv", 0, 0o777)]), "fail", "0777"),
    ("KV-05", tree(not_regular=1), "fail", "1 symlinks"),
    ("KV-05", tree(hardlinks=1), "fail", "hard link"),
    ("KV-05", tree(foreign_owner=1), "fail", "another account"),
    ("KV-05", both(tree(False), put("", "record", None)), "unknown", "did not end"),
    ("KV-05", tree(False), "pass", "only regular files"),
    ("KV-05", both(tree(False), run(foreign_owner=2)), "fail", "2 entries"),
    ("KV-05", tree(False, hardlinks=1), "fail", "hard link"),
    ("KV-05", put("", "place", Place(PATH, unsafe="/srv is a symlink")), "fail", "symlink"),
    # KV-06: the limit is 1440 + 5 + 2 minutes
    ("KV-06", tree(oldest_mtime=NOW - 1446 * 60), "pass", "1446 min"),
    ("KV-06", tree(overdue=1, oldest_mtime=NOW - 1448 * 60), "fail", "1 blocks older"),
    ("KV-06", tree(future=1), "fail", "future"),
    ("KV-06", put("host", "clock", False), "fail", "not synchronised"),
    ("KV-06", put("host", "clock", None), "unknown", "clock"),
    ("KV-06", tier(retention_minutes=2000), "fail", "outlive"),
    ("KV-06", tier(retention_minutes=2000, retention_reason="contract"), "pass", "contract"),
    ("KV-06", both(tree(False), put("", "record", None)), "unknown", "did not end"),
    ("KV-06", tree(False), "pass", "61 min"),
    ("KV-06", both(tree(False), run(oldest_mtime=NOW - 1448 * 60)), "fail", "older"),
    ("KV-06", both(tree(False), run(future=3)), "fail", "3 files from the future"),
    ("KV-06", put("", "tree", Tree(error="not mounted")), "unknown", "not mounted"),
    # KV-07
    ("KV-07", put("", "record", None), "fail", "no run"),
    ("KV-07", run(finished=NOW - 12 * 60), "fail", "12 min ago"),
    ("KV-07", run(finished=NOW - 10 * 60), "pass", "last run"),
    ("KV-07", run(finished=NOW + 600), "fail", "future"),
    ("KV-07", run(exit=3, messages=["not the mount"]), "fail", "not the mount"),
    ("KV-07", run(finished=None, exit=None), "pass", "under way"),
    ("KV-07", run(finished=None, exit=None, last_success=None), "unknown", "first run"),
    ("KV-07", run(finished=None, exit=None, started=NOW - 7200), "fail", "killed"),
    ("KV-07", run(finished=None, exit=None, last_success=NOW - 7200), "fail", "no run has ended well"),
    ("KV-07", put("cron", "running", False), "fail", "cron is not running"),
    ("KV-07", put("cron", "running", None), "unknown", "cron"),
    ("KV-07", put("cron", "file_problem", "/etc/cron.d/llmhost does not exist"), "fail", "does not exist"),
    ("KV-07", put("host", "installed", None), "fail", "data map"),
    ("KV-07", put("host", "installed", document(name="other")), "fail", "does not have this tier"),
    ("KV-07", put("host", "installed", document(retention_minutes=60)), "fail", "differs in retention_minutes"),
    # KV-08
    ("KV-08", tree(stale_temps=2, stale_temp_bytes=10), "fail", "2 stale"),
    ("KV-08", tree(strangers=1), "fail", "1 unknown"),
    ("KV-08", both(tree(False), put("", "record", None)), "unknown", "did not end"),
    ("KV-08", both(tree(errors={"EACCES": 1}), put("", "record", None)), "unknown", "EACCES"),
    # KV-10
    ("KV-10", canary(unsalted=1), "fail", "1 of its blocks are found without any salt"),
    ("KV-10", canary(unsalted=1, problem="half"), "fail", "without any salt"),
    ("KV-10", canary(salted=0), "unknown", "never sent or has expired"),
    ("KV-10", canary(salted=None), "unknown", "never sent or has expired"),
    ("KV-10", canary(problem="a random first parent"), "unknown", "random first parent"),
    ("KV-10", put("names", "canaries", []), "unknown", "no canary"),
    ("KV-10", put("names", "problem", "it is no JSON"), "unknown", "no JSON"),
    ("KV-10", put("names", "gateway", False), "fail", "no gateway"),
    ("KV-10", put("names", "gateway", None), "unknown", "cannot be seen"),
    ("KV-10", listening(local=False, listens="0.0.0.0"), "fail", "past the gateway"),
    ("KV-10", listening(local=False, listens="0.0.0.0", own_network=True), "unknown", "not the host's"),
    ("KV-10", listening(hash_algorithm="xxhash"), "fail", "xxhash"),
    ("KV-10", listening(version="0.34.0"), "unknown", "newer"),
    ("KV-10", both(put("names", "servers", []), put("names", "canaries", [])), "not_applicable", "no vLLM server"),
    ("KV-10", tier(store="lmcache_fs"), "not_applicable", "not computed here"),
    # KV-13
    (
        "KV-13",
        put("", "running", [Running(7, "vllm.service", ("vllm", SETTINGS), version="0.34.0")]),
        "unknown",
        "newer",
    ),
    (
        "KV-13",
        put("", "running", [Running(7, "vllm.service", ("vllm", SETTINGS), version="0.29.0", python="3.11")]),
        "fail",
        "[old-python]",
    ),
    # KV-14
    ("KV-14", put("", "engines", [Found(1, "vllm.service", "0.34.0", "/v")]), "unknown", "newer than 0.33.0"),
    ("KV-14", put("", "engines", [Found(1, "vllm.service", "0.34.0rc1", "/v")]), "unknown", "newer than 0.33.0"),
    ("KV-14", put("", "engines", [Found(1, "vllm.service", "0.27.1", "/v")]), "fail", "0.27.1"),
    ("KV-14", put("", "engines", [Found(1, "vllm.service", None, "nothing found")]), "unknown", "nothing found"),
    (
        "KV-14",
        put("", "engines", [Found(1, "vllm.service", "0.29.0", "/v"), Found(2, "vllm.service", "0.27.0", "/w")]),
        "fail",
        "0.27.0",
    ),
    ("KV-14", put("", "engines", []), "unknown", "none is recognised"),
    ("KV-14", STOPPED, "pass", "stopped"),
    ("KV-14", both(STOPPED, put("host", "root", False)), "unknown", "only root"),
    ("KV-14", put("host", "processes", None), "unknown", "cannot be seen"),
]


@pytest.mark.parametrize("control, flaw, status, words", FLAWS, ids=[f"{f[0]}-{f[3]}" for f in FLAWS])
def test_each_flaw_is_found_and_named(control, flaw, status, words):
    given = evidence()
    flaw(given)
    result = judge(given)[control]
    assert (result["status"], words in result["message"]) == (status, True), result["message"]
    if status == "fail":
        assert result["remedy"]


def test_a_stopped_service_passes_what_can_be_judged_and_says_so():
    given = evidence()
    STOPPED(given)
    results = judge(given)
    assert results["KV-03"]["status"] == "pass" and "not running" in results["KV-03"]["message"]
    assert results["KV-03"]["evidence"]["running"] is False
    assert results["KV-02"]["status"] == "pass"


def test_a_mount_point_without_an_immutable_flag_passes_as_0000_root():
    given = evidence()
    given.covered.immutable = None
    assert judge(given)["KV-02"]["status"] == "pass"


def test_an_existing_volume_need_not_be_a_mount_point_of_its_own():
    given = evidence()
    given.tier["volume"] = None
    given.storage.mountpoint, given.covered = "/", None
    assert judge(given)["KV-02"]["status"] == "pass"


def test_logind_without_removeipc_allows_an_ordinary_uid():
    given = evidence()
    given.account.uid = given.place.uid = 1500
    given.processes = [process(uid=1500)]
    given.account.remove_ipc = False
    assert judge(given)["KV-03"]["status"] == "pass"


def test_an_incomplete_walk_leans_on_the_last_full_pass_and_says_so():
    given = evidence()
    given.tree = Tree(survey(complete=False, blocks=1))
    facts = judge(given)["KV-04"]["evidence"]
    assert facts["source"] == "record of the last full pass"
    assert (facts["blocks"], facts["pass_age_seconds"]) == (3, 101)


def test_numbers_that_are_not_known_are_not_reported():
    given = evidence()
    given.tree, given.record = Tree(error="x"), None
    facts = judge(given)["KV-04"]["evidence"]
    assert facts["reachable"] is None and facts["loose"] is None and facts["blocks"] is None


def test_dead_namespaces_fail_with_the_command_and_what_is_unknown_is_said():
    assert judge(evidence())["KV-08"]["evidence"]["dead_namespaces"] == "not judged"
    given = evidence()
    given.dead = namespaces.Judgement(unknown="no engine of the tier is running")
    found = judge(given)["KV-08"]
    assert found["status"] == "pass"
    assert found["evidence"]["dead_namespaces"] == "cannot tell: no engine of the tier is running"
    given.dead = namespaces.Judgement([namespaces.Namespace("old\x1b[2J_00000000dead", blocks=3, size=48)])
    found = judge(given)["KV-08"]
    assert found["status"] == "fail" and "1 dead namespaces with 48 bytes" in found["message"]
    assert found["remedy"] == "kvtier expire chat --dead-namespaces"
    assert found["evidence"]["dead_namespaces"][0]["blocks"] == 3 and found["message"].isprintable()


def test_names_in_messages_cannot_drive_a_terminal():
    given = evidence()
    given.tree = Tree(survey(strangers=1), ["evil\x1b[2J\nname"])
    result = judge(given)["KV-08"]
    assert result["message"].isprintable()
    assert all(name.isprintable() for name in result["evidence"]["names"])


def test_a_vanished_tier_fails_kv01_and_is_audited_in_full():
    given = evidence()
    given.tier["state"] = "vanished"
    results = judge(given)
    assert list(results) == JUDGED
    assert results["KV-01"]["status"] == "fail"
    assert results["KV-02"]["status"] == "pass"


def test_a_vanished_tier_whose_path_is_gone_fails_kv01_alone():
    given = evidence()
    given.tier["state"] = "vanished"
    given.place = Place(PATH, missing=True, error="/srv/kv does not exist")
    statuses = {name: one["status"] for name, one in judge(given).items()}
    assert statuses.pop("KV-01") == "fail"
    assert set(statuses.values()) == {"not_applicable"}


# Waivers

WAIVER = {"control": "KV-02", "tier": "chat", "reason": "ticket 1", "until": "2027-01-15"}
FINDING = {
    "control": "KV-02",
    "title": "t",
    "severity": "high",
    "tier": "chat",
    "status": "fail",
    "message": "m",
    "evidence": {},
    "remedy": "r",
}


def waive(waiver, status="fail", now=NOW, tiers=("chat",)):
    return controls.apply_waivers([dict(FINDING, status=status)], [waiver], now, tiers)


def day(text):
    return time.mktime(time.strptime(text + " 12:00 UTC", "%Y-%m-%d %H:%M %Z")) - time.timezone


@pytest.mark.parametrize("status", ["fail", "unknown"])
def test_a_waiver_covers_what_does_not_pass(status):
    (result,) = waive(WAIVER, status)
    assert result["status"] == "waived"
    assert "ticket 1" in result["message"] and result["evidence"]["waiver"]["was"] == status


@pytest.mark.parametrize("status", ["pass", "not_applicable"])
def test_a_waiver_changes_nothing_else(status):
    (result,) = waive(WAIVER, status)
    assert result["status"] == status


def test_a_waiver_holds_through_its_last_day_and_no_longer():
    assert waive(WAIVER, now=day("2027-01-15"))[0]["status"] == "waived"
    finding, void = waive(WAIVER, now=day("2027-01-16"))
    assert finding["status"] == "fail"
    assert (void["control"], void["status"]) == ("WAIVER", "fail")
    assert "expired" in void["message"]


@pytest.mark.parametrize(
    "broken",
    [
        {"reason": ""},
        {"reason": None},
        {"until": None},
        {"until": "soon"},
        {"until": "2027-02-30"},
        {"control": "KV-99"},
        {"control": None},
        {"tier": None},
    ],
)
def test_an_incomplete_waiver_is_void_and_a_finding(broken):
    finding, void = waive({**WAIVER, **broken})
    assert finding["status"] == "fail"
    assert (void["control"], void["status"]) == ("WAIVER", "fail")


def test_a_waiver_for_a_tier_of_another_host_is_ignored():
    (result,) = waive({**WAIVER, "tier": "elsewhere", "until": "2020-01-01"})
    assert result["status"] == "fail"


def test_another_controls_waiver_does_not_cover():
    (result,) = waive({**WAIVER, "control": "KV-03"})
    assert result["status"] == "fail"


@pytest.mark.parametrize(
    "status, verdict",
    [("pass", "pass"), ("waived", "pass"), ("not_applicable", "pass"), ("fail", "fail"), ("unknown", "fail")],
)
def test_the_verdict_fails_on_findings_and_on_what_is_unknown(status, verdict):
    found = controls.report(document(), [dict(FINDING, status=status)], NOW)
    assert found["verdict"] == verdict
    assert found["counts"][status] == 1 and sum(found["counts"].values()) == 1


def test_the_digest_is_of_the_map():
    assert controls.map_digest(document()) == controls.map_digest(document())
    assert controls.map_digest(document()) != controls.map_digest(document(retention_minutes=60))


# The audit on this machine


def _document(path, **changes):
    return document(path=str(path), owner=max(1, os.getuid()), volume=None, **changes)


def of_chat(found):
    """The results of the tier itself, without those of its services' memory."""
    return [result for result in found["results"] if result["tier"] == "chat"]


@pytest.fixture
def tier_path(tmp_path, monkeypatch):
    # /tmp is no place for a tier; here only the walk matters.
    monkeypatch.setattr(datamap, "KEYS", dict(datamap.KEYS, path=(str, None)))
    leaf = tmp_path / "kv/m_0123456789ab_r0/abc/de_g0"
    leaf.mkdir(parents=True)
    block = leaf / ("a" * 64 + ".bin")
    block.write_bytes(b"x" * 10)
    block.chmod(0o644)
    return tmp_path / "kv"


def test_the_audit_runs_on_a_host_that_was_never_hardened(tier_path, tmp_path):
    found = controls.audit(_document(tier_path), map_path=str(tmp_path / "none.json"))
    results = {result["control"]: result for result in of_chat(found)}
    assert list(results) == JUDGED
    assert found["verdict"] == "fail"
    assert results["KV-04"]["evidence"]["loose"] == 1
    assert results["KV-04"]["evidence"]["block_bytes"] == 10
    assert results["KV-07"]["status"] == "fail"
    json.dumps(found)


def test_the_audit_changes_nothing(tier_path, tmp_path):
    def snapshot():
        return {
            str(path): (info.st_mode, info.st_uid, info.st_mtime_ns, info.st_ctime_ns)
            for path in [tmp_path, *tmp_path.rglob("*")]
            for info in [path.lstat()]
        }

    before = snapshot()
    controls.audit(_document(tier_path), map_path=str(tmp_path / "none.json"))
    assert snapshot() == before


def test_no_time_makes_the_walk_unknown_and_not_a_pass(tier_path, tmp_path):
    # A walk always gets through one of the units that it can stop between.
    (tier_path / "m_0123456789ab_r0/abd").mkdir()
    found = controls.audit(_document(tier_path), max_seconds=0, map_path=str(tmp_path / "none.json"))
    statuses = {result["control"]: result["status"] for result in of_chat(found)}
    assert statuses["KV-05"] in ("unknown", "fail")
    assert statuses["KV-08"] == "unknown"


@pytest.mark.parametrize("state", ["planned", "absent"])
def test_tiers_that_are_not_there_are_not_judged(tier_path, tmp_path, state):
    # Blocks at an absent tier's path are a finding of their own.
    shutil.rmtree(tier_path)
    found = controls.audit(_document(tier_path, state=state), map_path=str(tmp_path / "none.json"))
    assert {result["status"] for result in found["results"]} == {"not_applicable"}
    assert found["verdict"] == "pass"


def test_stores_without_files_have_nothing_to_judge_on_their_host(tmp_path):
    given = datamap.normalise([{"name": "b", "store": "vllm_obj", "bucket": "kv-x", "endpoint": "https://s3"}], "h")
    found = controls.audit(given, map_path=str(tmp_path / "none.json"))
    assert {result["status"] for result in found["results"]} == {"not_applicable"}
    assert "keeps no files" in found["results"][0]["message"]


def test_a_tier_that_left_the_map_is_audited_from_the_installed_one(tier_path, tmp_path, monkeypatch):
    old = _document(tier_path)
    monkeypatch.setattr(datamap, "installed_map", lambda path: (old, None))
    found = controls.audit(datamap.normalise([], "gpu1"), map_path="ignored")
    assert [result["status"] for result in found["results"] if result["control"] == "KV-01"] == ["fail"]
    assert len(of_chat(found)) == len(JUDGED)


def test_what_lies_open_at_the_path_before_hardening_is_counted(tier_path, tmp_path):
    given = document(path=str(tier_path), owner=max(1, os.getuid()))
    found = controls.audit(given, map_path=str(tmp_path / "none.json"))
    results = {result["control"]: result for result in of_chat(found)}
    assert "not mounted" in results["KV-02"]["message"]
    assert (results["KV-04"]["status"], results["KV-04"]["evidence"]["blocks"]) == ("fail", 1)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root owns a closed mountpoint")
def test_the_closed_mountpoint_of_a_volume_that_is_away_is_not_walked(tier_path, tmp_path):
    given = document(path=str(tier_path), owner=max(1, os.getuid()))
    os.chown(tier_path, 0, 0)
    os.chmod(tier_path, 0)
    found = controls.audit(given, map_path=str(tmp_path / "none.json"))
    results = {result["control"]: result for result in of_chat(found)}
    assert "not mounted" in results["KV-02"]["message"]
    for control in ("KV-04", "KV-08"):
        assert results[control]["status"] == "unknown"
        assert "not mounted" in results[control]["message"]
    assert results["KV-06"]["evidence"]["oldest_age_seconds"] is None


# What is read about the host


def test_units_are_read_from_systemctl_show():
    text = (
        "LoadState=loaded\nActiveState=active\nUser=vllm\nUMask=0077\nStateDirectory=kv other\n"
        "StateDirectoryMode=0755\nRuntimeDirectory=\nRuntimeDirectoryMode=0755\n\n"
        "LoadState=not-found\nActiveState=inactive\nUMask=0022\n"
    )
    units = evidence_host.parse_units(["a.service", "b.service"], text)
    assert units["a.service"].directories == (
        ("StateDirectory", "/var/lib/kv", 0o755),
        ("StateDirectory", "/var/lib/other", 0o755),
    )
    assert (units["a.service"].user, units["a.service"].umask) == ("vllm", 0o077)
    assert not units["b.service"].found
    assert evidence_host.reopens(units["a.service"], "/var/lib/kv/tier")
    assert not evidence_host.reopens(units["a.service"], "/var/lib/kvx")


def test_a_silent_systemctl_is_an_error_and_not_an_absence(tmp_path):
    roots = Roots(etc=str(tmp_path), run=lambda argv: None)
    assert evidence_host.units_of(["a.service"], roots, systemd=True)["a.service"].error
    assert evidence_host.units_of(["a.service"], roots, systemd=False)["a.service"].error is None
    assert evidence_host.units_of(["a@.service"], roots, systemd=True) == {}


def test_the_drop_in_of_a_template_counts_for_its_instances(tmp_path):
    directory = tmp_path / "systemd/system/vllm@.service.d"
    directory.mkdir(parents=True)
    assert not evidence_host.has_drop_in("vllm@a.service", str(tmp_path))
    (directory / "50-llmhost.conf").write_text("")
    assert evidence_host.has_drop_in("vllm@a.service", str(tmp_path))


@pytest.mark.parametrize(
    "text, problem",
    [
        ("*/5 * * * * vllm /usr/local/sbin/kvtier expire chat\n", None),
        ("*/5 * * * * vllm /usr/local/sbin/kvtier expire chat-two\n", "no job"),
        ("#*/5 * * * * vllm /usr/local/sbin/kvtier expire chat\n", "no job"),
        ("*/5 * * * * vllm /usr/local/sbin/kvtier expire chat", "newline"),
    ],
)
def test_the_cron_file_must_be_one_that_cron_obeys(tmp_path, text, problem):
    (tmp_path / "cron.d").mkdir()
    path = tmp_path / "cron.d/llmhost"
    owner = os.getuid()

    def found(uid=owner):
        return str(evidence_host.cron_file_problem("chat", str(tmp_path), uid))

    assert "does not exist" in found()
    path.write_text(text)
    path.chmod(0o644)
    assert found() == "None" if problem is None else problem in found()
    path.chmod(0o664)
    assert "writable" in found()
    assert "belongs to uid" in found(owner + 1)


def test_cron_is_recognised_by_roots_process_alone(tmp_path):
    roots = Roots(etc=str(tmp_path))
    assert evidence_host.cron("chat", [process(comm="cron", uid=0)], roots).running is True
    assert evidence_host.cron("chat", [process(comm="cron", uid=1000)], roots).running is False
    assert evidence_host.cron("chat", None, roots).running is None


def test_login_defs_and_logind_are_read(tmp_path):
    etc = str(tmp_path)
    assert evidence_host.sys_uid_max(etc) == 999
    (tmp_path / "login.defs").write_text("#SYS_UID_MAX 5\nSYS_UID_MAX\t\t499\n")
    assert evidence_host.sys_uid_max(etc) == 499
    assert evidence_host.remove_ipc(etc) is True
    (tmp_path / "systemd/logind.conf.d").mkdir(parents=True)
    (tmp_path / "systemd/logind.conf").write_text("[Login]\n#RemoveIPC=yes\nRemoveIPC=no\n")
    assert evidence_host.remove_ipc(etc) is False
    (tmp_path / "systemd/logind.conf.d/9.conf").write_text("[Login]\nRemoveIPC=yes\n")
    assert evidence_host.remove_ipc(etc) is True


def test_an_unknown_account_has_no_uid():
    assert evidence_host.account_of("no-such-account-here").uid is None
    root = evidence_host.account_of(0)
    assert (root.name, root.uid) == ("root", 0)


def test_a_process_sees_our_directory_or_says_what_it_sees(tmp_path):
    place = posture.look(str(tmp_path))
    roots = Roots()
    me = process(pid=os.getpid())
    assert evidence_tier.look_as(me, place, "0:0", roots).same is True
    assert evidence_tier.look_as(me, dataclasses.replace(place, inode=1), "0:0", roots).same is False
    assert evidence_tier.look_as(process(pid=2**22 + 1), place, "0:0", roots) is None


def test_a_process_in_another_root_is_judged_by_its_mounts(tmp_path):
    (tmp_path / "7/root").mkdir(parents=True)
    (tmp_path / "7/mountinfo").write_text("20 1 253:0 / /kv rw - ext4 /dev/x rw\n")
    roots = Roots(proc=str(tmp_path))
    place = Place("/no/such/place", exists=True, device=1, inode=2)
    assert evidence_tier.look_as(process(pid=7), place, "253:0", roots).same is True
    assert evidence_tier.look_as(process(pid=7), place, "253:1", roots).same is False
    (tmp_path / "7/root/no/such/place").mkdir(parents=True)
    assert evidence_tier.look_as(process(pid=7), place, "253:0", roots).same is False


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can look below a mount")
def test_root_looks_below_a_mount():
    found = evidence_tier.look_below_mount("/proc", True)
    assert found.error is None and found.uid == 0
    assert evidence_tier.look_below_mount("/proc", False).error
