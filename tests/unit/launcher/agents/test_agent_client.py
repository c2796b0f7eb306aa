"""The launcher's end of an agent."""

from __future__ import annotations

import asyncio
from typing import Any

from farandole.base.wire.frames import Codec, frame
from farandole.control.agent.protocol import GREETING, FromAgent, Resumed, Stalled
from farandole.control.launcher.agents.agent_client import AgentClient
from farandole.control.launcher.job.host_list import Host


class FakeLink:
    """The way to an agent that has said all there is; see `AgentLink`."""

    def __init__(self, messages: list[FromAgent]) -> None:
        codec: Codec[FromAgent] = Codec(FromAgent)
        self.output = asyncio.StreamReader()
        self.output.feed_data(GREETING + b"".join(frame(codec.encode(message)) for message in messages))
        self.input: Any = None


def test_messages_before_listen_are_delivered_later() -> None:
    said: list[FromAgent] = [Resumed(7, (), (), ((0, 1),), 1.5, 0), Stalled(0, True)]

    async def listen_late() -> list[FromAgent]:
        agent = AgentClient(Host("h"), False, FakeLink(said))  # type: ignore[arg-type]
        await agent.resumed()
        await asyncio.sleep(0.01)
        heard: list[FromAgent] = []
        listening = asyncio.ensure_future(agent.listen(heard.append))
        await asyncio.sleep(0.01)
        for task in (listening, agent._reading):
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        return heard

    assert asyncio.run(listen_late()) == said
