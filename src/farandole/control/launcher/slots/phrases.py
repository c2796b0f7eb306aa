"""Phrases about workers in messages for people."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from farandole.base.display.wording import count
from farandole.control.launcher.slots.job_state import JobState, living
from farandole.control.roster import fixed


def named(workers: Iterable[int]) -> str:
    """Format workers for people.

    Example:
        >>> named([3, 1, 2])
        'workers 1, 2 and 3'
    """
    ordered = [str(worker) for worker in sorted(workers)]
    if len(ordered) == 1:
        return f"worker {ordered[0]}"
    return f"workers {', '.join(ordered[:-1])} and {ordered[-1]}"


def who_leaves(state: JobState, workers: Collection[int]) -> str:
    """Return a text that names the workers that are to leave, their deadline, and the number of those that stay.

    Args:
        state: the state of the slots.
        workers: the workers that are to leave.
    """
    if not workers:
        return "no workers run there"
    leave = "leaves" if len(workers) == 1 else "leave"
    within = f"within {state.policy.grace:g} s"
    return f"{named(workers)} there {leave} at the end of a step, {within}; {others(state, workers, 'stays', 'stay')}"


def others(state: JobState, workers: Collection[int], does: str, do: str) -> str:
    """Return a text with the number of other living workers that are not to leave, and a verb.

    Args:
        state: the state of the slots.
        workers: the workers that are not counted.
        does: the verb for one worker.
        do: the verb for several.
    """
    here = living(state).items()
    number = sum(worker not in workers and not (site.closed or slot.draining) for worker, (site, slot) in here)
    if not number:
        return f"no other worker {does}"
    return f"{count(number, 'other worker')} {does if number == 1 else do}"


def follows_a_loss(state: JobState) -> str:
    """Return in a few words how the job continues if a worker is lost now."""
    if isinstance(state.roster, fixed.FixedState):
        return "the job has a fixed size, so it will end"
    least, left = state.limits.min_size, len(state.world) - 1
    if left < least:
        return f"the job waits until it has {count(least, 'worker')} again"
    return f"the job goes on with {count(left, 'worker')} until another one has been started"
