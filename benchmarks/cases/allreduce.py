"""Cases a and b: one blocking allreduce, by size, world and element type."""

from __future__ import annotations

from benchmarks.cases.base import (
    ARENA,
    COPY_BOUND,
    GLOO,
    KB,
    MB,
    MPIS,
    ORDINARY,
    UNNAMED,
    Case,
    Figure,
    Ratio,
    copy_bound,
    everybody,
)
from benchmarks.conductor import Conductor, Contender, Row
from benchmarks.scope import Scope
from benchmarks.topology import Topology

# The memory of one worker in each contender: the tensor, and what a library needs to reduce it; the bound has two
# blocks.
_HELD = 2
# Up to this size, calls without a name are measured as well: of larger ones, the name takes no time that counts.
_SMALL = 64 * KB
# Worlds of up to this size are used by other cases too; starting them takes longer than a measurement.
_KEPT = 4


def _measure_sizes(conductor: Conductor, scope: Scope) -> list[Row]:
    sizes = scope.choose_sizes([4**power for power in range(1, 15)], quick=(4, 64 * KB, 4 * MB))
    rows = []
    for world in scope.choose_worlds((2, 4, 8)):
        topology = Topology(1, world)
        for size in sizes:
            arena, *peers = everybody("allreduce", bytes=size)  # farandole's tensor lies in the arena by default.
            in_ordinary = {"bytes": size, "where": "ordinary"}
            ordinary = Contender(ORDINARY, "farandole", "allreduce", in_ordinary)
            unnamed = Contender(UNNAMED, "farandole", "allreduce", {**in_ordinary, "name": None})
            contenders = [copy_bound(size), arena, ordinary, *([unnamed] if size <= _SMALL else []), *peers]
            keys = {"world": world, "bytes": size}
            rows.append(conductor.measure(topology, contenders, keys, bytes_held=_HELD * size))
        if world > _KEPT:
            conductor.dismiss(topology)
    return rows


def _measure_types(conductor: Conductor, scope: Scope) -> list[Row]:
    counts = (64 * KB,) if scope.quick else (16 * KB, 1 * MB, 16 * MB)
    rows = []
    for count in counts:
        for dtype, width in (("float32", 4), ("float16", 2), ("bfloat16", 2)):
            contenders = [copy_bound(count * width), *everybody("allreduce", bytes=count * width, dtype=dtype)]
            keys = {"elements": count, "type": dtype}
            rows.append(conductor.measure(Topology(1, 2), contenders, keys, bytes_held=_HELD * count * width))
    return rows


SIZES = Case(
    letter="a",
    title="one blocking allreduce of float32, called from Python",
    keys=("world", "bytes"),
    run=_measure_sizes,
    ratios=(
        Ratio("farandole / copy bound", (ARENA,), COPY_BOUND),
        Ratio("ordinary / copy bound", (ORDINARY,), COPY_BOUND),
        Ratio("gloo / farandole", (GLOO,)),
        Ratio("better MPI / farandole", MPIS),
        Ratio("gloo / ordinary", (GLOO,), ORDINARY),
        Ratio("better MPI / ordinary", MPIS, ORDINARY),
    ),
    figure=Figure(file_key="world"),
)
TYPES = Case(
    letter="b",
    title="allreduce of as many elements of other types, 2 workers",
    keys=("elements", "type"),
    run=_measure_types,
    ratios=(Ratio("farandole / copy bound", (ARENA,), COPY_BOUND), Ratio("gloo / farandole", (GLOO,))),
)
