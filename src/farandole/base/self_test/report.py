"""The results of the self test, as data."""

from __future__ import annotations

import msgspec


class Problem(msgspec.Struct, frozen=True):
    """A collective gave something wrong."""

    check: str
    rank: int
    """Where."""
    what: str


class Node(msgspec.Struct, frozen=True):
    """An end of links: a host or, when there is only one, a worker."""

    name: str
    rank: int
    """The worker that was at this end."""


class Pair(msgspec.Struct, frozen=True):
    """How fast the link between two nodes is."""

    one: int
    """Places of the two in the list of nodes, the lower one first."""
    other: int
    latency_us: float
    """The time that 4 bytes take, one way."""
    there: float
    """Bytes a second from the one to the other, and back."""
    back: float
    route: str
    """As `Engine.routes` tells it to the one."""

    def better_of(self, again: Pair) -> Pair:
        """Return what the link can do, seen twice: what is slow only once is not the link's."""
        return Pair(
            self.one,
            self.other,
            min(self.latency_us, again.latency_us),
            max(self.there, again.there),
            max(self.back, again.back),
            self.route,
        )


class Whole(msgspec.Struct, frozen=True):
    """How fast allreduces among all workers are."""

    latency_us: float
    """Of 4 bytes."""
    size: int
    """Of a large one, in bytes."""
    seconds: float


class Report(msgspec.Struct, frozen=True):
    """All of it."""

    workers: int
    hosts: int
    links: str
    """As `Engine.links` tells it to rank 0."""
    checks: int
    problems: list[Problem]
    nodes: list[Node]
    pairs: list[Pair]
    at_once: int
    """How many pairs were measured at the same time, at most."""
    whole: Whole
