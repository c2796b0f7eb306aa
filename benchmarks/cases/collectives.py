"""Case g: the other collectives."""

from __future__ import annotations

from benchmarks.cases.base import GLOO, KB, MB, MPIS, Case, Figure, Ratio, everybody
from benchmarks.conductor import Conductor, Row
from benchmarks.scope import Scope
from benchmarks.topology import Topology

_WORKS = ("allgather", "broadcast", "reducescatter", "alltoall")


def _measure(conductor: Conductor, scope: Scope) -> list[Row]:
    sizes = scope.choose_sizes((KB, 64 * KB, MB, 64 * MB), quick=(KB, MB))
    rows = []
    for world in scope.choose_worlds((2, 4)):
        for work in _WORKS:
            for size in sizes:
                keys = {"world": world, "collective": work, "bytes": size}
                rows.append(
                    conductor.measure(Topology(1, world), everybody(work, bytes=size), keys, bytes_held=3 * size)
                )
    return rows


COLLECTIVES = Case(
    letter="g",
    title="the other collectives; bytes are those of the whole: gathered, broadcast, to be reduced, sent",
    keys=("world", "collective", "bytes"),
    run=_measure,
    ratios=(Ratio("gloo / farandole", (GLOO,)), Ratio("better MPI / farandole", MPIS)),
    figure=Figure(panel_keys=("world", "collective")),
)
