"""A host that has dialed the launcher: how it introduces itself, and the orders that it gets.

`reception` decides about the hosts; this is the launcher's end of `farandole.base.wire.dialing`.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from dataclasses import dataclass

from farandole.base.installed import own_version
from farandole.base.wire.async_channel import AsyncChannel
from farandole.base.wire.dialing import MOST_SLOTS, Bridged, Hello, Leave, Order
from farandole.base.wire.errors import WireError
from farandole.base.wire.frames import Codec
from farandole.control.launcher.agents.agent_lost import AgentLost
from farandole.control.launcher.agents.dialed_agent import DialedAgent, DialedReader
from farandole.control.launcher.job.host_list import Host

HELLO_SECONDS = 10.0
BRIDGED_SECONDS = 20.0
_FRAME_LIMIT = 1 << 16
OWN_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


@dataclass
class Arrival:
    """A host that has dialed and is waiting."""

    hello: Hello
    reader: DialedReader
    writer: asyncio.StreamWriter
    channel: AsyncChannel

    @property
    def is_open(self) -> bool:
        """Whether the connection is open, as far as is known."""
        return not self.reader.over.is_set()


async def welcome(reader: DialedReader, writer: asyncio.StreamWriter, secret: bytes) -> Arrival:
    """Return a host that has just connected, once it has proved to have the secret and introduced itself.

    Raises:
        WireError, TimeoutError, asyncio.TimeoutError: it has not, or this launcher cannot use it.
    """
    channel = AsyncChannel(reader, writer, _FRAME_LIMIT)
    await channel.accept(secret)
    hello = Codec[Hello](Hello).decode(await asyncio.wait_for(channel.receive(), HELLO_SECONDS))
    check(hello)
    _watch_over(writer)
    return Arrival(hello, reader, writer, channel)


def check(hello: Hello) -> None:
    """Check that this launcher can use a host.

    Raises:
        WireError: it cannot.
    """
    if hello.version != own_version():
        raise WireError(f"{hello.name} has farandole {hello.version}, but the launcher has {own_version()}")
    if not 1 <= hello.slots <= MOST_SLOTS or not hello.name:
        raise WireError(f"{hello.slots} is not a valid number of slots")
    if hello.own is not None and hello.own.version != OWN_PYTHON:
        # Functions are pickled, which does not work from one version to another.
        raise WireError(f"{hello.name} has Python {hello.own.version}, but the launcher has {OWN_PYTHON}")


def host_of(hello: Hello) -> Host:
    """Return the host that a dialer offers."""
    if hello.own is None:
        return Host(hello.name, hello.slots, "", hello.machine, hello.devices)
    python = "" if hello.own.python == sys.executable else hello.own.python
    return Host(hello.name, hello.slots, python, hello.machine, hello.devices, directory=hello.own.directory)


async def handed_over(arrival: Arrival, order: Order) -> DialedAgent:
    """Send a host an order to start or connect its agent, and return the link to the agent.

    Raises:
        AgentLost: the host does not answer, or has no agent.
    """
    try:
        await arrival.channel.send(Codec[Order](Order).encode(order))
        payload = await asyncio.wait_for(arrival.channel.receive(), BRIDGED_SECONDS)
        found = Codec[Bridged](Bridged).decode(payload).found
    except (WireError, TimeoutError, asyncio.TimeoutError) as error:
        raise AgentLost(f"the connection that it had dialed broke: {error}") from None
    if not found:
        raise AgentLost("its agent has ended")
    return DialedAgent(arrival.reader, arrival.writer, arrival.hello.instance)


async def send_leave(arrival: Arrival, why: str) -> None:
    """Order a host to end its agent, if it has one, and close the connection."""
    with contextlib.suppress(WireError):
        await arrival.channel.send(Codec[Order](Order).encode(Leave(why)))
    arrival.writer.close()


def _watch_over(writer: asyncio.StreamWriter) -> None:
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 2)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)
