# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""KV-11: which ports are for blocks, and that a firewall that is not understood is never taken for a closed one."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from test_controls import both, evidence, judge, put

from ansible_collections.llmhost.hardening.plugins.module_utils.kv import evidence_ports, firewall
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.evidence_engine import Running
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.evidence_ports import Port, Ports
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.firewall import CLOSED, NAMED, OPEN, UNKNOWN, Reach
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.listeners import Listener

LISTENER = Listener("0.0.0.0", 5600, False, "NIXL side channel", 77)


def chain(policy="drop", **changes):
    base = {"family": "inet", "table": "f", "name": "input", "hook": "input", "policy": policy}
    return {"chain": {**base, **changes}}


def rule(*expressions):
    return {"rule": {"family": "inet", "table": "f", "chain": "input", "expr": list(expressions)}}


def match(key, value, right, op="=="):
    return {"match": {"op": op, "left": {key: value}, "right": right}}


def dport(right, op="=="):
    return match("payload", {"protocol": "tcp", "field": "dport"}, right, op)


def saddr(right, op="=="):
    return match("payload", {"protocol": "ip", "field": "saddr"}, right, op)


ACCEPT, DROP = {"accept": None}, {"drop": None}
STATE = rule(match("ct", {"key": "state"}, ["established", "related"], "in"), ACCEPT)
LO = rule(match("meta", {"key": "iif"}, "lo"), ACCEPT)
PEER = rule(saddr({"prefix": {"addr": "10.0.0.0", "len": 24}}), dport(5600), ACCEPT)

RULES = [
    ([], OPEN),
    (None, UNKNOWN),
    ([chain(hook="output")], OPEN),
    ([chain(family="ip6")], OPEN),
    ([chain("accept")], OPEN),
    ([chain(), STATE, LO], CLOSED),
    ([chain(), rule(dport(22), ACCEPT)], CLOSED),
    ([chain(), rule(dport({"set": [22, {"range": [5000, 6000]}]}), ACCEPT)], OPEN),
    ([chain(), rule(dport(22, "!="), ACCEPT)], OPEN),
    ([chain(), rule(ACCEPT)], OPEN),
    ([chain(), rule({"counter": {}}, ACCEPT)], OPEN),
    ([chain(), PEER], NAMED),
    ([chain(), rule(saddr({"set": ["10.0.0.1", {"range": ["10.0.0.3", "10.0.0.9"]}]}), ACCEPT)], NAMED),
    ([chain(), rule(saddr({"prefix": {"addr": "0.0.0.0", "len": 0}}), ACCEPT)], OPEN),
    ([chain(), rule(saddr("10.0.0.1", "!="), ACCEPT)], UNKNOWN),
    ([chain(), rule(saddr("@peers"), ACCEPT)], UNKNOWN),
    ([chain(), rule(match("meta", {"key": "iifname"}, "ib0"), ACCEPT)], UNKNOWN),
    ([chain(), rule(match("meta", {"key": "l4proto"}, "udp"), ACCEPT)], CLOSED),
    ([chain(), rule(match("meta", {"key": "l4proto"}, {"set": ["udp", "tcp"]}), ACCEPT)], OPEN),
    ([chain(), rule(match("payload", {"protocol": "icmp", "field": "type"}, "echo-request"), ACCEPT)], CLOSED),
    ([chain(), rule({"jump": {"target": "x"}})], UNKNOWN),
    ([chain("accept"), PEER, rule(dport(5600), DROP)], NAMED),
    ([chain("accept"), rule(dport(5600), {"reject": None})], CLOSED),
    # What may or may not drop is no wall.
    ([chain("accept"), rule(dport("@ports"), DROP)], UNKNOWN),
    ([chain("accept"), rule(dport(5600), {"limit": {"rate": 5}}, DROP)], UNKNOWN),
    ([chain("accept"), rule(match("ct", {"key": "state"}, "invalid"), DROP)], OPEN),
    ([chain(), rule({"xt": None})], UNKNOWN),
    ([chain("accept"), chain("drop", table="g", name="in")], CLOSED),
]


@pytest.mark.parametrize(("rules", "who"), RULES)
def test_a_rule_that_is_not_understood_closes_nothing(rules, who) -> None:
    assert firewall.reach(rules, 5600, False).who == who


