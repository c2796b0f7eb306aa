"""`horovod.runner.gloo_run`: run a command without MPI."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from farandole.compat.runner import _HorovodArgs, launch, network
from farandole.compat.runner.settings import BaseSettings
from farandole.control.launcher.function import run_in_background

__all__ = ["gloo_run", "network"]


def gloo_run(
    settings: BaseSettings,
    nics: Sequence[str],
    env: Mapping[str, str],
    server_ip: str,
    command: Sequence[str],
) -> None:
    """Run a command on the workers that the settings describe, and wait for its end.

    Args:
        settings: hosts, number of workers, destination of the output.
        nics: interfaces to use.
        env: the environment of the workers.
        server_ip: ignored; the roster listens on an address that the job's hosts can reach.
        command: the command and its arguments.

    Raises:
        ValueError: such a job cannot be started here.
        RuntimeError: a worker failed.
    """
    run_as_settings_say(settings, nics, env, command)


def run_as_settings_say(
    settings: BaseSettings,
    nics: Sequence[str] | None,
    env: Mapping[str, str],
    command: Sequence[str],
    use_mpi: bool | None = None,
) -> None:
    """Run a command on the workers that the settings describe, by farandole's launcher or by mpirun.

    Args:
        settings: hosts, number of workers, destination of the output.
        nics: interfaces to use.
        env: the environment of the workers.
        command: the command and its arguments.
        use_mpi: whether mpirun starts the workers.
    """
    args = _HorovodArgs()
    args.num_proc, args.verbose, args.nics = settings.num_proc or 1, bool(settings.verbose), set(nics or ())
    args.hosts = getattr(settings, "hosts", None)
    args.ssh_port, args.ssh_identity_file = settings.ssh_port, settings.ssh_identity_file
    args.output_filename = settings.output_filename
    args.prefix_output_with_timestamp = settings.prefix_output_with_timestamp
    args.use_gloo, args.use_mpi = (None, True) if use_mpi else (True, None)
    args.mpi_args, args.binding_args = settings.extra_mpi_args, settings.binding_args
    args.command = list(command)
    job = launch.prepare(args, environment=env)
    machine = replace(job.machine, environment=dict(env))
    outcome = run_in_background(
        job.spec, machine, verbose=job.verbose, observe=launch.HorovodWords, through=job.starter
    )
    launch.raise_failure(outcome, job.starter)
