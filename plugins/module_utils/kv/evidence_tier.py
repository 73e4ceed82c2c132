# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Everything the audit reads about one tier, collected before anything is judged. Reads only."""

from __future__ import annotations

import math
import os
import stat
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from . import (
    clock,
    containers,
    discovery,
    encryption,
    evidence_engine,
    evidence_host,
    evidence_names,
    evidence_ports,
    evidence_spill,
    expiry,
    fsio,
    namespaces,
    posture,
    state,
    walk,
)
from .datamap import Document, Tier
from .encryption import Roots, Storage
from .evidence_host import Account, Cron, Unit
from .stores import STORES
from .units import has_own_volume

FOREIGN_NAMES = 10
# A tier of more blocks, whose last full pass is on record and young enough, is only looked into for so long.
LARGE, LOOK_SECONDS = 50_000, 0.5


@dataclass
class Covered:
    """The directory below the tier's mount. immutable None: its file system has no such flag."""

    error: str | None = None
    entries: int = 0
    uid: int = 0
    mode: int = 0
    immutable: bool | None = None

    def evidence(self) -> dict[str, Any]:
        """The same as plain JSON values."""
        return {
            "error": self.error,
            "entries": self.entries,
            "uid": self.uid,
            "mode": "%04o" % self.mode,
            "immutable": self.immutable,
        }


@dataclass
class View:
    """What a process of the tier's services sees. same: the volume that we see at the path; None: cannot tell."""

    pid: int
    same: bool | None
    detail: str


@dataclass
class Tree:
    """The walk through the tier, and why there is none or why it is not complete."""

    survey: walk.Survey | None = None
    foreign: list[str] = field(default_factory=list)
    error: str | None = None

    @property
    def complete(self) -> bool:
        """Did the walk see everything?"""
        return self.survey is not None and self.survey.complete and not self.survey.errors and not self.error

    @property
    def gap(self) -> str:
        """Why the walk did not see everything, for a message."""
        if self.error:
            return self.error
        if self.survey and self.survey.errors:
            return "some directories could not be read ({})".format(", ".join(sorted(self.survey.errors)))
        return (self.survey and self.survey.stopped) or "the walk did not end in time"


@dataclass
class Host:
    """What is read once for all tiers. processes None: they cannot be seen."""

    now: float
    prompt_log_minutes: int
    root: bool
    processes: Sequence[discovery.Process] | None
    clock: bool | None
    installed: Document | None
    installed_problem: str | None
    tiers: Sequence[Tier] = ()
    declared: Sequence[dict[str, Any]] = ()


@dataclass
class Evidence:
    """All that is known about one tier; what the judges get and all they get."""

    tier: Tier
    host: Host
    place: posture.Place
    storage: Storage
    account: Account
    cron: Cron
    tree: Tree
    covered: Covered | None = None
    views: list[View] = field(default_factory=list)
    processes: Sequence[discovery.Process] = ()
    containers: Sequence[containers.View] = ()
    units: dict[str, Unit] = field(default_factory=dict)
    engines: Sequence[discovery.Found] = ()
    running: Sequence[evidence_engine.Running] = ()
    ports: evidence_ports.Ports = field(default_factory=evidence_ports.Ports)
    names: evidence_names.Names = field(default_factory=evidence_names.Names)
    record: dict[str, Any] | None = None
    dead: namespaces.Judgement | None = None
    spill: evidence_spill.Spill = field(default_factory=evidence_spill.Spill)

    @property
    def owner(self) -> int:
        """The account's uid, -1 if there is no such account."""
        return -1 if self.account.uid is None else self.account.uid

    def installed_tier(self) -> Tier | None:
        """The tier as the host's jobs know it."""
        tiers = self.host.installed["tiers"] if self.host.installed else []
        return next((one for one in tiers if one["name"] == self.tier["name"]), None)


def host_facts(document: Document, now: float, installed: Document | None, problem: str | None) -> Host:
    """What the audit reads about the host, once. installed: the data map there, or problem: why there is none."""
    try:
        processes: Sequence[discovery.Process] | None = discovery.processes()
    except OSError:
        processes = None
    return Host(
        now=now,
        prompt_log_minutes=document["prompt_log_retention_minutes"],
        root=os.geteuid() == 0,
        processes=processes,
        clock=clock.synchronised(),
        installed=installed,
        installed_problem=problem,
        tiers=document["tiers"],
        declared=evidence_engine.declared(),
    )


def look_below_mount(path: str, root: bool) -> Covered:
    """The directory that the mount at path covers."""
    if not root:
        return Covered(error="only root can look below a mount")
    try:
        with fsio.covered(path) as fd:
            info = os.fstat(fd)
            flag = fsio.is_immutable(fd)
            return Covered(None, len(os.listdir(fd)), info.st_uid, stat.S_IMODE(info.st_mode), flag)
    except (OSError, fsio.UnsafePath) as error:
        return Covered(error=f"below the mount: {error}")


