"""Parsers for Slurm's reports about jobs. Pure."""

from __future__ import annotations

from typing import NamedTuple

from farandole.control.batch_systems.system import Row, key_of
from farandole.control.jobs.status import JobState

FIELDS = "%i|%j|%T|%r|%u|%P|%C|%N|%k"
"""The fields that squeue prints of each job; the comment, which may contain a `|`, comes last."""

_STATES = {
    "PENDING": JobState.WAITING,
    "REQUEUED": JobState.WAITING,
    "REQUEUE_FED": JobState.WAITING,
    "CONFIGURING": JobState.STARTING,
    "RUNNING": JobState.RUNNING,
    "COMPLETING": JobState.RUNNING,
    "STAGE_OUT": JobState.RUNNING,
    "RESIZING": JobState.RUNNING,
    "SIGNALING": JobState.RUNNING,
    "SUSPENDED": JobState.SUSPENDED,
    "STOPPED": JobState.SUSPENDED,
    "REQUEUE_HOLD": JobState.SUSPENDED,
    "SPECIAL_EXIT": JobState.SUSPENDED,
    "COMPLETED": JobState.SUCCEEDED,
    "CANCELLED": JobState.CANCELLED,
}
# The spelling of the last one differs between versions.
_HELD = {"JobHeldUser", "JobHeldAdmin", "job requeued in held state", "job_requeued_in_held_state"}
_REASONS = {
    "Resources": "waits: the nodes that it needs are in use",
    "Priority": "waits: jobs with a higher priority are before it",
    "Dependency": "waits: a job that it depends on has not ended",
    "BeginTime": "waits: its start time has not come, or it has just been requeued",
    "QOSMaxJobsPerUserLimit": "waits: you have as many jobs as the QOS allows",
    "AssocMaxJobsLimit": "waits: your account has as many jobs as it is allowed",
    "PartitionDown": "waits: its partition is down",
    "PartitionNodeLimit": "cannot start: it needs more nodes than its partition has",
    "ReqNodeNotAvail": "waits: a node that it needs is not available",
}


class Line(NamedTuple):
    """One line of squeue."""

    id: str
    name: str
    state: str
    reason: str
    user: str
    partition: str
    cores: str
    nodes: str
    comment: str


def read_rows(text: str) -> list[Line]:
    """Return the lines of `squeue -h -o FIELDS`."""
    return [Line(*line.split("|", len(Line._fields) - 1)) for line in text.splitlines() if line.count("|") >= 8]


def state_of(row: Line) -> JobState:
    """Return the state of a job; each of Slurm's failure states counts as failed."""
    if row.state == "PENDING" and row.reason in _HELD:
        return JobState.SUSPENDED
    return _STATES.get(row.state, JobState.FAILED)


def reason_of(row: Line) -> str:
    """Return the reason why a job waits, in our words if they are known."""
    state = state_of(row)
    if state is JobState.SUSPENDED:
        return "until farandole resume"
    if state is JobState.WAITING:
        return _REASONS.get(row.reason, f"waits: Slurm says {row.reason}" if row.reason not in ("", "None") else "")
    return f"Slurm says {row.state}" if state is JobState.FAILED else ""


def row_of(line: Line) -> Row:
    """Return Slurm's report about a job in the form that all batch systems share."""
    key = key_of(line.comment) or ""
    return Row(line.id, state_of(line), line.state, reason_of(line), line.user, line.partition, line.nodes, key)
