"""A worker's rank and job, read from the environment variables of other launchers.

A process may have the variables of several launchers, because launchers that start each other pass them on. So the
table below is ordered: a launcher that is started by another one comes before it, and takes precedence. `torchrun` is
started by `srun` or `mpirun`, once on each host, and `mpirun` starts its own helpers with `srun`.

A variable that a launcher also sets for other processes does not mark a worker: a Slurm batch script has
SLURM_PROCID=0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from farandole.errors import SettingError

WITHIN_VARIABLE = "FARANDOLE_WITHIN"
"""Set by agents for their workers: the names of the launchers whose variables they inherit, separated by commas."""

# Largest number of processes between a worker and MPICH's helper, such as shells.
_ANCESTORS = 16


@dataclass(frozen=True)
class ExternalPlacement:
    """One worker's place in a job that another launcher started."""

    starter: str
    """The launcher's name, for messages."""
    rank: int
    size: int
    one_host: bool
    """Whether, according to the launcher, all workers are on this host."""
    job_key: str
    """Key that is equal on all workers of this job, and unique among concurrent jobs; "": not available."""


@dataclass(frozen=True)
class _Starter:
    """The environment variables that a launcher sets."""

    name: str
    marks: tuple[str, ...]
    """Variables of which one is set if the launcher started this process."""
    rank: str
    size: str
    job: tuple[str, ...] = ()
    """Variables that distinguish its jobs. The first is required for that; the others are used if they are set."""
    local_size: str = ""
    """Variable with the number of workers on this host."""
    hosts: str = ""
    """Variable with the number of hosts of the job."""

    def has_marked(self, environment: Mapping[str, str]) -> bool:
        """Return whether the launcher has started the process with that environment, or one above it."""
        return any(environment.get(mark) for mark in self.marks)


_HAND = _Starter("hand", ("FARANDOLE_RANK", "FARANDOLE_SIZE"), "FARANDOLE_RANK", "FARANDOLE_SIZE")
_MPICH = _Starter("mpirun (MPICH)", ("MPI_LOCALRANKID",), "PMI_RANK", "PMI_SIZE", local_size="MPI_LOCALNRANKS")

_STARTERS = (
    _HAND,
    _Starter(
        "torchrun",
        ("TORCHELASTIC_RUN_ID",),
        "RANK",
        "WORLD_SIZE",
        # The run id is "none" for all jobs that were not given one.
        job=("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT"),
        local_size="LOCAL_WORLD_SIZE",
    ),
    _Starter(
        "jsrun",
        ("JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE"),
        "JSM_NAMESPACE_RANK",
        "JSM_NAMESPACE_SIZE",
        job=("LSB_JOBID", "JSM_NAMESPACE_ID"),
        local_size="JSM_NAMESPACE_LOCAL_SIZE",
    ),
    _Starter(
        "mpirun (Open MPI)",
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        # Up to version 4 the first is a number, of which half is a hash; the second is random there.
        job=("PMIX_NAMESPACE", "OMPI_MCA_orte_precondition_transports"),
        local_size="OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    _Starter(
        "mpirun (Intel MPI)",
        ("I_MPI_HYDRA_UUID",),
        "PMI_RANK",
        "PMI_SIZE",
        job=("I_MPI_HYDRA_UUID",),
        local_size="MPI_LOCALNRANKS",
    ),
    _MPICH,
    _Starter(
        "srun",
        ("SLURM_STEP_NUM_TASKS",),
        "SLURM_PROCID",
        "SLURM_STEP_NUM_TASKS",
        # A job that is put back into the queue keeps its number.
        job=("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_CLUSTER_NAME", "SLURM_RESTART_COUNT"),
        hosts="SLURM_STEP_NUM_NODES",
    ),
)


