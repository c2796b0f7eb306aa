"""Makes hosts ready for an elastic job, one by one, as they come; no host waits for another one."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from farandole.base.wire.address import format_address
from farandole.control.agent.protocol import Start
from farandole.control.launcher.agents.agent_client import AgentClient
from farandole.control.launcher.agents.agent_lost import AgentLost
from farandole.control.launcher.agents.reception import Reception
from farandole.control.launcher.agents.send_gate import SendGate
from farandole.control.launcher.host_setup.preemption import PreemptionWatch
from farandole.control.launcher.host_setup.preflight import Finding, HostsRefused
from farandole.control.launcher.host_setup.prepare import Preparation
from farandole.control.launcher.job.host_list import Host
from farandole.control.launcher.job.ssh_and_ship import SshOptions
from farandole.control.launcher.plan.environment import inherited_elsewhere, master_address, place_of
from farandole.control.launcher.plan.model import LOOPBACK, HostPlan, Identity, Plan, Site
from farandole.control.launcher.targets.local import LocalNames
from farandole.control.launcher.targets.not_started import explain
from farandole.errors import Picklable, SpecError

AGENT_VARIABLE = "FARANDOLE_AGENT"
"""By which what a lost agent leaves behind is found."""
# So many launchers, one after the other, may be killed before they can tell an agent where to wait for the next one.
SOCKET_NAMES_KEPT = 8
PLACE_PREFIXES = ("FARANDOLE_", "HOROVOD_")


class NotReady(Picklable, Exception):
    """A host cannot be used.

    Attributes:
        refused: whether trying again makes no sense as long as it is as it is.
    """

    def __init__(self, why: str, refused: bool) -> None:
        super().__init__(why)
        self.refused = refused


@dataclass(frozen=True)
class JobHost:
    """A host that can start workers."""

    host: Host
    agent: AgentClient
    plan: Plan
    """Of this host alone, with a worker in each slot."""
    token: str = ""
    """That all its workers have in their environment; "": the job's id will do."""
    notice: str = ""
    """Why it was about to be taken away when it became ready; "" if it was not."""
    socket_names: tuple[str, ...] = ()
    """At which its agent may wait for another launcher: the last is this launcher's own, those before it earlier ones',
    if this one does not get to say so."""

    @property
    def host_plan(self) -> HostPlan:
        """What is planned for it."""
        return self.plan.hosts[0]

    @property
    def mark(self) -> str:
        """The variable by which what this agent started is found."""
        if not self.token:
            return f"FARANDOLE_JOB={self.plan.environment['FARANDOLE_JOB']}"
        return f"{AGENT_VARIABLE}={self.token}"

    def order(self, worker: int, slot: int, size: int, inherited: Mapping[str, str]) -> Start:
        """Return what lets its agent start a worker.

        Args:
            worker: its number.
            slot: in which it is.
            size: workers that are expected in a world.
            inherited: the launcher's environment, over which the worker's own is laid.
        """
        plan, host = self.plan, self.host_plan
        ours = dict(inherited) if host.local else inherited_elsewhere(inherited)
        # A host may have more slots by now than it was planned with.
        own = host.workers[slot % len(host.workers)].environment
        environment = {**ours, **plan.environment, **host.environment, **own, **place_of(worker, slot, size)}
        environment |= {AGENT_VARIABLE: self.token}
        return Start(worker, host.command, environment, host.directory, inherit=not host.local, elastic=True)


