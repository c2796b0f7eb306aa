"""The slots that are still available while a decision is being made: by type of node, and within the queues' limits."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import NamedTuple, Protocol

from farandole.control.scheduler.cluster import Cluster
from farandole.control.scheduler.job import PolicyJob
from farandole.control.scheduler.rules import Queue, Rules

# The most nodes that a reason names.
_MOST_NAMED = 5


class Grant(NamedTuple):
    """The number and type of slots for a job, before their nodes are chosen."""

    job: PolicyJob
    type: str
    slots: int


class Admitted(NamedTuple):
    """The jobs that get slots, and the reasons why the others wait."""

    grants: list[Grant]
    reasons: Mapping[str, str]
    """Reasons of some waiting jobs, by name."""
    otherwise: Callable[[PolicyJob], str]
    """Returns the reason of any other waiting job."""


class Sizing(Protocol):
    """A choice of the number of slots of a job."""

    def __call__(self, job: PolicyJob, free: int) -> int:
        """Return how many of `free` slots of one type the job would take; 0: they are too few."""


class Room:
    """The slots that are available beside those of jobs that keep theirs. `grant` reduces them.

    Args:
        cluster: all nodes.
        rules: queues with their limits.
        sizing: chooses the number of slots of a job.
        kept: jobs that keep their slots.
        free: number of slots of each type that the kept jobs do not have.
    """

    def __init__(
        self, cluster: Cluster, rules: Rules, sizing: Sizing, kept: Collection[PolicyJob], free: Mapping[str, int]
    ) -> None:
        self.kept = kept
        self.free = dict(free)
        self.largest = _largest(cluster)
        self.total = cluster.slots
        self._cluster = cluster
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
        """The largest number of free slots of one type: a job that needs more has no choice."""
        return max(self.free.values())

    @property
    def total_free(self) -> int:
        return sum(self.free.values())

    def choices(self, job: PolicyJob) -> Iterator[tuple[str, int]]:
        """Yield types with enough free slots for a job, the best first, each with the number it would take."""
        own = job.allocation.type if job.allocation is not None else ""
        # A lowered limit takes nothing from running jobs.
        allowed = self.total if own else self.allowed(job)
        if own and (slots := self._sizing(job, self.free[own])):
            yield own, slots
        for type_ in sorted(self.free, key=lambda type_: -speed(job, type_)):
            slots = self._sizing(job, min(self.free[type_], allowed))
            if slots and type_ != own and runs_on(job, type_):
                yield type_, slots

    def allowed(self, job: PolicyJob) -> int:
        """Return the number of slots that a job may get within the limits of its queue and its ancestors."""
        if not self._limited:
            return self.total
        return min(self._limited.get(name, self.total) for name in lineage(job.queue, self._rules))

    def waits_for_room(self, job: PolicyJob) -> bool:
        """Return whether a job without a choice would have one if more slots were free.

        Otherwise its queue's limit blocks it, or no type has enough slots: then it need not block other jobs.
        """
        return self._sizing(job, min(self.largest, self.allowed(job))) > 0

    def grant(self, job: PolicyJob, type_: str, slots: int) -> Grant:
        """Take free slots for a job."""
        assert self.free[type_] >= slots
        self.free[type_] -= slots
        if self._limited:
            self._use(job, slots)
        return Grant(job, type_, slots)

    def _use(self, job: PolicyJob, slots: int) -> None:
        for name in lineage(job.queue, self._rules):
            if name in self._limited:
                self._limited[name] -= slots

    def why_not(self, job: PolicyJob) -> str:
        """Return why a job has no choice."""
        if self._sizing(job, self.largest) == 0:
            return why_too_large(job, self._cluster, lambda cluster: self._sizing(job, _largest(cluster)) > 0)
        if self._sizing(job, self.allowed(job)) == 0:
            return f"waits: queue {job.queue} has reached its limit"
        return f"waits: {self.total_free} of {self.total} slots are free, it needs {job.slots}"


def _largest(cluster: Cluster) -> int:
    """Return the largest number of slots of one type."""
    return max(cluster.slots_of.values())


def why_too_large(job: PolicyJob, cluster: Cluster, fits: Callable[[Cluster], bool]) -> str:
    """Return the reason of a job that needs more slots than any type has; `fits` is that of `why_no_size`."""
    short = f"it needs {job.min_slots} slots of one type, and no type has more than"
    ever = max([_largest(cluster), *(_largest(cluster.with_away(node.type)) for node in cluster.away)])
    return why_no_size(cluster, fits, f"{short} {_largest(cluster)} now", f"{short} {ever}")


def why_no_size(cluster: Cluster, fits: Callable[[Cluster], bool], why: str, why_never: str) -> str:
    """Return the reason of a job that could not start even if all slots were free.

    Args:
        cluster: all nodes.
        fits: returns whether the job could start on a cluster whose slots are all free.
        why: what is missing on the nodes that can take work now.
        why_never: what is missing even when all nodes can.
    """
    later = [type_ for type_ in {node.type for node in cluster.away} if fits(cluster.with_away(type_))]
    names = [node.name for node in cluster.away if node.type in later]
    if not names:
        return f"can never start: {why_never}"
    named = ", ".join(names[:_MOST_NAMED]) + (f" and {len(names) - _MOST_NAMED} more" if names[_MOST_NAMED:] else "")
    return f"waits for {named}, which cannot take work now: {why}"


def lineage(queue: str, rules: Rules) -> Iterator[str]:
    """Yield a queue and its ancestors; each once if there is a cycle."""
    seen: set[str] = set()
    while queue and queue not in seen:
        seen.add(queue)
        yield queue
        queue = rules.queue(queue).parent


def tightest_limit(queue: str, rules: Rules) -> Queue | None:
    """Return the queue with the smallest limit among a queue and its ancestors; None: there is no limit."""
    limited = [each for name in lineage(queue, rules) if (each := rules.queue(name)).limit is not None]
    return min(limited, key=lambda each: each.limit or 0, default=None)


def runs_on(job: PolicyJob, type_: str) -> bool:
    """Return whether a job can use slots of a type. A job without a report can use any."""
    return job.report is None or type_ in job.report.limits.local


def speed(job: PolicyJob, type_: str) -> float:
    """Return the samples per second of one worker on a type, from measurements of the job; 0: unknown."""
    if job.report is None:
        return 0.0
    rows = job.report.one_slot.get(type_) or job.report.measured.get(type_, ())
    # With several workers, `sync` of each step is spent waiting for the others.
    return max((row.local / (row.step - (row.sync if row.workers > 1 else 0.0)) for row in rows), default=0.0)
