"""The witnesses of a job: hosts whose agents tell the others whether the launcher is cut off (see `agents.lease`)."""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from collections.abc import Callable, Iterable, Sequence

from farandole.base.display.wording import count
from farandole.control.agent.protocol import Answer, ToAgent
from farandole.control.agent.witness_messages import AskWitnesses, BeWitness, WitnessesTried, WitnessPlace, WitnessReady
from farandole.control.launcher.agents.agent_client import AgentClient
from farandole.control.launcher.agents.agent_lost import AgentLost
from farandole.control.launcher.agents.lease import LEASE_PART, SILENCE_PART, Lease
from farandole.control.launcher.background import Background

EXCUSE_SECONDS = 600.0
"""Seconds for which workers go on without the launcher."""
# Seconds within which an agent answers, unless it is lost.
_ANSWER_SECONDS = 10.0
_LOOK_SECONDS = 0.25
_IDENTITY_BYTES = 8
_KEY_BYTES = 32
# Number of names in a line.
_SHOWN = 5


class Witnesses:
    """Appoints witnesses among the hosts of a job, and counts their votes.

    Args:
        wanted: how many witnesses the job has; 0: none, and the launcher may always give up silent hosts.
        timeout: seconds of silence after which an agent ends its workers.
        say: prints a line for people.
        appointed: called when the names have changed, before any agent asks the new witnesses.
        ends: returns whether the job is being ended: then nothing waits for silent hosts.
        background: the background tasks of the job.
    """

    def __init__(
        self,
        wanted: int,
        timeout: float,
        say: Callable[[str], None],
        appointed: Callable[[], None],
        ends: Callable[[], bool],
        background: Background,
    ) -> None:
        self._wanted = wanted
        self._timeout = timeout
        self._say = say
        self._appointed = appointed
        self._ends = ends
        self._background = background
        self._key = secrets.token_bytes(_KEY_BYTES)
        self._agents: dict[str, AgentClient] = {}
        """The agents of all other hosts, by name."""
        self._names: list[str] = []
        """The witnesses, and in the place of missing ones those that have ended."""
        self._awaited: set[str] = set()
        """Witnesses of another launcher whose agents this one has still to take over."""
        self._places: dict[str, WitnessPlace] = {}
        """Where witnesses answer."""
        self._unsuitable: set[str] = set()
        self._lease: Lease | None = None

    @property
    def names(self) -> Sequence[str]:
        """The names of the witnesses."""
        return tuple(self._names)

    # --- what they say ----------------------------------------------------------------------------------------------

    def entitled_for(self) -> float:
        """Return for how many seconds the launcher has been entitled to give up silent hosts; infinite: always."""
        if self._lease is None or self._ends():
            return math.inf
        return self._lease.held_for(time.monotonic())

    async def be_entitled_for(self, seconds: float) -> None:
        """Wait until the launcher has been entitled to give up silent hosts for so long."""
        while (missing := seconds - self.entitled_for()) > 0:
            await asyncio.sleep(min(missing, _LOOK_SECONDS))

    async def _report(self) -> None:
        """Tell people when the launcher is cut off, and when it is back."""
        cut_off_at: float | None = None
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            now, heard_at = time.monotonic(), self._most_heard_at()
            if cut_off_at is None and now > heard_at + self._timeout and not self._ends():
                cut_off_at = heard_at
                self._say(
                    f"farandole: this machine seems to be cut off: most of the witnesses {_listed(self._names)} are "
                    f"silent; the workers go on without it for at most {EXCUSE_SECONDS / 60:g} minutes"
                )
            elif cut_off_at is not None and now < heard_at + self._timeout:
                self._say(f"farandole: most of the witnesses are heard again, after {now - cut_off_at:.1f} s")
                cut_off_at = None

    def _most_heard_at(self) -> float:
        """Return when most witnesses were heard last."""
        heard = [self._agents[name].heard_at if name in self._agents else 0.0 for name in self._names]
        return sorted(heard)[len(heard) // 2]

    # --- who they are -----------------------------------------------------------------------------------------------

    def go_on_with(self, names: Sequence[str], hosts: Iterable[str]) -> None:
        """Keep the witnesses of another launcher, whose answers may still keep workers alive that cannot be reached.

        Args:
            names: the witnesses.
            hosts: the hosts whose agents are about to be taken over; all others have ended.
        """
        if self._wanted and names:
            self._names = list(names)
            self._awaited = set(names).intersection(hosts)
            self._begin()

    def joined(self, agent: AgentClient) -> None:
        """Note that a host can start workers."""
        if not self._wanted or agent.local:
            return
        name = agent.host.label
        self._agents[name] = agent
        if name in self._names:  # It comes back, or was taken over.
            if name not in self._awaited and self._lease is not None:
                self._lease.replace(name, name, time.monotonic())
            self._awaited.discard(name)
            self._background.spawn(self._appoint(name))
        elif self._has_most:
            self._background.spawn(self._introduce_to([agent]))
        self._fill()

    def ended(self, agent: AgentClient) -> None:
        """Note that an agent has certainly ended."""
        name = agent.host.label
        if self._agents.get(name) is agent:
            del self._agents[name]
            self._places.pop(name, None)
            self._fill()

    @property
    def _most(self) -> int:
        return self._wanted // 2 + 1

    @property
    def _has_most(self) -> bool:
        return len(self._names) == self._wanted and len(self._places) >= self._most

    def _fill(self) -> None:
        """Appoint hosts in all places that are free."""
        for name in self._agents:
            if self._ends() or name in self._names or name in self._unsuitable:
                continue
            gone = [each for each in self._names if each not in self._agents and each not in self._awaited]
            gone += self._unsuitable.intersection(self._names)
            if len(self._names) < self._wanted:
                self._names.append(name)
            elif gone:
                self._names[self._names.index(gone[0])] = name
                if self._lease is not None:
                    self._lease.replace(gone[0], name, time.monotonic())
            else:
                return
            self._background.spawn(self._appoint(name))

    async def _appoint(self, name: str) -> None:
        agent, identity = self._agents[name], secrets.token_bytes(_IDENTITY_BYTES)
        silence = SILENCE_PART * self._timeout
        ready = await self._ask(agent, lambda number: BeWitness(number, self._key, identity, silence))
        if ready is None:
            return
        assert isinstance(ready, WitnessReady) and agent.facts is not None
        if not ready.port:
            self._say(f"warning: {name} cannot be a witness: its agent cannot listen on a UDP port")
            self._unsuitable.add(name)
            self._fill()
            return
        addresses = tuple(interface.address for interface in agent.facts.interfaces)
        self._places[name] = WitnessPlace(identity, addresses, ready.port)
        agent.confirmed = lambda sent_at: self._confirmed(name, sent_at)
        if self._has_most:
            if self._lease is None:
                self._begin()
            self._appointed()
            await self._introduce_to(list(self._agents.values()))

    def _begin(self) -> None:
        self._lease = Lease(self._names, LEASE_PART * self._timeout, EXCUSE_SECONDS, time.monotonic())
        self._background.spawn(self._report())

    def _confirmed(self, name: str, sent_at: float) -> None:
        if self._lease is not None:
            self._lease.confirm(name, sent_at, time.monotonic())

    async def _introduce_to(self, agents: Sequence[AgentClient]) -> None:
        """Tell agents whom to ask, and people if that does not work."""
        places = tuple(self._places.values())
        answered = await asyncio.gather(*(self._introduce(agent, places) for agent in agents))
        lonely = [agent.host.label for agent, got in zip(agents, answered, strict=True) if got < self._most]
        if lonely and not self._ends():
            self._say(
                f"warning: {_listed(lonely)} cannot reach most of the witnesses {_listed(self._names)} over UDP: "
                "workers there end if this machine is cut off"
            )

    async def _introduce(self, agent: AgentClient, places: tuple[WitnessPlace, ...]) -> int:
        """Return how many witnesses have answered the agent; all if the agent is lost."""
        tried = await self._ask(
            agent, lambda number: AskWitnesses(number, self._key, places, self._most, EXCUSE_SECONDS)
        )
        assert tried is None or isinstance(tried, WitnessesTried)
        return self._wanted if tried is None else len(tried.answered)

    async def _ask(self, agent: AgentClient, make: Callable[[int], ToAgent]) -> Answer | None:
        """Ask an agent until it answers; return None if it has ended."""
        while self._agents.get(agent.host.label) is agent:
            try:
                await agent.ready()  # One that is taken over is reached only now.
                return await agent.ask(make, _ANSWER_SECONDS)
            except AgentLost:
                await asyncio.sleep(_LOOK_SECONDS)
        return None


def _listed(names: Sequence[str]) -> str:
    """Return names for people, not all if there are many."""
    shown = list(names[:_SHOWN]) + ([count(len(names) - _SHOWN, "other")] if len(names) > _SHOWN else [])
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"
