"""Policies made of parts: an order, an admission, a placement and a sizing.

    jobs -> order -> quotas -> admission (with sizing) -> grants -> placement -> allocations

A policy with a preemptive order ranks all jobs together; others keep what runs and rank what waits. Whatever the order,
jobs that use slots of their queue's quota come before those that borrow.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from farandole.scheduler.cluster import Allocation, Cluster, FreeSlots
from farandole.scheduler.job import Decision, JobView
from farandole.scheduler.placement.by_node import Place
from farandole.scheduler.quotas import Quotas
from farandole.scheduler.room import Grant, Room, Sizing
from farandole.scheduler.rules import Rules

Rank = Callable[[Cluster, Sequence[JobView], float, Rules], Sequence[JobView]]
Review = Callable[[Sequence[JobView], float, Rules], float | None]
Admit = Callable[[Sequence[JobView], Room, float], tuple[list[Grant], dict[str, str]]]


@dataclass(frozen=True)
class Composed:
    """A policy that is made of four parts."""

    rank: Rank
    admit: Admit
    place: Place
    size: Sizing
    preemptive: bool = False
    """Whether a job that runs may be suspended for one that is ranked before it."""
    grows: bool = False
    """Whether elastic jobs get what is left over."""
    review: Review | None = None
    rules: Rules = field(default_factory=Rules)

    @property
    def resizes(self) -> bool:
        return self.grows

    def decide(self, cluster: Cluster, jobs: Sequence[JobView], now: float) -> Decision:
        """Return who gets what, and why. The order in which the jobs come does not matter."""
        jobs = sorted(jobs, key=_by_submission)
        stay = [job for job in jobs if job.allocation is not None and not (self.preemptive and job.preemptible)]
        staying = {job.name for job in stay}
        others = [job for job in jobs if job.name not in staying] if stay else jobs
        room = Room(cluster, self.rules, self.size)
        quotas = Quotas(self.rules)
        for job in stay:
            quotas.take(job.queue, self._needs(job))
        # What stays comes first, so that it fits, and admissions know what it occupies and for how long.
        ranked = [*stay, *quotas.own_first(self.rank(cluster, others, now, self.rules), self._needs)]
        grants, reasons = self.admit(ranked, room, now)
        if self.grows:
            grants = _grow(grants, room, Quotas(self.rules))
        allocations = _place_all(cluster, grants, self.place)
        for grant in grants:
            reasons[grant.job.name] = f"has {grant.slots} slots of {grant.type}"
        review_at = self.review(jobs, now, self.rules) if self.review is not None else None
        return Decision(allocations, reasons, review_at)

    def _needs(self, job: JobView) -> int:
        """Return how many slots a job needs to start."""
        return self.size(job, sys.maxsize)


def _by_submission(job: JobView) -> tuple[float, str]:
    return job.submitted, job.name


def _grow(grants: Sequence[Grant], room: Room, quotas: Quotas) -> list[Grant]:
    """Give what is left to elastic jobs, one slot after the other, up to the most that they take.

    The next slot is for the smallest job of those whose queue's quota has a slot left; then it is for the smallest.
    """
    slots = {grant.job.name: grant.slots for grant in grants}
    by_type: dict[str, list[Grant]] = {}
    for grant in grants:
        quotas.take(grant.job.queue, grant.slots)
        if grant.slots < grant.job.max_slots:
            by_type.setdefault(grant.type, []).append(grant)
    for type_, elastic in by_type.items():
        while room.free[type_] and elastic:
            best = min(elastic, key=lambda grant: (quotas.borrows(grant.job.queue, 1), slots[grant.job.name]))
            if room.allowed(best.job) == 0 or slots[best.job.name] == best.job.max_slots:
                elastic.remove(best)
                continue
            room.grant(best.job, type_, 1)
            quotas.take(best.job.queue, 1)
            slots[best.job.name] += 1
    return [grant._replace(slots=slots[grant.job.name]) for grant in grants]


def _place_all(cluster: Cluster, grants: Sequence[Grant], place: Place) -> dict[str, Allocation]:
    """Return the nodes of all grants: those that a job has already, if it keeps its size; others around them."""
    free = FreeSlots(cluster)
    allocations: dict[str, Allocation] = {}
    moving = []
    for grant in grants:
        had = grant.job.allocation
        if had is not None and had.type == grant.type and had.slots == grant.slots:
            free.take(had)
            allocations[grant.job.name] = had
        else:
            moving.append(grant)
    for grant in moving:
        allocation = place(free, grant.type, grant.slots)
        assert allocation is not None, "grants leave room on their types"
        free.take(allocation)
        allocations[grant.job.name] = allocation
    return allocations
