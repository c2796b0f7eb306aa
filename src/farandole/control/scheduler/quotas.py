"""Quotas, for all policies that are made of parts: slots that are a queue's own are given out before any are borrowed.

A job uses its queue's own slots as long as all that the queue and those below it have does not exceed the quota. What
is beyond the quota is borrowed, and so is all that jobs without a quota have. A queue inside a queue with a quota
shares that queue's slots by the same rule: within the outer one, jobs that use the inner one's own slots come first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from farandole.control.scheduler.job import JobView
from farandole.control.scheduler.room import lineage
from farandole.control.scheduler.rules import Rules

Borrows = tuple[bool, ...]
"""Whether a job borrows: from outside the outermost queue with a quota, then inside it, and so on. Smaller is first."""


class Quotas:
    """What is left of the quotas while slots are given out."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._left = {name: queue.quota for name, queue in rules.queues.items() if queue.quota is not None}
        self._owners: dict[str, tuple[str, ...]] = {}
        """For each queue, the queues with quotas that it is in, the outermost first."""
        self._levels = max((len(self._owners_of(name)) for name in self._left), default=0)

    def borrows(self, queue: str, slots: int) -> Borrows:
        """Return whether a job of a queue would borrow so many slots."""
        flags = tuple(self._left[name] < slots for name in self._owners_of(queue))
        return flags + (True,) * (self._levels - len(flags))

    def take(self, queue: str, slots: int) -> None:
        """Count slots that are given to a job of a queue."""
        for name in self._owners_of(queue):
            self._left[name] -= slots

    def own_first(self, ranked: Sequence[JobView], needs: Callable[[JobView], int]) -> Sequence[JobView]:
        """Return jobs that wait for slots in another order: those that use their queue's own slots first.

        Args:
            ranked: the jobs in the order of the policy, which is kept among those that borrow alike.
            needs: how many slots a job needs to start.
        """
        if not self._left:
            return ranked
        found: dict[str, Borrows] = {job.name: (True,) * self._levels for job in ranked}
        for owner in sorted(self._left, key=lambda name: -len(self._owners_of(name))):
            left, level = self._left[owner], len(self._owners_of(owner)) - 1
            mine = [job for job in ranked if owner in self._owners_of(job.queue)]
            # Queues inside this one have been looked at: jobs that use their own slots come first here, too.
            for job in sorted(mine, key=lambda job: found[job.name][level + 1 :]):
                borrows = needs(job) > left
                left -= 0 if borrows else needs(job)
                found[job.name] = (*found[job.name][:level], borrows, *found[job.name][level + 1 :])
        return sorted(ranked, key=lambda job: found[job.name])

    def _owners_of(self, queue: str) -> tuple[str, ...]:
        if queue not in self._owners:
            self._owners[queue] = tuple(name for name in lineage(queue, self._rules) if name in self._left)[::-1]
        return self._owners[queue]
