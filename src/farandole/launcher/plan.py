"""Who runs where, with what environment: computed as data, shown by `--dry-run`, executed by `start`.

Nothing here looks at the machine or touches it: `make_plan` is a pure function of what the user wants, what the machine
is like, and what is known only once the job starts.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from farandole.launcher.errors import SpecError
from farandole.launcher.machine import Machine
from farandole.launcher.spec import HostSlots, JobSpec, read_exports

LOOPBACK = "127.0.0.1"
SECRET_NAMES = frozenset({"FARANDOLE_SECRET"})
UNKNOWN = "<chosen at start>"

# Horovod's numbers under farandole's names, Horovod's own, and torch.distributed's.
_PLACE_PREFIXES = ("FARANDOLE_", "HOROVOD_")


@dataclass(frozen=True)
class Identity:
    """What is known only when a job starts."""

    job: str = UNKNOWN
    roster: str = f"{LOOPBACK}:{UNKNOWN}"
    """host:port of the roster."""
    master_port: str = UNKNOWN
    """Free port that rank 0 may listen on, for scripts that use torch.distributed as well."""
    secret: str = "***"
    """In hex."""


@dataclass(frozen=True)
class WorkerPlan:
    """One worker. Its environment is the host's, the plan's, and its own, the last one winning."""

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


@dataclass(frozen=True)
class Plan:
    """One job, ready to start."""

    command: tuple[str, ...]
    directory: str
    start_timeout: float
    output_dir: str | None
    prefixes_in_files: bool
    timestamps: bool
    environment: Mapping[str, str]
    """What every worker gets on top of the launcher's environment."""
    hosts: tuple[HostPlan, ...]
    notes: tuple[str, ...]
    """What the user should be told once."""
    details: tuple[str, ...]
    """What only a reader of the plan wants to know."""

    @property
    def size(self) -> int:
        """Workers in the job."""
        return sum(len(host.workers) for host in self.hosts)

    def host_of(self, rank: int) -> HostPlan:
        """Return the host on which a rank runs."""
        return next(host for host in self.hosts if any(worker.rank == rank for worker in host.workers))


