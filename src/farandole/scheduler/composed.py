"""Policies made of parts: an order, an admission, a placement and a sizing.

    jobs -> order -> admission (with sizing) -> grants -> placement -> allocations

A policy with a preemptive order ranks all jobs together; others keep what runs and rank what waits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from farandole.scheduler.cluster import Allocation, Cluster, FreeSlots
from farandole.scheduler.job import Decision, JobView
from farandole.scheduler.placement.by_node import Place
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
        # What stays comes first, so that it fits, and admissions know what it occupies and for how long.
        ranked = [*stay, *self.rank(cluster, others, now, self.rules)]
        grants, reasons = self.admit(ranked, room, now)
        if self.grows:
            grants = _grow(grants, room)
        allocations = _place_all(cluster, grants, self.place)
        for grant in grants:
            reasons[grant.job.name] = f"has {grant.slots} slots of {grant.type}"
        review_at = self.review(jobs, now, self.rules) if self.review is not None else None
        return Decision(allocations, reasons, review_at)


def _by_submission(job: JobView) -> tuple[float, str]:
    return job.submitted, job.name


def _grow(grants: Sequence[Grant], room: Room) -> list[Grant]:
    """Give what is left to elastic jobs, one slot after the other to the smallest, up to the most that they take."""
    slots = {grant.job.name: grant.slots for grant in grants}
    by_type: dict[str, list[Grant]] = {}
    for grant in grants:
        if grant.slots < grant.job.max_slots:
            by_type.setdefault(grant.type, []).append(grant)
    for type_, elastic in by_type.items():
        while room.free[type_] and elastic:
            smallest = min(elastic, key=lambda grant: slots[grant.job.name])
            if room.allowed(smallest.job) == 0 or slots[smallest.job.name] == smallest.job.max_slots:
                elastic.remove(smallest)
                continue
            room.grant(smallest.job, type_, 1)
            slots[smallest.job.name] += 1
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
