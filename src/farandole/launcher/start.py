"""Starts a job: reaches the hosts, looks at them, completes the plan with what is known only now, and supervises."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace

from farandole.agent.messages import Task, TaskEnded
from farandole.core.wire import FRAME_LIMIT, LARGEST_FRAME
from farandole.launcher import preflight
from farandole.launcher.agents import Agent, AgentLost, start_agents
from farandole.launcher.errors import SpecError
from farandole.launcher.hosts import Host
from farandole.launcher.machine import Machine
from farandole.launcher.output import Console
from farandole.launcher.plan import (
    LOOPBACK,
    HostPlan,
    Identity,
    Plan,
    Site,
    count,
    hosts_in_use,
    inherited_elsewhere,
    make_plan,
    master_address,
    render,
)
from farandole.launcher.preflight import Finding
from farandole.launcher.reach import LocalNames
from farandole.launcher.spec import JobSpec, check_command
from farandole.launcher.supervise import READER_SECONDS, Observer, Outcome, Supervisor
from farandole.roster.decide import Place
from farandole.roster.service import RosterService

SECRET_BYTES = 32
# What prepares a host may compile things.
SETUP_SECONDS = 3600.0

Log = Callable[[str], None]


async def launch(
    spec: JobSpec,
    machine: Machine,
    console: Console,
    *,
    started: Callable[[Supervisor], None] = lambda supervisor: None,
    call: bytes | None = None,
    verbose: bool = False,
    observer: Observer | None = None,
) -> Outcome:
    """Run a job to its end and return how it ended. Closes the console.

    Args:
        spec: what the user wants.
        machine: the one that this runs on.
        console: where output goes.
        started: called with the supervisor, whose `stop` ends the job early.
        call: the pickled call that the workers fetch, if they run a function.
        verbose: tell the plan and every decision of the roster.
        observer: hears of failures at once.

    Raises:
        SpecError: it cannot be started; nothing was.
    """

    def log(reason: str) -> None:
        if verbose:
            console.say(f"farandole: {reason}")

    try:
        outcome = await _launch(spec, machine, console, started, call, log, observer or Observer())
    except BaseException:
        await asyncio.to_thread(console.close, READER_SECONDS)
        raise
    # Like any program, a job waits for the reader of its output; an interrupted one does not.
    interrupted = outcome.exit_code != 0 and not outcome.report
    await asyncio.to_thread(console.close, READER_SECONDS if interrupted else None)
    return outcome


async def _launch(
    spec: JobSpec,
    machine: Machine,
    console: Console,
    started: Callable[[Supervisor], None],
    call: bytes | None,
    log: Log,
    observer: Observer,
) -> Outcome:
    hosts = where_hosts_are(spec, machine)
    if all(local for _, local in hosts):
        check_command(spec.command, machine.directory, machine.environment)
    # What the plan refuses is refused before any host is asked.
    make_plan(spec, machine, Identity(), unknown_sites(hosts, machine))
    async with _agents_on(hosts, spec, log) as agents:
        findings = {agent.host.label: preflight.first_look(agent, agent.host.slots or 0) for agent in agents}
        sites = await _prepare(spec, machine, agents, findings, console, log)
        secret = secrets.token_bytes(SECRET_BYTES)
        service = RosterService(
            _places(make_plan(spec, machine, Identity(), sites)),
            secret,
            on_failure=lambda rank, failure: supervisor.failure_reported(rank, failure),
            on_progress=lambda rank, progress: supervisor.progress_reported(rank, progress),
            log=log,
            call=call,
            frame_limit=FRAME_LIMIT if call is None else LARGEST_FRAME,
        )
        address = await service.start(LOOPBACK)
        try:
            for agent in agents:
                if agent.local:
                    sites[agent.host.label] = replace(sites[agent.host.label], roster=address)
                else:
                    agent.relay_to(address)
            job = secrets.token_hex(8)
            plan = make_plan(spec, machine, Identity(job, _master(agents[0], sites), secret.hex()), sites)
            _tell(plan, console, log)
            supervisor = Supervisor(
                plan,
                {agent.host.label: agent for agent in agents},
                spec.ssh,
                spec.host_timeout,
                dict(machine.environment),
                service,
                console,
                job,
                log,
                observer,
            )
            started(supervisor)
            return await supervisor.run()
        finally:
            await service.close()


def where_hosts_are(spec: JobSpec, machine: Machine) -> list[tuple[Host, bool]]:
    """Return the hosts that get workers, and whether each is this machine.

    Raises:
        SpecError: they have too few slots.
    """
    names = LocalNames()
    return [(host, not spec.hosts or names.has(host)) for host in hosts_in_use(spec, machine)]


def unknown_sites(hosts: Sequence[tuple[Host, bool]], machine: Machine) -> dict[str, Site]:
    """Return what is known of hosts that have not been asked anything."""
    return {host.label: Site(local=local, cores=machine.cores if local else 0) for host, local in hosts}


@contextlib.asynccontextmanager
async def _agents_on(hosts: Sequence[tuple[Host, bool]], spec: JobSpec, log: Log) -> AsyncIterator[list[Agent]]:
    agents, lost = await start_agents(hosts, spec.ssh)
    try:
        if lost:
            preflight.refuse_if_wrong(
                [
                    preflight.not_reached(host, host.slots or 0, lost[host.label])
                    if host.label in lost
                    else preflight.first_look(next(each for each in agents if each.host is host), host.slots or 0)
                    for host, _ in hosts
                ]
            )
        log(f"{count(len(agents), 'host')} reached")
        yield agents
    finally:
        await asyncio.gather(*(agent.close() for agent in agents))


# --- before anything starts ------------------------------------------------------------------------------------------


async def _prepare(
    spec: JobSpec,
    machine: Machine,
    agents: Sequence[Agent],
    findings: Mapping[str, Finding],
    console: Console,
    log: Log,
) -> dict[str, Site]:
    """Look at the hosts and make them ready; return what the plan must know of them."""
    elsewhere = any(not agent.local for agent in agents)
    if elsewhere:
        for finding in findings.values():
            preflight.choose_networks(finding, spec.network)
        preflight.refuse_if_wrong(list(findings.values()))
    sites = {agent.host.label: _site(agent, findings[agent.host.label]) for agent in agents}
    plan = make_plan(spec, machine, Identity(), sites)
    if spec.setup:
        await _set_up(spec.setup, plan, agents, machine, console)
    if elsewhere and spec.preflight:
        await _look(plan, agents, findings, machine, console, log)
        sites = {agent.host.label: _site(agent, findings[agent.host.label]) for agent in agents}
    return sites


async def _look(
    plan: Plan,
    agents: Sequence[Agent],
    findings: Mapping[str, Finding],
    machine: Machine,
    console: Console,
    log: Log,
) -> None:
    await asyncio.gather(
        preflight.look_at_workers(
            agents,
            findings,
            {host.name: host.command for host in plan.hosts},
            {host.name: host.directory for host in plan.hosts},
            {host.name: _environment(plan, host, machine) for host in plan.hosts},
        ),
        preflight.look_at_networks(agents, findings),
    )
    ordered = [findings[agent.host.label] for agent in agents]
    preflight.refuse_if_wrong(ordered)
    for line in preflight.render(ordered):
        log(line)
    here = [agent.facts.machine for agent in agents if agent.local and agent.facts is not None]
    for warning in preflight.compare(ordered, here):
        console.say(f"warning: {warning}")


def _environment(plan: Plan, host: HostPlan, machine: Machine) -> dict[str, str]:
    """Return what all workers of a host have in common, without anything secret."""
    inherited = dict(machine.environment) if host.local else inherited_elsewhere(machine.environment)
    return {**inherited, **plan.environment, **host.environment}


async def _set_up(setup: str, plan: Plan, agents: Sequence[Agent], machine: Machine, console: Console) -> None:
    """Run the user's command once on every host.

    Raises:
        SpecError: it failed somewhere.
    """
    console.say(f"farandole: --setup on {count(len(agents), 'host')}: {setup}")

    async def run(agent: Agent, host: HostPlan) -> str:
        environment = _environment(plan, host, machine)
        command = ("/bin/sh", "-c", setup)
        try:
            answer = await agent.ask(
                lambda number: Task(number, command, environment, host.directory, b"", SETUP_SECONDS),
                SETUP_SECONDS + 1,
            )
        except AgentLost as error:
            return f"{host.name}: {error}"
        assert isinstance(answer, TaskEnded)
        if answer.code == 0:
            return ""
        last = answer.output.decode("utf-8", "replace").rstrip().splitlines()[-10:]
        return "\n".join([f"{host.name}: it ended with code {answer.code}", *(f"    | {line}" for line in last)])

    failed = [words for words in await asyncio.gather(*map(run, agents, plan.hosts)) if words]
    if failed:
        what = f"--setup failed on {len(failed)} of {count(len(agents), 'host')}; nothing was started"
        raise SpecError("\n  ".join([what, *failed]), "try it there by hand")


def _site(agent: Agent, finding: Finding) -> Site:
    assert agent.facts is not None
    return Site(
        local=agent.local,
        cores=agent.facts.cores,
        roster=agent.facts.roster,
        networks=finding.networks,
    )


def _master(first: Agent, sites: Mapping[str, Site]) -> str:
    """Return host:port on rank 0's host, for scripts that use torch.distributed as well."""
    assert first.facts is not None
    if all(site.local for site in sites.values()):
        return f"{LOOPBACK}:{free_port(LOOPBACK)}"
    return master_address(sites[first.host.label], first.facts.free_port)


def _tell(plan: Plan, console: Console, log: Log) -> None:
    for note in plan.notes:
        console.say(f"note: {note}")
    for line in render(plan).splitlines():
        log(line)


def _places(plan: Plan) -> tuple[Place, ...]:
    """By rank: where each worker runs, for the roster."""

    def cross_size(local_rank: int) -> int:
        return sum(len(host.workers) > local_rank for host in plan.hosts)

    places = {
        worker.rank: Place(
            host.name, worker.local_rank, len(host.workers), worker.cross_rank, cross_size(worker.local_rank)
        )
        for host in plan.hosts
        for worker in host.workers
    }
    return tuple(places[rank] for rank in range(plan.size))


def free_port(host: str) -> int:
    """Return a port that was free a moment ago."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port
