"""From the slots that jobs have to those that a decision gives them, so that no slot is used twice. Pure.

To take slots from one job and give them to another takes a while: workers have to save what they need and end. The
decision stands meanwhile (`Standing`), and each look at the cluster brings the jobs nearer to it (`next_slots`). A
queue and an operator observe what jobs have and hold, ask here, and act.

A *place* is whatever has slots of its own to give: a host of a queue, or the whole pool where somebody else chooses the
node.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from farandole.control.scheduler.cluster import Cluster
from farandole.control.scheduler.job import Decision

Slots = Mapping[str, int]
"""For each place, the number of slots; places with none are not in it."""


@dataclass(frozen=True)
class Standing:
    """A decision that holds until something happens that it did not reckon with.

    The policy is not asked again before: it would see jobs that have just lost their slots, and could change its mind.

    Attributes:
        key: what the decision was made of, such as jobs and what they want, hosts and settings.
        cluster: the nodes that its allocations refer to.
    """

    key: object
    decision: Decision
    cluster: Cluster

    def holds(self, key: object, now: float) -> bool:
        """Return whether the decision is still good for what there is to decide about now."""
        review_at = self.decision.review_at
        return self.key == key and (review_at is None or now < review_at)

    def slots_of(self, job: str) -> dict[str, int]:
        """Return the slots that a job is to have, by the names of nodes."""
        allocation = self.decision.allocations.get(job)
        return {} if allocation is None else self.cluster.by_name(allocation)


@dataclass(frozen=True)
class Holder:
    """A job that has slots, or waits for some, or is giving its slots back.

    Attributes:
        has: the slots that it may use.
        held: the slots that its workers may be using, also those that are about to end.
        least: the number of slots that it can go on with.
        most: the largest number of slots that it can have at once.
        resizes: whether its slots can change while it runs.
        suspends: whether all its slots can be taken away.
        settled: whether its workers have begun, so that its slots can be changed.
        step: the number of slots that can only be given together.
        lives: the places where workers are known to run; None: wherever it has slots.
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
        """The slots that nobody else can have now."""
        return larger(self.has, self.held)


def next_slots(
    jobs: Mapping[str, Holder], wanted: Mapping[str, Slots], slots: Slots
) -> tuple[dict[str, Slots], dict[str, str]]:
    """Return the slots that each job is to have next, and why some jobs do not get theirs yet.

    Args:
        jobs: all that hold slots or are to have some, by name; those first that are to get free slots first.
        wanted: what the decision gives each job; jobs that are not in it get none.
        slots: what each place has to give, taken or not.
    """
    free = dict(slots)
    for job in jobs.values():
        _take(free, job.occupied)
    found: dict[str, Slots] = {}
    waits: dict[str, str] = {}
    for name, job in jobs.items():
        want, own = wanted.get(name, {}), job.occupied
        # What its workers are about to leave, it can have again.
        reach = {place: max(0, free.get(place, 0)) + own.get(place, 0) for place in want}
        found[name] = then = _next(job, want, reach)
        _take(free, {place: number - own.get(place, 0) for place, number in larger(own, then).items()})
        if want and not then:
            waits[name] = f"waits: its {count(want)} slots are still being given back by other jobs"
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
    """Return the slots that a running job can have next, on its way to those that it is to have.

    Workers that stay carry the state of the training to those that come. So a job that is to move altogether first
    gets workers at the new place, and gives the old one up when some of them are there; and it never has fewer slots
    than it can go on with.
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
    """Return slots without those that are too many: of places that are to be left first, but for one slot there."""
    over = count(slots) - most
    for place in [*leaving, *(place for place in slots if place not in leaving)]:
        given_up = max(0, min(over, slots[place] - (place in leaving[:1])))
        slots[place] -= given_up
        over -= given_up
    return {place: number for place, number in slots.items() if number}


def count(slots: Slots) -> int:
    """Return the number of slots of all places together."""
    return sum(slots.values())


def larger(one: Slots, other: Slots) -> dict[str, int]:
    """Return the larger of two numbers for each place."""
    return {place: max(one.get(place, 0), other.get(place, 0)) for place in {**one, **other}}
