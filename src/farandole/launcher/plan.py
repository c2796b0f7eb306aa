"""Who runs where, with what environment: computed as data, shown by `--dry-run`, executed by `start`.

Nothing here looks at a machine or touches it: `make_plan` is a pure function of what the user wants, what this machine
is like, what the hosts have told of themselves, and what is known only once the job starts.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from farandole.launcher.errors import SpecError
from farandole.launcher.hosts import Host, with_slots
from farandole.launcher.machine import Machine
from farandole.launcher.output.console import OutputOptions
from farandole.launcher.reach import local_command, ssh_command
from farandole.launcher.spec import JobSpec, read_exports
from farandole.wire.address import format_address

LOOPBACK = "127.0.0.1"
SECRET_NAMES = frozenset({"FARANDOLE_SECRET"})
UNKNOWN = "<chosen at start>"

# Horovod's numbers under farandole's names, Horovod's own, and torch.distributed's.
_PLACE_PREFIXES = ("FARANDOLE_", "HOROVOD_")


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


def job_size(spec: JobSpec, machine: Machine) -> int:
    """Return the number of workers: as asked for, or all slots, or one for each GPU or core of this machine."""
    if spec.num_proc is not None:
        return spec.num_proc
    if spec.hosts:
        return sum(host.slots or 0 for host in with_slots(spec.hosts, None))
    return machine.gpus or machine.cores


def hosts_in_use(spec: JobSpec, machine: Machine) -> tuple[Host, ...]:
    """Return the hosts that get workers, with as many slots as are used.

    Raises:
        SpecError: they have too few.
    """
    size = job_size(spec, machine)
    return _used(with_slots(spec.hosts or (Host(machine.hostname, size),), None), size)


def make_plan(spec: JobSpec, machine: Machine, identity: Identity, sites: Mapping[str, Site] | None = None) -> Plan:
    """Plan a job.

    Args:
        spec: what the user wants.
        machine: the one that the launcher runs on.
        identity: what is known only when the job starts.
        sites: what is known of each host, by its label; without it, every host is this machine.

    Raises:
        SpecError: a variable to export is not set, or the hosts have too few slots.
    """
    used = hosts_in_use(spec, machine)
    spec.output.check(job_size(spec, machine), spec.output_dir)
    here = Site(cores=machine.cores, roster=_roster_here(sites))
    known = {host.label: (sites or {}).get(host.label, here) for host in used}
    exports = {**dict(spec.private), **read_exports(spec.exports, machine.environment)}
    threads_chosen = "OMP_NUM_THREADS" in machine.environment or "OMP_NUM_THREADS" in exports
    hosts = tuple(
        _plan_host(spec, machine, host, known[host.label], workers, _all_local(known), threads_chosen)
        for host, workers in zip(used, _place(used), strict=True)
    )
    return Plan(
        command=spec.command,
        directory=machine.directory,
        start_timeout=spec.start_timeout,
        output_dir=None if spec.output_dir is None else str(spec.output_dir),
        output=spec.output,
        prefixes_in_files=spec.prefixes_in_files,
        timestamps=spec.timestamps,
        environment=_common_environment(spec, machine.directory, identity, known) | exports,
        hosts=hosts,
        notes=_notes(spec, machine, hosts),
        details=(*_ship_details(spec), *(() if threads_chosen else map(_thread_share, hosts))),
        private=SECRET_NAMES.union(name for name, _ in spec.private),
    )


def _roster_here(sites: Mapping[str, Site] | None) -> str:
    return next((site.roster for site in (sites or {}).values() if site.local), f"{LOOPBACK}:{UNKNOWN}")


def _all_local(sites: Mapping[str, Site]) -> bool:
    return all(site.local and not site.spreads for site in sites.values())


def _plan_host(
    spec: JobSpec,
    machine: Machine,
    host: Host,
    site: Site,
    workers: tuple[WorkerPlan, ...],
    all_local: bool,
    threads_chosen: bool,
) -> HostPlan:
    roster, _, port = site.roster.rpartition(":")
    environment = {
        "FARANDOLE_ROSTER": site.roster,
        "FARANDOLE_LISTEN": LOOPBACK if all_local else UNKNOWN,
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": roster,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": port,
    }
    if not threads_chosen and site.cores:
        environment["OMP_NUM_THREADS"] = str(max(1, site.cores // len(workers)))
    if not all_local and site.networks:
        del environment["FARANDOLE_LISTEN"]
        workers = tuple(_with_addresses(worker, site.networks, bool(spec.network)) for worker in workers)
    if host.python:
        path = machine.environment.get("PATH", os.defpath)
        environment["PATH"] = os.pathsep.join([os.path.dirname(host.python), path])
    starter = local_command(host.python) if site.local else ssh_command(host, spec.ssh)
    return HostPlan(
        name=host.label,
        cores=site.cores,
        workers=workers,
        local=site.local,
        command=_command_on(host, site.command or spec.command),
        directory=site.directory or machine.directory,
        environment=environment,
        started_by=shlex.join(starter).replace(sys.executable, "python"),
        networks=site.networks,
    )


def _command_on(host: Host, command: tuple[str, ...]) -> tuple[str, ...]:
    """Return the command as a host runs it, which may have another Python than the launcher."""
    return (host.python, *command[1:]) if host.python and command[0] == sys.executable else command


def _with_addresses(worker: WorkerPlan, networks: Sequence[tuple[str, tuple[str, ...]]], together: bool) -> WorkerPlan:
    """Let a worker listen on all addresses of its host.

    Peers take the first in the list that answers. When the user has named several networks, each worker of a host
    prefers another one, so that together they use all.
    """
    first = worker.local_rank % len(networks) if together else 0
    ordered = [*networks[first:], *networks[:first]]
    listed = ",".join(address for _, addresses in ordered for address in addresses)
    return WorkerPlan(
        worker.rank, worker.local_rank, worker.cross_rank, {**worker.environment, "FARANDOLE_LISTEN": listed}
    )


def _common_environment(spec: JobSpec, directory: str, identity: Identity, sites: Mapping[str, Site]) -> dict[str, str]:
    variables = {
        "FARANDOLE_JOB": identity.job,
        "FARANDOLE_SECRET": identity.secret,
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
    if spec.checkpoint_seconds is not None:
        variables["FARANDOLE_CHECKPOINT_SECONDS"] = f"{spec.checkpoint_seconds:g}"
    if spec.checkpoint_dir is not None:
        variables["FARANDOLE_CHECKPOINT_DIR"] = os.path.join(directory, spec.checkpoint_dir)
    if spec.resume is not None:
        variables["FARANDOLE_RESUME"] = spec.resume
    master, _, port = _master(spec, identity, sites).rpartition(":")
    variables |= {
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "MASTER_ADDR": master.strip("[]"),
        "MASTER_PORT": port,
        "PYTHONUNBUFFERED": "1",
    }
    return variables


def _master(spec: JobSpec, identity: Identity, sites: Mapping[str, Site]) -> str:
    host = LOOPBACK if _all_local(sites) else UNKNOWN
    return spec.master or identity.master or f"{host}:{UNKNOWN}"


def master_address(site: Site, port: int) -> str:
    """Return host:port at which scripts that use torch.distributed as well may meet on rank 0's host."""
    first = next((addresses[0] for _, addresses in site.networks if addresses), LOOPBACK)
    return format_address(first, port)


