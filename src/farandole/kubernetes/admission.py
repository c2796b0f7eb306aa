"""What a queue tells a job: how many workers it may have now, and why. Plain data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Admission:
    """What one job may have.

    Attributes:
        workers: so many; 0: it waits, or has to give its pods back.
        reason: the policy's sentence.
    """

    workers: int
    reason: str


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
