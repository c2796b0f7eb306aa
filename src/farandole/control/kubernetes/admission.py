"""What a queue tells a job: how many workers it may have now, and why. Plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Admission:
    """What one job may have.

    Attributes:
        workers: so many; 0: it waits, or has to give its pods back.
        reason: the policy's sentence.
        nodes: how many of them on which node, where its queue knows nodes.
    """

    workers: int
    reason: str
    nodes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Figures:
    """How one queue is.

    Attributes:
        fault: why it cannot be used; "" if it can.
        slots: that it shares, with all queues of its tree.
        used: workers that its jobs, and those of queues below it, may have.
        running: jobs that may have some.
        waiting: jobs that wait.
    """

    fault: str = ""
    slots: int = 0
    used: int = 0
    running: int = 0
    waiting: int = 0
