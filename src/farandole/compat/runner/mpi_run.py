"""`horovod.runner.mpi_run`: run a command whose workers mpirun starts, and identify its MPI."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from farandole.compat.runner import settings, tiny_shell_exec
from farandole.compat.runner.gloo_run import run_as_settings_say

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
    """Return whether workers can be started through MPI: whether there is an mpirun of a known kind."""
    return _get_mpi_implementation(env) not in (_UNKNOWN_IMPL, _MISSING_IMPL)


def is_open_mpi(env: Mapping[str, str] | None = None) -> bool:
    """Return whether the installed MPI is Open MPI."""
    return _get_mpi_implementation(env) == _OMPI_IMPL


def is_mpich(env: Mapping[str, str] | None = None) -> bool:
    """Return whether the installed MPI is MPICH."""
    return _get_mpi_implementation(env) == _MPICH_IMPL


def _get_mpi_implementation(env: Mapping[str, str] | None = None) -> str:
    answer = tiny_shell_exec.execute("mpirun --version", os.environ if env is None else env)
    if answer is None or answer[1] != 0:
        return _MISSING_IMPL
    return next((name for sign, name in _SIGNS if sign in answer[0]), _UNKNOWN_IMPL)


def _get_mpi_implementation_flags(
    tcp_flag: bool | None, env: Mapping[str, str] | None = None
) -> tuple[None, None, None]:
    """Return None for mpirun's flags, its binding, and the MPI: `control.launcher` chooses them."""
    return None, None, None


def mpi_run(
    settings: settings.BaseSettings,
    nics: Any,
    env: Mapping[str, str],
    command: str | Sequence[str],
    stdout: Any = None,
    stderr: Any = None,
) -> None:
    """Run a command on the workers that the settings describe, started by mpirun, and wait for its end.

    Args:
        settings: hosts, number of workers, arguments of mpirun.
        nics: interfaces to use.
        env: the environment of mpirun and of the workers.
        command: the command and its arguments.
        stdout: ignored; the workers' output goes to this process's own output.
        stderr: ignored, likewise.

    Raises:
        ValueError: such a job cannot be started here.
        RuntimeError: a worker failed.
    """
    words = shlex.split(command) if isinstance(command, str) else list(command)
    run_as_settings_say(settings, nics, env, words, use_mpi=True)
