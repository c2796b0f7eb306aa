"""The hosts of a job: how they become ready, and how they are released or lost.

If the job can continue without a lost host, the workers on it are *suspects* at once. They count as ended when that is
certain: the processes that the agent has left were killed, or the agent must have ended them itself because it has been
without the launcher for long enough.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable

from farandole.control.agent.protocol import End, FromAgent, Leaving, Outlive
from farandole.control.launcher.agents.agent_client import AgentClient
from farandole.control.launcher.agents.agent_lost import AgentLost
from farandole.control.launcher.agents.reception import FENCED_SECONDS
from farandole.control.launcher.agents.start_agents import STARTED_AT_ONCE
from farandole.control.launcher.background import Background
from farandole.control.launcher.discovery.host_set import HostSet
from farandole.control.launcher.host_setup.host_setup import HostSetup, JobHost, NotReady
from farandole.control.launcher.job.host_list import Host
from farandole.control.launcher.slots import job_events as events
from farandole.control.launcher.slots.job_events import Event
from farandole.control.launcher.supervise.ending import sweep_elsewhere, sweep_here
from farandole.control.launcher.supervise.launch_context import LaunchContext
from farandole.control.launcher.supervise.witnesses import Witnesses
from farandole.control.launcher.supervise.worker_control import WorkerControl
from farandole.control.launcher.supervise.workers import Workers

# Seconds for which the agent of another host waits for another launcher when the connection to this one ends. Since
# this launcher may be alive then, the workers there must end soon.
OUTLIVE_SECONDS = 10.0


class JobHosts:
    """The hosts of a job: ready ones, ones that are being prepared, and ones that are being released.

    Attributes:
        known: all hosts of the job.
        ready: hosts that can start workers, by name.
        survivors: descriptions of processes that survived even SIGKILL.
        witnesses: the witnesses of the job.
    """

    def __init__(
        self,
        context: LaunchContext,
        setup: HostSetup | None,
        workers: Workers,
        control: WorkerControl,
        happened: Callable[[Event], None],
        ends: Callable[[], bool],
        background: Background,
        outlive: float,
        witnesses: Witnesses,
    ) -> None:
        """Start without hosts.

        Args:
            context: the context of the launch.
            setup: prepares hosts while the job runs; None if all were ready before.
            workers: the workers of the job.
            control: receives the agents' messages about workers.
            happened: called with events about hosts.
            ends: returns whether the job is being ended.
            background: the background tasks of the job.
            outlive: seconds for which an agent on this machine waits for another launcher if this one is killed; 0:
                there will be none.
            witnesses: the witnesses of the job.
        """
        self.known = HostSet()
        self.ready: dict[str, JobHost] = {}
        self.survivors: list[str] = []
        self._context = context
        self._setup = setup
        self._workers = workers
        self._control = control
        self._happened = happened
        self._ends = ends
        self._background = background
        self._outlive = outlive
        self.witnesses = witnesses
        self._followed = True
        self._setting_up: dict[str, asyncio.Task[None]] = {}
        self._listening: set[asyncio.Task[None]] = set()
        self._sweeping = asyncio.Semaphore(STARTED_AT_ONCE)

    @property
    def _elastic(self) -> bool:
        return self._context.spec.elastic is not None

    def agents(self) -> list[AgentClient]:
        """Return the agents of the ready hosts."""
        return [job_host.agent for job_host in self.ready.values()]

    def reach(self, label: str) -> None:
        """Start to prepare a host; `HostReady` or `HostNotReady` follows."""
        self._setting_up[label] = self._background.spawn(self._set_up(self.known.hosts[label]))

    def leave(self, label: str) -> None:
        """Release a host."""
        if label in self._setting_up:
            self._setting_up.pop(label).cancel()
        if label in self.ready:
            self.ready.pop(label).agent.send(End(0))

    async def close(self) -> None:
        """Wait until all agents have ended as ordered, or are lost."""
        for task in list(self._setting_up.values()):
            task.cancel()
        await asyncio.gather(*self._setting_up.values(), return_exceptions=True)
        while self._listening:
            await asyncio.wait(self._listening)

    async def _set_up(self, host: Host) -> None:
        assert self._setup is not None
        try:
            job_host = await self._setup.set_up(host)
        except NotReady as error:
            if not self._ends():
                self._happened(events.HostNotReady(host.label, str(error), error.refused))
            return
        finally:
            if self._setting_up.get(host.label) is asyncio.current_task():
                del self._setting_up[host.label]
        if self._ends():
            await job_host.agent.close()
            return
        self.have(job_host)
        self._let_outlive(job_host)
        self._happened(events.HostNoticed(host.label, job_host.notice))
        self._happened(events.HostReady(host.label))

    def have(self, job_host: JobHost) -> None:
        """Add a host that can start workers."""
        self.ready[job_host.host.label] = job_host
        self.witnesses.joined(job_host.agent)
        task = self._background.spawn(self._listen(job_host))
        self._listening.add(task)
        task.add_done_callback(self._listening.discard)

    def may_be_followed(self, followed: bool) -> None:
        """Order agents whether to wait for another launcher if they lose this one."""
        self._followed = followed
        self.let_all_outlive()

    def let_all_outlive(self) -> None:
        """Send the agents the socket at which they wait for a successor; it was saved for the successor before."""
        for job_host in self.ready.values():
            self._let_outlive(job_host)

    def _let_outlive(self, job_host: JobHost) -> None:
        if self._outlive:
            agent = job_host.agent
            elsewhere = OUTLIVE_SECONDS if agent.patience is None else agent.patience
            seconds = self._outlive if agent.local else elsewhere
            agent.send(Outlive(job_host.socket_names[-1], seconds if self._followed else 0.0))

    async def _listen(self, job_host: JobHost) -> None:
        """Handle a host's messages until its agent and workers have ended, or are lost."""
        agent, label = job_host.agent, job_host.host.label
        watches = []
        if self._setup is not None:
            notice = self._setup.watch(job_host, lambda why: self._happened(events.HostNoticed(label, why)))
            watches.append(notice)
        if not agent.local:
            watches.append(self._watch(agent))
        watching = [self._background.spawn(watch) for watch in watches]
        try:
            survivors = await agent.listen(lambda message: self._take(job_host, message))
            self.survivors += [f"process {pid} on {label}" for pid in survivors]
        except AgentLost as lost:
            await self._lose(job_host, lost)
        finally:
            self._forget(job_host)
            self.witnesses.ended(agent)
            for watch in watching:
                watch.cancel()
            await asyncio.gather(*watching, return_exceptions=True)
            await agent.close()

    async def _watch(self, agent: AgentClient) -> None:
        try:
            await agent.ready()  # An agent that is taken over is reached only now.
        except AgentLost:
            return  # Its listener also notices that.
        await agent.watch(self._context.spec.host_timeout, self.witnesses.entitled_for)

    def _take(self, job_host: JobHost, message: FromAgent) -> None:
        if isinstance(message, Leaving):
            label = job_host.host.label
            if label in self.known.hosts:
                self.known.remove(label)
            self._happened(events.HostLeaves(label))
        else:
            self._control.handle(job_host, message)

    async def _lose(self, job_host: JobHost, lost: AgentLost) -> None:
        here = self._workers.of(job_host)
        local, label = job_host.agent.local, job_host.host.label
        if not (self._elastic or local):
            self._control.have_ended(here, lost)
        self._happened(events.HostLost(label, str(lost), tuple(each.number for each in here), local))
        await self._make_certain(job_host, lost)
        if self._elastic:
            self._control.are_gone(here, lost)
        if self._forget(job_host) and not self._ends():
            self._happened(events.HostNotReady(label, str(lost)))

    def _forget(self, job_host: JobHost) -> bool:
        """Forget a host; return whether it was the current host of its name."""
        current = self.ready.get(job_host.host.label) is job_host
        if current:
            del self.ready[job_host.host.label]
        return current

    async def _make_certain(self, job_host: JobHost, lost: AgentLost) -> None:
        """Wait until nothing is left of a lost agent's workers, as far as that can be known."""
        if job_host.agent.local:
            left = await sweep_here(job_host.mark)
            self.survivors += [f"process {pid} on {job_host.host.label}" for pid in left]
            return
        if self._context.reception is not None:
            await self._context.reception.gone(
                job_host.host.label, lost.silent, lost.at, self._context.spec.host_timeout
            )
            return
        if not lost.silent and await self._sweep(job_host):
            return
        if self._elastic:
            since = time.monotonic() - lost.at
            alone = OUTLIVE_SECONDS if self._outlive and not lost.silent else self._context.spec.host_timeout
            await asyncio.sleep(max(0.0, alone + FENCED_SECONDS - since))
            # Otherwise the witnesses may have let it keep its workers meanwhile.
            await self.witnesses.be_entitled_for(alone + FENCED_SECONDS)
        elif not lost.silent:
            # Without an answer nothing is known; the agent on that host ends its workers by itself.
            self._context.log(f"host {job_host.host.label} cannot be reached to see whether anything is left there")

    async def _sweep(self, job_host: JobHost) -> bool:
        # In a job of fixed size, a host may be lost together with all hosts whose agents it has started.
        async with contextlib.nullcontext() if self._elastic else self._sweeping:
            return await sweep_elsewhere(job_host.host, self._context.spec.ssh, job_host.mark)
