"""The results of the self test, as data."""

from __future__ import annotations

import msgspec


class Problem(msgspec.Struct, frozen=True):
    """A wrong result of a collective."""

    check: str
    rank: int
    """The rank with the wrong result."""
    what: str


class Node(msgspec.Struct, frozen=True):
    """An end of links: a host or, if there is only one host, a worker."""

    name: str
    rank: int
    """The worker that measured at this end."""


class Pair(msgspec.Struct, frozen=True):
    """The speed of the link between two nodes."""

    one: int
    """Index of the first node in the list of nodes; lower than `other`."""
    other: int
    latency_us: float
    """One-way time of 4 bytes in microseconds."""
    there: float
    """Bytes per second from `one` to `other`."""
    back: float
    """Bytes per second from `other` to `one`."""
    route: str
    """The route from `one` to `other`, from `Engine.routes`."""

    def better_of(self, again: Pair) -> Pair:
        """Return the better results of two measurements: a result that is slow only once is not due to the link."""
        return Pair(
            self.one,
            self.other,
            min(self.latency_us, again.latency_us),
            max(self.there, again.there),
            max(self.back, again.back),
            self.route,
        )


class Whole(msgspec.Struct, frozen=True):
    """The speed of allreduces among all workers."""

    latency_us: float
    """Time of an allreduce of 4 bytes in microseconds."""
    size: int
    """Size of a large allreduce in bytes."""
    seconds: float
    """Time of the large allreduce in seconds."""


class SelfTestReport(msgspec.Struct, frozen=True):
    """All results of the self test."""

    workers: int
    hosts: int
    links: str
    """Rank 0's `Engine.links`."""
    checks: int
    problems: list[Problem]
    nodes: list[Node]
    pairs: list[Pair]
    at_once: int
    """Largest number of pairs that were measured at the same time."""
    whole: Whole
