"""The backend that a job requests, by flag or variable, and requests that are refused before anything starts."""

from __future__ import annotations

import pytest

from farandole.control.launcher.job.elastic import Elastic
from farandole.control.launcher.job.spec import LaunchSpec, check_backend
from farandole.control.launcher.job.worker_settings import with_backend
from farandole.errors import SpecError


@pytest.mark.parametrize(
    ("asked", "environment", "backend"),
    [
        ({}, {}, None),
        ({"backend": "mpi"}, {}, "mpi"),
        ({}, {"FARANDOLE_BACKEND": "mpi"}, "mpi"),
        ({}, {"HOROVOD_CPU_OPERATIONS": "MPI"}, "mpi"),
        ({}, {"HOROVOD_CPU_OPERATIONS": "gloo"}, None),
        ({}, {"HOROVOD_CPU_OPERATIONS": "CCL"}, None),
        ({}, {"FARANDOLE_BACKEND": "native", "HOROVOD_CPU_OPERATIONS": "MPI"}, None),
        ({"backend": "native"}, {"FARANDOLE_BACKEND": "mpi"}, "native"),
    ],
)
def test_a_flag_wins_over_variables(asked: dict[str, str], environment: dict[str, str], backend: str | None) -> None:
    assert with_backend({"autotune": True, **asked}, environment) == {
        "autotune": True,
        **({} if backend is None else {"backend": backend}),
    }


def test_invalid_backend_in_variable_is_refused() -> None:
    with pytest.raises(SpecError, match="HOROVOD_CPU_OPERATIONS=MPICH: expected one of native, mpi"):
        with_backend({}, {"HOROVOD_CPU_OPERATIONS": "MPICH"})


def test_mpi_starts_its_workers_itself() -> None:
    spec = LaunchSpec(command=("true",), num_proc=2, settings={"backend": "mpi"})
    check_backend(spec, "mpirun")
    check_backend(spec, "srun")
    with pytest.raises(SpecError, match="add --launcher mpirun"):
        check_backend(spec, None)
    check_backend(LaunchSpec(command=("true",), num_proc=2), None)


def test_mpi_jobs_cannot_be_elastic() -> None:
    spec = LaunchSpec(command=("true",), num_proc=None, elastic=Elastic(1, 2), settings={"backend": "mpi"})
    with pytest.raises(SpecError, match="ends with any of them, so the job cannot be elastic"):
        check_backend(spec, None)
