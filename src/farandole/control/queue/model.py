"""What the queue knows: jobs, hosts and what an administrator has set; and what it sees of attempts. Plain data.

An *attempt* is one try to run a job: from the moment at which it gets slots to the one at which nothing of it runs any
more. A job that is suspended and goes on later has several. An attempt's command is started at most once, by a
*runner*: a process of its own, which outlives the daemon (see `farandole.control.queue.runner`).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from farandole.base.wire.rendezvous import Measures
from farandole.control.jobs.spec import JobSpec
from farandole.control.jobs.status import JobState
from farandole.control.scheduler.account import Account
from farandole.control.scheduler.handover import Slots

Count = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
"""A number in a file that a user may have written."""


class Phase(str, enum.Enum):
    """Where a job is, as the queue sees it."""

    WAITING = "waiting"
    STARTING = "starting"
    """It has slots; its runner may or may not be there yet."""
    RUNNING = "running"
    STOPPING = "stopping"
    """It is to end, for the reason in `why_stopped`, and may still hold its slots."""
    SUSPENDED = "suspended"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_over(self) -> bool:
        return self in (Phase.SUCCEEDED, Phase.FAILED, Phase.CANCELLED)

    @property
    def has_attempt(self) -> bool:
        """Whether there may be something of it that runs."""
        return self in (Phase.STARTING, Phase.RUNNING, Phase.STOPPING)


class Why(str, enum.Enum):
    """Why an attempt is stopped."""

    CANCEL = "cancel"
    SUSPEND = "suspend"
    PREEMPT = "preempt"
    HOST_LOST = "host lost"


STATES = {
    Phase.WAITING: JobState.WAITING,
    Phase.STARTING: JobState.STARTING,
    Phase.RUNNING: JobState.RUNNING,
    Phase.STOPPING: JobState.RUNNING,
    Phase.SUSPENDED: JobState.SUSPENDED,
    Phase.SUCCEEDED: JobState.SUCCEEDED,
    Phase.FAILED: JobState.FAILED,
    Phase.CANCELLED: JobState.CANCELLED,
}


class Owner(msgspec.Struct, frozen=True):
    """Who has submitted a job: what the kernel, or a token, says."""

    uid: int
    gid: int
    name: str


class QueueJob(msgspec.Struct, frozen=True):
    """One job of the queue: what was asked for, and all that has to survive the daemon. Times: seconds since 1970.

    It has as many fields as there are facts that must survive.
    """

    name: str
    spec: JobSpec
    owner: Owner
    submitted: float
    key: str = ""
    """What its client made up for it, so that a request that was sent twice is one job."""
    change_key: str = ""
    """The same for the last request to change it: one that was sent twice is one change."""
    phase: Phase = Phase.WAITING
    wanted: int = 0
    """Workers that its user asks for now; 0: as the spec says."""
    attempt: int = 0
    """The number of the attempt that runs, or of the last one."""
    slots: Slots = msgspec.field(default_factory=dict)
    """What it has; of an elastic job, what it is to have: workers that leave may still be elsewhere (`held`)."""
    held: Slots = msgspec.field(default_factory=dict)
    """What its workers may still use: never less than `slots`, while there is an attempt."""
    changed: float = 0.0
    """When `slots` were changed last."""
    why_stopped: Why | None = None
    urgent: bool = False
    """Whether it is to be stopped at once: it was cancelled twice."""
    account: Account = msgspec.field(default_factory=Account)
    """What it has had: of slots of one shape, since when, and what before."""
    finished: float | None = None
    failures: int = 0
    largest_run: int = 0
    exit_code: int | None = None
    reason: str = ""
    """How it ended, or why it is as it is, where no decision says it."""

    @property
    def replicas(self) -> int:
        return self.wanted or self.spec.workers.replicas

    @property
    def has_slots(self) -> bool:
        return self.phase in (Phase.STARTING, Phase.RUNNING)


class QueueHost(msgspec.Struct, frozen=True):
    """A host of the queue."""

    name: str
    slots: int
    type: str = "slot"
    up: bool = True
    draining: bool = False
    """Whether nothing new may start there, because it is about to be taken away."""


class RunOptions(msgspec.Struct, frozen=True):
    """What the queue's administrator has chosen for the launches of all jobs, such as how ssh reaches the hosts."""

    launch: Mapping[str, Any] = msgspec.field(default_factory=dict)
    """As `farandole.control.launcher.job.from_job.to_plain` writes it."""
    python: tuple[str, ...] = ()
    """The Python of other hosts: `PATH`, or `HOST=PATH`."""
    verbose: bool = False
    """Whether the plan of each job, and every decision of its roster, is in the job's log."""


NO_OPTIONS = RunOptions()


class HostWorkers(msgspec.Struct, frozen=True):
    """What an elastic job says of one host: the slots that it knows of, and the workers that live there."""

    slots: Count
    workers: Count


class AttemptReport(msgspec.Struct, frozen=True):
    """What a runner sees of a running elastic job, now and then."""

    at: float
    """When it began to look, in seconds since 1970."""
    hosts: Mapping[str, HostWorkers]
    workers: Count
    waits_for: str = ""
    steps_per_second: float | None = None
    measures: tuple[Measures, ...] = ()
    """What its training has measured, if its batch adapts itself; the latest at the end."""
    scheduled_batch: Count = 0
    """The batch that its launcher has been told; 0: none."""


class Seen(str, enum.Enum):
    """What can be seen of an attempt."""

    NOTHING = "nothing"
    """Its command was not started; its runner may be about to."""
    RUNS = "runs"
    ORPHANED = "orphaned"
    """It was started, and its runner is gone without a word."""
    MACHINE_LOST = "machine lost"
    """It was started before the queue's machine was, and its runner had written no end."""
    ENDED = "ended"


class AttemptFact(msgspec.Struct, frozen=True):
    """An attempt, as its files show it."""

    seen: Seen
    exit_code: int | None = None
    """Of one that has ended; None: its command was never started, or nobody knows."""
    was_told: bool = False
    """Whether its runner had been told to stop before it ended."""
    report: AttemptReport | None = None


NOTHING_SEEN = AttemptFact(Seen.NOTHING)


# --- what is to be done: actions. Each may be done twice without harm -------------------------------------------------


class StartAttempt(msgspec.Struct, frozen=True, tag=True):
    """See that the attempt is prepared, and that it has a runner."""

    job: str
    attempt: int


class SetHosts(msgspec.Struct, frozen=True, tag=True):
    """Let the elastic job have its workers there."""

    job: str
    attempt: int
    slots: Slots


class SetBatch(msgspec.Struct, frozen=True, tag=True):
    """Let the elastic job, whose batch adapts itself, have that batch.

    Attributes:
        samples: of all workers together; 0: as the job chooses.
    """

    job: str
    attempt: int
    samples: int


class StopAttempt(msgspec.Struct, frozen=True, tag=True):
    """Tell the runner to stop; if there is none, see that none begins.

    Attributes:
        how: `cancel`, `suspend` or `kill`.
    """

    job: str
    attempt: int
    how: str


Action = StartAttempt | SetHosts | SetBatch | StopAttempt


class Event(msgspec.Struct, frozen=True):
    """Something to remember about a job."""

    job: str
    text: str


def in_words(slots: Slots) -> str:
    return ", ".join(f"{host}:{number}" for host, number in slots.items())
