# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""KV-02, KV-03 and KV-05: where a tier lies, who owns it, and whether its path can be trusted. Pure."""

from __future__ import annotations

import datetime
import os
from collections.abc import Sequence
from typing import Any

from . import containers, posture, volumekeys
from .datamap import Tier, mapper_name
from .encryption import BAD, UNKNOWN
from .evidence_host import reopens
from .evidence_tier import Evidence
from .judge import NOT_APPLICABLE, Parts, Verdict
from .judge_record import counted, seen_whole
from .units import CONTAINER_DAEMONS, has_own_volume, mount_unit

_HARDEN = "run the harden playbook"
_NO_LOGIN = ("nologin", "false")


def _missing(evidence: Evidence, parts: Parts) -> bool:
    """Judge a path that is not there; True if there is nothing more to judge."""
    place = evidence.place
    if place.unsafe:
        parts.fail(place.unsafe, "put a real directory there, or name the real path in the data map")
    elif place.missing:
        parts.fail(str(place.error), f"{_HARDEN}, or set the tier's state to planned or absent")
    elif place.error:
        parts.unknown(place.error, "run the audit as root")
    return bool(place.unsafe or place.error)


def _attested(evidence: Evidence) -> str | None:
    """The day until which somebody stands for the encryption that cannot be seen."""
    today = datetime.datetime.fromtimestamp(evidence.host.now, datetime.timezone.utc).date()
    return volumekeys.attested_until(evidence.tier["volume"], today)


def encrypted_volume(evidence: Evidence) -> Verdict:
    """KV-02."""
    parts, storage, path = Parts(), evidence.storage, evidence.tier["path"]
    facts: dict[str, Any] = storage.evidence()
    facts["covered"] = evidence.covered.evidence() if evidence.covered else None
    facts["processes_see_it"] = [vars(view) for view in evidence.views[:20]]
    facts["attested"] = _attested(evidence) is not None
    if _missing(evidence, parts):
        return parts.verdict("", facts)
    if has_own_volume(evidence.tier):
        top = storage.chain[0] if storage.chain else {}
        if storage.mountpoint != path:
            parts.fail(
                f"the declared volume is not mounted; the path lies on {storage.source} at {storage.mountpoint}",
                f"systemctl start {mount_unit(path)}",
            )
            return parts.verdict("", facts)
        if top.get("kind") != "crypt" or top.get("name") != mapper_name(evidence.tier):
            parts.fail(
                f"{path} is mounted from {storage.source}, not from {mapper_name(evidence.tier)}",
                f"unmount it and {_HARDEN}",
            )
    _judge_encryption(evidence, parts)
    _judge_covered(evidence, parts)
    for view in evidence.views:
        if view.same is False:
            parts.fail("process %d: %s" % (view.pid, view.detail), "restart it after the mount (container: bind mount)")
        elif view.same is None:
            parts.unknown("process %d: %s" % (view.pid, view.detail), "run the audit as root")
    for apart in (view for view in evidence.containers if view.bare):
        text = f"{apart.named()} has at {apart.at} the directory below the mount of {path}"
        parts.fail(text, containers.restart_of(apart))
    if not evidence.views and not evidence.processes:
        parts.note("services not running")
    size = " %d bit" % storage.key_size_bits if storage.key_size_bits else ""
    reason = storage.key.reason if storage.key else ""
    if storage.encrypted is not True:
        return parts.verdict("its encryption is attested", facts)
    return parts.verdict(f"encrypted by {storage.by} ({storage.cipher}{size}): {reason}", facts)


def _judge_encryption(evidence: Evidence, parts: Parts) -> None:
    storage, key = evidence.storage, evidence.storage.key
    problems = "; ".join(storage.problems)
    if storage.encrypted is not True and (until := _attested(evidence)) is not None:
        parts.note("declared, not proven, until {}: {}".format(until, evidence.tier["volume"]["attested"]["reason"]))
        if not storage.local:
            parts.fail(f"not local: {problems}", "give the tier a volume on a local disk")
        return
    if storage.encrypted is False:
        parts.fail(f"{storage.path} is not encrypted: {problems}", "give the tier a volume in llmhost_tiers")
        return
    if not storage.local:
        parts.fail(f"not local: {problems}", "give the tier a volume on a local disk")
    if storage.encrypted is None or key is None:
        parts.unknown(f"whether it is encrypted cannot be told: {problems}", "run the audit as root, or waive it")
    elif key.status == BAD:
        parts.fail(key.reason, "keep the key in memory or a TPM, or on an encrypted root and closed")
    elif key.status == UNKNOWN:
        parts.unknown(f"encrypted by {storage.by}, but {key.reason}", "name it in /etc/crypttab, or waive it")
    elif storage.cipher is None:
        parts.unknown(f"the cipher of {storage.by} cannot be told", "run the audit as root with cryptsetup installed")


