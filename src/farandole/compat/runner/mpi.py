"""`horovodrun --mpi`: mpirun starts the workers, and MPI carries the data between hosts."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Mapping

from farandole.compat.runner.arguments import is_elastic
from farandole.control.launcher.targets.launch_order import Starter, read_arguments
from farandole.errors import SpecError

_PROGRAM = "mpirun"


def starter(args: argparse.Namespace, environment: Mapping[str, str]) -> Starter:
    """Return the command that starts the workers of a job that uses MPI.

    Args:
        args: the result of `arguments.read`.
        environment: the environment of horovodrun.

    Raises:
        SpecError: the arguments cannot be combined with MPI, or there is no mpirun.
    """
    asked = "--mpi" if args.use_mpi else "HOROVOD_CPU_OPERATIONS=MPI"
    if is_elastic(args):
        raise SpecError(
            f"{asked} and elastic training: an MPI world has a fixed set of processes and does not outlive one of "
            "them, so workers cannot come and go",
            f"omit {asked}, or --min-np, --max-np and --host-discovery-script",
        )
    if args.output_filename:
        raise SpecError(
            f"--output-filename does not work together with {asked}: what workers print goes through mpirun",
            "mpirun has options for that; --mpi-args passes them on",
        )
    if shutil.which(_PROGRAM, path=environment.get("PATH", os.defpath)) is None:
        raise SpecError(
            f"{asked}: there is no program {_PROGRAM!r} on the PATH",
            "load the MPI of this cluster (`module load`), `pip install mpich`, or omit MPI: farandole starts "
            "workers without it",
        )
    binding = None if args.binding_args is None else read_arguments("--binding-args", args.binding_args)
    return Starter(_PROGRAM, read_arguments("--mpi-args", args.mpi_args or ""), binding)


def tell_what_has_no_effect(args: argparse.Namespace, chosen: Starter | None) -> None:
    """Print the flags about launchers that have no effect on this job."""
    if args.use_jsrun:
        print("note: --jsrun: farandole starts the workers itself, without it", file=sys.stderr)
    given = {"--mpi-args": args.mpi_args, "--binding-args": args.binding_args}
    idle = [flag for flag, value in given.items() if value is not None]
    if idle and chosen is None:
        print(f"note: {', '.join(idle)}: no effect without --mpi", file=sys.stderr)
    ours = {
        "--prefix-output-with-timestamp": args.prefix_output_with_timestamp,
        "--ssh-port": args.ssh_port,
        "--ssh-identity-file": args.ssh_identity_file,
    }
    idle = [flag for flag, value in ours.items() if value]
    if idle and chosen is not None:
        print(f"note: {', '.join(idle)}: no effect with MPI; tell mpirun, by --mpi-args", file=sys.stderr)
