"""The interface of policies: pure functions that give slots to jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from farandole.control.scheduler.cluster import Cluster
from farandole.control.scheduler.job import Decision, PolicyJob


class Policy(Protocol):
    """A scheduling policy. It has no clock and does no I/O; the same arguments give the same decision.

    A simulation, a queue's daemon and an operator call it in the same way.
    """

    @property
    def resizes(self) -> bool:
        """Whether it gives elastic jobs other numbers of slots than they requested."""

    def decide(self, cluster: Cluster, jobs: Sequence[PolicyJob], now: float) -> Decision:
        """Return the slots of each job, with reasons.

        Args:
            cluster: all nodes.
            jobs: all jobs that are not complete, in any order.
            now: present time in seconds on the scheduler's clock.
        """
