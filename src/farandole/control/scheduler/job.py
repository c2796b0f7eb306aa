"""What a policy may see of a job, and what it decides.

`JobView` is all that a policy gets. It has what the user said, what happened so far, and what the job reported while it
trained (`Report`). The truth, such as when it will be done, is not in it: a simulator that knows it cannot tell.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from farandole.control.jobs.spec import JobSpec
from farandole.control.scheduler.account import Account
from farandole.control.scheduler.cluster import Allocation


class Measurement(NamedTuple):
    """One configuration that a job has run: numbers of nodes and workers, samples of each worker in a pass, seconds.

    `step` is one pass with its all-reduce, and `sync` the part of it that the all-reduce adds.
    """

    nodes: int
    workers: int
    local: float
    step: float
    sync: float


class Noise(NamedTuple):
    """The squared norm of the gradient and its variance, at the initial batch size."""

    sqr: float
    var: float


@dataclass(frozen=True)
class BatchLimits:
    """Which batch sizes the user allows: of all workers together, and of one worker on each type of node."""

    initial: int
    largest: int
    local: Mapping[str, tuple[float, float]]
    """For each type of node the job can run on, the smallest and the largest number of samples in one pass."""


@dataclass(frozen=True)
class Report:
    """What a training job measures and tells."""

    limits: BatchLimits
    measured: Mapping[str, tuple[Measurement, ...]] = field(default_factory=dict)
    """For each type of node, the configurations that the job has run there."""
    one_slot: Mapping[str, tuple[Measurement, ...]] = field(default_factory=dict)
    """For each type of node, what was measured with one worker before the start."""
    noise: Noise | None = None
    """The latest; None before the first step."""
    progress: float = 0.0
    """Steps at the initial batch size that would have got as far."""
    version: int = 0
    """Grows when something in here that a model depends on has changed."""


@dataclass(frozen=True)
class JobView:
    """One job, as a policy sees it. Times are seconds on the scheduler's clock."""

    name: str
    submitted: float
    slots: int
    """How many slots the user asked for."""
    min_slots: int
    max_slots: int
    """The least and the most the job can run with; both are `slots` for a rigid job."""
    application: str = ""
    """What is trained, if the user said so. Jobs of one application resemble each other."""
    priority: int = 0
    queue: str = "default"
    user: str = ""
    deadline: float | None = None
    duration: float | None = None
    """Seconds it takes with the slots asked for: as given, or as predicted from finished jobs; None: nobody knows."""
    total_progress: float | None = None
    """Progress (see `Report`) with which it will be done, as predicted from finished jobs; None: nobody knows."""
    allocation: Allocation | None = None
    account: Account = field(default_factory=Account)
    """What it has had, with the slots of its allocation."""
    restarting_until: float = 0.0
    """Until then the job makes no progress with its slots."""
    restart_cost: float = 0.0
    """Seconds without progress after each change of the allocation."""
    preemptible: bool = True
    """Whether it can be suspended and go on later."""
    batch: int | None = None
    """Samples of all workers in a step, if the user fixed them; None: the job chooses."""
    largest_run: int = 0
    """The largest number of workers it has run with so far."""
    known: Mapping[str, tuple[Measurement, ...]] | None = None
    """What finished jobs of the same application have measured, by type of node; None: nobody says."""
    report: Report | None = None

    @classmethod
    def of(
        cls, spec: JobSpec, submitted: float, account: Account, asked: int, most: int, room: int, step: int = 1
    ) -> JobView:
        """Return what a policy may see of a job that was described and has an account, and nothing of where it runs.

        Args:
            spec: of the job.
            submitted: seconds since 1970.
            account: of the job.
            asked: the number of workers that its user asks for now.
            most: the largest number of workers that it may be given, if it is elastic.
            room: the number of slots that one job can have at most.
            step: the number of slots that can only be given together; `asked` and the least are rounded up to it.
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
        """Return the slot-seconds it has had."""
        return self.account.served(now)

    def ran(self, now: float) -> float:
        """Return the seconds with slots it has had."""
        return self.account.ran(now)

    def remaining(self, now: float) -> float | None:
        """Return the seconds it still takes with the slots asked for, as far as that is known; 0 if it is overdue."""
        if self.duration is None:
            return None
        had = self.served(now) / self.slots if self.elastic else self.ran(now)
        return max(0.0, self.duration - had)


@dataclass(frozen=True)
class Decision:
    """Who gets what, and why.

    Attributes:
        allocations: of the jobs that shall have slots; the others wait, or are suspended.
        reasons: a sentence for each job, the one that `farandole status` shows.
        review_at: when to decide again even if nothing has happened; None: only when something happens.
        batches: of jobs whose batch adapts itself, the samples of all workers in a step that suit the allocation best;
            jobs that are not in it choose by themselves.
    """

    allocations: Mapping[str, Allocation]
    reasons: Mapping[str, str]
    review_at: float | None = None
    batches: Mapping[str, int] = field(default_factory=dict)
