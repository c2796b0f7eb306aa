"""The room that is left while a decision is being made: free slots of each type, and of each queue's limit."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import NamedTuple, Protocol

from farandole.control.scheduler.cluster import Cluster
from farandole.control.scheduler.job import JobView
from farandole.control.scheduler.rules import Queue, Rules


class Grant(NamedTuple):
    """What a job shall have, before it is known on which nodes."""

    job: JobView
    type: str
    slots: int


class Admitted(NamedTuple):
    """Which jobs shall have slots, and why the others wait."""

    grants: list[Grant]
    reasons: Mapping[str, str]
    """Of some jobs that wait, by name."""
    otherwise: Callable[[JobView], str]
    """Returns the reason of any other job that waits."""


class Sizing(Protocol):
    """How many slots a job gets."""

    def __call__(self, job: JobView, free: int) -> int:
        """Return how many of the free slots of one type the job would take; 0: they are too few."""


class Room:
    """What is left beside jobs that keep their slots. `grant` takes from it; it never takes more than there is.

    Args:
        kept: jobs that keep the slots they have.
        free: the slots of each type that are not theirs.
    """

    def __init__(
        self, cluster: Cluster, rules: Rules, sizing: Sizing, kept: Collection[JobView], free: Mapping[str, int]
    ) -> None:
        self.kept = kept
        self.free = dict(free)
        self.largest = max(cluster.slots_of.values())
        self.total = cluster.slots
        self._rules = rules
        self._sizing = sizing
        self._limited: dict[str, int] = {
            name: queue.limit for name, queue in rules.queues.items() if queue.limit is not None
        }
        if self._limited:
            for job in kept:
                self._use(job, job.slots)

    @property
    def most_free(self) -> int:
        """The most free slots of any type: a job that needs more has no choice."""
        return max(self.free.values())

    @property
    def total_free(self) -> int:
        return sum(self.free.values())

    def choices(self, job: JobView) -> Iterator[tuple[str, int]]:
        """Yield types that have enough free slots for a job now, the best first, and how many the job would take."""
        own = job.allocation.type if job.allocation is not None else ""
        # A limit that was lowered takes nothing from jobs that run.
        allowed = self.total if own else self.allowed(job)
        if own and (slots := self._sizing(job, self.free[own])):
            yield own, slots
        for type_ in sorted(self.free, key=lambda type_: -speed(job, type_)):
            slots = self._sizing(job, min(self.free[type_], allowed))
            if slots and type_ != own and runs_on(job, type_):
                yield type_, slots

    def allowed(self, job: JobView) -> int:
        """Return how many slots the limits of a job's queues leave it."""
        if not self._limited:
            return self.total
        return min(self._limited.get(name, self.total) for name in lineage(job.queue, self._rules))

    def waits_for_room(self, job: JobView) -> bool:
        """Return whether a job that has no choice would have one if more slots were free.

        Otherwise, its queue's limit keeps it waiting, or no type has enough slots: it need not hold up others.
        """
        return self._sizing(job, min(self.largest, self.allowed(job))) > 0

    def grant(self, job: JobView, type_: str, slots: int) -> Grant:
        """Take slots; they must be free."""
        assert self.free[type_] >= slots
        self.free[type_] -= slots
        if self._limited:
            self._use(job, slots)
        return Grant(job, type_, slots)

    def _use(self, job: JobView, slots: int) -> None:
        for name in lineage(job.queue, self._rules):
            if name in self._limited:
                self._limited[name] -= slots

    def why_not(self, job: JobView) -> str:
        """Return why a job that has no choice has none."""
        if self._sizing(job, self.largest) == 0:
            return never_fits(job, self.largest)
        if self._sizing(job, self.allowed(job)) == 0:
            return f"waits: queue {job.queue} has reached its limit"
        return f"waits: {self.total_free} of {self.total} slots are free, it wants {job.slots}"


def never_fits(job: JobView, largest: int) -> str:
    """Return why a job waits for ever that needs more slots than the largest type has."""
    return f"waits for ever: it wants {job.min_slots} slots of one type, and no type has more than {largest}"


def lineage(queue: str, rules: Rules) -> Iterator[str]:
    """Yield a queue and all those above it; a cycle ends where it closes."""
    seen: set[str] = set()
    while queue and queue not in seen:
        seen.add(queue)
        yield queue
        queue = rules.queue(queue).parent


def tightest_limit(queue: str, rules: Rules) -> Queue | None:
    """Return which of a queue and those above it has the smallest limit of slots; None: none of them has any."""
    limited = [each for name in lineage(queue, rules) if (each := rules.queue(name)).limit is not None]
    return min(limited, key=lambda each: each.limit or 0, default=None)


def runs_on(job: JobView, type_: str) -> bool:
    """Return whether a job can use slots of a type; one that says nothing can use any."""
    return job.report is None or type_ in job.report.limits.local


def speed(job: JobView, type_: str) -> float:
    """Return samples in a second of one worker on a type, as the job has measured or as is guessed; 0: unknown."""
    if job.report is None:
        return 0.0
    rows = job.report.one_slot.get(type_) or job.report.measured.get(type_, ())
    # Of several workers, each waits for the others for a part of the step.
    return max((row.local / (row.step - (row.sync if row.workers > 1 else 0.0)) for row in rows), default=0.0)
