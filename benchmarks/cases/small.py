"""Cases d and e: many small tensors, and one of the smallest."""

from __future__ import annotations

from benchmarks.cases.base import GLOO, KB, MPIS, Case, Ratio, everybody
from benchmarks.conductor import Conductor, Row
from benchmarks.topology import Topology

_RATIOS = (Ratio("gloo / farandole", (GLOO,)), Ratio("better MPI / farandole", MPIS))


def _measure_many(conductor: Conductor, quick: bool) -> list[Row]:
    count = 100 if quick else 1000
    worlds = (2,) if quick else (2, 4)
    return [
        conductor.measure(
            Topology(1, world), everybody("many", count=count, bytes=KB), {"world": world, "tensors": count}
        )
        for world in worlds
    ]


def _measure_latency(conductor: Conductor, quick: bool) -> list[Row]:
    worlds = (2,) if quick else (2, 4)
    return [conductor.measure(Topology(1, world), everybody("latency"), {"world": world}) for world in worlds]


MANY = Case(
    letter="d",
    title="1,000 tensors of 1 KB, submitted one by one, then waited for",
    keys=("world", "tensors"),
    run=_measure_many,
    ratios=_RATIOS,
)
LATENCY = Case(
    letter="e",
    title="4 bytes from Python, from the asynchronous call to the end of the wait",
    keys=("world",),
    run=_measure_latency,
    ratios=_RATIOS,
)
