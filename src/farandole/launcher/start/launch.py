"""Starts a job: reaches the hosts, makes them ready, completes the plan with what is known only now, and supervises."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace

from farandole.launcher.agents.agent_client import AgentClient
from farandole.launcher.agents.fleet import Fleet, start_agents
from farandole.launcher.host_setup import preflight
from farandole.launcher.host_setup.prepare import Preparation
from farandole.launcher.job.host_list import Host
from farandole.launcher.job.machine import Machine
from farandole.launcher.job.spec import JobSpec, check_command
from farandole.launcher.output.console import Console
from farandole.launcher.plan.environment import master_address
from farandole.launcher.plan.make import hosts_in_use
from farandole.launcher.plan.model import LOOPBACK, Identity, Plan, Site
from farandole.launcher.plan.render import render
from farandole.launcher.supervise.ending import READER_SECONDS
from farandole.launcher.supervise.failover_files import FailoverFiles, NothingLeft
from farandole.launcher.supervise.fixed import Observer, Outcome, Running, Supervisor
from farandole.launcher.targets.local import LocalNames
from farandole.launcher.wording import count
from farandole.roster.events import Place
from farandole.roster.service import RosterService
from farandole.wire.frames import FRAME_LIMIT, LARGEST_FRAME

SECRET_BYTES = 32


async def launch(
    spec: JobSpec,
    machine: Machine,
    console: Console,
    *,
    started: Callable[[Running], None] = lambda supervisor: None,
    call: bytes | None = None,
    verbose: bool = False,
    observer: Observer | None = None,
    failover_files: FailoverFiles | None = None,
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
        failover_files: where an elastic job leaves what a successor of this process has to know. If there is something,
            this process is the successor, and takes the job over.

    Raises:
        NothingLeft: this was to be the successor, and nothing of the job lives; the console is still open.
        SpecError: it cannot be started; nothing was.
    """

    def log(reason: str) -> None:
        if verbose:
            console.say(f"farandole: {reason}")

    try:
        if spec.elastic is not None:
            # Most jobs do without, and start the sooner.
            from farandole.launcher.start.elastic import launch_elastic

            outcome = await launch_elastic(
                spec, machine, console, log, started, call, observer or Observer(), failover_files
            )
        else:
            outcome = await _Launch(spec, machine, console, log).run(started, call, observer or Observer())
    except NothingLeft:
        raise
    except BaseException:
        await asyncio.to_thread(console.close, READER_SECONDS)
        raise
    # Like any program, a job waits for the reader of its output; an interrupted one does not.
    interrupted = outcome.exit_code != 0 and not outcome.report
    await asyncio.to_thread(console.close, READER_SECONDS if interrupted else None)
    return outcome


def where_hosts_are(spec: JobSpec, machine: Machine) -> list[tuple[Host, bool]]:
    """Return the hosts that get workers, and whether each is this machine.

    Raises:
        SpecError: they have too few slots.
    """
    hosts = hosts_in_use(spec, machine)
    if not spec.hosts:
        return [(host, True) for host in hosts]
    return list(zip(hosts, LocalNames().which(hosts), strict=True))


def unknown_sites(hosts: Sequence[tuple[Host, bool]], machine: Machine) -> dict[str, Site]:
    """Return what is known of hosts that have not been asked anything."""
    return {host.label: Site(local=local, cores=machine.cores if local else 0) for host, local in hosts}


class _Launch:
    """One job, from what the user wants to its end."""

    def __init__(self, spec: JobSpec, machine: Machine, console: Console, log: Callable[[str], None]) -> None:
        self._spec = spec
        self._machine = machine
        self._console = console
        self._log = log
        self._job = secrets.token_hex(8)
        self._preparation = Preparation(spec, machine, console, log, self._job)

    async def run(self, started: Callable[[Running], None], call: bytes | None, observer: Observer) -> Outcome:
        hosts = where_hosts_are(self._spec, self._machine)
        if all(local for _, local in hosts):
            check_command(self._spec.command, self._machine.directory, self._machine.environment)
        # What the plan refuses is refused before any host is asked.
        self._preparation.plan(Identity(), unknown_sites(hosts, self._machine))
        if self._spec.ship and not all(local for _, local in hosts):
            await self._preparation.take_stock()
        async with self._agents_on(hosts) as agents:
            sites = await self._preparation.prepare(agents)
            return await self._supervise(agents, sites, started, call, observer)

    @contextlib.asynccontextmanager
    async def _agents_on(self, hosts: Sequence[tuple[Host, bool]]) -> AsyncIterator[list[AgentClient]]:
        if not all(local for _, local in hosts):
            self._preparation.show(f"reaching {count(len(hosts), 'host')}")
        agents, lost = await start_agents(hosts, self._spec.ssh)
        self._console.show_status(None)
        try:
            if lost:
                reached = {agent.host.label: preflight.first_look(agent) for agent in agents}
                preflight.refuse_if_wrong(
                    [
                        reached.get(host.label) or preflight.not_reached(host, host.slots or 0, lost[host.label])
                        for host, _ in hosts
                    ]
                )
            self._log(f"{count(len(agents), 'host')} reached")
            yield agents
        finally:
            await asyncio.gather(*(agent.close() for agent in agents))

    # --- running ------------------------------------------------------------------------------------------------

    async def _supervise(
        self,
        agents: Sequence[AgentClient],
        sites: Mapping[str, Site],
        started: Callable[[Running], None],
        call: bytes | None,
        observer: Observer,
    ) -> Outcome:
        secret = secrets.token_bytes(SECRET_BYTES)
        service = RosterService(
            _places(self._preparation.plan(Identity(), sites)),
            secret,
            on_failure=lambda rank, failure: supervisor.failure_reported(rank, failure),
            on_progress=lambda rank, progress: supervisor.progress_reported(rank, progress),
            log=self._log,
            call=call,
            frame_limit=FRAME_LIMIT if call is None else LARGEST_FRAME,
        )
        address = await service.start(LOOPBACK)
        try:
            for agent in agents:
                if not agent.local:
                    agent.relay_to(address)
            sites = {label: replace(site, roster=address) if site.local else site for label, site in sites.items()}
            plan = self._preparation.plan(Identity(self._job, _master(agents[0], sites), secret.hex()), sites)
            self._tell(plan)
            supervisor = Supervisor(
                plan,
                Fleet({agent.host.label: agent for agent in agents}, self._spec.ssh, self._spec.host_timeout),
                dict(self._machine.environment),
                service,
                self._console,
                self._job,
                self._log,
                observer,
                self._preparation.hint,
            )
            started(supervisor)
            return await supervisor.run()
        finally:
            await service.close()

    def _tell(self, plan: Plan) -> None:
        for note in plan.notes:
            self._console.say(f"note: {note}")
        for line in render(plan).splitlines():
            self._log(line)


def _master(first: AgentClient, sites: Mapping[str, Site]) -> str:
    """Return host:port on rank 0's host, for scripts that use torch.distributed as well."""
    assert first.facts is not None
    if all(site.local for site in sites.values()):
        return f"{LOOPBACK}:{free_port(LOOPBACK)}"
    return master_address(sites[first.host.label], first.facts.free_port)


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
