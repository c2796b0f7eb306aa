"""Case f: allreduce between hosts, on wires of several speeds."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.cases.base import ARENA, GLOO, KB, MB, MPIS, WIRE_BOUND, Case, Figure, Ratio, everybody
from benchmarks.conductor import Conductor, Contender, Row
from benchmarks.hosts import Bed, BedError, bed_of
from benchmarks.scope import Scope
from benchmarks.topology import Topology

OVER_MPI = "farandole over MPICH"

_GIGABIT = 10**9
_RATES = {"unshaped": None, "10 Gbit/s": 10 * _GIGABIT, "1 Gbit/s": _GIGABIT}


def _measure(conductor: Conductor, scope: Scope) -> list[Row]:
    topologies = (Topology(2, 1),) if scope.quick else (Topology(2, 1), Topology(2, 2), Topology(4, 1))
    sizes = scope.choose_sizes((64 * KB, MB, 16 * MB, 64 * MB), quick=(MB,))
    rows = []
    for topology in topologies:
        try:
            with bed_of(topology.hosts, conductor.folder) as bed:
                try:
                    rows += _measure_wires(conductor, topology, sizes, bed)
                finally:
                    # Before the hosts are removed: a worker without a network cannot leave in good order.
                    conductor.dismiss(topology)
        except BedError as error:
            conductor.failures.append(f"{topology}: {error}")
            conductor.say(f"    skipped: {error}")
    return rows


def _measure_wires(conductor: Conductor, topology: Topology, sizes: Sequence[int], bed: Bed) -> list[Row]:
    rows = []
    for rate, bits in _RATES.items():
        bed.shape(bits)
        for size in sizes:
            keys = {"hosts": str(topology), "wire": rate, "bytes": size}
            rows.append(conductor.measure(topology, _contenders(topology, size), keys, bed=bed))
    return rows


def _contenders(topology: Topology, size: int) -> list[Contender]:
    # In an allreduce, every host must send and receive at least this much (Patarasuk and Yuan, 2009).
    least = 2 * (topology.hosts - 1) * size // topology.hosts
    return [
        Contender(WIRE_BOUND, "farandole", "stream", {"bytes": least}),
        Contender(OVER_MPI, "farandole_mpi", "allreduce", {"bytes": size}),
        *everybody("allreduce", bytes=size),
    ]


HOSTS = Case(
    letter="f",
    title="one blocking allreduce of float32 between hosts (network namespaces of this machine)",
    keys=("hosts", "wire", "bytes"),
    run=_measure,
    ratios=(
        Ratio("farandole / wire bound", (ARENA,), WIRE_BOUND),
        Ratio("farandole over MPICH / over TCP", (OVER_MPI,)),
        Ratio("gloo / farandole", (GLOO,)),
        Ratio("better MPI / farandole", MPIS),
    ),
    figure=Figure(panel_keys=("hosts", "wire")),
)
