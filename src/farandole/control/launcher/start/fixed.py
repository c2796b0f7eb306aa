"""Starts a job of fixed size: connects to all hosts at once, prepares them together, and completes the plan.

All hosts are checked before anything is started, so that one message reports all problems.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace

from farandole.base.display.wording import count
from farandole.control.launcher.agents.agent_client import AgentClient
from farandole.control.launcher.agents.relayed_links import LatestEnd
from farandole.control.launcher.agents.start_agents import start_agents
from farandole.control.launcher.host_setup import preflight
from farandole.control.launcher.host_setup.host_setup import JobHost
from farandole.control.launcher.host_setup.prepare import Preparation
from farandole.control.launcher.job.host_list import Host
from farandole.control.launcher.job.machine import Machine
from farandole.control.launcher.job.spec import (
    LaunchSpec,
    check_command,
    check_network,
    check_tuning,
    check_witnesses,
)
from farandole.control.launcher.plan.dry_run import render
from farandole.control.launcher.plan.environment import master_address
from farandole.control.launcher.plan.make import hosts_in_use
from farandole.control.launcher.plan.model import LOOPBACK, Identity, LaunchPlan, Site
from farandole.control.launcher.supervise.fixed_job import begin_fixed, fixed_state
from farandole.control.launcher.supervise.job_metrics import serve_job_metrics
from farandole.control.launcher.supervise.launch_context import SECRET_BYTES, LaunchContext
from farandole.control.launcher.supervise.outcome import JobOutcome
from farandole.control.launcher.supervise.supervisor import Supervisor
from farandole.control.launcher.targets.local import LocalNames


def where_hosts_are(spec: LaunchSpec, machine: Machine, *, dialed: bool = False) -> list[tuple[Host, bool]]:
    """Return the hosts that get workers, and whether each counts as this machine; hosts that have dialed never do.

    Raises:
        SpecError: they have too few slots.
    """
    hosts = hosts_in_use(spec, machine)
    if dialed or not spec.hosts:
        return [(host, not dialed) for host in hosts]
    return list(zip(hosts, LocalNames().which(hosts), strict=True))


def unknown_sites(hosts: Sequence[tuple[Host, bool]], machine: Machine) -> dict[str, Site]:
    """Return assumed facts about hosts that have not been contacted."""
    return {host.label: Site(local=local, cores=machine.cores if local else 0) for host, local in hosts}


async def launch_fixed(context: LaunchContext) -> JobOutcome:
    """Run a job of fixed size to its end; see `farandole.control.launcher.start.launch.launch`.

    Raises:
        SpecError: the job cannot be started; nothing was.
    """
    if context.reception is None:
        return await _launch(context)
    try:
        await context.reception.start(context.console.say, expecting=False)
        assert context.spec.num_proc is not None
        hosts = await context.reception.gather(context.spec.num_proc)
        return await _launch(replace(context, spec=replace(context.spec, hosts=hosts)))
    finally:
        await context.reception.close()


async def _launch(context: LaunchContext) -> JobOutcome:
    spec, machine, dialed = context.spec, context.machine, context.reception is not None
    job = secrets.token_hex(8)
    preparation = Preparation(spec, machine, context.console, context.log, job)
    hosts = where_hosts_are(spec, machine, dialed=dialed)
    all_local = all(local for _, local in hosts)
    check_witnesses(spec, sum(not local for _, local in hosts))
    if all_local:
        check_command(spec.command, machine.directory, machine.environment)
        check_network(spec.network)
    if hosts[0][1]:
        check_tuning(spec, machine.directory, machine.environment)
    # The plan's errors are raised before any host is contacted.
    preparation.plan(Identity(), unknown_sites(hosts, machine))
    if spec.ship and not all_local:
        await preparation.build_manifest()
    async with _agents_on(context, preparation, hosts) as agents:
        sites = await preparation.prepare(agents)
        return await _supervise(context, preparation, job, agents, sites)


@contextlib.asynccontextmanager
async def _agents_on(
    context: LaunchContext, preparation: Preparation, hosts: Sequence[tuple[Host, bool]]
) -> AsyncIterator[list[AgentClient]]:
    if not all(local for _, local in hosts):
        preparation.show(f"reaching {count(len(hosts), 'host')}")
    agents, lost = await start_agents(hosts, context.spec.ssh, context.reception, context.console.say)
    context.console.show_status(None)
    try:
        if lost:
            reached = {agent.host.label: preflight.first_look(agent, context.spec.access) for agent in agents}
            preflight.refuse_if_wrong(
                [
                    reached.get(host.label)
                    or preflight.not_reached(host, host.slots or 0, lost[host.label], context.spec.access)
                    for host, _ in hosts
                ],
                context.spec.access,
            )
        context.log(f"{count(len(agents), 'host')} reached")
        yield agents
    finally:
        await asyncio.gather(*(agent.close() for agent in agents))


async def _supervise(
    context: LaunchContext,
    preparation: Preparation,
    job: str,
    agents: Sequence[AgentClient],
    sites: Mapping[str, Site],
) -> JobOutcome:
    secret = secrets.token_bytes(SECRET_BYTES)
    draft = preparation.plan(Identity(), sites)
    supervisor = Supervisor(context, fixed_state(draft), secret)
    address = await supervisor.service.start(LOOPBACK)
    latest = LatestEnd()
    try:
        for agent in agents:
            if not agent.local:
                agent.relay_to(address, latest)
        sites = {label: replace(site, roster=address) if site.local else site for label, site in sites.items()}
        plan = preparation.plan(Identity(job, _master(agents[0], sites), secret.hex()), sites)
        _print_plan(context, plan)
        hosts = _job_hosts(plan, agents)

        async def begin() -> None:
            begin_fixed(supervisor, hosts, context)

        context.started(supervisor)
        with serve_job_metrics(context.spec, context.machine, supervisor, context.name or job, context.console.say):
            return await supervisor.run(begin, preparation.hint)
    finally:
        await supervisor.service.close()


def _job_hosts(plan: LaunchPlan, agents: Sequence[AgentClient]) -> list[JobHost]:
    by_label = {agent.host.label: agent for agent in agents}
    return [JobHost(by_label[host.name].host, by_label[host.name], replace(plan, hosts=(host,))) for host in plan.hosts]


def _print_plan(context: LaunchContext, plan: LaunchPlan) -> None:
    for note in plan.notes:
        context.console.say(f"note: {note}")
    for line in render(plan).splitlines():
        context.log(line)


def _master(first: AgentClient, sites: Mapping[str, Site]) -> str:
    """Return host:port on rank 0's host, for scripts that also use torch.distributed."""
    assert first.facts is not None
    if all(site.local for site in sites.values()):
        return f"{LOOPBACK}:{free_port(LOOPBACK)}"
    return master_address(sites[first.host.label], first.facts.free_port)


def free_port(host: str) -> int:
    """Return a port that was free a moment ago."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port
