"""The first workers of an elastic job, as a plan: for `--dry-run`, and to reject impossible jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from farandole.base.display.wording import count
from farandole.control.launcher.job.elastic import Elastic
from farandole.control.launcher.job.host_list import Host
from farandole.control.launcher.job.machine import Machine
from farandole.control.launcher.job.spec import LaunchSpec
from farandole.control.launcher.plan.environment import place_of
from farandole.control.launcher.plan.make import make_plan
from farandole.control.launcher.plan.model import HostPlan, Identity, LaunchPlan, Site
from farandole.control.launcher.slots.job_state import JobState
from farandole.errors import SpecError


def first_plan(
    spec: LaunchSpec, state: JobState, machine: Machine, hosts: Sequence[Host], sites: Mapping[str, Site]
) -> LaunchPlan:
    """Return a plan of the workers that are started first.

    Args:
        spec: the job that the user wants.
        state: the state of the job before it begins.
        machine: the machine that the launcher runs on.
        hosts: the current hosts, each with its slots.
        sites: the facts about each host.

    Raises:
        SpecError: there is no slot for a worker, or a value is not valid.
    """
    assert spec.elastic is not None
    slots = sum(host.slots or 0 for host in hosts)
    if not slots:
        raise SpecError("there are no hosts at the moment", f"hosts come from {spec.elastic.discovery}")
    size = min(slots, state.most_at_first)
    plan = make_plan(replace(spec, hosts=tuple(hosts), num_proc=size, elastic=None), machine, Identity(), sites)
    expected = min(size, state.most_at_first - state.policy.spares)
    return replace(
        plan,
        hosts=tuple(_as_elastic(host, expected) for host in plan.hosts),
        details=(*plan.details, describe(spec.elastic)),
        noun="worker",
    )


def describe(elastic: Elastic) -> str:
    """Return the numbers of workers with which a job runs, and where its hosts come from, as text."""
    most = "any number of" if elastic.max_size is None else elastic.max_size
    spares = f", and {count(elastic.spares, 'spare')}" if elastic.spares else ""
    hosts = f"hosts come from {elastic.discovery}" if elastic.discovery else "no other hosts are discovered"
    return f"elastic: {elastic.min_size} to {most} workers{spares}; {hosts}"


def _as_elastic(host: HostPlan, size: int) -> HostPlan:
    workers = tuple(
        replace(worker, environment={**worker.environment, **place_of(worker.rank, worker.place.local_rank, size)})
        for worker in host.workers
    )
    return replace(host, workers=workers)
