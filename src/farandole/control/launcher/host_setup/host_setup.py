"""Prepares the hosts of an elastic job independently of each other, as they are found."""

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
from farandole.control.launcher.agents.relayed_links import LatestEnd
from farandole.control.launcher.agents.send_gate import SendGate
from farandole.control.launcher.host_setup.preemption import PreemptionWatch
from farandole.control.launcher.host_setup.preflight import Finding, HostsRefused
from farandole.control.launcher.host_setup.prepare import Preparation
from farandole.control.launcher.job.host_list import Host
from farandole.control.launcher.job.ssh_and_ship import SshOptions
from farandole.control.launcher.plan.environment import inherited_elsewhere, master_address, place_of
from farandole.control.launcher.plan.model import LOOPBACK, HostPlan, Identity, LaunchPlan, Site
from farandole.control.launcher.targets.local import LocalNames
from farandole.control.launcher.targets.not_started import explain
from farandole.errors import Picklable, SpecError

AGENT_VARIABLE = "FARANDOLE_AGENT"
"""The environment variable by which remaining processes of a lost agent are found."""
# The number of successive launchers that may be killed before one tells an agent where to wait for the next.
SOCKET_NAMES_KEPT = 8
PLACE_PREFIXES = ("FARANDOLE_", "HOROVOD_")


class NotReady(Picklable, Exception):
    """A host cannot be used.

    Attributes:
        refused: whether another try is pointless until something changes on the host.
    """

    def __init__(self, why: str, refused: bool) -> None:
        super().__init__(why)
        self.refused = refused


@dataclass(frozen=True)
class JobHost:
    """A host that can start workers."""

    host: Host
    agent: AgentClient
    plan: LaunchPlan
    """The plan for this host alone, with a worker in each slot."""
    token: str = ""
    """A token in the environment of all its workers; "": the job's id is used."""
    notice: str = ""
    """The preemption notice that was in effect when the host became ready; "" if there was none."""
    socket_names: tuple[str, ...] = ()
    """Sockets at which its agent may wait for another launcher. The last one was chosen by this launcher; earlier ones,
        by previous launchers, are needed if this launcher dies before the agent knows the new one."""

    @property
    def host_plan(self) -> HostPlan:
        """The plan for this host."""
        return self.plan.hosts[0]

    @property
    def mark(self) -> str:
        """The environment variable, as `NAME=value`, by which the processes of this agent are found."""
        if not self.token:
            return f"FARANDOLE_JOB={self.plan.environment['FARANDOLE_JOB']}"
        return f"{AGENT_VARIABLE}={self.token}"

    def order(self, worker: int, slot: int, size: int, inherited: Mapping[str, str], slot_numbers: str = "") -> Start:
        """Return the message that orders its agent to start a worker.

        Args:
            worker: the number of the worker.
            slot: the slot of the worker.
            size: the expected number of workers in a world.
            inherited: the launcher's environment, which the worker's own variables override.
            slot_numbers: which of the host's slots the job has now, as in `Start`.
        """
        plan, host = self.plan, self.host_plan
        ours = dict(inherited) if host.local else inherited_elsewhere(inherited)
        # A host may have more slots now than when it was planned.
        own = host.workers[slot % len(host.workers)].environment
        environment = {**ours, **plan.environment, **host.environment, **own, **place_of(worker, slot, size)}
        environment |= {AGENT_VARIABLE: self.token}
        return Start(
            worker,
            host.command,
            environment,
            host.directory,
            inherit=not host.local,
            slot_numbers=slot_numbers,
            elastic=True,
        )


class HostSetup:
    """Prepares hosts.

    Attributes:
        roster: host:port of the roster on this machine; to be set before any host is prepared.

    Args:
        preparation: prepares the hosts of the job.
        ssh: the ssh options for reaching other hosts.
        identity: the identity of the job; if it has no master yet, the first host that is ready sets it.
        here: hosts that are this machine, whatever their names suggest.
        spreads: whether there may be workers on other hosts.
        preemption: checks whether hosts are about to be reclaimed.
        reception: accepts hosts that dial; None: all are reached from here.
        gate: delays messages to agents whose hosts dial.
    """

    def __init__(
        self,
        preparation: Preparation,
        ssh: SshOptions,
        identity: Identity,
        here: frozenset[str],
        spreads: bool,
        preemption: PreemptionWatch,
        reception: Reception | None = None,
        gate: SendGate | None = None,
    ) -> None:
        self._preparation = preparation
        self._ssh = ssh
        self._identity = identity
        self.roster = ""
        self._here = here
        self._spreads = spreads
        self._preemption = preemption
        self._names = LocalNames()
        self.reception = reception
        self._gate = gate
        self._latest_end = LatestEnd()

    @property
    def identity(self) -> Identity:
        """The identity of the job, as far as it is known."""
        return self._identity

    def hint(self, host: HostPlan, said: str) -> str:
        """Return a hint about a worker's last words, as `Preparation.hint` does."""
        return self._preparation.hint(host, said)

    async def watch(self, job_host: JobHost, tell: Callable[[str], None]) -> None:
        """Check repeatedly whether a host is about to be reclaimed, as `PreemptionWatch.watch` does."""
        await self._preemption.watch(job_host.agent, job_host.host_plan.directory, tell)

    async def set_up(self, host: Host) -> JobHost:
        """Start an agent on a host, and prepare the host.

        Raises:
            NotReady: the host cannot be used.
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
        plan: LaunchPlan,
        token: str,
        notice: str,
        socket_names: tuple[str, ...],
        holds_up: Callable[[], bool],
    ) -> JobHost:
        """Return a host whose agent has lost its launcher; `AgentClient.resumed` shows whether the agent still exists.

        Args:
            holds_up: returns whether waiting for it only delays other hosts.

        Raises:
            AgentLost: ssh is no longer available.
        """
        if self.reception is not None:
            link = await self.reception.follow(host, socket_names, holds_up)
            agent = AgentClient(host, False, link, self.reception.outlive, self._gate)
        else:
            agent = await AgentClient.start(host, local, self._ssh, socket_names)
        if not local:
            agent.relay_to(self.roster, self._latest_end)
        return JobHost(host, agent, plan, token, notice, (*socket_names, _new_socket_name())[-SOCKET_NAMES_KEPT:])

    async def taken_over(self) -> None:
        """Record that no more hosts will be taken over."""
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
            agent.relay_to(self.roster, self._latest_end)
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
