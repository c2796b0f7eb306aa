"""Credit for agents when output was written."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, cast

from farandole.control.agent.protocol import STDERR, STDOUT, Closed, Credit, Output
from farandole.control.launcher.agents.agent_client import AgentClient
from farandole.control.launcher.output.console import Console, WorkerStream
from farandole.control.launcher.supervise.output_flow import CREDIT_BYTES, OutputFlow


class Told:
    """An agent that only keeps the messages that it gets."""

    local = False

    def __init__(self) -> None:
        self.orders: list[Any] = []

    def send(self, order: object) -> None:
        self.orders.append(order)


def play(script: Callable[[OutputFlow, Told, threading.Event], Any], prompt: bool = True) -> list[Any]:
    """Run a script with a worker 0 whose output is written when the event is set; return what its agent was told."""

    async def main() -> list[Any]:
        may_write = threading.Event()
        console = Console(lambda data: may_write.wait(20) and None, lambda data: None)
        flow, agent = OutputFlow(prompt), Told()
        streams = {
            (0, each): WorkerStream(console, 0, each, written=flow.written(0, each)) for each in (STDOUT, STDERR)
        }
        flow.add({0: cast(AgentClient, agent)}, streams)
        await script(flow, agent, may_write)
        may_write.set()
        assert console.close(20)
        return agent.orders

    return asyncio.run(main())


async def until(condition: Callable[[], bool]) -> None:
    async def poll() -> None:
        while not condition():
            await asyncio.sleep(0.005)

    await asyncio.wait_for(poll(), 60)


def test_small_output_is_credited_soon_if_agent_keeps_it() -> None:
    async def script(flow: OutputFlow, agent: Told, may_write: threading.Event) -> None:
        flow.handle(Output(0, STDOUT, b"one\n"))
        flow.handle(Output(0, STDOUT, b"two\n"))
        await asyncio.sleep(0.2)
        assert agent.orders == []
        may_write.set()
        await until(lambda: sum(each.count for each in agent.orders) == 8)

    assert {(each.rank, each.stream) for each in play(script)} == {(0, STDOUT)}


def test_small_output_is_not_credited_if_nothing_is_kept() -> None:
    async def script(flow: OutputFlow, agent: Told, may_write: threading.Event) -> None:
        may_write.set()
        flow.handle(Output(0, STDOUT, b"one\n"))
        await until(lambda: flow.unwritten == 0)
        await asyncio.sleep(0.2)
        assert agent.orders == []
        flow.handle(Output(0, STDOUT, bytes(CREDIT_BYTES)))
        await until(lambda: agent.orders != [])

    assert play(script, prompt=False) == [Credit(0, STDOUT, CREDIT_BYTES + 4)]


def test_output_written_after_end_of_stream_is_credited() -> None:
    async def script(flow: OutputFlow, agent: Told, may_write: threading.Event) -> None:
        flow.handle(Output(0, STDOUT, b"last words"))
        flow.handle(Closed(0, STDOUT))
        flow.close(0)
        may_write.set()
        await until(lambda: flow.unwritten == 0)

    assert play(script) == [Credit(0, STDOUT, 10)]
