"""Starts a job: reaches the hosts, makes them ready, completes the plan with what is known only now, and supervises."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace

from farandole.agent.messages import File, Task, TaskEnded
from farandole.core.wire import FRAME_LIMIT, LARGEST_FRAME
from farandole.launcher import preflight
from farandole.launcher.agents import Agent, AgentLost, Fleet, start_agents
from farandole.launcher.errors import SpecError
from farandole.launcher.hosts import Host
from farandole.launcher.machine import Machine
from farandole.launcher.output.console import Console
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
from farandole.launcher.shipping.left_out import command_on_hosts, hint_for_missing, where_to_run
from farandole.launcher.shipping.manifest import Hashes, Manifest, in_units, take_stock
from farandole.launcher.shipping.ship import ship
from farandole.launcher.spec import JobSpec, check_command
from farandole.launcher.supervise import READER_SECONDS, Observer, Outcome, Supervisor
from farandole.roster.decide import Place
from farandole.roster.service import RosterService

SECRET_BYTES = 32
# What prepares a host may compile things.
SETUP_SECONDS = 3600.0
_REDRAW_SECONDS = 0.25


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
        outcome = await _Launch(spec, machine, console, log).run(started, call, observer or Observer())
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
        self._manifest: Manifest | None = None
        """What --ship sends."""

    async def run(self, started: Callable[[Supervisor], None], call: bytes | None, observer: Observer) -> Outcome:
        hosts = where_hosts_are(self._spec, self._machine)
        if all(local for _, local in hosts):
            check_command(self._spec.command, self._machine.directory, self._machine.environment)
        # What the plan refuses is refused before any host is asked.
        self._plan(Identity(), unknown_sites(hosts, self._machine))
        if self._spec.ship and not all(local for _, local in hosts):
            self._manifest = await self._take_stock()
        async with self._agents_on(hosts) as agents:
            sites = await self._prepare(agents)
            return await self._supervise(agents, sites, started, call, observer)

    def _plan(self, identity: Identity, sites: Mapping[str, Site]) -> Plan:
        return make_plan(self._spec, self._machine, identity, sites)

    @contextlib.asynccontextmanager
    async def _agents_on(self, hosts: Sequence[tuple[Host, bool]]) -> AsyncIterator[list[Agent]]:
        if not all(local for _, local in hosts):
            self._show(f"reaching {count(len(hosts), 'host')}")
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

    def _show(self, text: str) -> None:
        """Show on a terminal what takes its time."""
        if self._console.has_status:
            self._console.show_status(lambda columns: text[: columns - 1])

    # --- making hosts ready -------------------------------------------------------------------------------------

    async def _prepare(self, agents: Sequence[Agent]) -> dict[str, Site]:
        """Look at the hosts and make them ready; return what the plan must know of them."""
        findings = {agent.host.label: preflight.first_look(agent) for agent in agents}
        elsewhere = any(not agent.local for agent in agents)
        if elsewhere:
            for finding in findings.values():
                preflight.choose_networks(finding, self._spec.network)
            preflight.refuse_if_wrong(list(findings.values()))
        sites = {agent.host.label: _site(agent, findings[agent.host.label]) for agent in agents}
        if self._manifest is not None:
            sites.update(await self._ship(self._manifest, agents, sites))
        if self._spec.setup:
            await self._set_up(agents, self._plan(Identity(), sites))
        if elsewhere and self._spec.preflight:
            await self._look(agents, findings, self._plan(Identity(), sites))
            sites = {label: replace(site, networks=findings[label].networks) for label, site in sites.items()}
        return sites

    async def _look(self, agents: Sequence[Agent], findings: Mapping[str, Finding], plan: Plan) -> None:
        await asyncio.gather(
            preflight.look_at_workers(
                agents,
                findings,
                {host.name: (host, self._environment(plan, host)) for host in plan.hosts},
            ),
            preflight.look_at_networks(agents, findings),
        )
        ordered = [findings[agent.host.label] for agent in agents]
        preflight.refuse_if_wrong(ordered)
        for line in preflight.render(ordered):
            self._log(line)
        here = [agent.facts.machine for agent in agents if agent.local and agent.facts is not None]
        for warning in preflight.compare(ordered, here):
            self._console.say(f"warning: {warning}")

    def _environment(self, plan: Plan, host: HostPlan) -> dict[str, str]:
        """Return what all workers of a host have in common, without anything secret."""
        ours = self._machine.environment
        return {**(ours if host.local else inherited_elsewhere(ours)), **plan.environment, **host.environment}

    async def _set_up(self, agents: Sequence[Agent], plan: Plan) -> None:
        """Run the user's command once on every host.

        Raises:
            SpecError: it failed somewhere.
        """
        self._console.say(f"farandole: --setup on {count(len(agents), 'host')}: {self._spec.setup}")
        command = ("/bin/sh", "-c", self._spec.setup)

        async def run(agent: Agent, host: HostPlan) -> str:
            environment = self._environment(plan, host)
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

    # --- sending the code ---------------------------------------------------------------------------------------

    async def _take_stock(self) -> Manifest:
        directory = os.path.join(self._machine.directory, self._spec.ship)
        manifest = await asyncio.to_thread(take_stock, directory, self._spec.ship_limit, Hashes.of(directory))
        for note in manifest.notes:
            self._console.say(f"note: {note}")
        # A script that is left out is refused before any host is asked.
        command_on_hosts(manifest, self._spec.command, self._machine.directory)
        where_to_run(manifest, self._machine.directory)
        return manifest

    async def _ship(self, manifest: Manifest, agents: Sequence[Agent], sites: Mapping[str, Site]) -> dict[str, Site]:
        """Send the code to the other hosts; here, workers run where the user is. Return the sites that have changed."""
        receivers = [agent for agent in agents if not agent.local]
        files = count(sum(isinstance(entry, File) for entry in manifest.entries), "file")
        self._log(f"--ship: {files}, {in_units(manifest.size)}, to {count(len(receivers), 'host')}")
        shown_at = 0.0

        def progress(done: int, total: int) -> None:
            nonlocal shown_at
            if time.monotonic() - shown_at > _REDRAW_SECONDS:
                shown_at = time.monotonic()
                self._show(f"sending the code: {in_units(done)} of {in_units(total)}")

        try:
            directories = await ship(manifest, receivers, self._job, progress, self._spec.ship_cache)
        finally:
            self._console.show_status(None)
        where = where_to_run(manifest, self._machine.directory)
        command = command_on_hosts(manifest, self._spec.command, self._machine.directory)
        return {
            label: replace(sites[label], directory=os.path.join(directory, where).rstrip("/"), command=command)
            for label, directory in directories.items()
        }

    def _hint(self, host: HostPlan, said: str) -> str:
        if self._manifest is None or host.local:
            return ""
        where = where_to_run(self._manifest, self._machine.directory)
        root = host.directory.removesuffix(where).rstrip("/")
        return hint_for_missing(said, self._manifest, where, [root])

    # --- running ------------------------------------------------------------------------------------------------

    async def _supervise(
        self,
        agents: Sequence[Agent],
        sites: Mapping[str, Site],
        started: Callable[[Supervisor], None],
        call: bytes | None,
        observer: Observer,
    ) -> Outcome:
        secret = secrets.token_bytes(SECRET_BYTES)
        service = RosterService(
            _places(self._plan(Identity(), sites)),
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
            plan = self._plan(Identity(self._job, _master(agents[0], sites), secret.hex()), sites)
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
                self._hint,
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
