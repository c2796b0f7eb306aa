"""`horovod.runner.mpi_run`: workers are not started through MPI here. What there is to know of an installed one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NoReturn

from farandole.compat.runner import tiny_shell_exec

_OMPI_IMPL = "OpenMPI"
_SMPI_IMPL = "SpectrumMPI"
_MPICH_IMPL = "MPICH"
_IMPI_IMPL = "IntelMPI"
_UNKNOWN_IMPL = "Unknown"
_MISSING_IMPL = "Missing"

_LARGE_CLUSTER_THRESHOLD = 64

# By what `mpirun --version` says.
_SIGNS = (
    ("Open MPI", _OMPI_IMPL),
    ("OpenRTE", _OMPI_IMPL),
    ("IBM Spectrum MPI", _SMPI_IMPL),
    ("HYDRA", _MPICH_IMPL),
    ("MPICH", _MPICH_IMPL),
    ("Intel(R) MPI", _IMPI_IMPL),
)


def mpi_available(env: Mapping[str, str] | None = None) -> bool:
    """Say whether workers can be started through MPI: no, whatever is installed."""
    return False


def is_open_mpi(env: Mapping[str, str] | None = None) -> bool:
    """Say whether the installed MPI is Open MPI."""
    return _get_mpi_implementation(env) == _OMPI_IMPL


def is_mpich(env: Mapping[str, str] | None = None) -> bool:
    """Say whether the installed MPI is MPICH."""
    return _get_mpi_implementation(env) == _MPICH_IMPL


def _get_mpi_implementation(env: Mapping[str, str] | None = None) -> str:
    answer = tiny_shell_exec.execute("mpirun --version", os.environ if env is None else env)
    if answer is None or answer[1] != 0:
        return _MISSING_IMPL
    return next((name for sign, name in _SIGNS if sign in answer[0]), _UNKNOWN_IMPL)


def _get_mpi_implementation_flags(
    tcp_flag: bool | None, env: Mapping[str, str] | None = None
) -> tuple[None, None, None]:
    """Return the flags for mpirun, its binding, and which MPI it is: there are none, as it is not run."""
    return None, None, None


def mpi_run(
    settings: Any, nics: Any, env: Mapping[str, str], command: Any, stdout: Any = None, stderr: Any = None
) -> NoReturn:
    """Refuse to start workers through MPI.

    Raises:
        NotImplementedError: always.
    """
    raise NotImplementedError(
        "farandole-horovod does not start workers through MPI. Use horovodrun or horovod.run without it; "
        "horovod.runner.gloo_run.gloo_run takes the same settings."
    )
