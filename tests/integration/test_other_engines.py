# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""SGLang and LMCache out of their wheels: what the role sets reaches them, and the registry knows their files."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from functools import cache
from pathlib import Path

import claims
import pytest
import wheels

from ansible_collections.llmhost.hardening.plugins.module_utils.kv import datamap, offload_engines, offload_keys
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.stores import STORES

pytestmark = pytest.mark.integration

KEYS = {"--config": offload_keys.KeyFile(None, True)}
PROGRAM = Path(__file__).with_name("other_engines.py")
HOST = "https://files.pythonhosted.org/packages/"
SGLANG = wheels.Wheel(
    "0.5.23",
    "sglang-0.5.23-cp313-cp313-manylinux_2_34_x86_64.whl",
    HOST + "fb/b9/873f06005ec16594eb576b283370785eceecb5ce881a252ed2d47dcbeb85/"
    "sglang-0.5.23-cp313-cp313-manylinux_2_34_x86_64.whl",
    39049978,
)
LMCACHE = wheels.Wheel(
    "0.5.6",
    "lmcache-0.5.6-cp313-cp313-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl",
    HOST + "05/60/52654b4f454850543e7a52bbb000df9e37553d761499daab6a3a245327d3/"
    "lmcache-0.5.6-cp313-cp313-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl",
    17716092,
)
FILES = {
    "sglang": (
        SGLANG,
        lambda name: name.endswith(("srt/environ.py", "mem_cache/hicache_storage.py", "file/lru_file_evictor.py")),
        "cadd2b995c8ead6713ca9d6f989e78c44fae055919e00e523a83047fd91853e5",
    ),
    "lmcache": (
        LMCACHE,
        lambda name: name.endswith(
            (
                "lmcache/utils.py",
                "v1/config.py",
                "v1/config_base.py",
                "connector/fs_connector.py",
                "storage_backend/local_disk_backend.py",
            )
        ),
        "db6717f8b23475a6d2562fcde8e0a4ae98eae8ba335c2ed0518b5e1a0e5110a5",
    ),
}


@cache
def tree(engine):
    wheel, wanted, digest = FILES[engine]
    return claims.checked(wheel, wanted, wheels.cache_dir() / "claims" / f"{engine}-{digest[:8]}", digest)


def a_tier(store, path, **more):
    raw = {
        "name": "tier",
        "store": store,
        "path": "/srv/llmhost-x",
        "owner": "engine",
        "services": ["e.service"],
        **more,
    }
    return dict(datamap.normalise([raw], "gpu1")["tiers"][0], path=str(path))


def ask(engine, environment, umask=0o077, **given):
    done = subprocess.run(
        [sys.executable, PROGRAM, engine, tree(engine)],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        env=os.environ | environment,
        umask=umask,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert "error" not in answer, answer
    return answer


def test_sglang_stores_its_pages_in_the_tier_under_the_rendered_cap(tmp_path):
    tier = a_tier("sglang_file", tmp_path / "pages", max_bytes="8K")
    rendered = offload_engines.sglang(tier, ["/x", "--config", "/y"], KEYS)
    assert rendered.refusals == []
    keys = [f"{number:064x}" for number in range(6)]
    found = ask("sglang", rendered.environment, keys=keys)
    assert found["place"] == tier["path"] and found["missing"]
    layout = STORES["sglang_file"].layout
    assert 1 <= len(found["files"]) <= 2, "the cap of 8 KiB holds two pages"
    assert all(layout.file_for(name) is not None for name in found["files"])
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "pages").iterdir()} == {0o600}


def test_sglang_s_clear_removes_what_is_not_its_own(tmp_path):
    """Why a clear endpoint without a key is refused."""
    tier = a_tier("sglang_file", tmp_path)
    (tmp_path / "precious.txt").write_text("x")
    ask("sglang", offload_engines.sglang(tier, ["/x", "--config", "/y"], KEYS).environment, keys=["a" * 64], clear=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("store", "name"), [("lmcache_fs", "remote_url"), ("lmcache_disk", "local_disk")])
def test_lmcache_s_own_writer_stores_where_the_role_says_and_what_the_registry_knows(store, name, tmp_path):
    tier = a_tier(store, tmp_path, max_bytes="3G")
    rendered = offload_engines.lmcache(tier, ["/x"])
    names = [name, "max_local_disk_size", "internal_api_server_host"]
    found = ask("lmcache", rendered.environment, store=store, names=names)
    assert str(found["config"][name]).removeprefix("fs://") == str(tmp_path)
    assert found["config"]["internal_api_server_host"] == "127.0.0.1"
    assert found["config"]["max_local_disk_size"] == (3.0 if store == "lmcache_disk" else 0.0)
    layout = STORES[store].layout
    assert [layout.file_for(file).kind for file in found["files"]] == ["block"] and found["same"]
    if store == "lmcache_fs":
        assert found["miss"] and layout.file_for(found["temporary"]).kind == "temp"
    else:
        assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}