def _judge_covered(evidence: Evidence, parts: Parts) -> None:
    below, path = evidence.covered, evidence.tier["path"]
    if below is None:
        return
    if below.error:
        parts.unknown(below.error, "run the audit as root")
        return
    wrong = []
    if below.entries:
        wrong.append("has %d entries" % below.entries)
    if below.mode or below.uid:
        wrong.append("is %04o of uid %d, not 0000 of root" % (below.mode, below.uid))
    if below.immutable is False:
        wrong.append("is not immutable")
    if wrong:
        parts.fail(
            f"the directory below the mount of {path} " + ", ".join(wrong),
            f"{_HARDEN}, or unmount, empty it, chmod 0000 and chattr +i",
        )


def owned_and_closed(evidence: Evidence) -> Verdict:
    """KV-03."""
    parts, place = Parts(), evidence.place
    running = [
        {
            "pid": one.pid,
            "unit": one.unit,
            "uid": one.uid,
            "umask": None if one.umask is None else "%04o" % one.umask,
            "core_limit": one.core_limit,
            "coredump_filter": one.coredump_filter,
        }
        for one in evidence.processes
    ]
    facts = {
        "directory": {key: value for key, value in place.evidence().items() if key != "ancestors"},
        "account": evidence.account.evidence(),
        "processes": running[:20],
        "running": bool(running),
        "units": {name: _unit_facts(evidence, name) for name in evidence.units},
    }
    if not _missing(evidence, parts):
        _judge_directory(evidence, parts)
    _judge_account(evidence, parts)
    _judge_processes(evidence, parts)
    _judge_units(evidence, parts)
    passed = "%04o, owned by %s, default ACL closed" % (place.mode, evidence.account.name)
    if not running:
        parts.note("services not running")
    return parts.verdict(passed, facts)


def _unit_facts(evidence: Evidence, name: str) -> dict[str, Any]:
    """A unit as evidence shows it."""
    unit = evidence.units[name]
    return {
        "found": unit.found,
        "active": unit.active,
        "user": unit.user,
        "umask": None if unit.umask is None else "%04o" % unit.umask,
        "drop_in": unit.drop_in,
        "error": unit.error,
    }


def _judge_directory(evidence: Evidence, parts: Parts) -> None:
    place, account, path = evidence.place, evidence.account, evidence.tier["path"]
    prepare = "kvtier prepare {}".format(evidence.tier["name"])
    if account.uid is not None and place.uid != account.uid:
        parts.fail("%s belongs to uid %d, not to %s" % (path, place.uid, account.name), prepare)
    if place.mode & 0o777 != 0o700:
        parts.fail("%s is %04o, not 0700" % (path, place.mode), prepare)
    if place.acl is not None and posture.acl_opens(place.acl):
        parts.fail(
            f"{path} has ACL entries for others: {', '.join(posture.acl_opens(place.acl))}", f"setfacl -b {path}"
        )
    if place.acl_error:
        parts.unknown(f"ACLs of {path}: {place.acl_error}", "use ext4 or xfs")
    elif place.default_acl is None:
        parts.fail(f"{path} has no default ACL", prepare)
    elif posture.acl_opens(place.default_acl):
        entries = ", ".join(posture.acl_opens(place.default_acl))
        parts.fail(f"the default ACL of {path} gives to others: {entries}", prepare)


def _judge_account(evidence: Evidence, parts: Parts) -> None:
    account = evidence.account
    if account.uid is None:
        parts.fail(f"there is no account {account.name}", _HARDEN)
        return
    if account.uid > account.sys_uid_max and account.remove_ipc:
        parts.fail(
            "uid %d of %s is no system account: logind deletes its shared memory at the end of a session"
            % (account.uid, account.name),
            "use an account up to uid %d, or RemoveIPC=no in logind.conf" % account.sys_uid_max,
        )
    if account.shell is not None and os.path.basename(account.shell) not in _NO_LOGIN:
        parts.fail(
            f"{account.name} has the login shell {account.shell or '/bin/sh'}",
            f"usermod -s /usr/sbin/nologin {account.name}",
        )
    if account.sharers:
        parts.fail(
            f"in the primary group of {account.name} are also {', '.join(account.sharers[:5])}",
            f"give {account.name} a group of its own",
        )