def find(
    environment: Mapping[str, str], ancestors: Callable[[], Iterator[Sequence[str]]] | None = None
) -> ExternalPlacement | None:
    """Return this worker's place according to the environment; None: no launcher started it as a worker.

    Args:
        environment: environment variables of this process.
        ancestors: returns the command lines of a process's ancestors, the closest first; None: those of this process.
            Called only if the environment does not distinguish jobs.

    Raises:
        SettingError: one of the variables is missing or not valid.

    Example:
        >>> find({"RANK": "1", "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "a", "LOCAL_WORLD_SIZE": "2"})
        ExternalPlacement(starter='torchrun', rank=1, size=2, one_host=True, job_key='torchrun a')
        >>> find({"RANK": "1", "WORLD_SIZE": "2"}) is None
        True
    """
    for starter in _STARTERS:
        if starter.has_marked(environment):
            return _read(starter, environment, ancestors or command_lines_above)
    return None


def find_within(environment: Mapping[str, str]) -> ExternalPlacement | None:
    """Return this process's place according to a launcher that was started by a worker; None: there is none.

    Raises:
        SettingError: one of that launcher's variables is missing or not valid.
    """
    if WITHIN_VARIABLE not in environment:
        return None
    around = environment[WITHIN_VARIABLE].split(",")
    for starter in _STARTERS:
        if starter is not _HAND and starter.name not in around and starter.has_marked(environment):
            return _read(starter, environment, command_lines_above)
    return None


def launchers_around(environment: Mapping[str, str]) -> str:
    """Return the value of `WITHIN_VARIABLE` for a worker that an agent starts with that environment."""
    return ",".join(starter.name for starter in _STARTERS if starter is not _HAND and starter.has_marked(environment))


def variables() -> list[str]:
    """Return the names of all variables by which launchers place a worker."""
    names = {name for each in _STARTERS for name in (*each.marks, each.rank, each.size, *each.job)}
    return sorted(names)


def _read(
    starter: _Starter, environment: Mapping[str, str], ancestors: Callable[[], Iterator[Sequence[str]]]
) -> ExternalPlacement:
    size = _number(starter, starter.size, environment)
    rank = _number(starter, starter.rank, environment)
    if not 0 <= rank < size:
        raise SettingError(
            f"{starter.rank}={rank} is not a rank in a world of {starter.size}={size}: ranks go from 0 to size - 1. "
            "Correct or unset both."
        )
    job = [_mpich_job(ancestors())] if starter is _MPICH else [environment.get(name, "") for name in starter.job]
    job_key = " ".join([starter.name, *filter(None, job)]) if job and job[0] else ""
    one_host = environment.get(starter.local_size) == str(size) or environment.get(starter.hosts) == "1"
    return ExternalPlacement(starter.name, rank, size, one_host, job_key)


def _number(starter: _Starter, variable: str, environment: Mapping[str, str]) -> int:
    text = environment.get(variable, "")
    if text.isascii() and text.isdecimal():
        return int(text)
    other = starter.rank if variable == starter.size else starter.size
    what = f"{variable} is {text!r}, which is not a number" if text else f"{variable} is not set"
    raise SettingError(
        f"{what}, but {other} is {environment.get(other, '')!r}: a worker that was started by {starter.name} needs "
        "both, its rank and the number of workers. Set both, or unset both for a world of one."
    )


def _mpich_job(ancestors: Iterator[Sequence[str]]) -> str:
    """Return the key of an MPICH job: the host and port at which the helper on each host reaches mpirun.

    MPICH sets no variable for it; only its protocol on PMI_FD has a key, and that belongs to the MPI library.
    """
    for command in ancestors:
        if command and command[0].endswith("hydra_pmi_proxy") and "--control-port" in command[:-1]:
            return command[command.index("--control-port") + 1]
    return ""


def command_lines_above() -> Iterator[Sequence[str]]:
    """Return the command lines of this process's ancestors, the closest first, as far as they can be read."""
    pid = "self"
    for _ in range(_ANCESTORS):
        try:
            # The fields after the command's name, which is in parentheses and may contain anything: state, parent.
            pid = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[1]
            yield Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
        except OSError:
            return
