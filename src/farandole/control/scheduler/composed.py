"""Policies composed of parts: an order, an admission, a placement and a sizing.

    jobs -> order -> quotas -> admission (with sizing) -> grants -> placement -> allocations

A policy with a preemptive order ranks all jobs together; others keep the running jobs and rank the waiting ones. In any
order, jobs that use slots of their queue's quota come before jobs that borrow.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from farandole.control.scheduler.cluster import Allocation, Cluster, FreeSlots
from farandole.control.scheduler.job import Decision, PolicyJob
from farandole.control.scheduler.jobs import Jobs, by_submission
from farandole.control.scheduler.placement.by_node import Place
from farandole.control.scheduler.quotas import Quotas
from farandole.control.scheduler.room import Admitted, Grant, Room, Sizing
from farandole.control.scheduler.rules import Rules

Rank = Callable[[Cluster, Sequence[PolicyJob], float, Rules], Sequence[PolicyJob]]
Review = Callable[[Sequence[PolicyJob], float, Rules], float | None]
Admit = Callable[[Sequence[PolicyJob], Room, float], Admitted]


@dataclass(frozen=True)
class Composed:
    """A policy composed of four parts."""

    rank: Rank
    admit: Admit
    place: Place
    size: Sizing
    preemptive: bool = False
    """Whether a running job may be suspended for a job that is ranked before it."""
    grows: bool = False
    """Whether elastic jobs share the slots that are left over."""
    review: Review | None = None
    rules: Rules = field(default_factory=Rules)

    @property
    def resizes(self) -> bool:
        return self.grows

    def decide(self, cluster: Cluster, jobs: Sequence[PolicyJob], now: float) -> Decision:
        """Return the slots of each job, with reasons. The order of `jobs` does not matter."""
        jobs = Jobs.of(cluster, jobs)
        moving = self._moving(jobs)
        free, others = jobs.free, list(jobs.waiting.values())
        kept, allocations = jobs.running, dict(jobs.allocations)
        if moving:
            free = jobs.free.copy()
            kept = dict(kept)
            for job in moving:
                del kept[job.name]
                had = allocations.pop(job.name)
                if job.name not in jobs.unseated:
                    free.give([had])
            others = sorted([*moving, *others], key=by_submission)
        # Jobs that stay come first, so that they fit, and admissions know what they occupy and for how long.
        stay = [job for job in others if self._stays(job)] if moving else []
        others = [job for job in others if not self._stays(job)] if stay else others
        room = Room(cluster, self.rules, self.size, kept.values(), free.of_type)
        ranked = self.rank(cluster, others, now, self.rules)
        if self.rules.queues:
            quotas = Quotas(self.rules)
            for job in (*kept.values(), *stay):
                quotas.take(job.queue, self._needs(job))
            ranked = quotas.own_first(ranked, self._needs)
        ranked = [*stay, *ranked]
        admitted = self.admit(ranked, room, now)
        grants = _grow(admitted.grants, room, Quotas(self.rules)) if self.grows else admitted.grants
        if grants:
            allocations |= _place_all(free.copy(), grants, self.place)
        review_at = self.review(jobs, now, self.rules) if self.review is not None else None
        return Decision(allocations, Reasons(ranked, allocations, admitted), review_at)

    def _stays(self, job: PolicyJob) -> bool:
        """Return whether a job must not be suspended."""
        return job.allocation is not None and not (self.preemptive and job.preemptible)

    def _moving(self, jobs: Jobs) -> list[PolicyJob]:
        """Return the running jobs whose slots may change."""
        running, had = jobs.running.values(), jobs.allocations
        if self.grows:
            return list(running)
        return [
            job
            for job in running
            if (self.preemptive and job.preemptible) or had[job.name].slots != job.slots or job.name in jobs.unseated
        ]

    def _needs(self, job: PolicyJob) -> int:
        """Return the number of slots that a job needs to start."""
        return self.size(job, sys.maxsize)


class Reasons(Mapping[str, str]):
    """A sentence for each job, by name, written on first access: most sentences of a simulation are never read."""

    def __init__(self, ranked: Sequence[PolicyJob], allocations: Mapping[str, Allocation], admitted: Admitted) -> None:
        self._ranked = ranked
        self._allocations = allocations
        self._admitted = admitted

    @cached_property
    def _all(self) -> dict[str, str]:
        _, reasons, otherwise = self._admitted
        waits = {job.name: reasons.get(job.name) or otherwise(job) for job in self._ranked}
        return waits | {name: f"has {one.slots} slots of {one.type}" for name, one in self._allocations.items()}

    def __getitem__(self, name: str) -> str:
        return self._all[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)


def _grow(grants: Sequence[Grant], room: Room, quotas: Quotas) -> list[Grant]:
    """Give the remaining slots to elastic jobs one by one, up to their maximum.

    The next slot goes to the smallest job whose queue's quota has a slot left; without such jobs, to the smallest job.
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


def _place_all(free: FreeSlots, grants: Sequence[Grant], place: Place) -> dict[str, Allocation]:
    """Return the allocations of all grants. Jobs that keep their size keep their nodes; others get free ones."""
    allocations: dict[str, Allocation] = {}
    moving = []
    for grant in grants:
        had = grant.job.allocation
        if had is not None and had.type == grant.type and had.slots == grant.slots and free.fits(had):
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
