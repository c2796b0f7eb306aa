"""How a job is, in the words that all places have in common."""

from __future__ import annotations

import enum
from typing import Any

import msgspec


class JobState(str, enum.Enum):
    """Where a job is in its life.

    Waiting -> Starting -> Running -> Succeeded | Failed | Cancelled, and Suspended between Running and Waiting. On
    Kubernetes, a job whose pods fail, or that has lost its workers, is Restarting until it is Running again.
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
        """What follows the name of a job in a sentence: `has failed`, `was cancelled`, `is waiting`."""
        verb = {JobState.SUCCEEDED: "has", JobState.FAILED: "has", JobState.CANCELLED: "was"}.get(self, "is")
        return f"{verb} {self.value.lower()}"

    @property
    def has_slots(self) -> bool:
        return self in (JobState.STARTING, JobState.RUNNING)


class Event(msgspec.Struct, frozen=True):
    """Something that happened: when, in seconds since 1970, and one sentence."""

    at: float
    text: str


class RankStatus(msgspec.Struct, frozen=True):
    """One worker: its rank or, in an elastic job, its number; its host or pod; how it is, in a word or two."""

    rank: int
    place: str = ""
    state: str = ""


class JobStatus(msgspec.Struct, frozen=True, rename="camel"):
    """How a job is. Times are seconds since 1970."""

    name: str
    state: JobState
    place: str = ""
    """Where it runs: `queue`, `kubernetes`, `slurm`, `lsf` or `local`."""
    command: tuple[str, ...] = ()
    user: str = ""
    queue: str = ""
    priority: int = 0
    workers: int = 0
    """That it has now."""
    wanted: int = 0
    """That it should have."""
    reason: str = ""
    """One sentence: why it waits, or how it ended."""
    created: float | None = None
    started: float | None = None
    finished: float | None = None
    hosts: tuple[str, ...] = ()
    """Hosts or pods that it has, such as `h1:2`."""
    ranks: tuple[RankStatus, ...] = ()
    steps_per_second: float | None = None
    restarts: int = 0
    exit_code: int | None = None
    events: tuple[Event, ...] = ()
    """The last ones, the newest at the end."""


def to_dict(status: JobStatus) -> dict[str, Any]:
    """Return it as plain data, for `--json`."""
    plain: dict[str, Any] = msgspec.to_builtins(status)
    return plain


def from_dict(plain: Any) -> JobStatus:
    """Return what `to_dict` made plain."""
    return msgspec.convert(plain, JobStatus)
