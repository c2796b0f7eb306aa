"""The topology of a team: its number of hosts, and of workers on each."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True)
class Topology:
    """Hosts and workers. One host is this machine itself; several are network namespaces, see `hosts`.

    Example:
        >>> str(Topology(2, 4)), Topology(2, 4).size
        ('2 hosts x 4 workers', 8)
    """

    hosts: int
    workers: int
    """The number of workers on each host."""

    @property
    def size(self) -> int:
        """The number of all workers."""
        return self.hosts * self.workers

    @property
    def crowded(self) -> bool:
        """Return whether there are more workers than cores."""
        return self.size > cores()

    def __str__(self) -> str:
        if self.hosts == 1:
            return f"{self.workers} workers"
        return f"{self.hosts} hosts x {self.workers} worker{'s' if self.workers > 1 else ''}"


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0))
