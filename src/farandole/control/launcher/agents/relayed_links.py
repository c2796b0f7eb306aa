"""The launcher's end of the relay from workers on other hosts to the roster (see
`farandole.control.agent.roster_relay`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from farandole.base.wire.address import parse_address
from farandole.control.agent.protocol import WINDOW, Relay, RelayClosed, RelayCredit, Relayed, RelayOpened, ToAgent

_CHUNK = 64 * 1024


class RelayedLinks:
    """The connections that come through one agent. Everything runs in the loop's thread.

    Args:
        roster: host:port of the roster.
        send: sends messages to the agent.
    """

    def __init__(self, roster: str, send: Callable[[ToAgent], None]) -> None:
        self._host, self._port = parse_address(roster)
        self._send = send
        self._links: dict[int, _Link] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def handle(self, message: RelayOpened | Relay) -> None:
        """Handle an agent's message about a connection, which may already be over."""
        if isinstance(message, RelayOpened):
            link = self._links[message.link] = _Link(message.link)
            task = asyncio.get_running_loop().create_task(self._serve(link))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return
        known = self._links.get(message.link)
        if known is None:
            return
        if isinstance(message, RelayCredit):
            known.ahead -= message.count
            known.credited.set()
        else:
            known.coming.put_nowait(message.data if isinstance(message, Relayed) else b"")

    async def close(self) -> None:
        """Close all connections."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, link: _Link) -> None:
        try:
            reader, writer = await asyncio.open_connection(self._host, self._port)
        except OSError:
            self._forget(link)
            return
        upward = asyncio.get_running_loop().create_task(self._pass_up(link, writer))
        try:
            await self._pass_down(link, reader)
        except OSError:
            pass  # The roster has closed the connection.
        finally:
            upward.cancel()
            writer.close()
            self._forget(link)

    async def _pass_up(self, link: _Link, writer: asyncio.StreamWriter) -> None:
        """Pass data from the worker to the roster."""
        try:
            while data := await link.coming.get():
                writer.write(data)
                await writer.drain()
                self._send(RelayCredit(link.number, len(data)))
        except OSError:
            return
        # The worker has closed its end. The roster still gets its last data: close() flushes.
        writer.close()

    async def _pass_down(self, link: _Link, reader: asyncio.StreamReader) -> None:
        """Pass data from the roster to the worker."""
        while data := await reader.read(_CHUNK):
            link.ahead += len(data)
            self._send(Relayed(link.number, data))
            while link.ahead >= WINDOW:
                link.credited.clear()
                await link.credited.wait()

    def _forget(self, link: _Link) -> None:
        del self._links[link.number]
        self._send(RelayClosed(link.number))


class _Link:
    def __init__(self, number: int) -> None:
        self.number = number
        self.ahead = 0
        """Number of sent bytes that the agent has not passed on yet."""
        self.credited = asyncio.Event()
        self.coming: asyncio.Queue[bytes] = asyncio.Queue()
        """Data from the worker, bounded by the agent's window; empty bytes: the worker has closed its end."""
