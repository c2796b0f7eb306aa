"""The status of a job, in terms that all places share."""

from __future__ import annotations

import enum
from typing import Any

import msgspec


class JobState(str, enum.Enum):
    """A job's stage of life.

    Waiting -> Starting -> Running -> Succeeded | Failed | Cancelled, with Suspended between Running and Waiting. On
    Kubernetes, a job whose pods failed or that has lost its workers is Restarting until it is Running again.
    """

    WAITING = "Waiting"
    STARTING = "Starting"
    RUNNING = "Running"
    RESTARTING = "Restarting"
    SUSPENDED = "Suspended"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    CANCELLED = "Cancelled"

    @property
    def is_over(self) -> bool:
        return self in (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)

    @property
    def in_words(self) -> str:
        """The state as the predicate of a sentence about a job: `has failed`, `was cancelled`, `is waiting`."""
        verb = {JobState.SUCCEEDED: "has", JobState.FAILED: "has", JobState.CANCELLED: "was"}.get(self, "is")
        return f"{verb} {self.value.lower()}"

    @property
    def has_slots(self) -> bool:
        return self in (JobState.STARTING, JobState.RUNNING)


class Event(msgspec.Struct, frozen=True):
    """One entry of a job's history."""

    at: float
    """Seconds since 1970."""
    text: str
    """One sentence."""


class RankStatus(msgspec.Struct, frozen=True):
    """The status of one worker."""

    rank: int
    """Its rank or, in an elastic job, its number."""
    place: str = ""
    """Its host or pod."""
    state: str = ""
    """Its state, in a word or two."""


class JobStatus(msgspec.Struct, frozen=True, rename="camel"):
    """The status of a job. Times are in seconds since 1970."""

    name: str
    state: JobState
    place: str = ""
    """The place where it runs: `queue`, `kubernetes`, `slurm`, `lsf`, `ray` or `local`."""
    command: tuple[str, ...] = ()
    user: str = ""
    queue: str = ""
    priority: int = 0
    workers: int = 0
    """Present number of workers."""
    wanted: int = 0
    """Number of workers that the job should have."""
    reason: str = ""
    """Why it waits, or how it ended: one sentence."""
    created: float | None = None
    started: float | None = None
    finished: float | None = None
    hosts: tuple[str, ...] = ()
    """Hosts with slots, such as `h1:2`, or pods."""
    ranks: tuple[RankStatus, ...] = ()
    steps_per_second: float | None = None
    restarts: int = 0
    exit_code: int | None = None
    events: tuple[Event, ...] = ()
    """The latest events, the newest last."""


def to_dict(status: JobStatus) -> dict[str, Any]:
    """Return a status as plain data, for `--json`."""
    plain: dict[str, Any] = msgspec.to_builtins(status)
    return plain


def from_dict(plain: Any) -> JobStatus:
    """Return the status that `to_dict` turned into plain data."""
    return msgspec.convert(plain, JobStatus)
