# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Everything on a host that a later step would refuse, found before anything is changed.

gather() reads the host, judge() decides: all problems of all tiers at once.
"""

from __future__ import annotations

import datetime
import glob
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from . import absent, access, containers, datamap, discovery, encryption, fsio, host, system, units, volume, volumekeys
from .datamap import CAP_PERCENT, Document, Problem, Tier, file_tiers
from .system import Account, HostError
from .volume import Seen

MIN_PYTHON = (3, 9)
MIN_KERNEL = (5, 10)
PYTHON = "/usr/bin/python3"


@dataclass(frozen=True)
class Unit:
    """What systemd knows of a writer's unit."""

    load: str
    user: str = ""
    dynamic: bool = False
    source: str = ""

    @property
    def quadlet(self) -> bool:
        """Does podman's generator make it? Then the account is in the container and not in User=."""
        return self.source.endswith(".container")


@dataclass(frozen=True)
class Facts:
    """What a host has, as far as the map asks for it."""

    python: tuple[int, ...] = ()
    kernel: tuple[int, ...] = ()
    init: str = ""
    dm_crypt: bool = False
    sys_uid_max: int = 999
    remove_ipc: bool = True
    can_add_accounts: bool = True
    accounts: Mapping[Any, Account | None] = field(default_factory=dict)
    units: Mapping[str, Unit] = field(default_factory=dict)
    volumes: Mapping[str, Seen] = field(default_factory=dict)
    paths: Mapping[str, Seen] = field(default_factory=dict)
    totals: Mapping[str, int] = field(default_factory=dict)
    storages: Mapping[str, encryption.Storage] = field(default_factory=dict)
    blocked: tuple[Problem, ...] = ()
    gone: tuple[absent.Left, ...] = ()
    containers: Mapping[str, Sequence[containers.View]] = field(default_factory=dict)


def numbers(text: str) -> tuple[int, ...]:
    """Leading numbers of a version."""
    match = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(int(part) for part in match.group().split(".")) if match else ()


def sys_uid_max(text: str) -> int:
    """SYS_UID_MAX of a login.defs, 999 if it does not say."""
    found = re.findall(r"^[ \t]*SYS_UID_MAX[ \t]+(\d+)", text, re.MULTILINE)
    return int(found[-1]) if found else 999


def remove_ipc(texts: Sequence[str]) -> bool:
    """Does logind delete the shared memory of accounts? texts: its configuration files, the weakest first."""
    value = True
    for text in texts:
        for raw in re.findall(r"^[ \t]*RemoveIPC[ \t]*=[ \t]*(\S*)", text, re.MULTILINE):
            value = raw.lower() not in ("no", "false", "0", "off", "n", "f")
    return value


def logind_files(root: str = "/") -> list[str]:
    """logind's configuration files, the weakest first: the main one, drop-ins by name, /etc over /run over /usr."""
    chosen: dict[str, str] = {}
    for base in ("usr/lib", "usr/local/lib", "run", "etc"):
        for path in glob.glob(os.path.join(root, base, "systemd/logind.conf.d/*.conf")):
            chosen[os.path.basename(path)] = path
    main = [os.path.join(root, base, "systemd/logind.conf") for base in ("etc", "run", "usr/local/lib", "usr/lib")]
    first = [path for path in main if os.path.exists(path)][:1]
    return first + [chosen[name] for name in sorted(chosen)]


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(1 << 20)
    except OSError:
        return ""


def _dm_crypt() -> bool:
    if os.path.exists("/sys/module/dm_crypt"):
        return True
    try:
        return system.run(["modprobe", "--dry-run", "--quiet", "dm_crypt"], 60).returncode == 0
    except HostError:
        return False


