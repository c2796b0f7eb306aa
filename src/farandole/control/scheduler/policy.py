"""What a policy is: a pure function from what is known to who gets what, and why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from farandole.control.scheduler.cluster import Cluster
from farandole.control.scheduler.job import Decision, JobView


class Policy(Protocol):
    """Decides. It has no clock and does no I/O; the same arguments give the same decision.

    A simulation, a queue's daemon and an operator call it in the same way.
    """

    @property
    def resizes(self) -> bool:
        """Whether it gives elastic jobs other numbers of slots than they asked for."""

    def decide(self, cluster: Cluster, jobs: Sequence[JobView], now: float) -> Decision:
        """Return who gets what. `jobs` are all that are not complete, and their order does not matter."""
