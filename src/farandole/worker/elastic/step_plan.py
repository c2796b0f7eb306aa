"""The plan of a step: the samples that each rank reads, and the ranks that are still present.

It is made from the ledger and the current world. If ranks are lost before the step counts, the plan is kept, their
samples are returned to the ledger, and the gradients of the others are weighted by the remaining samples. The next step
is planned for the next world.

A rank that learns from others that a step counts (see `recovery`) takes the following step by the plan that the others
have already made, in the previous world.
"""

from __future__ import annotations

from collections.abc import Sequence

from farandole.base.wire.rendezvous import World
from farandole.worker.elastic.framework import Batch, Loader
from farandole.worker.elastic.recovery import Comparison


class Plan:
    """The plan of one step: each rank's share of the samples, and the ranks that are still present."""

    def __init__(self, batch: Batch, world: World, shadows: int) -> None:
        self.batch = batch
        self.shadows = shadows
        """The number of ranks of its world, the last ones, that are not in the plan."""
        self.present = list(range(world.size))
        """For each rank of the current world, its rank in the world of the plan."""
        self.lost: frozenset[int] = frozenset()
        """The ranks whose samples will not be in the result."""
        self._world = world

    @property
    def working(self) -> int:
        """The number of ranks of its world that are in the plan."""
        return self._world.size - self.shadows

    def survived_by(self, world: World) -> None:
        """Record the current world, whose members are all from the plan's world."""
        # By the workers' numbers: between the two worlds there may have been worlds that this worker has never seen.
        ranks = {worker: rank for rank, worker in enumerate(self._world.workers)}
        self.present = [ranks[worker] for worker in world.workers]

    def goes_on_without_the_lost(self) -> None:
        """Record that the ranks that are present will finish the step."""
        self.lost = frozenset(range(len(self.batch.shares))).difference(self.present)

    def share(self, rank: int) -> float:
        """Return the factor for this rank's mean gradient that makes the mean over ranks the mean over samples."""
        size = self._world.size
        if len(self.present) == size:
            return self.batch.samples * size / self.batch.total
        counts = [_count(self.batch.shares[each]) for each in self.present]
        total = sum(counts)
        return counts[rank] * len(counts) / total if total else 0.0


class Plans:
    """Makes the plans of the steps, which are the same on all ranks.

    Args:
        loader: the loader of the samples.
    """

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self.as_before = False
        """Whether the other ranks have already planned the next step, in the previous world."""
        self._before: World | None = None
        """The world in which the current plan, or the others' next one, was made; None: the current world."""
        self._shadows_before = 0
        """The number of ranks of that world that are not in the other ranks' plan."""

    def next(self, now: World, shadows: int, is_shadow: bool) -> Plan | None:
        """Return the plan of the next step, or None at the end of the epoch.

        Args:
            now: the current world.
            shadows: the number of its ranks, the last ones, that do not have the state yet.
            is_shadow: whether this rank is one of them.
        """
        world = now
        if self.as_before and self._before is not None:
            world, shadows = self._before, self._shadows_before
        batch = self._loader.next(world.size - shadows, 0 if is_shadow else world.rank)
        if batch is None:
            return None
        plan = Plan(batch, world, shadows)
        if world is not now:
            plan.survived_by(now)
            plan.goes_on_without_the_lost()
        self.forget_worlds()
        return plan

    def reformed(self, before: World) -> None:
        """Record that the world has changed."""
        self._before = self._before or before

    def resumed(self, comparison: Comparison) -> None:
        """Record the progress of the others, in the middle of a step that continues in another world."""
        if comparison.others_inside:
            self._shadows_before = comparison.shadows
        self.as_before = self.as_before or comparison.behind
        if not self.as_before:
            self.forget_worlds()

    def entered(self, comparison: Comparison) -> None:
        """Record the progress of the others, between two steps."""
        self.as_before = comparison.others_inside
        self._shadows_before = comparison.shadows
        if not self.as_before:
            self.forget_worlds()

    def forget_worlds(self) -> None:
        """Plan for the current world from now on."""
        self._before, self._shadows_before, self.as_before = None, 0, False


def _count(share: Sequence[tuple[int, int]]) -> int:
    return sum(end - begin for begin, end in share)