# What says something about a machine or a login, and is wrong or dangerous on another.
_BOUND_TO_ONE_HOST = re.compile(
    r"HOME|USER|LOGNAME|SHELL|SHLVL|PWD|OLDPWD|_|HOST|HOSTNAME|HOSTTYPE|MACHTYPE|OSTYPE|MAIL|TERM|TERM_.*|COLORTERM"
    r"|TMPDIR|TMP|TEMP|DISPLAY|WAYLAND_DISPLAY|XAUTHORITY|XDG_.*|DBUS_.*|SSH_.*|GPG_.*|SUDO_.*|WINDOWID|LS_COLORS"
    r"|STY|TMUX.*|VTE_.*|BASH_FUNC_.*"
)


def inherited_elsewhere(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that workers on other machines inherit: all but those that belong to this one."""
    return {name: value for name, value in environment.items() if not _BOUND_TO_ONE_HOST.fullmatch(name)}


def place_workers(hosts: Sequence[Host], size: int) -> tuple[HostPlan, ...]:
    """Fill the hosts in order; ranks count through. Hosts that get no worker are left out.

    Args:
        hosts: where there is room.
        size: number of workers.

    Raises:
        SpecError: there are too few slots.
    """
    used = _used(hosts, size)
    return tuple(HostPlan(host.label, 0, workers) for host, workers in zip(used, _place(used), strict=True))


def _used(hosts: Sequence[Host], size: int) -> tuple[Host, ...]:
    slots = sum(host.slots or 0 for host in hosts)
    if slots < size:
        # Horovod's words: its users' tests look for them.
        raise SpecError(
            f"Requested more processes ({size}) than there are available slots ({slots})",
            "give the hosts more slots, or start fewer workers",
        )
    used: list[Host] = []
    left = size
    for host in hosts:
        if left and host.slots:
            used.append(Host(host.name, min(left, host.slots), host.python))
            left -= used[-1].slots or 0
    return tuple(used)


def _place(used: Sequence[Host]) -> list[tuple[WorkerPlan, ...]]:
    """Return the workers of each host."""
    counts = [host.slots or 0 for host in used]
    return [
        tuple(_worker(used, counts, number, local_rank) for local_rank in range(count))
        for number, count in enumerate(counts)
    ]


def _worker(used: Sequence[Host], counts: Sequence[int], number: int, local_rank: int) -> WorkerPlan:
    across = [other for other, count in enumerate(counts) if count > local_rank]
    rank = sum(counts[:number]) + local_rank
    place = {
        "RANK": rank,
        "SIZE": sum(counts),
        "LOCAL_RANK": local_rank,
        "LOCAL_SIZE": counts[number],
        "CROSS_RANK": across.index(number),
        "CROSS_SIZE": len(across),
        "HOSTNAME": used[number].label,
    }
    environment = {f"{prefix}{name}": str(value) for prefix in _PLACE_PREFIXES for name, value in place.items()}
    environment |= {
        "RANK": str(rank),
        "WORLD_SIZE": str(sum(counts)),
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": str(counts[number]),
    }
    return WorkerPlan(rank, local_rank, across.index(number), environment)


def _notes(spec: JobSpec, machine: Machine, hosts: Sequence[HostPlan]) -> tuple[str, ...]:
    notes = []
    size = sum(len(host.workers) for host in hosts)
    if spec.num_proc is None and not spec.hosts:
        notes.append(f"{count(size, 'worker')}: one for each {'GPU' if machine.gpus else 'core, as no GPU is visible'}")
    # Names of one machine share its cores.
    here = [host for host in hosts if host.local]
    groups = [*([here] if here else []), *([host] for host in hosts if not host.local)]
    for group in groups:
        workers, cores = sum(len(host.workers) for host in group), group[0].cores
        if 0 < cores < workers:
            where = "" if len(groups) == 1 else f" of {group[0].name}"
            words = f"{workers} workers share {count(cores, 'core')}{where}"
            notes.append(f"{words}: it works, but each gets only a part of one")
    return tuple(notes)


def _ship_details(spec: JobSpec) -> tuple[str, ...]:
    return (f"--ship sends {spec.ship} to the other hosts, where workers run in it",) if spec.ship else ()


def _thread_share(host: HostPlan) -> str:
    shares = f"{count(host.cores, 'core')} for {count(len(host.workers), 'worker')}"
    if not host.cores:
        return f"OMP_NUM_THREADS was not set; on {host.name} it will be its cores, shared by its workers"
    return f"OMP_NUM_THREADS was not set; {shares} make it {host.environment['OMP_NUM_THREADS']}"


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
        f"output         {plan.output.describe(plan.output_dir)}",
    ]
    lines += [f"note           {note}" for note in dict.fromkeys((*plan.notes, *plan.details))]
    lines += ["", "every worker gets the launcher's environment, and"]
    lines += [f"  {name}={_shown(name, value, plan.private)}" for name, value in plan.environment.items()]
    for host in plan.hosts:
        lines += ["", *_render_host(plan, host)]
    return "\n".join(lines) + "\n"


def _render_host(plan: Plan, host: HostPlan) -> list[str]:
    cores = count(host.cores, "core") if host.cores else "cores not known yet"
    lines = [f"host {host.name} ({cores}), started by {host.started_by}"]
    if host.directory != plan.directory:
        lines += [f"  directory {host.directory}"]
    lines += [f"  network {name}: {' '.join(addresses)}" for name, addresses in host.networks]
    lines += [f"  {name}={_shown(name, value, plan.private)}" for name, value in host.environment.items()]
    for worker in host.workers:
        lines += [f"  {plan.noun} {worker.rank}"]
        lines += [f"    {family}" for family in _families(worker.environment, plan.private)]
    return lines


def as_json(plan: Plan) -> str:
    """Write the whole plan for programs, without any secret."""

    def plain(environment: Mapping[str, str]) -> dict[str, str]:
        return {name: "***" if name in plan.private else value for name, value in environment.items()}

    hosts = [
        {
            "name": host.name,
            "local": host.local,
            "cores": host.cores or None,
            "started_by": host.started_by,
            "command": host.command,
            "directory": host.directory,
            "networks": dict(host.networks),
            "environment": plain(host.environment),
            "workers": [{"rank": each.rank, "environment": plain(each.environment)} for each in host.workers],
        }
        for host in plan.hosts
    ]
    whole = {
        "size": plan.size,
        "command": plan.command,
        "directory": plan.directory,
        "start_timeout": plan.start_timeout,
        "output_dir": plan.output_dir,
        "notes": plan.notes,
        "environment": plain(plan.environment),
        "hosts": hosts,
    }
    return json.dumps(whole, indent=2) + "\n"


def _families(environment: Mapping[str, str], private: frozenset[str]) -> list[str]:
    """Write variables in one line for each prefix they come with."""
    families: dict[str, list[str]] = {}
    for name, value in environment.items():
        prefix = next((prefix for prefix in _PLACE_PREFIXES if name.startswith(prefix)), "")
        families.setdefault(prefix, []).append(f"{name}={_shown(name, value, private)}")
    return [" ".join(family) for family in families.values()]


def _shown(name: str, value: str, private: frozenset[str]) -> str:
    if name in private:
        return "***"
    return value if UNKNOWN in value else shlex.quote(value)
