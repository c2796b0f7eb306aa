"""The input and output of policies: jobs, and decisions about them.

A `PolicyJob` is all that a policy knows about a job: the user's request, its history, and its reports during training
(`TrainingReport`). It has no true values, such as the time of its end, so a simulator cannot leak them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from farandole.control.jobs.spec import JobSpec
from farandole.control.scheduler.account import Account
from farandole.control.scheduler.cluster import Allocation


class Measurement(NamedTuple):
    """The step time of one configuration that a job has run."""

    nodes: int
    workers: int
    local: float
    """Samples of each worker in a pass."""
    step: float
    """Seconds of one pass with its allreduce."""
    sync: float
    """Seconds that the allreduce adds to the pass."""


class Noise(NamedTuple):
    """The squared norm of the gradient (`sqr`) and its variance (`var`), at the initial batch size."""

    sqr: float
    var: float


@dataclass(frozen=True)
class BatchLimits:
    """The batch sizes that the user allows, in samples."""

    initial: int
    """Initial batch size of all workers together."""
    largest: int
    """Largest batch size of all workers together."""
    local: Mapping[str, tuple[float, float]]
    """The smallest and largest number of samples of one worker in a pass, for each type of node the job can run on."""


@dataclass(frozen=True)
class TrainingReport:
    """The measurements that a training job reports."""

    limits: BatchLimits
    measured: Mapping[str, tuple[Measurement, ...]] = field(default_factory=dict)
    """Configurations that the job has run, by type of node."""
    one_slot: Mapping[str, tuple[Measurement, ...]] = field(default_factory=dict)
    """Measurements with one worker before the start, by type of node."""
    noise: Noise | None = None
    """The latest gradient noise; None before the first step."""
    progress: float = 0.0
    """Equivalent number of steps at the initial batch size."""
    version: int = 0
    """A number that grows when the data of a model changes."""


@dataclass(frozen=True)
class PolicyJob:
    """One job, as a policy sees it. Times are in seconds on the scheduler's clock."""

    name: str
    submitted: float
    slots: int
    """Number of slots that the user requested."""
    min_slots: int
    """Smallest number of slots that the job can run with; `slots` for a rigid job."""
    max_slots: int
    """Largest number of slots that the job can use; `slots` for a rigid job."""
    application: str = ""
    """Name of the trained application; "": not given. Jobs of one application are expected to scale alike."""
    priority: int = 0
    queue: str = "default"
    user: str = ""
    deadline: float | None = None
    duration: float | None = None
    """Run time in seconds with the requested slots, as given or predicted from finished jobs; None: unknown."""
    total_progress: float | None = None
    """Progress (as in `TrainingReport`) at the end of the job, as predicted from finished jobs; None: unknown."""
    allocation: Allocation | None = None
    """Present slots; None: the job waits."""
    account: Account = field(default_factory=Account)
    """Resources used so far."""
    restarting_until: float = 0.0
    """Time until which the job makes no progress with its slots."""
    restart_cost: float = 0.0
    """Seconds without progress after each change of the allocation."""
    preemptible: bool = True
    """Whether it can be suspended and resumed later."""
    batch: int | None = None
    """Samples of all workers in a step, if the user fixed them; None: the job chooses."""
    largest_run: int = 0
    """Largest number of workers it has run with so far."""
    known: Mapping[str, tuple[Measurement, ...]] | None = None
    """Measurements of finished jobs of the same application, by type of node; None: there are none."""
    report: TrainingReport | None = None

    @classmethod
    def of(
        cls, spec: JobSpec, submitted: float, account: Account, asked: int, most: int, room: int, step: int = 1
    ) -> PolicyJob:
        """Return the policy's view of a job, without an allocation.

        Args:
            spec: specification of the job.
            submitted: time of submission in seconds since 1970.
            account: account of the job.
            asked: number of workers that its user requests now.
            most: largest number of workers that it may be given, if it is elastic.
            room: largest number of slots that any job can have.
            step: number of slots that can only be granted together; `asked` and the minimum are rounded up to it.
        """
        least, asked = (-(-number // step) * step for number in (spec.workers.min, asked))
        if spec.is_elastic:
            most = max(least, min(most, room))
            asked = max(least, min(asked, most))
        return cls(
            name=spec.name,
            submitted=submitted,
            slots=asked,
            min_slots=least if spec.is_elastic else asked,
            max_slots=most if spec.is_elastic else asked,
            application=spec.application,
            priority=spec.priority,
            queue=spec.queue,
            deadline=None if spec.deadline is None else submitted + spec.deadline,
            duration=spec.duration,
            account=account,
            preemptible=spec.how_suspended != "never",
        )

    @property
    def elastic(self) -> bool:
        return self.min_slots < self.max_slots

    def served(self, now: float) -> float:
        """Return the slot-seconds that it has used."""
        return self.account.served(now)

    def ran(self, now: float) -> float:
        """Return the seconds for which it has had slots."""
        return self.account.ran(now)

    def remaining(self, now: float) -> float | None:
        """Return the remaining run time in seconds with the requested slots; 0: overdue; None: unknown."""
        if self.duration is None:
            return None
        had = self.served(now) / self.slots if self.elastic else self.ran(now)
        return max(0.0, self.duration - had)


@dataclass(frozen=True)
class Decision:
    """The slots of each job, with reasons.

    Attributes:
        allocations: slots by name of the job; other jobs wait, or are suspended.
        reasons: a sentence for each job, which `farandole status` shows.
        review_at: time to decide again even if nothing has happened; None: only when something happens.
        batches: best batch size, in samples of all workers in a step, for jobs with an adaptive batch; other jobs
            choose it themselves.
    """

    allocations: Mapping[str, Allocation]
    reasons: Mapping[str, str]
    review_at: float | None = None
    batches: Mapping[str, int] = field(default_factory=dict)
