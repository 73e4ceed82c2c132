# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Can whoever lists a bucket recognise a prompt? Names in a real listing of SeaweedFS, by the probe and for KV-10."""

from __future__ import annotations

import json
import os
import time

import pytest
import s3_servers
from module_runner import run

from ansible_collections.llmhost.hardening.plugins.module_utils.kv import blocknames, controls, datamap

pytestmark = pytest.mark.integration

VERSION, SALT, RETENTION = "0.33.0", "tenant-secret", 1440
TOKENS = list(range(100, 148))


@pytest.fixture(scope="module")
def weed():
    with s3_servers.weed() as server:
        yield server


def store(server, bucket, salt, prefix="qwen", tokens=None):
    """A prompt's blocks, under the keys that vLLM gives them."""
    keys = [
        f"{prefix}//m_0123456789ab_r0/{name[:3]}/{name[3:5]}_g0/{name}.bin"
        for name in blocknames.names(tokens or TOKENS, 16, VERSION, salt=salt)
    ]
    server.put(bucket, *keys)


def probe(server, bucket, **more):
    options = server.options(bucket, prefix="qwen", **more)
    return run("kv_prefix_probe", token_ids=TOKENS, version=VERSION, **options)


def test_the_probe_finds_salted_names_with_the_salt_only_and_plain_ones_without(weed):
    bucket = weed.bucket("probed")
    store(weed, bucket, SALT)
    assert (probe(weed, bucket)["found"], probe(weed, bucket, salt=SALT)["present"]) == (False, 3)
    store(weed, bucket, None)
    answer = probe(weed, bucket)
    assert (answer["present"], answer["blocks"], answer["changed"]) == (3, 3, False)
    assert SALT not in json.dumps(probe(weed, bucket, salt=SALT))


def test_names_below_another_prefix_are_not_the_tier_s(weed):
    bucket = weed.bucket("beside")
    store(weed, bucket, None, prefix="other")
    assert probe(weed, bucket)["found"] is False
    answer = run("kv_prefix_probe", token_ids=TOKENS, version=VERSION, **weed.options(bucket, prefix="other"))
    assert answer["present"] == 3


def test_a_tier_of_the_map_names_its_bucket(weed):
    bucket = weed.bucket("mapped")
    store(weed, bucket, None)
    raw = {"name": "cold", "store": "vllm_obj", "bucket": bucket, "endpoint": weed.endpoint, "prefix": "qwen"}
    given = {
        key: value for key, value in weed.options(bucket).items() if key in ("access_key", "secret_key", "path_style")
    }
    answer = run(
        "kv_prefix_probe", token_ids=TOKENS, version=VERSION, tier="cold",
        data_map=datamap.normalise([raw], "gpu1"), **given,
    )  # fmt: skip
    assert answer["present"] == 3, answer


def test_a_bucket_that_cannot_be_listed_is_a_failure_and_never_not_found(weed):
    answer = probe(weed, "no-such-bucket")
    assert answer["failed"] and "no-such-bucket" in answer["msg"]
    bucket = weed.bucket("denied")
    answer = run(
        "kv_prefix_probe", token_ids=TOKENS, version=VERSION,
        **{**weed.options(bucket, prefix="qwen"), "secret_key": "x" * 20},
    )  # fmt: skip
    assert answer["failed"] and "x" * 20 not in json.dumps(answer)


@pytest.mark.skipif(os.geteuid() != 0, reason="canaries and salts are root's")
def test_kv_10_judges_the_canaries_of_a_bucket(weed, tmp_path):
    bucket = weed.bucket("canaries")
    salt = tmp_path / "salt"
    salt.write_text(SALT)
    salt.chmod(0o600)
    file = tmp_path / "canaries.json"
    entry = {"tier": "cold", "token_ids": TOKENS, "version": VERSION, "salt_file": str(salt)}
    raw = {"name": "cold", "store": "vllm_obj", "bucket": bucket, "endpoint": weed.endpoint, "prefix": "qwen"}
    document = datamap.normalise([{**raw, "retention_minutes": RETENTION}], "gpu1")

    def judged(*entries):
        file.write_text(json.dumps({"canaries": list(entries)}))
        options = weed.options(bucket, prefix="qwen", store="vllm_obj", tier="gpu1/cold")
        answer = run("bucket_lifecycle_info", retention_minutes=RETENTION, canaries_file=str(file), **options)
        assert not answer.get("failed"), answer
        assert SALT not in json.dumps(answer)
        report = controls.audit(document, buckets={"cold": answer}, map_path=str(tmp_path / "none"))
        (one,) = [one for one in report["results"] if one["control"] == "KV-10" and one["tier"] == "cold"]
        return one["status"], one["message"]

    assert judged({**entry, "tier": "gpu2/cold"})[0] == "not_applicable"
    assert judged(entry)[0] == "unknown", "nobody sent it"
    store(weed, bucket, SALT)
    assert judged(entry)[0] == "pass"
    assert judged({**entry, "tier": "gpu1/cold"})[0] == "pass"
    assert judged({**entry, "version": None})[0] == "unknown"
    file.chmod(0o644)
    assert judged({**entry, "salt_file": str(tmp_path / "none")})[0] == "unknown"
    store(weed, bucket, None)
    status, message = judged(entry)
    assert status == "fail" and "without any salt" in message


def test_an_answer_of_yesterday_or_of_another_bucket_is_not_judged(tmp_path):
    """Then KV-09 says so, and KV-10 claims nothing."""
    raw = {"name": "cold", "store": "vllm_obj", "bucket": "kv-prod", "endpoint": "https://s3.example", "prefix": "qwen"}
    document = datamap.normalise([{**raw, "retention_minutes": RETENTION}], "gpu1")
    asked = {"bucket": "kv-prod", "endpoint": "https://s3.example", "prefix": "qwen", "retention_minutes": RETENTION}
    found = [{"number": 1, "blocks": 3, "unsalted": 3, "salted": 0, "problem": None}]

    def judged(**changed):
        answer = {
            "kept": True,
            "kept_by": "rules",
            "asked": {**asked, "time": time.time(), **changed},
            "canaries": found,
        }
        report = controls.audit(document, buckets={"cold": answer}, map_path=str(tmp_path / "none"))
        return [one["status"] for one in report["results"] if one["control"] == "KV-10" and one["tier"] == "cold"]

    assert judged() == ["fail"]
    assert judged(time=time.time() - 86400) == ["not_applicable"]
    assert judged(bucket="other") == ["not_applicable"]
