"""Case i: from the launcher's command to the end of the first allreduce of two workers; what an idle worker costs."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.cases.base import Case
from benchmarks.conductor import Conductor, Row
from benchmarks.peers import mpi
from benchmarks.peers.base import ROOT
from benchmarks.scope import Scope
from benchmarks.topology import Topology

_SECONDS = 60.0
_TIME, _USED = "time", "share of a core"
_MPI_AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def _measure(conductor: Conductor, scope: Scope) -> list[Row]:
    python = (sys.executable,)
    first = (*python, "-m", "benchmarks.first_allreduce")
    rows = [
        _time_command(conductor, scope, "python alone", (*python, "-c", "pass")),
        _time_command(conductor, scope, "python, import torch", (*python, "-c", "import torch")),
        _time_command(conductor, scope, "python, import mpi4py and numpy", _mpi_import(), _mpi_environment("openmpi")),
        _time_start(
            conductor, scope, "farandole run", (*python, "-m", "farandole", "run", "-np", "2", *first, "farandole")
        ),
        _time_start(
            conductor,
            scope,
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
            ),
        ),
    ]
    for name, title in (("openmpi", "mpirun, Open MPI"), ("mpich", "mpiexec, MPICH")):
        why = mpi.missing(name)
        if why:
            rows.append(Row({"what": title}, notes={_TIME: why}))
            continue
        command = (str(mpi.folder(name) / "bin" / "mpiexec"), "-n", "2", *first, "mpi")
        rows.append(_time_start(conductor, scope, title, command, _mpi_environment(name)))
    return [*rows, _measure_idle(conductor, 0.5 if scope.quick else 3.0)]


def _mpi_import() -> tuple[str, ...]:
    return (sys.executable, "-c", "import numpy, mpi4py.MPI")


def _mpi_environment(name: str) -> dict[str, str]:
    return mpi.library_environment(name) | _MPI_AS_ROOT


def _time_command(
    conductor: Conductor, scope: Scope, what: str, command: Sequence[str], environment: Mapping[str, str] | None = None
) -> Row:
    """Time a command to its end."""
    return _time(conductor, scope, what, command, environment or {}, workers=0)


def _time_start(
    conductor: Conductor, scope: Scope, what: str, command: Sequence[str], environment: Mapping[str, str] | None = None
) -> Row:
    """Time a command until the last of its two workers has done its first allreduce."""
    return _time(conductor, scope, what, command, environment or {}, workers=2)


def _time(
    conductor: Conductor, scope: Scope, what: str, command: Sequence[str], environment: Mapping[str, str], workers: int
) -> Row:
    row = Row({"what": what})
    for _ in range(2 if scope.quick else 5):
        with tempfile.TemporaryDirectory() as folder:
            path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
            own = {"BENCHMARK_FOLDER": folder, "PYTHONPATH": path, **environment}
            started = time.monotonic_ns()
            try:
                subprocess.run(
                    command, env={**os.environ, **own}, check=True, capture_output=True, text=True, timeout=_SECONDS
                )
                ended = [int(file.read_text()) for file in Path(folder).iterdir()] if workers else [time.monotonic_ns()]
                if workers and len(ended) != workers:
                    raise RuntimeError(f"{len(ended)} workers of {workers} got that far")
            except (subprocess.SubprocessError, OSError, RuntimeError) as error:
                output = (getattr(error, "stderr", None) or "")[-800:]
                conductor.failures.append(f"{what}: {error} {output}")
                conductor.say(f"    warning: {what}: {error}\n{output}")
                row.notes[_TIME] = "failed"
                break
            row.seconds.setdefault(_TIME, []).append((max(ended) - started) / 1e9)
    conductor.say(f"    {what}")
    return row


def _measure_idle(conductor: Conductor, seconds: float) -> Row:
    """Note which share of a core a worker uses that waits for nothing."""
    used = conductor.ask("farandole", Topology(1, 2), "idle", {"seconds": seconds})
    text = "failed" if used is None else f"{max(used):.2%}"
    return Row({"what": f"idle worker of farandole, over {seconds:g} s"}, notes={_USED: text})


STARTUP = Case(
    letter="i",
    title="from the launcher's command to the end of the first allreduce of 2 workers",
    keys=("what",),
    run=_measure,
)
