# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""kvsweep: what cron and a person call to keep a retention in a bucket that rules of whole days cannot keep."""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
import syslog
import time
from collections.abc import Sequence
from typing import Any

from ..kv import fsio
from . import errors, proof, sweep, sweep_state
from .client import Bucket
from .errors import S3Error

VERSION = "0.1.0"
OK, ERRORS, USAGE, REFUSED, BUSY, CLOCK, UNFINISHED = 0, 1, 2, 3, 4, 5, 6
EXIT_CODES = {
    OK: "the pass is complete and nothing is overdue",
    ERRORS: "something could not be listed, deleted or recorded, or is overdue and could not be deleted",
    USAGE: "wrong use, or a job that cannot be read",
    REFUSED: "refused: no credentials, no right, no such bucket, or the server does not speak S3",
    BUSY: "another pass of the job is active",
    CLOCK: "the server's clock is off: nothing was deleted",
    UNFINISHED: "time was up; the next pass goes on where this one stopped",
}
MAX_LISTED = 1000
_KINDS = ("objects", "versions", "markers", "uploads")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; exit codes as in EXIT_CODES."""
    os.umask(0o022)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    options = _parser().parse_args(argv)
    syslog.openlog("kvsweep", syslog.LOG_PID, syslog.LOG_DAEMON)
    try:
        return int(options.run(options))
    except sweep_state.BadJob as error:
        return _fail(str(error), USAGE)
    except OSError as error:
        return _fail(f"{options.command}: {error}", ERRORS)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="kvsweep", description="Deletes what outlived its retention in KV buckets.")
    parser.add_argument("--version", action="version", version=f"kvsweep {VERSION}")
    parser.add_argument("--config", default=sweep_state.CONFIG_DIR, help="directory of jobs (default %(default)s)")
    parser.add_argument("--state", default=sweep_state.STATE_DIR, help="directory of records (default %(default)s)")
    commands = parser.add_subparsers(dest="command", required=True)
    codes = "; ".join(f"{code} {meaning}" for code, meaning in EXIT_CODES.items())
    command = commands.add_parser("run", help="one pass over each job", epilog=f"Exit codes: {codes}.")
    command.add_argument("job", nargs="*", help="jobs (default: all)")
    command.add_argument("--dry-run", action="store_true", help="list what would go, delete and record nothing")
    command.add_argument("--trust-clock", action="store_true", help="believe the server's clock although it is off")
    command.add_argument("--max-seconds", type=float, default=3000.0, metavar="N")
    command.add_argument("--json", action="store_true")
    command.set_defaults(run=_run)
    command = commands.add_parser("status", help="how each job stands")
    command.set_defaults(run=_status)
    command = commands.add_parser("policy", help="the least rights that a job needs, as an IAM policy")
    command.add_argument("job")
    command.set_defaults(run=_policy)
    return parser


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")


def _fail(message: str, code: int) -> int:
    line = proof.printable(message, 2000)
    syslog.syslog(syslog.LOG_ERR, line)
    sys.stderr.write(f"kvsweep: {line}\n")
    return code


def _run(options: argparse.Namespace) -> int:
    worst = OK
    results = []
    for name in options.job or sweep_state.jobs(options.config):
        job = sweep_state.load_job(name, options.config)
        result = one_pass(job, options)
        results.append(result)
        syslog.syslog(syslog.LOG_INFO if result["exit"] == OK else syslog.LOG_WARNING, summary(result))
        if not options.json:
            for line in result.get("would_delete", ()):
                _say(line)
            _say(summary(result))
        worst = max(worst, result["exit"])
    if options.json:
        _say(json.dumps(results, indent=2, sort_keys=True))
    return worst


def one_pass(job: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """One pass of one job: its record, which is also written unless this is a dry run."""
    dry = bool(options.dry_run)
    former = sweep_state.read(sweep_state.record_path(job["id"], options.state))
    if former is not None and former["target"] != sweep_state.target_of(job):
        former = None
    record = sweep_state.new_record(job, time.time())
    if former is not None:
        record["last_success"] = former["last_success"]
        record["resume"] = None if dry else former["resume"]
    begun = time.monotonic()
    listed: list[str] = []

    def note(kind: str, key: str) -> None:
        if len(listed) < MAX_LISTED:
            listed.append(f"{kind[:-1]} {proof.printable(key, 1100)}")

    try:
        if dry:
            _work(job, record, options, note)
        else:
            with sweep_state.locked(job["id"], options.state):
                _work(job, record, options, note)
                record["finished"], record["seconds"] = time.time(), time.monotonic() - begun
                if record["exit"] == OK:
                    record["last_success"] = record["started"]
                sweep_state.write(record, options.state)
                _write_metrics(job, record)
    except sweep_state.Busy as error:
        record["exit"] = BUSY
        record["messages"].append(str(error))
    record["seconds"] = time.monotonic() - begun
    return {**record, "would_delete": listed} if dry else record


def _work(job: dict[str, Any], record: dict[str, Any], options: argparse.Namespace, note: Any) -> None:
    """The pass itself; its end is in the record, whatever happens."""
    code = OK
    message = ""
    try:
        work = sweep.Sweep(
            Bucket(sweep_state.settings_of(job)),
            sweep_state.keys_of(job),
            60 * sweep_state.retention_of(job),
            record,
            delete=not options.dry_run,
            rate=job["deletes_per_second"],
            max_seconds=options.max_seconds,
            trust_clock=options.trust_clock,
            note=note if options.dry_run else None,
            save=None if options.dry_run else lambda one: sweep_state.write(one, options.state),
        )
        work.run()
    except sweep.TimeUp:
        code = UNFINISHED
    except sweep.ClockJumped as error:
        code, message = CLOCK, str(error)
    except S3Error as error:
        message = str(error)
        refused = (errors.USAGE, errors.DENIED, errors.NO_BUCKET, errors.UNSUPPORTED)
        code = REFUSED if error.kind in refused else ERRORS
    if message:
        record["messages"].append(proof.printable(message, 1000))
    if code == OK and not options.dry_run and (record["errors"] or record["overdue"]):
        code = ERRORS
    record["exit"] = code


def summary(record: dict[str, Any]) -> str:
    """One line about one pass."""
    gone = ", ".join(f"{record['deleted'][kind]} {kind}" for kind in _KINDS)
    line = (
        f"sweep {record['id']}: exit {record['exit']}, seen {record['seen']}, deleted {gone}, "
        f"overdue {record['overdue']}, strangers {record['strangers']}, {record['seconds']:.2f} s"
    )
    if record["errors"]:
        line += "; errors " + ", ".join(f"{number} {code}" for code, number in sorted(record["errors"].items()))
    if "would_delete" in record:
        line += f"; dry run, at most {MAX_LISTED} listed"
    return "; ".join([line, *record["messages"][:3]])


METRICS = {
    "llmhost_bucket_objects": "Objects and versions of the tier that the last pass saw.",
    "llmhost_bucket_overdue": "What outlived its retention and could not be deleted.",
    "llmhost_bucket_strangers": "Keys under the tier's prefix that are not the tier's.",
    "llmhost_bucket_oldest_age_seconds": "Age of the oldest that the last pass found, before it deleted.",
    "llmhost_bucket_deleted": "What the last pass deleted.",
    "llmhost_bucket_last_run_timestamp_seconds": "When the last pass began.",
    "llmhost_bucket_last_success_timestamp_seconds": "When the last pass that ended well began.",
    "llmhost_bucket_exit_code": "Exit code of the last pass, see docs/buckets.md.",
    "llmhost_bucket_interval_seconds": "Time between two passes.",
    "llmhost_bucket_retention_seconds": "How long data may live.",
}


def metrics(job: dict[str, Any], record: dict[str, Any]) -> str:
    """The pass in the Prometheus text format."""
    oldest, success = record["oldest_seconds"], record["last_success"]
    values = [record["seen"], record["overdue"], record["strangers"], oldest or 0, sum(record["deleted"].values())]
    values += [record["started"], success, record["exit"], 60 * job["interval_minutes"]]
    values.append(60 * sweep_state.retention_of(job))
    labels = {"job": job["id"], "bucket": job["bucket"], "prefix": sweep_state.keys_of(job).prefix}
    escaped = {key: text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") for key, text in labels.items()}
    inside = ",".join(f'{key}="{text}"' for key, text in escaped.items())
    lines = []
    for (name, text), value in zip(METRICS.items(), values):
        if value is not None:
            lines += [f"# HELP {name} {text}", f"# TYPE {name} gauge", f"{name}{{{inside}}} {int(value)}"]
    return "\n".join(lines) + "\n"


def _write_metrics(job: dict[str, Any], record: dict[str, Any]) -> None:
    if not job["metrics_dir"]:
        return
    path = os.path.join(job["metrics_dir"], f"llmhost_sweep_{job['id']}.prom")
    try:
        fsio.write_atomic(path, metrics(job, record).encode(), 0o644)
    except OSError as error:
        # Without node_exporter there is no directory for it.
        syslog.syslog(syslog.LOG_NOTICE, f"metrics not written to {path}: {error.strerror}")


def _status(options: argparse.Namespace) -> int:
    worst = OK
    for name in sweep_state.jobs(options.config):
        job = sweep_state.load_job(name, options.config)
        record = sweep_state.read(sweep_state.record_path(name, options.state))
        settings, keys = sweep_state.settings_of(job), sweep_state.keys_of(job)
        state = sweep_state.alive(record, time.time(), 60 * job["interval_minutes"], settings, keys)
        head = f"{name} ({job['endpoint'] or 'AWS'}, {keys.prefix!r}, {sweep_state.retention_of(job)} minutes):"
        if record is None or not state["alive"]:
            _say(f"{head} NOT ALIVE. {state['message']}. See kvsweep run {name}")
            worst = ERRORS
        else:
            _say(f"{head} good, {record['seen']} objects, {record['strangers']} keys that are not the tier's")
    return worst


def _policy(options: argparse.Namespace) -> int:
    job = sweep_state.load_job(options.job, options.config)
    _say(json.dumps(policy(job["bucket"], sweep_state.keys_of(job).prefix), indent=2))
    return OK


def policy(bucket: str, prefix: str) -> dict[str, Any]:
    """The least rights that a pass needs."""
    arn = f"arn:aws:s3:::{bucket}"
    return {
        "Version": "2012-10-17",
        "Statement": [
            {
                "Effect": "Allow",
                "Action": ["s3:ListBucket", "s3:ListBucketVersions"],
                "Resource": arn,
                "Condition": {"StringLike": {"s3:prefix": prefix + "*"}},
            },
            # A list of uploads carries no prefix that a condition could look at.
            {
                "Effect": "Allow",
                "Action": ["s3:GetBucketVersioning", "s3:ListBucketMultipartUploads"],
                "Resource": arn,
            },
            {
                "Effect": "Allow",
                "Action": ["s3:DeleteObject", "s3:DeleteObjectVersion", "s3:AbortMultipartUpload"],
                "Resource": f"{arn}/{prefix}*",
            },
        ],
    }
