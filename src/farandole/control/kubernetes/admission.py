"""The decision of a queue about a job: how many workers it may have now, and why. Plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Admission:
    """The workers that one job may have.

    Attributes:
        workers: number of workers; 0 if it waits, or must release its pods.
        reason: the policy's sentence.
        nodes: number of workers on each node, if its queue counts nodes.
    """

    workers: int
    reason: str
    nodes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Figures:
    """The state of one queue.

    Attributes:
        fault: why the queue cannot be used; "" if it can.
        slots: slots that it shares with all queues of its tree.
        used: workers that its jobs, and those of queues below it, may have.
        running: number of jobs that may have workers.
        waiting: number of jobs that wait.
    """

    fault: str = ""
    slots: int = 0
    used: int = 0
    running: int = 0
    waiting: int = 0
