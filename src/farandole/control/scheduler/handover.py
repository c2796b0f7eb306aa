"""Moving jobs step by step to the slots that a decision gives them, so that no slot is used twice. Pure.

Passing slots from one job to another takes a while: workers have to save a checkpoint and end. The decision stays in
force meanwhile (`Standing`), and each observation of the cluster brings the jobs closer to it (`next_slots`). A queue
and an operator observe the slots that jobs have and hold, call this module, and act.

A *place* has slots: it is a host of a queue, or the whole pool where another component chooses the node.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from farandole.control.scheduler.cluster import Cluster
from farandole.control.scheduler.job import Decision

Slots = Mapping[str, int]
"""Number of slots by place; places without slots are omitted."""


@dataclass(frozen=True)
class Standing:
    """A decision that is in force until its inputs change.

    Until then the policy is not called: it would see jobs that have just lost slots, and could decide differently.

    Attributes:
        key: the inputs of the decision, such as jobs and their requests, hosts and settings.
        decision: the policy's decision.
        cluster: the cluster to whose nodes the allocations refer.
    """

    key: object
    decision: Decision
    cluster: Cluster

    def holds(self, key: object, now: float) -> bool:
        """Return whether the decision is still in force for the present inputs."""
        review_at = self.decision.review_at
        return self.key == key and (review_at is None or now < review_at)

    def slots_of(self, job: str) -> dict[str, int]:
        """Return the slots that a job is to have, by the names of nodes."""
        allocation = self.decision.allocations.get(job)
        return {} if allocation is None else self.cluster.by_name(allocation)


@dataclass(frozen=True)
class Holder:
    """A job that has slots, waits for slots, or is releasing its slots.

    Attributes:
        has: slots that it may use.
        held: slots that its workers may still be using, including workers that are about to end.
        least: smallest number of slots that it can run with.
        most: largest number of slots that it can have at once.
        resizes: whether its slots can change while it runs.
        suspends: whether all its slots can be withdrawn.
        settled: whether its workers have begun, so that its slots can be changed.
        step: number of slots that can only be granted together.
        lives: places where workers are known to run; None: all places where it has slots.
    """

    has: Slots
    held: Slots
    least: int
    most: int
    resizes: bool
    suspends: bool
    settled: bool = True
    step: int = 1
    lives: Collection[str] | None = None

    @property
    def occupied(self) -> dict[str, int]:
        """The slots that no other job can have now."""
        return larger(self.has, self.held)


def next_slots(
    jobs: Mapping[str, Holder], wanted: Mapping[str, Slots], slots: Slots
) -> tuple[dict[str, Slots], dict[str, str]]:
    """Return the slots that each job is to have next, and the reasons why some jobs do not get theirs yet.

    Args:
        jobs: all jobs that hold slots or are to have some, by name, in the order in which they get free slots.
        wanted: the slots that the decision gives each job; jobs that are not in it get none.
        slots: all slots of each place, free or not.
    """
    free = dict(slots)
    for job in jobs.values():
        _take(free, job.occupied)
    found: dict[str, Slots] = {}
    waits: dict[str, str] = {}
    for name, job in jobs.items():
        want, own = wanted.get(name, {}), job.occupied
        # A job can have slots again that its own workers are about to leave.
        reach = {place: max(0, free.get(place, 0)) + own.get(place, 0) for place in want}
        found[name] = then = _next(job, want, reach)
        _take(free, {place: number - own.get(place, 0) for place, number in larger(own, then).items()})
        if want and not then:
            waits[name] = f"waits: its {count(want)} slots are still being released by other jobs"
    return found, waits


def _take(free: dict[str, int], slots: Slots) -> None:
    for place, number in slots.items():
        free[place] = free.get(place, 0) - number


def _next(job: Holder, want: Slots, reach: Slots) -> Slots:
    if want == job.has:
        return want
    if not job.has:
        return want if all(reach[place] >= number for place, number in want.items()) else {}
    if job.resizes and want:
        return _toward(job, want, reach) if job.settled else job.has
    return {} if job.suspends else job.has


def _toward(job: Holder, want: Slots, reach: Slots) -> Slots:
    """Return the slots that a running job can have next, on its way to the slots that it is to have.

    Remaining workers pass the state of the training on to new ones. So a job that is to move completely first gets
    workers at the new place, and leaves the old one once some of them are there. It never has fewer slots than it can
    run with.
    """
    grown = {place: _whole(min(number, reach[place]), job.step) for place, number in want.items()}
    grown = {place: number for place, number in grown.items() if number}
    lives = job.has if job.lives is None else job.lives
    if count(grown) >= job.least and any(place in grown for place in job.has if place in lives):
        return grown
    leaving = [place for place in job.has if place not in grown]
    return _at_most(job.most, larger(job.has, grown), leaving)


def _whole(slots: int, step: int) -> int:
    return slots - slots % step


def _at_most(most: int, slots: dict[str, int], leaving: Sequence[str]) -> dict[str, int]:
    """Return slots reduced to `most`: places that the job leaves lose slots first, but one slot remains there."""
    over = count(slots) - most
    for place in [*leaving, *(place for place in slots if place not in leaving)]:
        given_up = max(0, min(over, slots[place] - (place in leaving[:1])))
        slots[place] -= given_up
        over -= given_up
    return {place: number for place, number in slots.items() if number}


def count(slots: Slots) -> int:
    """Return the total number of slots."""
    return sum(slots.values())


def larger(one: Slots, other: Slots) -> dict[str, int]:
    """Return the larger of the two numbers of slots for each place."""
    return {place: max(one.get(place, 0), other.get(place, 0)) for place in {**one, **other}}
