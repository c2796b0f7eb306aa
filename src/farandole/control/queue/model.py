"""The queue's data: jobs, hosts, an administrator's options, and the observed state of attempts.

An *attempt* is one try to run a job: from the moment at which it gets slots until no process of it runs any more. A
job that is suspended and resumed has several. An attempt's command is started at most once, by a *runner*: a separate
process, which outlives the daemon (see `farandole.control.queue.runner`).
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
"""A count in a file that a user may have written."""


class Phase(str, enum.Enum):
    """The state of a job in the queue."""

    WAITING = "waiting"
    STARTING = "starting"
    """It has slots; its runner may not have started yet."""
    RUNNING = "running"
    STOPPING = "stopping"
    """It is being ended, for the reason in `why_stopped`, and may still hold its slots."""
    SUSPENDED = "suspended"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_over(self) -> bool:
        return self in (Phase.SUCCEEDED, Phase.FAILED, Phase.CANCELLED)

    @property
    def has_attempt(self) -> bool:
        """Whether processes of the job may be running."""
        return self in (Phase.STARTING, Phase.RUNNING, Phase.STOPPING)


class StopReason(str, enum.Enum):
    """The reason for which an attempt is stopped."""

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
    """The user who submitted a job, according to the kernel or a token."""

    uid: int
    gid: int
    name: str


class SlotNumbers(msgspec.Struct, frozen=True):
    """The numbers of the slots that a job has on a host.

    Attributes:
        numbers: the number of each of the job's slots, from 0, in the order in which the job counts them.
        count: number of all slots of the host.
    """

    numbers: tuple[int, ...]
    count: int

    def first(self, slots: int) -> str:
        """Return the first `slots` of them in the form that the launcher reads.

        Example:
            >>> SlotNumbers((1, 3, 0), 4).first(2)
            '1,3/4'
        """
        return f"{','.join(map(str, self.numbers[:slots]))}/{self.count}"


class QueueJob(msgspec.Struct, frozen=True):
    """One job of the queue: its spec, and all state that must survive the daemon. Times: seconds since 1970."""

    name: str
    spec: JobSpec
    owner: Owner
    submitted: float
    key: str = ""
    """Chosen by the client, so that a repeated request to submit the job creates no second one."""
    change_key: str = ""
    """Chosen by the client of the last change, so that a repeated request does not count as a second change."""
    phase: Phase = Phase.WAITING
    wanted: int = 0
    """The number of workers that its user asks for now; 0 means the number in the spec."""
    attempt: int = 0
    """The number of the current attempt, or of the last one."""
    slots: Slots = msgspec.field(default_factory=dict)
    """Its slots; those of an elastic job are a target: workers that are leaving may still be elsewhere (`held`)."""
    held: Slots = msgspec.field(default_factory=dict)
    """The slots that its workers may still use: never fewer than `slots` while there is an attempt."""
    numbered: Mapping[str, SlotNumbers] = msgspec.field(default_factory=dict)
    """The numbers of its slots on each host: at least as many as it holds there."""
    changed: float = 0.0
    """When `slots` last changed."""
    why_stopped: StopReason | None = None
    urgent: bool = False
    """Whether it must be stopped at once, because it was cancelled twice."""
    account: Account = msgspec.field(default_factory=Account)
    """The time that it has had slots of one shape, and its totals before that."""
    finished: float | None = None
    failures: int = 0
    largest_run: int = 0
    exit_code: int | None = None
    reason: str = ""
    """How it ended, or why it is in its state, where no decision of the policy gives the reason."""

    @property
    def replicas(self) -> int:
        return self.wanted or self.spec.workers.replicas

    @property
    def slot_numbers(self) -> dict[str, str]:
        """The numbers of its slots on each host, in the form that the launcher reads."""
        return {host: self.numbered[host].first(count) for host, count in self.slots.items() if host in self.numbered}

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
    """Whether it gets no new work, because it is about to be removed."""


class RunOptions(msgspec.Struct, frozen=True):
    """The launch options that the queue's administrator has chosen for all jobs, such as those of ssh."""

    launch: Mapping[str, Any] = msgspec.field(default_factory=dict)
    """In the form that `farandole.control.launcher.job.from_job.to_plain` writes."""
    python: tuple[str, ...] = ()
    """The Python interpreter of other hosts: `PATH`, or `HOST=PATH`."""
    verbose: bool = False
    """Whether the plan of each job, and every decision of its roster, is written to the job's log."""


NO_OPTIONS = RunOptions()


class HostWorkers(msgspec.Struct, frozen=True):
    """An elastic job's report on one host: the slots that it knows, and its live workers there."""

    slots: Count
    workers: Count


class AttemptReport(msgspec.Struct, frozen=True):
    """A runner's periodic report on a running elastic job."""

    at: float
    """When the observation began, in seconds since 1970."""
    hosts: Mapping[str, HostWorkers]
    workers: Count
    waits_for: str = ""
    steps_per_second: float | None = None
    measures: tuple[Measures, ...] = ()
    """The measurements of its training, latest last, if it has an adaptive batch size."""
    scheduled_batch: Count = 0
    """The batch that its launcher has received, in samples; 0 if none."""


class AttemptState(str, enum.Enum):
    """The observed state of an attempt."""

    NOTHING = "nothing"
    """Its command was not started; its runner may be about to start it."""
    RUNS = "runs"
    ORPHANED = "orphaned"
    """Its command was started, and its runner is gone without having recorded a result."""
    MACHINE_LOST = "machine lost"
    """Its command was started before the queue's machine restarted, and its runner had recorded no result."""
    ENDED = "ended"


class AttemptFact(msgspec.Struct, frozen=True):
    """The observed facts about an attempt, from its files."""

    seen: AttemptState
    exit_code: int | None = None
    """The exit code of an attempt that has ended; None if its command was never started, or the code is unknown."""
    was_told: bool = False
    """Whether its runner was ordered to stop before it ended."""
    report: AttemptReport | None = None


NOTHING_SEEN = AttemptFact(AttemptState.NOTHING)


# --- actions. Each may be repeated without harm ----------------------------------------------------------------------


class StartAttempt(msgspec.Struct, frozen=True, tag=True):
    """Prepare the attempt, and start a runner if it has none."""

    job: str
    attempt: int


class SetHosts(msgspec.Struct, frozen=True, tag=True):
    """Set the hosts of the elastic job's workers."""

    job: str
    attempt: int
    slots: Slots
    numbers: Mapping[str, str] = {}
    """The numbers of these slots on each host."""


class SetBatch(msgspec.Struct, frozen=True, tag=True):
    """Set the batch of an elastic job that has an adaptive batch size.

    Attributes:
        samples: samples of all workers together; 0 lets the job choose.
    """

    job: str
    attempt: int
    samples: int


class StopAttempt(msgspec.Struct, frozen=True, tag=True):
    """Order the runner to stop; if there is none, make sure that none begins.

    Attributes:
        how: `cancel`, `suspend` or `kill`.
    """

    job: str
    attempt: int
    how: str


Action = StartAttempt | SetHosts | SetBatch | StopAttempt


class JobEvent(msgspec.Struct, frozen=True):
    """An entry in the history of a job."""

    job: str
    text: str


def in_words(slots: Slots) -> str:
    return ", ".join(f"{host}:{number}" for host, number in slots.items())
