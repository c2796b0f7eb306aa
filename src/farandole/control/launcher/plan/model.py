"""The plan of a job, as data: the job, its hosts and its workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from farandole.control.launcher.output.console import OutputOptions
from farandole.control.roster.events import Place

LOOPBACK = "127.0.0.1"
SECRET_NAMES = frozenset({"FARANDOLE_SECRET"})
UNKNOWN = "<chosen at start>"


@dataclass(frozen=True)
class Site:
    """The facts that one host has reported about itself."""

    local: bool = True
    """Whether it is the machine that the launcher runs on."""
    cores: int = 0
    """Number of cores; 0: not known yet."""
    roster: str = f"{LOOPBACK}:{UNKNOWN}"
    """host:port where its workers reach the roster."""
    networks: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Name of each network interface, with its addresses that other hosts reach; the preferred interface first."""
    directory: str = ""
    """The directory in which its workers run; "": the launcher's."""
    command: tuple[str, ...] = ()
    """The command that its workers run; (): the user's command."""
    spreads: bool = False
    """Whether there may be workers on other hosts later, although all known hosts are this machine."""


@dataclass(frozen=True)
class Identity:
    """The facts that are known only once a job starts."""

    job: str = UNKNOWN
    master: str = ""
    """host:port for rank 0 to listen on, for scripts that also use torch.distributed; "": not known yet."""
    secret: str = "***"
    """The secret in hexadecimal."""


@dataclass(frozen=True)
class WorkerPlan:
    """One worker. Its environment: the inherited one, the plan's, the host's and its own; later ones override."""

    rank: int
    place: Place
    environment: Mapping[str, str]


@dataclass(frozen=True)
class HostPlan:
    """One host and the workers on it."""

    name: str
    cores: int
    workers: tuple[WorkerPlan, ...]
    local: bool = True
    command: tuple[str, ...] = ()
    """The command that every worker of this host runs."""
    directory: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    started_by: str = ""
    """The command that starts its agent; "": the host dials the launcher."""
    started_from: str = ""
    """The host where that command runs, if that host can reach this one; "": it runs on the launcher's machine."""
    networks: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """The networks of the host, as in `Site`."""


@dataclass(frozen=True)
class LaunchPlan:
    """One job, ready to start."""

    command: tuple[str, ...]
    directory: str
    start_timeout: float
    output_dir: str | None
    output: OutputOptions
    prefixes_in_files: bool
    timestamps: bool
    environment: Mapping[str, str]
    """The variables that every worker gets in addition to those it inherits."""
    hosts: tuple[HostPlan, ...]
    notes: tuple[str, ...]
    """Notes that the user should see once."""
    details: tuple[str, ...]
    """Notes for readers of the plan only."""
    private: frozenset[str] = SECRET_NAMES
    """Variables whose values are not shown."""
    noun: str = "rank"
    """The noun for a worker in messages: `rank`, or `worker` if ranks can change."""

    @property
    def size(self) -> int:
        """Number of workers in the job."""
        return sum(len(host.workers) for host in self.hosts)

    def host_of(self, rank: int) -> HostPlan:
        """Return the host on which a rank runs."""
        return next(host for host in self.hosts if any(worker.rank == rank for worker in host.workers))


def all_local(sites: Mapping[str, Site]) -> bool:
    """Return whether all workers of a job are, and will be, on this machine."""
    return all(site.local and not site.spreads for site in sites.values())