def look_as(process: discovery.Process, place: posture.Place, device: str, roots: Roots) -> View | None:
    """Does a process see at the tier's path what we see? None if it has ended meanwhile."""
    top = os.path.join(roots.proc, str(process.pid))
    try:
        seen = os.stat(f"{top}/root{place.path}")
        if (seen.st_dev, seen.st_ino) == (place.device, place.inode):
            return View(process.pid, True, "same directory")
        return View(process.pid, False, f"another directory lies at {place.path} for it")
    except (FileNotFoundError, NotADirectoryError):
        if not os.path.exists(top):
            return None
    except ProcessLookupError:
        return None
    except OSError as error:
        return View(process.pid, None, error.strerror or "unreadable")
    # A container may have the volume at a path of its own.
    try:
        if any(mount.device == device for mount in encryption.mounts(roots, str(process.pid))):
            return View(process.pid, True, "the volume at another path")
    except OSError as error:
        return View(process.pid, None, error.strerror or "unreadable")
    return View(process.pid, False, f"has neither {place.path} nor the volume")


def policy_of(tier: Tier) -> walk.Policy:
    """The limits that the audit holds a tier to: retention, plus one interval of expiry and its grace."""
    late = tier["retention_minutes"] + tier["expire_every_minutes"] + tier["grace_minutes"]
    return walk.Policy(late * 60, tier["tmp_grace_minutes"] * 60, tier["dir_grace_minutes"] * 60)


def full_pass(record: dict[str, Any] | None, tier: Tier, now: float) -> bool:
    """Can the record stand in for a walk, since its last full pass is no older than declared?

    The passes since then read what changed; a chmod, which changes no directory, is seen by a full one alone.
    """
    if not record or record["measured"] is None or record["last_full"] is None or record["exit"] == expiry.ERRORS:
        return False
    # It is due after so many hours, begins with the next run and takes its time.
    limit = tier["full_pass_hours"] * 3600 + tier["expire_every_minutes"] * 60 + expiry.MAX_SECONDS
    return bool(0 <= now - record["last_full"] <= limit)


def survey_tier(tier: Tier, owner: int, now: float, deadline: float | None) -> Tree:
    """Walk through a tier's files. deadline: in time.monotonic() seconds."""
    store = STORES[tier["store"]]
    try:
        with fsio.opened(tier["path"]) as fd:
            survey = walk.survey(fd, store, owner, now, policy_of(tier), deadline)
            names = walk.foreign(fd, store, FOREIGN_NAMES) if survey.complete and survey.strangers else []
            return Tree(survey, names)
    except (OSError, fsio.UnsafePath) as error:
        return Tree(error=str(error))


def collect(
    tier: Tier, host: Host, deadline: float | None = None, roots: Roots | None = None, full: bool = False
) -> Evidence:
    """All evidence about one tier with files. deadline: when the walk has to end, in time.monotonic() seconds.

    full: walk through a large tier too, whatever is on record.
    """
    roots = roots or Roots()
    path = tier["path"]
    place = posture.look(path)
    account = evidence_host.account_of(tier["owner"], roots)
    apart = containers.find(tier, host.processes or [], roots.proc)
    writing = {view.pid for view in apart if view.writable}
    processes = [
        one
        for one in host.processes or []
        if one.pid in writing or (discovery.is_of(one.unit, tier["services"]) and not discovery.is_runtime(one))
    ]
    names = [*tier["services"], *sorted({one.unit for one in processes if one.unit})]
    evidence = Evidence(
        tier=tier,
        host=host,
        place=place,
        storage=encryption.describe(path, roots),
        account=account,
        cron=evidence_host.cron(tier["name"], host.processes, roots),
        tree=Tree(error=f"{path} cannot be read"),
        processes=processes,
        containers=apart,
        units=evidence_host.units_of(names, roots),
        engines=discovery.engines(tier, account.uid) if host.processes is not None else [],
        record=state.read_run(tier),
        spill=evidence_spill.look(path, processes, roots),
    )
    evidence.running = evidence_engine.running(processes, evidence.engines, roots.proc)
    evidence.ports = evidence_ports.look(evidence.running, roots.proc)
    evidence.names = evidence_names.look(tier, evidence.running, host.processes, roots.proc)
    if not place.exists:
        return evidence
    mounted = evidence.storage.mountpoint == path
    if mounted:
        evidence.covered = look_below_mount(path, host.root)
    # The closed mountpoint of a volume that is away; anything else there is what really lies at the path.
    if has_own_volume(tier) and not mounted and (place.uid, place.mode) == (0, 0):
        evidence.tree = Tree(error="the declared volume is not mounted")
        return evidence
    bare = {view.pid for view in apart if view.bare}
    views = (look_as(one, place, evidence.storage.device, roots) for one in processes if one.pid not in bare)
    evidence.views = [view for view in views if view is not None]
    known = evidence.record
    short = known is not None and not full and known["blocks"] > LARGE and full_pass(known, tier, host.now)
    look = min(deadline or math.inf, time.monotonic() + LOOK_SECONDS) if short else deadline
    evidence.tree = survey_tier(tier, evidence.owner, host.now, look)
    evidence.dead = look_for_dead(evidence, deadline)
    return evidence


def look_for_dead(evidence: Evidence, deadline: float | None) -> namespaces.Judgement | None:
    """What no running engine of the tier can read any more; None if the tier cannot be read."""
    host, tier = evidence.host, evidence.tier
    if host.processes is None:
        return namespaces.Judgement(unknown="processes cannot be seen")
    try:
        with fsio.opened(tier["path"]) as fd:
            return namespaces.judge(tier, fd, evidence.engines, host.processes, host.clock, deadline)
    except (OSError, KeyError, fsio.UnsafePath):
        return None
