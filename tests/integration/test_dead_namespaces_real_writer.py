# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the real vLLM fs tier leaves after a change of model is found dead and goes; what it uses now stays."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest
from test_expiry_real_writer import Tier, tier

from ansible_collections.llmhost.hardening.plugins.module_utils.kv import namespaces
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.stores import STORES

pytestmark = pytest.mark.integration
__all__ = ["tier"]  # the fixture

DELETE_DEAD = """
import sys
sys.path.insert(0, sys.argv[1])
from kv import cli, clock, datamap, namespaces
delete_dead = namespaces.delete_dead
namespaces.delete_dead = lambda tier, **options: delete_dead(tier, state_root=sys.argv[3], **options)
clock.synchronised = lambda: True  # nothing keeps the clock of a build machine
datamap.validate = lambda document, source: document
raise SystemExit(cli.main(["--map", sys.argv[2], "expire", "soak", "--dead-namespaces", "--json", *sys.argv[4:]]))
"""


def delete_dead(tier: Tier, *options: str) -> dict:
    command = [sys.executable, "-c", DELETE_DEAD, str(tier.program), str(tier.map), str(tier.state), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.startswith("["), done.stderr
    return json.loads(done.stdout)[0]


@pytest.mark.parametrize("variant", ["compiled", "python"])
def test_another_model_strands_a_namespace_that_goes_on_request(tier, run_writer, variant):
    with tier.writer(run_writer, variant, model="Qwen/Qwen2-7B") as running:
        running.more("stored")
        old = running.stop()["base"].rpartition("/")[2]
    time.sleep(namespaces.SLACK + 0.5)  # what was written that shortly before a start might be the new engine's
    assert "no engine of the tier is running" in delete_dead(tier)["messages"][0], (
        "what a stopped engine read is not dead"
    )
    with tier.writer(run_writer, variant, model="Qwen/Qwen3-8B") as running:
        running.more("stored", "loaded")
        live = running.status()["base"].rpartition("/")[2]
        assert STORES["vllm_fs"].namespaces.home.fullmatch(live)
        listed = delete_dead(tier, "--dry-run")
        assert [one["name"] for one in listed["dead"]] == [old] and listed["dead"][0]["blocks"] > 0
        assert (tier.root / old / "config.json").exists()
        done = delete_dead(tier)
        assert (done["exit"], done["removed"], done["messages"]) == (0, [old], [])
        assert sorted(path.name for path in tier.root.iterdir()) == [live, f"{live}_r0"]
        assert delete_dead(tier)["dead"] == []
        after = running.more("stored", "loaded")
        assert (after["wrong"], after["misses"], after["errors"]) == (0, 0, {})


def test_a_start_on_what_is_there_already_marks_it(tier, run_writer):
    """Otherwise a restart with the same configuration would make its own blocks dead."""
    for _start in range(2):
        with tier.writer(run_writer, "python") as running:
            running.more("stored")
            assert delete_dead(tier)["dead"] == []
            running.stop()
