"""Prepares hosts for a job: checks them, copies the code, and runs the user's setup command on them."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from farandole.base.display.wording import count
from farandole.control.agent.file_messages import File
from farandole.control.agent.protocol import Task, TaskEnded
from farandole.control.launcher.agents.agent_client import AgentClient
from farandole.control.launcher.agents.agent_lost import AgentLost
from farandole.control.launcher.host_setup import preflight
from farandole.control.launcher.host_setup.preflight import Finding
from farandole.control.launcher.job.dialed_hosts import DialedHosts
from farandole.control.launcher.job.host_list import Host
from farandole.control.launcher.job.machine import Machine
from farandole.control.launcher.job.spec import LaunchSpec, tuning_file
from farandole.control.launcher.output.console import Console
from farandole.control.launcher.plan.environment import inherited_elsewhere
from farandole.control.launcher.plan.make import make_plan
from farandole.control.launcher.plan.model import LOOPBACK, HostPlan, Identity, LaunchPlan, Site
from farandole.control.launcher.ship.file_list import Hashes, Manifest, build_manifest, in_units, without_written
from farandole.control.launcher.ship.missing_files import command_on_hosts, hint_for_missing, where_to_run
from farandole.control.launcher.ship.send import ship
from farandole.errors import SpecError

# Preparing a host may include compiling.
SETUP_SECONDS = 3600.0
_REDRAW_SECONDS = 0.25
_WRITTEN_BY_WORKERS = ("autotune_log", "checkpoint_dir", "timeline", "tuning")


class Preparation:
    """Prepares the hosts of one job.

    Args:
        spec: the job that the user wants, with the hosts to plan for.
        machine: the machine that this runs on.
        console: the console for messages to the user.
        log: prints lines that are shown only with --verbose.
        job: the job's id.
        spreads: whether there may be workers on other hosts later, although all known hosts are this machine.
    """

    def __init__(
        self,
        spec: LaunchSpec,
        machine: Machine,
        console: Console,
        log: Callable[[str], None],
        job: str,
        spreads: bool = False,
    ) -> None:
        self._spec = spec
        self._machine = machine
        self._console = console
        self._log = log
        self._job = job
        self._spreads = spreads
        self._manifest: Manifest | None = None
        """The files that --ship copies."""

    def for_host(self, host: Host) -> Preparation:
        """Return the same preparation for a single host."""
        access = self._spec.access
        dialed = access if isinstance(access, DialedHosts) else None
        spec = replace(self._spec, hosts=(host,), num_proc=host.slots, elastic=None, dialed=dialed)
        one = Preparation(spec, self._machine, self._console, self._log, self._job, self._spreads)
        one._manifest = self._manifest
        return one

    def plan(self, identity: Identity, sites: Mapping[str, Site]) -> LaunchPlan:
        """Return the plan, as far as these facts determine it.

        Raises:
            SpecError: no plan is possible.
        """
        return make_plan(self._spec, self._machine, identity, sites)

    def show(self, text: str) -> None:
        """Show the current activity, which may take long, on a terminal."""
        if self._console.has_status:
            self._console.show_status(lambda columns: text[: columns - 1])

    # --- making hosts ready -------------------------------------------------------------------------------------

    async def prepare(self, agents: Sequence[AgentClient]) -> dict[str, Site]:
        """Check and prepare the hosts; return the facts about them that the plan needs.

        Raises:
            SpecError: some hosts cannot run the job.
        """
        findings = {agent.host.label: preflight.first_look(agent, self._spec.access) for agent in agents}
        elsewhere = self._spreads or any(not agent.local for agent in agents)
        if elsewhere:
            for agent in agents:
                self._choose_networks(agent, findings[agent.host.label])
            preflight.refuse_if_wrong(list(findings.values()), self._spec.access)
        sites = {agent.host.label: self._site(agent, findings[agent.host.label]) for agent in agents}
        if self._manifest is not None:
            # Workers of an elastic job may run already, also here, in the directory that is sent.
            written = [self._spec.settings.get(name) for name in _WRITTEN_BY_WORKERS]
            paths = [os.path.join(self._machine.directory, path) for path in written if path]
            manifest = await asyncio.to_thread(without_written, self._manifest, paths)
            sites.update(await self._ship(manifest, agents, sites))
        if self._spec.setup:
            await self._set_up(agents, self.plan(Identity(), sites))
        if elsewhere and self._spec.preflight:
            await self._look(agents, findings, self.plan(Identity(), sites))
            sites = {label: replace(site, networks=findings[label].networks) for label, site in sites.items()}
        return sites

    async def _look(self, agents: Sequence[AgentClient], findings: Mapping[str, Finding], plan: LaunchPlan) -> None:
        first = plan.hosts[0]
        # An elastic job, whose hosts may change, goes on without the file.
        tuning = {} if self._spreads else {first.name: tuning_file(first.directory, self._environment(plan, first))}
        await asyncio.gather(
            preflight.look_at_workers(
                agents,
                findings,
                {host.name: (host, self._environment(plan, host)) for host in plan.hosts},
                self._spec.access,
                tuning,
            ),
            preflight.look_at_networks(agents, findings),
        )
        ordered = [findings[agent.host.label] for agent in agents]
        preflight.refuse_if_wrong(ordered, self._spec.access)
        for line in preflight.render(ordered):
            self._log(line)
        # A host that names its machine is one of several there, as its user knows.
        known = [agent.facts.machine for agent in agents if agent.facts and (agent.local or agent.host.machine)]
        for warning in preflight.compare(ordered, known):
            self._console.say(f"warning: {warning}")

    def _environment(self, plan: LaunchPlan, host: HostPlan) -> dict[str, str]:
        """Return the variables that all workers of a host share, without secrets."""
        ours = self._machine.environment
        return {**(ours if host.local else inherited_elsewhere(ours)), **plan.environment, **host.environment}

    async def _set_up(self, agents: Sequence[AgentClient], plan: LaunchPlan) -> None:
        """Run the user's command once on every host.

        Raises:
            SpecError: it failed on some host.
        """
        self._console.say(f"farandole: --setup on {count(len(agents), 'host')}: {self._spec.setup}")
        command = ("/bin/sh", "-c", self._spec.setup)

        async def run(agent: AgentClient, host: HostPlan) -> str:
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
            return "\n".join([f"{host.name}: it exited with code {answer.code}", *(f"    | {line}" for line in last)])

        failed = [words for words in await asyncio.gather(*map(run, agents, plan.hosts)) if words]
        if failed:
            what = f"--setup failed on {len(failed)} of {count(len(agents), 'host')}; nothing was started"
            raise SpecError("\n  ".join([what, *failed]), "run it there by hand")

    # --- copying the code ---------------------------------------------------------------------------------------

    async def build_manifest(self) -> None:
        """List the files that --ship copies, and refuse what it cannot copy.

        Raises:
            SpecError: there are too many, or the program to run is not among them.
        """
        directory = os.path.join(self._machine.directory, self._spec.ship)
        output = "" if self._spec.output_dir is None else os.path.join(self._machine.directory, self._spec.output_dir)
        manifest = await asyncio.to_thread(
            build_manifest, directory, self._spec.ship_limit, Hashes.of(directory), output
        )
        for note in manifest.notes:
            self._console.say(f"note: {note}")
        # A script that would not be copied is refused before any host is contacted.
        command_on_hosts(manifest, self._spec.command, self._machine.directory)
        where_to_run(manifest, self._machine.directory)
        self._manifest = manifest

    async def _ship(
        self, manifest: Manifest, agents: Sequence[AgentClient], sites: Mapping[str, Site]
    ) -> dict[str, Site]:
        """Copy the code to the other hosts; here, workers run in place. Return the sites that have changed."""
        receivers = [agent for agent in agents if not agent.local]
        files = count(sum(isinstance(entry, File) for entry in manifest.entries), "file")
        self._log(f"--ship: {files}, {in_units(manifest.size)}, to {count(len(receivers), 'host')}")
        shown_at = 0.0

        def progress(done: int, total: int) -> None:
            nonlocal shown_at
            if time.monotonic() - shown_at > _REDRAW_SECONDS:
                shown_at = time.monotonic()
                self.show(f"copying the code: {in_units(done)} of {in_units(total)}")

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

    def hint(self, host: HostPlan, said: str) -> str:
        """Return the hint about the last words of a failed worker; "" if the failure alone explains itself."""
        if self._manifest is None or host.local:
            return ""
        where = where_to_run(self._manifest, self._machine.directory)
        root = host.directory.removesuffix(where).rstrip("/")
        return hint_for_missing(said, self._manifest, where, [root])

    def _choose_networks(self, agent: AgentClient, finding: Finding) -> None:
        assert finding.facts is not None
        if agent.local and self._spreads and not finding.facts.interfaces:
            # A machine without a network can still have local workers.
            finding.networks = (("lo", (LOOPBACK,)),)
        else:
            preflight.choose_networks(finding, self._spec.network)

    def _site(self, agent: AgentClient, finding: Finding) -> Site:
        assert agent.facts is not None
        return Site(
            local=agent.local,
            cores=agent.facts.cores,
            roster=agent.facts.roster,
            networks=finding.networks,
            spreads=self._spreads,
        )
