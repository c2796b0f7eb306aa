"""Case i: from the launcher's command to the end of the first allreduce of two workers; what an idle worker costs."""

from __future__ import annotations

import sys

from benchmarks.cases.base import Case
from benchmarks.commands import TIME, time_command, time_start
from benchmarks.conductor import Conductor, Row
from benchmarks.peers import mpi
from benchmarks.scope import Scope
from benchmarks.topology import Topology

_USED = "share of a core"
_MPI_AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def _measure(conductor: Conductor, scope: Scope) -> list[Row]:
    python = (sys.executable,)
    first = (*python, "-m", "benchmarks.first_allreduce")
    rows = [
        time_command(conductor, "python alone", (*python, "-c", "pass")),
        time_command(conductor, "python, import torch", (*python, "-c", "import torch")),
        time_command(conductor, "python, import mpi4py and numpy", _mpi_import(), _mpi_environment("openmpi")),
        time_start(
            conductor, "farandole run", (*python, "-m", "farandole", "run", "-np", "2", *first, "farandole", "2")
        ),
        time_start(
            conductor,
            "torchrun, gloo",
            (
                *python,
                "-m",
                "torch.distributed.run",
                "--nproc-per-node",
                "2",
                "--standalone",
                "--no-python",
                *first,
                "gloo",
                "2",
            ),
        ),
    ]
    for name, title in (("openmpi", "mpirun, Open MPI"), ("mpich", "mpiexec, MPICH")):
        why = mpi.missing(name)
        if why:
            rows.append(Row({"what": title}, notes={TIME: why}))
            continue
        command = (str(mpi.folder(name) / "bin" / "mpiexec"), "-n", "2", *first, "mpi", "2")
        rows.append(time_start(conductor, title, command, _mpi_environment(name)))
    return [*rows, _measure_idle(conductor, 0.5 if scope.quick else 3.0)]


def _mpi_import() -> tuple[str, ...]:
    return (sys.executable, "-c", "import numpy, mpi4py.MPI")


def _mpi_environment(name: str) -> dict[str, str]:
    return mpi.library_environment(name) | _MPI_AS_ROOT


def _measure_idle(conductor: Conductor, seconds: float) -> Row:
    """Note the share of a core that an idle worker uses."""
    used = conductor.ask("farandole", Topology(1, 2), "idle", {"seconds": seconds})
    text = "failed" if used is None else f"{max(used):.2%}"
    return Row({"what": f"idle worker of farandole, over {seconds:g} s"}, notes={_USED: text})


STARTUP = Case(
    letter="i",
    title="from the launcher's command to the end of the first allreduce of 2 workers",
    keys=("what",),
    run=_measure,
)
