"""The arguments of mpirun of each vendor, as data.

The arguments contain only names of variables: their values are in the environment of the command, which passes them on.
"""

from __future__ import annotations

from farandole.control.launcher.targets.launch_order import LaunchOrder, written_with_slots


def _open_mpi(order: LaunchOrder, *tagged: str) -> list[str]:
    line = ["-np", str(order.size)]
    line += ["--host", written_with_slots(order.hosts)] if order.hosts else []
    # A user who asks for more workers than cores means it.
    line += [*order.bound_by("--map-by", "slot:OVERSUBSCRIBE", "--bind-to", "none"), *tagged]
    line += ["--allow-run-as-root"] if order.root else []
    line += order.arguments
    for name in order.names:
        line += ["-x", name]
    return [*line, *order.command]


def open_mpi_5(order: LaunchOrder) -> list[str]:
    """Return the arguments of Open MPI 5's mpirun."""
    return _open_mpi(order, "--output", "rank")


def open_mpi_4(order: LaunchOrder) -> list[str]:
    """Return the arguments of Open MPI 4's mpirun."""
    return _open_mpi(order, "--tag-output")


def mpich(order: LaunchOrder) -> list[str]:
    """Return the arguments of MPICH's mpirun (Hydra)."""
    line = ["-n", str(order.size)]
    line += ["-hosts", written_with_slots(order.hosts)] if order.hosts else []
    line += ["-genvall", *order.bound_by("-bind-to", "none"), "-prepend-rank", *order.arguments]
    return [*line, *order.command]


def intel_mpi(order: LaunchOrder) -> list[str]:
    """Return the arguments of Intel MPI's mpirun."""
    line = ["-genvall", *order.bound_by(), "-prepend-rank", *order.arguments]
    if not order.hosts:
        return [*line, "-n", str(order.size), *order.command]
    # Its host lists have no slots; sets of arguments do, one for each host.
    for number, host in enumerate(order.hosts):
        line += [":"] if number else []
        line += ["-host", host.name, "-n", str(host.slots), *order.command]
    return line
