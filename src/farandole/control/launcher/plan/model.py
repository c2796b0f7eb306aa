"""The plan of a job, as data: the job, its hosts and its workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from farandole.control.launcher.output.console import OutputOptions

LOOPBACK = "127.0.0.1"
SECRET_NAMES = frozenset({"FARANDOLE_SECRET"})
UNKNOWN = "<chosen at start>"


@dataclass(frozen=True)
class Site:
    """What one host has told of itself."""

    local: bool = True
    """Whether it is the machine that the launcher runs on."""
    cores: int = 0
    """0: not known yet."""
    roster: str = f"{LOOPBACK}:{UNKNOWN}"
    """host:port at which its workers reach the roster."""
    networks: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Name of each network interface, and its addresses that the other hosts reach; the preferred one first."""
    directory: str = ""
    """Where its workers run; "": where the launcher runs."""
    command: tuple[str, ...] = ()
    """What its workers run; (): what the user said."""
    spreads: bool = False
    """Whether workers of other hosts may come later, though all hosts that are known are this machine."""


@dataclass(frozen=True)
class Identity:
    """What is known only when a job starts."""

    job: str = UNKNOWN
    master: str = ""
    """host:port that rank 0 may listen on, for scripts that use torch.distributed as well; "": not known yet."""
    secret: str = "***"
    """In hex."""


@dataclass(frozen=True)
class WorkerPlan:
    """One worker. Its environment is what it inherits, the plan's, the host's and its own, the last one winning."""

    rank: int
    local_rank: int
    cross_rank: int
    environment: Mapping[str, str]


@dataclass(frozen=True)
class HostPlan:
    """One host and the workers on it."""

    name: str
    cores: int
    workers: tuple[WorkerPlan, ...]
    local: bool = True
    command: tuple[str, ...] = ()
    """What every worker of this host runs."""
    directory: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    started_by: str = ""
    """The command that starts its agent."""
    networks: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """See `Site`."""


@dataclass(frozen=True)
class Plan:
    """One job, ready to start."""

    command: tuple[str, ...]
    directory: str
    start_timeout: float
    output_dir: str | None
    output: OutputOptions
    prefixes_in_files: bool
    timestamps: bool
    environment: Mapping[str, str]
    """What every worker gets on top of what it inherits."""
    hosts: tuple[HostPlan, ...]
    notes: tuple[str, ...]
    """What the user should be told once."""
    details: tuple[str, ...]
    """What only a reader of the plan wants to know."""
    private: frozenset[str] = SECRET_NAMES
    """Variables whose values are not shown."""
    noun: str = "rank"
    """What a worker is called with its number: `worker` where its rank changes."""

    @property
    def size(self) -> int:
        """Workers in the job."""
        return sum(len(host.workers) for host in self.hosts)

    def host_of(self, rank: int) -> HostPlan:
        """Return the host on which a rank runs."""
        return next(host for host in self.hosts if any(worker.rank == rank for worker in host.workers))


def all_local(sites: Mapping[str, Site]) -> bool:
    """Return whether all workers of a job are on this machine, and will be."""
    return all(site.local and not site.spreads for site in sites.values())
