"""Cases d and e: many small tensors, and one of the smallest."""

from __future__ import annotations

from benchmarks.cases.base import GLOO, KB, MPIS, Case, Ratio, everybody
from benchmarks.conductor import Conductor, Contender, Row
from benchmarks.scope import Scope
from benchmarks.topology import Topology

GROUPED = "farandole, one grouped call"

_RATIOS = (Ratio("gloo / farandole", (GLOO,)), Ratio("better MPI / farandole", MPIS))


def _measure_many(conductor: Conductor, scope: Scope) -> list[Row]:
    count = 100 if scope.quick else 1000
    grouped = Contender(GROUPED, "farandole", "many_grouped", {"count": count, "bytes": KB})
    return [
        conductor.measure(
            Topology(1, world), [grouped, *everybody("many", count=count, bytes=KB)], {"world": world, "tensors": count}
        )
        for world in scope.choose_worlds((2, 4))
    ]


def _measure_latency(conductor: Conductor, scope: Scope) -> list[Row]:
    return [
        conductor.measure(Topology(1, world), everybody("latency"), {"world": world})
        for world in scope.choose_worlds((2, 4))
    ]


MANY = Case(
    letter="d",
    title="1,000 tensors of 1 KB, submitted one by one, then waited for",
    keys=("world", "tensors"),
    run=_measure_many,
    ratios=(
        Ratio("gloo / grouped", (GLOO,), GROUPED),
        Ratio("better MPI / grouped", MPIS, GROUPED),
        *_RATIOS,
    ),
)
LATENCY = Case(
    letter="e",
    title="4 bytes from Python, from the asynchronous call to the end of the wait",
    keys=("world",),
    run=_measure_latency,
    ratios=_RATIOS,
)