def make_plan(spec: JobSpec, machine: Machine, identity: Identity) -> Plan:
    """Plan a job on one machine.

    Raises:
        SpecError: a variable to export is not set, or the hosts have too few slots.
    """
    size = spec.num_proc if spec.num_proc is not None else machine.gpus or machine.cores
    exports = read_exports(spec.exports, machine.environment)
    chosen = "OMP_NUM_THREADS" in machine.environment or "OMP_NUM_THREADS" in exports
    threads = None if chosen else max(1, machine.cores // size)
    return Plan(
        command=spec.command,
        directory=machine.directory,
        start_timeout=spec.start_timeout,
        output_dir=None if spec.output_dir is None else str(spec.output_dir),
        prefixes_in_files=spec.prefixes_in_files,
        timestamps=spec.timestamps,
        environment=_common_environment(spec, machine.directory, identity, threads) | exports,
        hosts=place_workers(spec.hosts or (HostSlots(machine.hostname, size),), size, machine.cores),
        notes=_notes(spec, machine, size),
        details=_details(machine, size, threads),
    )


def _common_environment(spec: JobSpec, directory: str, identity: Identity, threads: int | None) -> dict[str, str]:
    variables = {
        "FARANDOLE_JOB": identity.job,
        "FARANDOLE_ROSTER": identity.roster,
        "FARANDOLE_SECRET": identity.secret,
        "FARANDOLE_LISTEN": LOOPBACK,
        "FARANDOLE_START_TIMEOUT": f"{spec.start_timeout:g}",
    }
    # What was not asked for is left to the environment.
    if spec.transport is not None:
        variables["FARANDOLE_TRANSPORT"] = spec.transport
    if spec.fusion_threshold_mb is not None:
        variables["FARANDOLE_FUSION_THRESHOLD"] = str(spec.fusion_threshold_mb * 1024 * 1024)
    if spec.autotune:
        variables["FARANDOLE_AUTOTUNE"] = "1"
    # A script may change its folder before init().
    if spec.autotune_log is not None:
        variables["FARANDOLE_AUTOTUNE_LOG"] = os.path.join(directory, spec.autotune_log)
    if spec.tuning is not None:
        variables["FARANDOLE_TUNING"] = os.path.join(directory, spec.tuning)
    if spec.log_level is not None:
        variables["FARANDOLE_LOG_LEVEL"] = spec.log_level
    if spec.timeline is not None:
        variables["FARANDOLE_TIMELINE"] = os.path.join(directory, spec.timeline)
        variables["FARANDOLE_TIMELINE_MARK_CYCLES"] = str(int(spec.timeline_mark_cycles))
    if spec.stall_warning is not None:
        variables["FARANDOLE_STALL_WARNING_SECONDS"] = f"{spec.stall_warning:g}"
    if spec.stall_shutdown is not None:
        variables["FARANDOLE_STALL_SHUTDOWN_SECONDS"] = f"{spec.stall_shutdown:g}"
    variables |= {
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": identity.roster.rpartition(":")[0],
        "HOROVOD_GLOO_RENDEZVOUS_PORT": identity.roster.rpartition(":")[2],
        "MASTER_ADDR": LOOPBACK,
        "MASTER_PORT": identity.master_port,
        "PYTHONUNBUFFERED": "1",
    }
    if threads is not None:
        variables["OMP_NUM_THREADS"] = str(threads)
    return variables


def place_workers(hosts: Sequence[HostSlots], size: int, cores: int = 0) -> tuple[HostPlan, ...]:
    """Fill the hosts in order; ranks count through. Hosts that get no worker are left out.

    Args:
        hosts: where there is room.
        size: number of workers.
        cores: of each host, as far as known.

    Raises:
        SpecError: there are too few slots.
    """
    slots = sum(host.slots for host in hosts)
    if slots < size:
        # Horovod's words: its users' tests look for them.
        raise SpecError(
            f"Requested more processes ({size}) than there are available slots ({slots})",
            "give the hosts more slots, or start fewer workers",
        )
    used: list[HostSlots] = []
    left = size
    for host in hosts:
        if left and host.slots:
            used.append(HostSlots(host.name, min(left, host.slots)))
            left -= used[-1].slots
    plans = []
    for number, host in enumerate(used):
        first_rank = sum(earlier.slots for earlier in used[:number])
        workers = tuple(_worker(used, number, local_rank, first_rank, size) for local_rank in range(host.slots))
        plans.append(HostPlan(host.name, cores, workers))
    return tuple(plans)


def _worker(used: Sequence[HostSlots], number: int, local_rank: int, first_rank: int, size: int) -> WorkerPlan:
    rank = first_rank + local_rank
    # The hosts that have a worker of this local rank.
    across = [index for index, host in enumerate(used) if host.slots > local_rank]
    place = {
        "RANK": rank,
        "SIZE": size,
        "LOCAL_RANK": local_rank,
        "LOCAL_SIZE": used[number].slots,
        "CROSS_RANK": across.index(number),
        "CROSS_SIZE": len(across),
        "HOSTNAME": used[number].name,
    }
    environment = {f"{prefix}{name}": str(value) for prefix in _PLACE_PREFIXES for name, value in place.items()}
    environment |= {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": str(used[number].slots),
    }
    return WorkerPlan(rank, local_rank, across.index(number), environment)


def _notes(spec: JobSpec, machine: Machine, size: int) -> tuple[str, ...]:
    notes = []
    if spec.num_proc is None:
        notes.append(f"{count(size, 'worker')}: one for each {'GPU' if machine.gpus else 'core, as no GPU is visible'}")
    if size > machine.cores:
        notes.append(f"{size} workers share {count(machine.cores, 'core')}: it works, but each gets only a part of one")
    return tuple(notes)


def _details(machine: Machine, size: int, threads: int | None) -> tuple[str, ...]:
    if threads is None:
        return ()
    shares = f"{count(machine.cores, 'core')} for {count(size, 'worker')}"
    return (f"OMP_NUM_THREADS was not set; {shares} make it {threads}",)


def count(number: int, noun: str) -> str:
    """Write a number of things, such as `1 worker` or `2 workers`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def render(plan: Plan) -> str:
    """Write the whole plan for people, without any secret."""
    lines = [
        f"{count(plan.size, 'worker')} on {count(len(plan.hosts), 'host')}",
        "",
        f"command        {shlex.join(plan.command)}",
        f"directory      {plan.directory}",
        f"start timeout  {plan.start_timeout:g} s",
        f"output         {'console' if plan.output_dir is None else f'console and {plan.output_dir}/rank.*/'}",
    ]
    lines += [f"note           {note}" for note in (*plan.notes, *plan.details)]
    lines += ["", "every worker gets the launcher's environment, and"]
    lines += [f"  {name}={_shown(name, value)}" for name, value in plan.environment.items()]
    for host in plan.hosts:
        lines += ["", f"host {host.name} ({count(host.cores, 'core')}), started by python -m farandole.agent"]
        for worker in host.workers:
            lines += [f"  rank {worker.rank}"]
            lines += [f"    {family}" for family in _families(worker.environment)]
    return "\n".join(lines) + "\n"


def _families(environment: Mapping[str, str]) -> list[str]:
    """Write variables in one line for each prefix they come with."""
    families: dict[str, list[str]] = {}
    for name, value in environment.items():
        prefix = next((prefix for prefix in _PLACE_PREFIXES if name.startswith(prefix)), "")
        families.setdefault(prefix, []).append(f"{name}={_shown(name, value)}")
    return [" ".join(family) for family in families.values()]


def _shown(name: str, value: str) -> str:
    if name in SECRET_NAMES:
        return "***"
    return value if UNKNOWN in value else shlex.quote(value)
