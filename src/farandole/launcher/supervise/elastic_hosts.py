"""The hosts of an elastic job that can start workers: how each becomes one, and how it is one no more.

A host that is lost makes its workers *suspects* at once, and they count as ended when that is certain: what its agent
left behind was swept away, or the agent must have ended them itself, because it has heard nothing for so long.
"""

from __future__ import annotations

import asyncio
import time
from typing import Protocol

from farandole.agent.messages import End, FromAgent, Leaving, Outlive
from farandole.launcher.agents.agent_client import Agent, AgentLost
from farandole.launcher.host_setup.host_setup import NotReady, Reception, Station
from farandole.launcher.job.host_list import Host
from farandole.launcher.job.spec import JobSpec
from farandole.launcher.slots import slot_events as words
from farandole.launcher.supervise.background import Background
from farandole.launcher.supervise.ending import sweep_elsewhere, sweep_here
from farandole.launcher.supervise.worker_control import Foreman
from farandole.launcher.supervise.workers import Worker

# For so long the agent of another host waits for another launcher when the connection to this one ends. That may have
# ended though this launcher lives, and then its workers must have ended soon.
OUTLIVE_SECONDS = 10.0
# An agent that has heard nothing for as long as it may ends its workers; after so many seconds more it has.
FENCED_SECONDS = 3.0


class Owner(Protocol):
    """Whose stations they are: hears what becomes of them."""

    def happened(self, event: words.Event) -> None:
        """Something has happened to a host."""

    def host_leaves(self, label: str) -> None:
        """A host was asked to go."""

    def host_lost(self, station: Station, lost: AgentLost) -> list[Worker]:
        """A host is lost; return the workers that are lost with it."""

    def is_ending(self) -> bool:
        """Whether the job is about to end."""


class Stations:
    """The hosts that can start workers, those that are made ready, and those that are being left.

    Attributes:
        ready: those that can start workers, by the name of the host.
        survivors: processes that even SIGKILL did not end, in words.
    """

    def __init__(
        self,
        spec: JobSpec,
        reception: Reception,
        foreman: Foreman,
        owner: Owner,
        background: Background,
        outlive: float,
    ) -> None:
        """Have none yet.

        Args:
            spec: of the job.
            reception: makes hosts ready.
            foreman: takes what is said of workers.
            owner: hears what becomes of hosts.
            background: of the job.
            outlive: for how many seconds an agent of this machine waits for another launcher when this one is killed;
                0: there will be none.
        """
        self.ready: dict[str, Station] = {}
        self.survivors: list[str] = []
        self._spec = spec
        self._reception = reception
        self._foreman = foreman
        self._owner = owner
        self._background = background
        self._outlive = outlive
        self._followed = True
        self._receiving: dict[str, asyncio.Task[None]] = {}
        self._listening: set[asyncio.Task[None]] = set()

    def agents(self) -> list[Agent]:
        """Return the agents of those that can start workers."""
        return [station.agent for station in self.ready.values()]

    def reach(self, host: Host) -> None:
        """Make a host ready; its owner hears of the result."""
        self._receiving[host.label] = self._background.spawn(self._receive(host))

    def leave(self, label: str) -> None:
        """Have nothing more to do with a host."""
        if label in self._receiving:
            self._receiving.pop(label).cancel()
        if label in self.ready:
            self.ready.pop(label).agent.tell(End(0))

    async def close(self) -> None:
        """Return when all agents have ended, which were told to, or are lost."""
        for task in list(self._receiving.values()):
            task.cancel()
        await asyncio.gather(*self._receiving.values(), return_exceptions=True)
        while self._listening:
            await asyncio.wait(self._listening)

    async def _receive(self, host: Host) -> None:
        try:
            station = await self._reception.receive(host)
        except NotReady as error:
            if not self._owner.is_ending():
                self._owner.happened(words.HostNotReady(host.label, str(error), error.refused))
            return
        finally:
            if self._receiving.get(host.label) is asyncio.current_task():
                del self._receiving[host.label]
        if self._owner.is_ending():
            await station.agent.close()
            return
        self.have(station)
        self._let_outlive(station)
        self._owner.happened(words.HostNoticed(host.label, station.notice))
        self._owner.happened(words.HostReady(host.label))

    def have(self, station: Station) -> None:
        """Have a host that can start workers."""
        self.ready[station.host.label] = station
        task = self._background.spawn(self._listen(station))
        self._listening.add(task)
        task.add_done_callback(self._listening.discard)

    def may_be_followed(self, followed: bool) -> None:
        """Have agents wait for another launcher, or not as long as there could be none."""
        self._followed = followed
        self.let_all_outlive()

    def let_all_outlive(self) -> None:
        """Tell the agents where to wait from now on; a successor has to know that already."""
        for station in self.ready.values():
            self._let_outlive(station)

    def _let_outlive(self, station: Station) -> None:
        if self._outlive:
            seconds = self._outlive if station.agent.local else OUTLIVE_SECONDS
            station.agent.tell(Outlive(station.doors[-1], seconds if self._followed else 0.0))

    async def _listen(self, station: Station) -> None:
        """Take a host's messages until all of it has ended, or is lost."""
        agent, label = station.agent, station.host.label
        watches = [self._reception.watch(station, lambda why: self._owner.happened(words.HostNoticed(label, why)))]
        if not agent.local:
            watches.append(self._watch(agent))
        watching = [asyncio.get_running_loop().create_task(watch) for watch in watches]
        try:
            survivors = await agent.listen(lambda message: self._take(station, message))
            self.survivors += [f"process {pid} on {label}" for pid in survivors]
        except AgentLost as lost:
            await self._lose(station, lost)
        finally:
            self._forget(station)
            for watch in watching:
                watch.cancel()
            await asyncio.gather(*watching, return_exceptions=True)
            await agent.close()

    async def _watch(self, agent: Agent) -> None:
        try:
            await agent.ready()  # One that is taken over is reached only now.
        except AgentLost:
            return  # Who listens hears of it too.
        await agent.watch(self._spec.host_timeout)

    def _take(self, station: Station, message: FromAgent) -> None:
        if isinstance(message, Leaving):
            self._owner.host_leaves(station.host.label)
        else:
            self._foreman.take(station, message)

    async def _lose(self, station: Station, lost: AgentLost) -> None:
        here = self._owner.host_lost(station, lost)
        await self._make_certain(station, lost)
        self._foreman.are_gone(here, lost)
        if self._forget(station) and not self._owner.is_ending():
            self._owner.happened(words.HostNotReady(station.host.label, str(lost)))

    def _forget(self, station: Station) -> bool:
        """Have this station no more; say whether it was its host's."""
        current = self.ready.get(station.host.label) is station
        if current:
            del self.ready[station.host.label]
        return current

    async def _make_certain(self, station: Station, lost: AgentLost) -> None:
        """Return when nothing of a lost agent's workers is left, as far as that can be known."""
        if station.agent.local:
            left = await sweep_here(station.mark)
            self.survivors += [f"process {pid} on {station.host.label}" for pid in left]
        elif lost.silent or not await sweep_elsewhere(station.host, self._spec.ssh, station.mark):
            since = time.monotonic() - lost.at
            alone = OUTLIVE_SECONDS if self._outlive and not lost.silent else self._spec.host_timeout
            await asyncio.sleep(max(0.0, alone + FENCED_SECONDS - since))
