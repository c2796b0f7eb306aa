"""The placement of workers and their environment: computed as data, shown by `--dry-run`, executed by `start`.

Nothing here inspects or changes a machine: `make_plan` is a pure function of the user's job, the facts about this
machine, the reports of the hosts, and the facts that are known only once the job starts.
"""

from __future__ import annotations

import itertools
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace

from farandole.base.display.wording import count
from farandole.control.launcher.job.dialed_hosts import DialedHosts
from farandole.control.launcher.job.host_list import Host, with_slots
from farandole.control.launcher.job.machine import Machine
from farandole.control.launcher.job.spec import LaunchSpec, read_exports
from farandole.control.launcher.plan.environment import common_environment, place_variables, with_python_path
from farandole.control.launcher.plan.model import (
    LOOPBACK,
    SECRET_NAMES,
    UNKNOWN,
    HostPlan,
    Identity,
    LaunchPlan,
    Site,
    WorkerPlan,
    all_local,
)
from farandole.control.launcher.targets.local import local_command
from farandole.control.launcher.targets.ssh import ssh_command
from farandole.control.launcher.targets.start_tree import from_another_host, started_from
from farandole.control.roster.events import Place, find_places
from farandole.errors import SpecError


def job_size(spec: LaunchSpec, machine: Machine) -> int:
    """Return the number of workers: the requested one, or all slots, or one for each GPU or core of this machine.

    Raises:
        SpecError: no host has a slot.
    """
    if spec.num_proc is not None:
        return spec.num_proc
    if spec.hosts:
        slots = sum(host.slots or 0 for host in with_slots(spec.hosts, None))
        if not slots:
            names = ", ".join(host.label for host in spec.hosts)
            raise SpecError(f"no slots for workers on {names}", "give the number of slots: -H h1:4")
        return slots
    return machine.gpus or machine.cores


def hosts_in_use(spec: LaunchSpec, machine: Machine) -> tuple[Host, ...]:
    """Return the hosts that get workers, with the numbers of slots that are used.

    Raises:
        SpecError: the hosts have too few slots.
    """
    size = job_size(spec, machine)
    return _used(with_slots(spec.hosts or (Host(machine.hostname, size),), None), size)


def make_plan(
    spec: LaunchSpec, machine: Machine, identity: Identity, sites: Mapping[str, Site] | None = None
) -> LaunchPlan:
    """Plan a job.

    Args:
        spec: the job that the user wants.
        machine: the machine that the launcher runs on.
        identity: the facts that are known only once the job starts.
        sites: the facts about each host, by its label; without them, every host is this machine.

    Raises:
        SpecError: a variable to export is not set, or the hosts have too few slots.
    """
    used = hosts_in_use(spec, machine)
    spec.output.check(job_size(spec, machine), spec.output_dir)
    here = Site(cores=machine.cores, roster=_roster_here(sites))
    known = {host.label: (sites or {}).get(host.label, here) for host in used}
    through = _through(spec, used, known)
    exports = {**dict(spec.private), **read_exports(spec.exports, machine.environment)}
    threads_chosen = "OMP_NUM_THREADS" in machine.environment or "OMP_NUM_THREADS" in exports
    hosts = tuple(
        _plan_host(
            spec,
            machine,
            host,
            known[host.label],
            workers,
            _devices_beside(host, used),
            all_local(known),
            threads_chosen,
            through.get(host.label, ""),
        )
        for host, workers in zip(used, _workers(used), strict=True)
    )
    return LaunchPlan(
        command=spec.command,
        directory=machine.directory,
        start_timeout=spec.start_timeout,
        output_dir=None if spec.output_dir is None else str(spec.output_dir),
        output=spec.output,
        prefixes_in_files=spec.prefixes_in_files,
        timestamps=spec.timestamps,
        environment=with_python_path(
            common_environment(spec, machine.directory, identity, known) | exports, machine.environment
        ),
        hosts=hosts,
        notes=_notes(spec, machine, hosts),
        details=(*_ship_details(spec), *(() if threads_chosen else map(_thread_share, hosts))),
        private=SECRET_NAMES.union(name for name, _ in spec.private),
    )


def _roster_here(sites: Mapping[str, Site] | None) -> str:
    return next((site.roster for site in (sites or {}).values() if site.local), f"{LOOPBACK}:{UNKNOWN}")


