"""The link to an agent whose host has dialed the launcher (see `reception`)."""

from __future__ import annotations

import asyncio
import socket
import time

from farandole.control.launcher.agents.agent_lost import AgentLost

_STREAM_LIMIT = 1 << 16


class DialedReader(asyncio.StreamReader):
    """Stream reader that knows whether the other side has closed the connection, even while nothing is being read."""

    def __init__(self) -> None:
        super().__init__(limit=_STREAM_LIMIT)
        self.over = asyncio.Event()

    def feed_eof(self) -> None:
        self.over.set()
        super().feed_eof()

    def set_exception(self, exc: BaseException) -> None:
        self.over.set()
        super().set_exception(exc)  # type: ignore[arg-type]


class DialedAgent:
    """The connection to an agent whose host has dialed: an `AgentLink`.

    Args:
        reader: the stream of messages from the agent.
        writer: the stream of messages to it.
        instance: the dialing process, as it identifies itself.
    """

    def __init__(self, reader: DialedReader, writer: asyncio.StreamWriter, instance: str = "") -> None:
        self.instance = instance
        self.input = writer
        self.output: asyncio.StreamReader = reader
        self._over = reader.over

    def is_ready(self) -> None:
        """Do nothing: there is no output other than messages."""

    def leads_to(self, pid: int) -> None:
        """Do nothing: the agent is on another machine."""

    def said(self) -> str:
        """Return "": the output of the host is in its own log."""
        return ""

    def known_open(self) -> float:
        """Return the time on the monotonic clock: no other agent is on the way to this one."""
        return time.monotonic()

    def loss(self) -> AgentLost | None:
        """Return None: no other agent is on the way to this one."""
        return None

    def kill(self) -> None:
        """End the connection. The host dials again, and is then ordered to end its agent."""
        self.input.transport.abort()
        self._over.set()

    async def wait(self) -> int:
        """Wait until the connection has ended, and return 0."""
        await self._over.wait()
        return 0

    def close(self) -> None:
        """Do nothing: no resources are held."""

    @property
    def is_over(self) -> bool:
        """Whether the connection has ended, as far as is known."""
        return self.output.at_eof() or self._over.is_set()


async def lead_nowhere() -> DialedAgent:
    """Return the link to an agent that has ended."""
    here, there = socket.socketpair()
    there.close()
    reader = DialedReader()
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.create_connection(lambda: asyncio.StreamReaderProtocol(reader), sock=here)
    return DialedAgent(reader, asyncio.StreamWriter(transport, protocol, reader, loop))