def _judge_processes(evidence: Evidence, parts: Parts) -> None:
    restart = set()
    account = (evidence.account.uid, evidence.account.gid)
    for text, remedy in dict.fromkeys(
        filter(None, (containers.wrong_user(evidence.tier, view, *account) for view in evidence.containers))
    ):
        parts.fail(text, remedy)
    apart = {view.pid for view in evidence.containers}
    for one in evidence.processes:
        label = "process %d of %s" % (one.pid, one.unit)
        if one.pid not in apart and evidence.account.uid is not None and one.uid != evidence.account.uid:
            parts.fail(
                "%s runs as uid %d, not as %s" % (label, one.uid, evidence.account.name),
                f"set User={evidence.account.name} in {one.unit}",
            )
        unit = evidence.units.get(one.unit or "")
        if one.umask is None:
            parts.unknown(f"the umask of {label} cannot be read", "run the audit as root")
            continue
        stale = one.umask & 0o077 != 0o077
        if one.container is not None:
            if stale:
                remedy = "podman: PodmanArgs=--umask=0077; docker: sh -c 'umask 0077; exec ...'; see engine_offload"
                parts.fail("%s, in a container, has umask %04o" % (label, one.umask), remedy)
            continue
        if unit is not None and unit.drop_in:
            dumps = one.core_limit not in ("0", None) or one.coredump_filter not in (0, None)
            if stale or dumps:
                restart.add(str(one.unit))
        elif stale:
            parts.fail("%s has umask %04o" % (label, one.umask), _HARDEN)
    for name in sorted(restart):
        parts.fail(f"restart pending: {name} runs without what its drop-in sets", f"systemctl restart {name}")
    if evidence.host.processes is None:
        parts.unknown("processes cannot be seen", "run the audit as root")


def _judge_units(evidence: Evidence, parts: Parts) -> None:
    account = evidence.account
    running = {one.unit for one in evidence.processes}
    for name, unit in evidence.units.items():
        if unit.error:
            parts.unknown(f"{name}: {unit.error}")
            continue
        for text in reopens(unit, evidence.tier["path"]):
            parts.fail(f"{name}: {text}", _HARDEN)
        # The account of a container is judged by its processes.
        if not unit.found or name in running or name in CONTAINER_DAEMONS or unit.quadlet:
            continue
        if unit.umask is not None and unit.umask & 0o077 != 0o077:
            parts.fail("%s will run with umask %04o" % (name, unit.umask), _HARDEN)
        if account.uid is not None and unit.user not in (account.name, str(account.uid)):
            parts.fail(
                f"{name} will run as {unit.user or 'root'}, not as {account.name}", f"set User={account.name} in {name}"
            )


_OFFENCES = {
    "not_regular": "symlinks, pipes or directories where a block belongs",
    "hardlinks": "files with a second name (hard link)",
    "foreign_owner": "entries that belong to another account",
}


def safe_path(evidence: Evidence) -> Verdict:
    """KV-05."""
    parts, place, survey = Parts(), evidence.place, evidence.tree.survey
    facts: dict[str, Any] = {
        "ancestors": place.evidence()["ancestors"],
        "complete": evidence.tree.complete,
        **{name: counted(evidence, name) for name in _OFFENCES},
        "first": survey.offenders if survey else [],
    }
    if _missing(evidence, parts):
        return parts.verdict("", facts)
    for text in posture.replaceable(place, evidence.owner):
        parts.fail(text, "let root own each directory above the tier, writable for root only")
    for name, what in _OFFENCES.items():
        if facts[name]:
            parts.fail("%d %s" % (facts[name], what), "look at each and remove it: kv_block_info names the first ones")
    if not seen_whole(evidence):
        parts.unknown(evidence.tree.gap, "give the audit more time (max_seconds), as root")
    return parts.verdict("no one else can replace a part of the path; only regular files of its own account", facts)


def absent(tier: Tier, traces: Sequence[str]) -> Verdict:
    """The part of KV-01 about a tier that the data map declares absent."""
    facts = {"state": "absent", "path": tier["path"], "traces": list(traces)}
    if not traces:
        return Verdict(NOT_APPLICABLE, "the tier is absent", facts)
    parts = Parts()
    parts.fail(f"the tier is declared absent, but {'; '.join(traces)}", f"{_HARDEN}: it says what it cannot take away")
    return parts.verdict("", facts)


def vanished(tier: Tier, exists: bool) -> Verdict:
    """The part of KV-01 about a tier that left the data map."""
    path = tier["path"]
    facts = {"state": "vanished", "path": path, "exists": exists}
    what = "and its blocks may remain" if exists else "and its path is gone too"
    parts = Parts()
    parts.fail(
        f"the tier left the data map, {what}: {path}",
        "put it back into llmhost_tiers, or with state absent once its blocks are gone",
    )
    return parts.verdict("", facts)