class HostSetup:
    """Makes hosts ready.

    Attributes:
        roster: see below.

    Args:
        preparation: of the job.
        ssh: how other hosts are reached.
        identity: of the job; without a master, the first host that is ready names one.
        roster: host:port of the roster here.
        here: hosts that are this machine, whatever their names say.
        spreads: whether workers of other hosts may come.
        preemption: looks whether hosts are about to be taken away.
        reception: where hosts dial that cannot be reached; None: all are reached from here.
        gate: behind which what their agents are told waits, where they dial.
    """

    def __init__(
        self,
        preparation: Preparation,
        ssh: SshOptions,
        identity: Identity,
        roster: str,
        here: frozenset[str],
        spreads: bool,
        preemption: PreemptionWatch,
        reception: Reception | None = None,
        gate: SendGate | None = None,
    ) -> None:
        self._preparation = preparation
        self._ssh = ssh
        self._identity = identity
        self.roster = roster
        self._here = here
        self._spreads = spreads
        self._preemption = preemption
        self._names = LocalNames()
        self.reception = reception
        self._gate = gate

    @property
    def identity(self) -> Identity:
        """Of the job, as far as it is known by now."""
        return self._identity

    def hint(self, host: HostPlan, said: str) -> str:
        """See `Preparation.hint`."""
        return self._preparation.hint(host, said)

    async def watch(self, job_host: JobHost, tell: Callable[[str], None]) -> None:
        """Look again and again whether a host is about to be taken away; see `PreemptionWatch.watch`."""
        await self._preemption.watch(job_host.agent, job_host.host_plan.directory, tell)

    async def set_up(self, host: Host) -> JobHost:
        """Start an agent on a host, and make the host ready.

        Raises:
            NotReady: that cannot be done.
        """
        try:
            agent = await self._start(host)
        except AgentLost as error:
            raise NotReady(str(error), refused=False) from None
        try:
            return await self._prepare(host, agent)
        except BaseException:
            await agent.close()
            raise

    async def _start(self, host: Host) -> AgentClient:
        if self.reception is not None:
            return AgentClient(host, False, await self.reception.begin(host), self.reception.outlive, self._gate)
        local = host.label in self._here or (await asyncio.to_thread(self._names.which, [host]))[0]
        return await AgentClient.start(host, local, self._ssh)

    async def take_over(
        self,
        host: Host,
        local: bool,
        plan: Plan,
        token: str,
        notice: str,
        socket_names: tuple[str, ...],
        holds_up: Callable[[], bool],
    ) -> JobHost:
        """Return a host whose agent has lost its launcher, as far as it is still there: `AgentClient.resumed` says.

        Args:
            holds_up: returns whether to wait for it only holds other hosts up.

        Raises:
            AgentLost: there is no ssh any more.
        """
        if self.reception is not None:
            link = await self.reception.follow(host, socket_names, holds_up)
            agent = AgentClient(host, False, link, self.reception.outlive, self._gate)
        else:
            agent = await AgentClient.start(host, local, self._ssh, socket_names)
        if not local:
            agent.relay_to(self.roster)
        return JobHost(host, agent, plan, token, notice, (*socket_names, _new_socket_name())[-SOCKET_NAMES_KEPT:])

    async def taken_over(self) -> None:
        """Record that all hosts were taken over that could be."""
        if self.reception is not None:
            await self.reception.settle()

    async def _prepare(self, host: Host, agent: AgentClient) -> JobHost:
        try:
            await agent.ready()
            preparation = self._preparation.for_host(host)
            sites = await preparation.prepare([agent])
        except HostsRefused as error:
            raise NotReady(_in_one_line(error.findings[0]), refused=True) from None
        except AgentLost as error:
            if self.reception is not None:
                raise NotReady(str(error), refused=False) from None
            problem, hint = explain(host, str(error), self._ssh)
            raise NotReady(f"{problem} ({hint})" if hint else problem, refused=False) from None
        except SpecError as error:
            raise NotReady(str(error), refused=True) from None
        site = sites[host.label]
        if agent.local:
            site = replace(site, roster=self.roster)
        else:
            agent.relay_to(self.roster)
        self._name_master(agent, site)
        plan = preparation.plan(self._identity, {host.label: site})
        notice = await self._preemption.look(agent, plan.hosts[0].directory)
        return JobHost(host, agent, plan, secrets.token_hex(8), notice or "", (_new_socket_name(),))

    def _name_master(self, agent: AgentClient, site: Site) -> None:
        assert agent.facts is not None
        if not self._identity.master:
            port = agent.facts.free_port
            master = master_address(site, port) if self._spreads else format_address(LOOPBACK, port)
            self._identity = replace(self._identity, master=master)


def _new_socket_name() -> str:
    return secrets.token_hex(16)


def _in_one_line(finding: Finding) -> str:
    return f"{finding.problem} (hint: {finding.hint})" if finding.hint else finding.problem
