"""Quotas, for all policies composed of parts: a queue's own slots are granted before any slots are borrowed.

A job uses its queue's own slots while the slots of the queue and its descendants do not exceed the quota. Slots beyond
the quota are borrowed, and so are all slots of jobs without a quota. The same rule applies to a queue inside a queue
with a quota: within the outer queue, jobs that use the inner queue's own slots come first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from farandole.control.scheduler.job import PolicyJob
from farandole.control.scheduler.room import lineage
from farandole.control.scheduler.rules import Rules

Borrows = tuple[bool, ...]
"""Whether a job borrows, by level: from outside the outermost queue with a quota, then inside it, and so on. Jobs with
smaller tuples come first."""


class Quotas:
    """The unused parts of all quotas while slots are being granted."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._left = {name: queue.quota for name, queue in rules.queues.items() if queue.quota is not None}
        self._owners: dict[str, tuple[str, ...]] = {}
        """The ancestors with quotas of each queue, itself included, the outermost first."""
        self._levels = max((len(self._owners_of(name)) for name in self._left), default=0)

    def borrows(self, queue: str, slots: int) -> Borrows:
        """Return whether a job that gets `slots` slots in a queue would borrow, by level."""
        flags = tuple(self._left[name] < slots for name in self._owners_of(queue))
        return flags + (True,) * (self._levels - len(flags))

    def take(self, queue: str, slots: int) -> None:
        """Charge slots that are granted to a job of a queue."""
        for name in self._owners_of(queue):
            self._left[name] -= slots

    def own_first(self, ranked: Sequence[PolicyJob], needs: Callable[[PolicyJob], int]) -> Sequence[PolicyJob]:
        """Return waiting jobs reordered, so that jobs that use their queue's own slots come first.

        Args:
            ranked: jobs in the order of the policy, which is kept among jobs that borrow at the same levels.
            needs: returns the number of slots that a job needs to start.
        """
        if not self._left:
            return ranked
        found: dict[str, Borrows] = {job.name: (True,) * self._levels for job in ranked}
        for owner in sorted(self._left, key=lambda name: -len(self._owners_of(name))):
            left, level = self._left[owner], len(self._owners_of(owner)) - 1
            mine = [job for job in ranked if owner in self._owners_of(job.queue)]
            # Queues inside this one were handled before: jobs that use those queues' own slots also come first here.
            for job in sorted(mine, key=lambda job: found[job.name][level + 1 :]):
                borrows = needs(job) > left
                left -= 0 if borrows else needs(job)
                found[job.name] = (*found[job.name][:level], borrows, *found[job.name][level + 1 :])
        return sorted(ranked, key=lambda job: found[job.name])

    def _owners_of(self, queue: str) -> tuple[str, ...]:
        if queue not in self._owners:
            self._owners[queue] = tuple(name for name in lineage(queue, self._rules) if name in self._left)[::-1]
        return self._owners[queue]