def test_the_snippet_lets_in_the_peers_alone() -> None:
    rules = [
        chain("accept", table="llmhost", name="kv"),
        {
            "rule": {
                "family": "inet",
                "table": "llmhost",
                "chain": "kv",
                "expr": [saddr("10.0.0.9"), dport(5600), ACCEPT],
            }
        },
        {"rule": {"family": "inet", "table": "llmhost", "chain": "kv", "expr": [dport(5600), DROP]}},
    ]
    assert firewall.reach(rules, 5600, False) == Reach(NAMED, "llmhost kv lets in 10.0.0.9")
    assert firewall.reach(rules, 5600, True).who == CLOSED
    assert firewall.snippet([5600], ["10.0.0.9"]).count("5600") == 2


def open_port(who: str, **changes):
    return put("", "ports", Ports((Port(LISTENER._replace(**changes), "NIXL side channel", Reach(who, "a rule")),)))


@pytest.mark.parametrize(
    ("flaw", "status", "words"),
    [
        (open_port(OPEN), "fail", "everybody reaches port 5600"),
        (open_port(UNKNOWN), "unknown", "cannot be told"),
        (open_port(NAMED), "pass", "a rule"),
        (open_port(CLOSED), "pass", "a rule"),
        (put("", "ports", Ports(unread=(7,))), "unknown", "cannot be seen"),
        (both(put("host", "processes", None)), "unknown", "cannot be seen"),
    ],
)
def test_a_port_for_blocks_that_everybody_reaches_fails(flaw, status, words) -> None:
    given = evidence()
    flaw(given)
    result = judge(given)["KV-11"]
    assert (result["status"], words in result["message"]) == (status, True), result


@pytest.mark.parametrize(
    ("words", "config", "kv"),
    [
        (("vllm", "--port", "{port}"), None, ""),
        (("vllm", "--port={port}"), None, ""),
        (("vllm", '{{"host": "0.0.0.0", "port": {port}}}'), None, "named in its settings"),
        (("vllm",), "port: {port}\n", ""),
        (("vllm",), '{{"control_port": {port}}}', "named in its settings"),
    ],
)
def test_a_port_is_for_blocks_if_the_settings_say_so_and_not_for_the_api(
    monkeypatch, tmp_path, words, config, kv
) -> None:
    monkeypatch.setattr(firewall, "read", lambda proc: [])
    said = tuple(word.format(port=9009) for word in words)
    running = Running(7, "vllm.service", said, config and config.format(port=9009))
    found = evidence_ports.look([running], listens(tmp_path, 9009, "net:[1]")).found
    assert [(one.kv, one.reach and one.reach.who) for one in found] == [(kv, OPEN if kv else None)]


def listens(root, port: int, network: str) -> str:
    """A /proc in which process 7 listens on every address."""
    for name, target in (("7/ns", network), ("self/ns", "net:[1]")):
        (root / name).mkdir(parents=True)
        (root / name / "net").symlink_to(target)
    for name in ("fd", "net"):
        (root / "7" / name).mkdir()
    (root / "7/fd/3").symlink_to("socket:[99]")
    (root / "7/net/tcp").write_text(f"header\n   0: 00000000:{port:04X} 00000000:0000 0A 0:0 0:0 0 0 0 99 1\n")
    return str(root)


def test_a_process_in_a_network_of_its_own_is_not_judged_by_the_hosts_rules(tmp_path) -> None:
    proc = listens(tmp_path, 5600, "net:[2]")
    (found,) = evidence_ports.look([Running(7, None, ("vllm",))], proc).found
    assert (found.listener.port, found.reach.who) == (5600, UNKNOWN)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has a network of its own to load rules in")
def test_real_nftables_are_read_as_they_are(tmp_path) -> None:
    script = (
        "import json,sys; from ansible_collections.llmhost.hardening.plugins.module_utils.kv import firewall;"
        "rules = firewall.read();"
        "print(json.dumps([firewall.reach(rules, port, False).who for port in (5600, 5710, 22)]))"
    )
    load = (
        "add table inet f; add chain inet f input { type filter hook input priority 0; policy drop; };"
        "add rule inet f input ct state established,related accept; add rule inet f input iif lo accept;"
        "add rule inet f input tcp dport { 22, 8000-8010 } accept;"
        "add rule inet f input ip saddr 10.0.0.0/24 tcp dport 5600 accept"
    )
    (tmp_path / "rules").write_text(load.replace(";add", "\nadd").replace("; add", "\nadd"))
    shell = f"nft -f {tmp_path}/rules && {sys.executable} -c '{script}'"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    answer = subprocess.run(
        ["unshare", "-n", "sh", "-c", shell], capture_output=True, text=True, check=True, env=environment
    )
    assert json.loads(answer.stdout) == [NAMED, CLOSED, OPEN]
