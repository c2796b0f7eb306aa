"""The start of a job of fixed size: all workers of a plan start together."""

from __future__ import annotations

from collections.abc import Sequence

from farandole.control.agent.protocol import Start
from farandole.control.launcher.host_setup.host_setup import JobHost
from farandole.control.launcher.plan.environment import inherited_elsewhere
from farandole.control.launcher.plan.model import LaunchPlan
from farandole.control.launcher.slots.job_state import JobState, Site, Slot, SlotPolicy
from farandole.control.launcher.supervise.launch_context import LaunchContext
from farandole.control.launcher.supervise.supervisor import Supervisor
from farandole.control.roster import fixed


def fixed_state(plan: LaunchPlan) -> JobState:
    """Return the state of a job whose workers are all about to be started."""
    workers = sorted((worker for host in plan.hosts for worker in host.workers), key=lambda worker: worker.rank)
    places = tuple(worker.place for worker in workers)
    sites = tuple(
        Site(
            host.name,
            len(host.workers),
            tuple(Slot(worker.place.local_rank, worker.rank) for worker in host.workers),
            phase="ready",
        )
        for host in plan.hosts
    )
    return JobState(SlotPolicy(), fixed.FixedState(places), sites)


def begin_fixed(job: Supervisor, hosts: Sequence[JobHost], context: LaunchContext) -> None:
    """Start all workers.

    Args:
        job: the job's supervisor.
        hosts: the hosts, which are ready, each with its part of the plan.
        context: the context of the launch.

    Raises:
        SpecError: the output of workers cannot be stored.
    """
    _add_workers(job, hosts)
    for job_host in hosts:
        job.hosts.have(job_host)
        for order in _orders(job_host, context):
            job_host.agent.send(order)
    if job.ends:
        job.end_agents(job.grace_left)


def _add_workers(job: Supervisor, hosts: Sequence[JobHost]) -> None:
    workers = job.workers
    workers.prepare_folders()
    job.history.begins(len(job.state.world))
    try:
        for job_host in hosts:
            for worker in job_host.host_plan.workers:
                workers.add(worker.rank, job_host)
    except BaseException:
        for number in workers.by_number:
            workers.flow.close(number)
        raise


def _orders(job_host: JobHost, context: LaunchContext) -> list[Start]:
    host, ours = job_host.host_plan, context.machine.environment
    inherited = ours if host.local else inherited_elsewhere(ours)
    wanted = context.console.has_status or "FARANDOLE_METRICS" in job_host.plan.environment
    asked = {"FARANDOLE_PROGRESS": "1"} if wanted else {}
    common = {**inherited, **asked, **job_host.plan.environment, **host.environment}
    return [
        Start(
            worker.rank,
            host.command,
            {**common, **worker.environment},
            host.directory,
            inherit=not host.local,
            slot_numbers=job_host.host.slot_numbers,
        )
        for worker in host.workers
    ]