def _unit_states(services: Sequence[str]) -> dict[str, Unit]:
    plain = [name for name in services if not system.is_template(name)]
    found = {
        name: Unit(
            values.get("LoadState", ""),
            values.get("User", ""),
            values.get("DynamicUser") == "yes",
            values.get("SourcePath", ""),
        )
        for name, values in system.show(plain, ("LoadState", "User", "DynamicUser", "SourcePath")).items()
    }
    for name in services:
        if system.is_template(name):
            listed = system.run(["systemctl", "list-unit-files", "--no-legend", "--no-pager", "--", name])
            found[name] = Unit("loaded" if name in listed.stdout else "not-found")
    return found


def bucket_tiers(document: Document) -> list[str]:
    """Names of the tiers with a bucket in the new map, and of those that the host has besides (read-only)."""
    merged = datamap.merge(host.old_map(document)[0], document)
    return [tier["name"] for tier in merged["tiers"] if tier["bucket"] and tier["state"] != "planned"]


def gather(document: Document) -> Facts:
    """What judge() wants to know (read-only)."""
    tiers = file_tiers(document, ("present",))
    blocked: list[Problem] = []
    old, _warnings, problems = host.old_map(document)
    blocked += problems
    try:
        access.foreign_units(document)
    except HostError as error:
        blocked.append(Problem(document["host"], "-", "services", str(error), "move that file away"))
    is_systemd = _text("/proc/1/comm").strip() == "systemd"
    gone = absent.look_all(document) if is_systemd else []
    blocked += [problem for left in gone for problem in absent.judge(left, document["host"])]
    version = system.run([PYTHON, "-I", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"], 60)
    table = system.mounts()
    volumes: dict[str, Seen] = {}
    paths: dict[str, Seen] = {}
    totals: dict[str, int] = {}
    storages: dict[str, encryption.Storage] = {}
    known = {(tier["name"], tier["path"]) for tier in (file_tiers(old) if old else [])}
    ours = frozenset(tier["name"] for tier in tiers if (tier["name"], tier["path"]) in known)
    for tier in tiers:
        if units.has_own_volume(tier) and is_systemd:
            volumes[tier["name"]] = volume.look(tier, table)
        else:
            # A stranger's file in a tier that runs is a finding of the audit, no reason to stop.
            paths[tier["name"]] = Seen(**volume.look_path(tier, table, content=tier["name"] not in ours))
            if tier["volume"]:
                storages[tier["name"]] = encryption.describe(tier["path"])
            with fsio.opened(_nearest(tier["path"])) as fd:
                room = os.fstatvfs(fd)
                totals[tier["name"]] = room.f_blocks * room.f_frsize
    services = sorted({service for tier in tiers for service in tier["services"]})
    states = _unit_states(services) if is_systemd else {}
    owners = {tier["owner"] for tier in tiers} | {unit.user for unit in states.values() if unit.user}
    return Facts(
        python=numbers(version.stdout),
        kernel=numbers(os.uname().release),
        init=_text("/proc/1/comm").strip(),
        dm_crypt=_dm_crypt() if volumes else True,
        sys_uid_max=sys_uid_max(_text("/etc/login.defs")),
        remove_ipc=remove_ipc([_text(path) for path in logind_files()]),
        can_add_accounts=shutil.which("useradd", path=system.PATH) is not None,
        accounts={owner: system.account_of(owner) for owner in owners},
        units=states,
        volumes=volumes,
        paths=paths,
        totals=totals,
        storages=storages,
        blocked=tuple(blocked),
        gone=tuple(gone),
        containers=_in_containers(tiers),
    )


def _in_containers(tiers: Sequence[Tier]) -> dict[str, list[containers.View]]:
    processes = discovery.processes() if tiers else []
    return {tier["name"]: containers.find(tier, processes) for tier in tiers}


def _nearest(path: str) -> str:
    """The deepest ancestor of a path that is a real directory."""
    while True:
        try:
            fsio_fd, _ancestors = fsio.open_path(path)
            os.close(fsio_fd)
            return path
        except (OSError, fsio.UnsafePath):
            path = os.path.dirname(path)


def judge(document: Document, facts: Facts, wipes: Sequence[dict[str, Any]] = ()) -> list[Problem]:
    """Every reason not to touch this host with this map."""
    name = document["host"]
    tiers = file_tiers(document, ("present",))
    own = volume.own_tiers(document)
    problems: list[Problem] = []

    def wrong(tier: str, key: str, reason: str, fix: str) -> None:
        problems.append(Problem(name, tier, key, reason, fix))

    if facts.init != "systemd":
        wrong("-", "-", f"PID 1 is {facts.init or 'unknown'}, not systemd", "use a host that boots with systemd")
    if facts.python < MIN_PYTHON:
        found = ".".join(map(str, facts.python)) or "missing"
        wrong("-", "-", f"{PYTHON} is {found}; kvtier needs 3.9", "install python3 3.9 or newer")
    if own and not facts.dm_crypt:
        fix = "boot a kernel that has it, or declare the tiers with `volume: {backend: existing}`"
        wrong(own[0]["name"], "volume.backend", "this kernel has no dm_crypt", fix)
    if own and facts.kernel < MIN_KERNEL:
        reason = "kernel {} has no mount option nosymfollow (5.10)".format(".".join(map(str, facts.kernel)))
        wrong(own[0]["name"], "volume.backend", reason, "boot a newer kernel")
    problems += facts.blocked
    for tier in tiers:
        problems += _judge_owner(tier, facts, name)
        problems += _judge_services(tier, facts, name)
        problems += _judge_containers(tier, facts, name)
        if tier["name"] in facts.volumes:
            problems += volume.judge(tier, facts.volumes[tier["name"]], name, wipes)
        elif tier["name"] in facts.paths:
            problems += _judge_plain(tier, facts, name)
    problems += volume.judge_room(own, [facts.volumes.get(tier["name"], Seen()) for tier in own], name)
    return problems


def _judge_plain(tier: Tier, facts: Facts, name: str) -> list[Problem]:
    """A tier on storage that is not ours."""
    seen = facts.paths[tier["name"]]
    problems = volume.judge_path(tier, seen, name)
    if tier["volume"] and seen.exists:
        problems += _judge_existing(tier, facts.storages.get(tier["name"]), name)
    if tier["volume"] and not seen.exists and not seen.unsafe:
        reason = "{} does not exist, and an existing volume is checked only".format(tier["path"])
        problems.append(
            Problem(name, tier["name"], "path", reason, "mount it first, or declare a volume of backend dmcrypt")
        )
    total = facts.totals.get(tier["name"], 0)
    if tier["max_bytes"] and total and tier["max_bytes"] > total * CAP_PERCENT // 100:
        reason = "the cap is above %d %% of the file system's %d MiB" % (CAP_PERCENT, total >> 20)
        fix = "lower it to at most %dM or use a larger file system" % ((total * CAP_PERCENT // 100) >> 20)
        problems.append(Problem(name, tier["name"], "max_bytes", reason, fix))
    return problems


def _judge_existing(tier: Tier, storage: encryption.Storage | None, name: str) -> list[Problem]:
    """A volume that is declared to exist has to be encrypted and local, or somebody has to stand for it."""
    attested = tier["volume"]["attested"]
    if storage is None or volumekeys.attested_until(tier["volume"], datetime.date.today()):
        return []
    if attested:
        reason = "the attestation of {} ended on {}".format(tier["path"], attested["until"])
        return [Problem(name, tier["name"], "volume.attested", reason, "have it renewed, or give the tier a volume")]
    why = "; ".join(storage.problems) or "cannot be seen"
    key = storage.key
    if storage.encrypted is not True:
        told = "is not encrypted" if storage.encrypted is False else "cannot be told to be encrypted"
        reason = f"{tier['path']} {told}: {why}"
    elif not storage.local:
        reason = f"{tier['path']} is not local: {why}"
    elif key is not None and key.status == encryption.BAD:
        reason = f"the encryption of {tier['path']} protects nothing: {key.reason}"
    else:
        return []
    fix = "give the tier a volume of backend dmcrypt, or say who encrypts it in volume.attested (reason, until)"
    return [Problem(name, tier["name"], "volume.backend", reason, fix)]


def _judge_owner(tier: Tier, facts: Facts, name: str) -> list[Problem]:
    owner = tier["owner"]
    found = facts.accounts.get(owner)
    if found is None:
        if facts.can_add_accounts:
            return []
        fix = "create the account, or install the package passwd"
        return [Problem(name, tier["name"], "owner", f"there is no account {owner} and no useradd", fix)]
    if found.uid == 0:
        fix = "run the engine as a system account of its own and name that"
        return [Problem(name, tier["name"], "owner", f"{owner} is root under another name", fix)]
    if found.uid > facts.sys_uid_max and facts.remove_ipc:
        reason = "%s has uid %d, above the system accounts' %d: logind deletes a running engine's shared memory" % (
            owner,
            found.uid,
            facts.sys_uid_max,
        )
        fix = "run the engine as a system account (useradd --system), or set RemoveIPC=no in /etc/systemd/logind.conf"
        return [Problem(name, tier["name"], "owner", reason, fix)]
    return []


def _judge_services(tier: Tier, facts: Facts, name: str) -> list[Problem]:
    problems: list[Problem] = []

    def wrong(reason: str, fix: str) -> None:
        problems.append(Problem(name, tier["name"], "services", reason, fix))

    for service in tier["services"]:
        unit = facts.units.get(service)
        if unit is None:
            continue
        if unit.load == "not-found":
            wrong(f"there is no unit {service}", "correct the name, or write `state: planned` until it is installed")
        elif unit.load not in ("loaded", "merged"):
            wrong(
                f"unit {service} is {unit.load or 'unknown'}", "repair it, or write `state: planned` until it can run"
            )
        elif unit.dynamic:
            wrong(f"unit {service} has DynamicUser=yes, its uid is not fixed", "give it User= of a system account")
        elif unit.user and not _same_account(unit.user, tier["owner"], facts):
            wrong(
                f"unit {service} runs as {unit.user}, not as {tier['owner']}",
                f"write owner: {unit.user}, or change User=",
            )
    return problems


def _judge_containers(tier: Tier, facts: Facts, name: str) -> list[Problem]:
    """A container that writes the tier as another account, root before all."""
    found: dict[str, Problem] = {}
    account = facts.accounts.get(tier["owner"])
    for view in facts.containers.get(tier["name"], ()):
        wrong = containers.wrong_user(tier, view, *(account or (None, None)))
        if wrong is not None:
            found.setdefault(view.container or str(view.pid), Problem(name, tier["name"], "services", *wrong))
    return list(found.values())


def _same_account(user: str, owner: Any, facts: Facts) -> bool:
    if user == str(owner):
        return True
    theirs, ours = facts.accounts.get(user), facts.accounts.get(owner)
    if user.isdigit():
        return ours is not None and int(user) == ours.uid
    return theirs is not None and ours is not None and theirs.uid == ours.uid


def warnings(document: Document, facts: Facts) -> list[str]:
    """What an operator should know although nothing stops."""
    texts = list(host.old_map(document)[1])
    for tier in file_tiers(document, ("present",)):
        for service in tier["services"]:
            unit = facts.units.get(service)
            if unit and unit.load == "loaded" and not (unit.user or unit.quadlet or service in units.CONTAINER_DAEMONS):
                texts.append(
                    "tier {}: unit {} sets no User=: what it writes as root, {} can neither read nor expire".format(
                        tier["name"], service, tier["owner"]
                    )
                )
    return texts


def plan(document: Document, facts: Facts) -> list[dict[str, Any]]:
    """What the later steps will do to volumes and paths, tier by tier."""
    result = []
    for tier in volume.own_tiers(document):
        seen = facts.volumes.get(tier["name"])
        if seen is not None:
            result.append({"tier": tier["name"], "steps": volume.steps(tier, seen)})
    result += [{"tier": left.tier["name"], "steps": todo} for left in facts.gone if (todo := absent.steps(left))]
    return result
