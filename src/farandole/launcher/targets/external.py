"""The command lines of other launchers, computed as data: how mpirun, of whichever MPI, and srun start our workers.

One function for each, from the same order. Variables are named there and never given: their values travel in the
environment of the command, and from there on in ways of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from farandole.launcher.errors import SpecError
from farandole.launcher.job.host_list import Host

KINDS = ("mpirun", "srun")


class Flavour(Enum):
    """Whose program it is. The value is what people call it."""

    OPEN_MPI_5 = "Open MPI 5"
    OPEN_MPI_4 = "Open MPI 4"
    MPICH = "MPICH"
    INTEL_MPI = "Intel MPI"
    SLURM = "Slurm"


@dataclass(frozen=True)
class Order:
    """What is to be started."""

    program: str
    size: int
    hosts: tuple[Host, ...]
    """With their slots, which add up to the size. Empty: wherever the program starts things by itself."""
    names: tuple[str, ...]
    """Variables that workers on other hosts must get from the program's environment."""
    command: tuple[str, ...]
    root: bool = False
    """Whether root starts it."""


def flavour_of(version: str) -> Flavour:
    """Tell from what `--version` prints whose program it is.

    Raises:
        SpecError: it is none that we know.

    Example:
        >>> flavour_of("mpirun (Open MPI) 4.1.8")
        <Flavour.OPEN_MPI_4: 'Open MPI 4'>
    """
    open_mpi = re.search(r"\(Open MPI\) (\d+)", version)
    if open_mpi:
        return Flavour.OPEN_MPI_5 if int(open_mpi[1]) >= 5 else Flavour.OPEN_MPI_4
    for mark, flavour in (
        (r"Intel\(R\) MPI", Flavour.INTEL_MPI),
        (r"HYDRA", Flavour.MPICH),
        (r"^slurm", Flavour.SLURM),
    ):
        if re.search(mark, version):
            return flavour
    first = version.strip().splitlines()[0] if version.strip() else "nothing"
    raise SpecError(
        f"it is not known whose program this is; --version prints: {first}",
        "known are Open MPI, MPICH, Intel MPI and Slurm. Or start farandole without it: -H h1:4,h2:4",
    )


def command_line(flavour: Flavour, order: Order) -> tuple[str, ...]:
    """Return what to run. Pure: it depends on nothing but its arguments.

    Raises:
        SpecError: that program cannot start this.
    """
    for host in order.hosts:
        if "@" in host.name or ":" in host.name:
            raise SpecError(
                f"{order.program} takes names of hosts only, not {host.name}",
                "give the host a name, and the user, in ~/.ssh/config",
            )
    return (order.program, *_LINES[flavour](order))


def environment_of(flavour: Flavour) -> Mapping[str, str]:
    """Return variables that the program itself needs where it has no option for them."""
    # Workers are not bound to cores: their threads would have to share one.
    return {"I_MPI_PIN": "0"} if flavour is Flavour.INTEL_MPI else {}


def _slots(hosts: Sequence[Host]) -> str:
    return ",".join(f"{host.name}:{host.slots}" for host in hosts)


def _open_mpi(order: Order, *tagged: str) -> list[str]:
    line = ["-np", str(order.size)]
    line += ["--host", _slots(order.hosts)] if order.hosts else []
    # Who asks for more workers than cores wants them.
    line += ["--map-by", "slot:OVERSUBSCRIBE", "--bind-to", "none", *tagged]
    line += ["--allow-run-as-root"] if order.root else []
    for name in order.names:
        line += ["-x", name]
    return [*line, *order.command]


def _open_mpi_5(order: Order) -> list[str]:
    return _open_mpi(order, "--output", "rank")


def _open_mpi_4(order: Order) -> list[str]:
    return _open_mpi(order, "--tag-output")


def _mpich(order: Order) -> list[str]:
    line = ["-n", str(order.size)]
    line += ["-hosts", _slots(order.hosts)] if order.hosts else []
    return [*line, "-genvall", "-bind-to", "none", "-prepend-rank", *order.command]


def _intel_mpi(order: Order) -> list[str]:
    line = ["-genvall", "-prepend-rank"]
    if not order.hosts:
        return [*line, "-n", str(order.size), *order.command]
    # Its lists of hosts know no slots; sets of arguments do, one for each host.
    for number, host in enumerate(order.hosts):
        line += [":"] if number else []
        line += ["-host", host.name, "-n", str(host.slots), *order.command]
    return line


def _slurm(order: Order) -> list[str]:
    line = [f"--ntasks={order.size}"]
    if order.hosts:
        counts = {host.slots for host in order.hosts}
        if len(counts) > 1:
            raise SpecError(
                f"{order.program} starts the same number of workers on each node, not {_slots(order.hosts)}",
                "give all of them the same slots, or leave the choice to Slurm: no -H",
            )
        line += [f"--nodes={len(order.hosts)}", f"--ntasks-per-node={counts.pop()}"]
        line += [f"--nodelist={','.join(host.name for host in order.hosts)}"]
    return [*line, "--export=ALL", "--mpi=none", "--cpu-bind=none", "--kill-on-bad-exit=1", "--label", *order.command]


_LINES: Mapping[Flavour, Callable[[Order], list[str]]] = {
    Flavour.OPEN_MPI_5: _open_mpi_5,
    Flavour.OPEN_MPI_4: _open_mpi_4,
    Flavour.MPICH: _mpich,
    Flavour.INTEL_MPI: _intel_mpi,
    Flavour.SLURM: _slurm,
}
