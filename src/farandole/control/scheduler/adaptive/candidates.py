"""The candidate sizes of a job: sizes that cause no fragmentation.

Within a node of S slots, these are powers of two below S and S itself; beyond it, whole nodes. If S is a power of two,
any set of such sizes that fits by the number of slots also fits onto nodes: filled in order of size, nodes have no gap
that a smaller size cannot use. A rigid job has only its requested size.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from farandole.control.scheduler.cluster import Cluster


class Candidate(NamedTuple):
    """A number of slots of one type, and the number of nodes that they occupy when packed."""

    type: str
    nodes: int
    slots: int


def sizes(cluster: Cluster, type_: str, largest: int) -> tuple[Candidate, ...]:
    """Return the sizes on a type of node, up to `largest` slots."""
    return _sizes(type_, cluster.smallest_of[type_], len(cluster.indices_of[type_]), largest)


@lru_cache(4096)
def _sizes(type_: str, each: int, nodes: int, largest: int) -> tuple[Candidate, ...]:
    counts = [count for count in _powers(each) if count <= largest]
    counts += range(2 * each, min(largest, each * nodes) + 1, each)
    return tuple(Candidate(type_, -(-count // each), count) for count in counts)


def exactly(cluster: Cluster, type_: str, slots: int) -> list[Candidate]:
    """Return the only size of a rigid job on a type of node; empty if there are not enough slots."""
    each = cluster.smallest_of[type_]
    return [Candidate(type_, -(-slots // each), slots)] if slots <= cluster.slots_of[type_] else []


def _powers(each: int) -> Iterator[int]:
    count = 1
    while count < each:
        yield count
        count *= 2
    yield each