def _plan_host(
    spec: LaunchSpec,
    machine: Machine,
    host: Host,
    site: Site,
    workers: tuple[WorkerPlan, ...],
    devices: Sequence[str],
    all_local: bool,
    threads_chosen: bool,
    through: str,
) -> HostPlan:
    roster, _, port = site.roster.rpartition(":")
    environment = {
        "FARANDOLE_ROSTER": site.roster,
        "FARANDOLE_LISTEN": LOOPBACK if all_local else UNKNOWN,
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": roster,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": port,
    }
    if not threads_chosen and site.cores:
        environment["OMP_NUM_THREADS"] = str(max(1, site.cores // workers[0].place.local_size))
    if not all_local and site.networks:
        del environment["FARANDOLE_LISTEN"]
        workers = tuple(_with_addresses(worker, site.networks, bool(spec.network)) for worker in workers)
    if devices:
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(devices)
    if host.python and not host.directory:
        path = machine.environment.get("PATH", os.defpath)
        environment["PATH"] = os.pathsep.join([os.path.dirname(host.python), path])
    return HostPlan(
        name=host.label,
        cores=site.cores,
        workers=workers,
        local=site.local,
        command=_command_on(host, site.command or spec.command),
        directory=site.directory or host.directory or machine.directory,
        environment=environment,
        started_by=_starter(spec, host, site, through),
        started_from=through,
        networks=site.networks,
    )


def _through(spec: LaunchSpec, used: Sequence[Host], sites: Mapping[str, Site]) -> dict[str, str]:
    """Return the host whose agent starts the agent of each host, for those that the launcher does not start itself."""
    if spec.elastic is not None or isinstance(spec.access, DialedHosts):
        return {}
    return started_from([host for host in used if not sites[host.label].local], spec.ssh)


def _starter(spec: LaunchSpec, host: Host, site: Site, through: str) -> str:
    """Return the command that starts the agent of a host; "" if the host dials the launcher."""
    if isinstance(spec.access, DialedHosts):
        return ""
    ssh = from_another_host(spec.ssh) if through else spec.ssh
    starter = local_command(host.python) if site.local else ssh_command(host, ssh)
    return shlex.join(starter).replace(sys.executable, "python")


def _devices_beside(host: Host, used: Sequence[Host]) -> list[str]:
    """Return the devices of all hosts on this host's machine; a worker uses the one at index local rank."""
    return [device for other in used if _machine_of(other) == _machine_of(host) for device in other.devices]


def _machine_of(host: Host) -> str:
    return host.machine or host.label


def _command_on(host: Host, command: tuple[str, ...]) -> tuple[str, ...]:
    """Return the command for a host, which may use a different Python than the launcher."""
    return (host.python, *command[1:]) if host.python and command[0] == sys.executable else command


def _with_addresses(worker: WorkerPlan, networks: Sequence[tuple[str, tuple[str, ...]]], together: bool) -> WorkerPlan:
    """Return the plan of a worker that listens on all addresses of its host.

    Peers use the first address in the list that answers. If the user has named several networks, each worker of a host
    prefers a different one, so that together they use all.
    """
    first = worker.place.local_rank % len(networks) if together else 0
    ordered = [*networks[first:], *networks[:first]]
    listed = ",".join(address for _, addresses in ordered for address in addresses)
    return replace(worker, environment={**worker.environment, "FARANDOLE_LISTEN": listed})


def place_workers(hosts: Sequence[Host], size: int) -> tuple[Place, ...]:
    """Return the place of each worker, by rank: hosts are filled in order.

    Args:
        hosts: the hosts with their slots.
        size: number of workers.

    Raises:
        SpecError: there are too few slots.
    """
    return _places(_used(hosts, size))


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
            used.append(replace(host, slots=min(left, host.slots)))
            left -= used[-1].slots or 0
    # The ranks of a machine are contiguous, though several hosts may be on it.
    order = {machine: number for number, machine in enumerate(dict.fromkeys(map(_machine_of, used)))}
    return tuple(sorted(used, key=lambda host: order[_machine_of(host)]))


def _places(used: Sequence[Host]) -> tuple[Place, ...]:
    return find_places([(_machine_of(host), host.label) for host in used for _ in range(host.slots or 0)])


def _workers(used: Sequence[Host]) -> list[tuple[WorkerPlan, ...]]:
    """Return the workers of each host."""
    places = _places(used)
    workers = (WorkerPlan(rank, place, place_variables(rank, len(places), place)) for rank, place in enumerate(places))
    return [tuple(itertools.islice(workers, host.slots)) for host in used]


def _notes(spec: LaunchSpec, machine: Machine, hosts: Sequence[HostPlan]) -> tuple[str, ...]:
    notes = []
    size = sum(len(host.workers) for host in hosts)
    if spec.num_proc is None and not spec.hosts:
        notes.append(f"{count(size, 'worker')}: one for each {'GPU' if machine.gpus else 'core, as no GPU is visible'}")
    # Different names of one machine share its cores.
    here = [host for host in hosts if host.local]
    groups = [*([here] if here else []), *([host] for host in hosts if not host.local)]
    for group in groups:
        workers, cores = sum(len(host.workers) for host in group), group[0].cores
        if 0 < cores < workers:
            where = "" if len(groups) == 1 else f" of {group[0].name}"
            words = f"{workers} workers share {count(cores, 'core')}{where}"
            notes.append(f"{words}: it works, but each gets only part of a core")
    return tuple(notes)


def _ship_details(spec: LaunchSpec) -> tuple[str, ...]:
    return (f"--ship copies {spec.ship} to the other hosts, where workers run in it",) if spec.ship else ()


def _thread_share(host: HostPlan) -> str:
    shares = f"{count(host.cores, 'core')} for {count(len(host.workers), 'worker')}"
    if not host.cores:
        return f"OMP_NUM_THREADS was not set; on {host.name} it will be the number of its cores divided by its workers"
    return f"OMP_NUM_THREADS was not set; {shares} make it {host.environment['OMP_NUM_THREADS']}"
