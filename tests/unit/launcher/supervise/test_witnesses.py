"""Who the witnesses of a job are, and when the launcher may give up hosts."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from farandole.control.agent.protocol import Answer, Interface, ToAgent
from farandole.control.agent.witness_messages import AskWitnesses, BeWitness, WitnessesTried, WitnessReady
from farandole.control.launcher.agents.agent_lost import AgentLost
from farandole.control.launcher.background import Background, errors_are_told
from farandole.control.launcher.job.host_list import Host
from farandole.control.launcher.supervise.witnesses import Witnesses

TIMEOUT = 1.75


class PlayedAgent:
    """An agent whose host has one address.

    Attributes:
        orders: what it was ordered.
        port: where it answers as a witness.
        reaches: how many witnesses answer it.
    """

    def __init__(self, name: str, local: bool = False) -> None:
        self.host = Host(name)
        self.local = local
        self.facts: Any = None
        self._facts = SimpleNamespace(interfaces=(Interface("eth0", f"10.0.0.{name[1:]}", 24, 0),))
        self.confirmed: Callable[[float], None] | None = None
        self.orders: list[ToAgent] = []
        self.port = 1000 + int(name[1:])
        self.reaches = 3
        self.is_lost = False

    async def ready(self) -> None:
        """It is reached when the launcher waits for that, and its facts are known only then."""
        await asyncio.sleep(0)
        self.facts = self._facts

    async def ask(self, make: Callable[[int], ToAgent], seconds: float) -> Answer:
        """Answer at once."""
        if self.is_lost:
            raise AgentLost("it is lost")
        order = make(1)
        self.orders.append(order)
        if isinstance(order, BeWitness):
            return WitnessReady(1, self.port)
        assert isinstance(order, AskWitnesses)
        return WitnessesTried(1, tuple(place.identity for place in order.witnesses[: self.reaches]))

    @property
    def asks(self) -> Sequence[str]:
        """The addresses of the witnesses that it was told of last."""
        orders = [order for order in self.orders if isinstance(order, AskWitnesses)]
        return sorted(place.addresses[0] for place in orders[-1].witnesses) if orders else ()


class Job:
    """The witnesses of a job, and what they have caused."""

    def __init__(self, wanted: int = 3) -> None:
        self.said: list[str] = []
        self.written: list[Sequence[str]] = []
        self.ends = False
        self.background = Background()
        self.witnesses = Witnesses(
            wanted,
            TIMEOUT,
            self.said.append,
            lambda: self.written.append(self.witnesses.names),
            lambda: self.ends,
            self.background,
        )

    async def have(self, *agents: PlayedAgent) -> None:
        for agent in agents:
            self.witnesses.joined(agent)  # type: ignore[arg-type]
        await settle()

    async def lose(self, agent: PlayedAgent) -> None:
        self.witnesses.ended(agent)  # type: ignore[arg-type]
        await settle()


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def played(test: Callable[[Job], Any], wanted: int = 3) -> None:
    async def play() -> None:
        job = Job(wanted)
        with errors_are_told(job.said.append):
            try:
                await test(job)
            finally:
                await job.background.end()
        assert not any(line.startswith("error: ") for line in job.said), job.said

    asyncio.run(play())


def agents(count: int) -> list[PlayedAgent]:
    return [PlayedAgent(f"h{number}") for number in range(1, count + 1)]


def vote(*witnesses: PlayedAgent) -> None:
    now = asyncio.get_running_loop().time()
    for witness in witnesses:
        assert witness.confirmed is not None
        witness.confirmed(now)


def test_the_first_hosts_are_witnesses_and_all_hosts_ask_them() -> None:
    async def test(job: Job) -> None:
        here, hosts = PlayedAgent("h9", local=True), agents(4)
        await job.have(here, *hosts[:2])
        assert job.witnesses.entitled_for() == math.inf, "no agent asks anybody yet"
        await job.have(*hosts[2:])
        assert job.written[0] == ("h1", "h2", "h3")
        assert [host.asks for host in hosts] == [["10.0.0.1", "10.0.0.2", "10.0.0.3"]] * 4
        assert not here.orders
        assert job.witnesses.entitled_for() == 0
        vote(*hosts[:2])
        assert job.witnesses.entitled_for() < 60.0
        job.ends = True
        assert job.witnesses.entitled_for() == math.inf

    played(test)


def test_a_job_without_witnesses_asks_nobody() -> None:
    async def test(job: Job) -> None:
        hosts = agents(3)
        await job.have(*hosts)
        assert not any(host.orders for host in hosts)
        assert job.witnesses.entitled_for() == math.inf

    played(test, wanted=0)


def test_another_host_takes_the_place_of_a_witness_that_has_ended() -> None:
    async def test(job: Job) -> None:
        hosts = agents(3)
        await job.have(*hosts)
        await job.lose(hosts[1])
        assert job.witnesses.names == ("h1", "h2", "h3"), "there is no other host"
        newcomer = PlayedAgent("h4")
        await job.have(newcomer)
        assert job.witnesses.names == ("h1", "h4", "h3")
        assert job.written[-1] == ("h1", "h4", "h3")
        assert hosts[0].asks == newcomer.asks == ["10.0.0.1", "10.0.0.3", "10.0.0.4"]
        again = PlayedAgent("h2")
        await job.have(again)
        assert again.asks == newcomer.asks
        assert again.confirmed is None

    played(test)


def test_a_witness_that_comes_back_is_one_again() -> None:
    async def test(job: Job) -> None:
        hosts = agents(3)
        await job.have(*hosts)
        vote(*hosts)
        await job.lose(hosts[1])
        again = PlayedAgent("h2")
        await job.have(again)
        assert job.witnesses.names == ("h1", "h2", "h3")
        assert hosts[0].asks == again.asks == ["10.0.0.1", "10.0.0.2", "10.0.0.3"]
        identities = {place.identity for order in hosts[0].orders[-1:] for place in cast(AskWitnesses, order).witnesses}
        assert {order.identity for order in again.orders if isinstance(order, BeWitness)} < identities
        vote(again)

    played(test)


def test_a_host_without_a_port_is_no_witness() -> None:
    async def test(job: Job) -> None:
        hosts = agents(4)
        hosts[1].port = 0
        await job.have(*hosts)
        assert job.witnesses.names == ("h1", "h4", "h3")
        assert job.said == ["warning: h2 cannot be a witness: its agent cannot listen on a UDP port"]

    played(test)


def test_hosts_that_reach_too_few_witnesses_are_named() -> None:
    async def test(job: Job) -> None:
        hosts = agents(4)
        hosts[0].reaches, hosts[3].reaches, hosts[2].reaches = 1, 0, 2
        await job.have(*hosts)
        assert job.said[-1].startswith("warning: h1 and h4 cannot reach most of the witnesses h1, h2 and h3 over UDP: ")

    played(test)


def test_witnesses_of_another_launcher_stay_and_count_before_they_have_answered() -> None:
    async def test(job: Job) -> None:
        hosts = agents(4)
        hosts[2].is_lost = True
        job.witnesses.go_on_with(["h2", "h3", "h5"], ["h1", "h2", "h3", "h4"])
        assert job.witnesses.entitled_for() == 0
        await job.have(*hosts)
        assert job.witnesses.names == ("h2", "h3", "h1"), "h5 had ended before"
        vote(hosts[0], hosts[1])
        assert job.witnesses.entitled_for() < 60.0
        await job.lose(hosts[2])
        assert job.witnesses.names == ("h2", "h4", "h1")

    played(test)


@pytest.mark.parametrize("seconds", [0.0, 0.05])
def test_the_launcher_waits_until_it_has_been_entitled(seconds: float) -> None:
    async def test(job: Job) -> None:
        await job.have(*agents(1))
        waiting = asyncio.ensure_future(job.witnesses.be_entitled_for(seconds))
        await settle()
        assert waiting.done() == (seconds == 0.0)
        job.ends = True
        await asyncio.wait_for(waiting, 60.0)

    played(test, wanted=1)
