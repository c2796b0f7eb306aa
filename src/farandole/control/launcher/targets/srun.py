"""The arguments of Slurm's srun, as data."""

from __future__ import annotations

from farandole.control.launcher.targets.launch_order import LaunchOrder, written_with_slots
from farandole.errors import SpecError


def slurm(order: LaunchOrder) -> list[str]:
    """Return the arguments of srun.

    Raises:
        SpecError: the hosts have different numbers of slots.
    """
    line = [f"--ntasks={order.size}"]
    if order.hosts:
        counts = {host.slots for host in order.hosts}
        if len(counts) > 1:
            raise SpecError(
                f"{order.program} starts the same number of workers on each node, "
                f"not {written_with_slots(order.hosts)}",
                "give all hosts the same number of slots, or omit -H to let Slurm choose",
            )
        line += [f"--nodes={len(order.hosts)}", f"--ntasks-per-node={counts.pop()}"]
        line += [f"--nodelist={','.join(host.name for host in order.hosts)}"]
    # With MPI, Slurm's configuration or SLURM_MPI_TYPE decides.
    line += ["--export=ALL", *(() if order.mpi else ("--mpi=none",))]
    line += [*order.bound_by("--cpu-bind=none"), "--kill-on-bad-exit=1", "--label", *order.arguments]
    return [*line, *order.command]
