"""Whom the roster can speak to: workers that wait for the answer to their join, and workers that listen."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

import msgspec

from farandole.roster.listener import Client
from farandole.wire.errors import WireError
from farandole.wire.rendezvous import Absent, Tell, Told


class Connections:
    """The connections on which workers take answers and notices.

    Attributes:
        waiting: by worker: whose join has no answer yet.
        listeners: by worker: who takes what others tell it, and what the roster says by itself.
    """

    def __init__(self, log: Callable[[str], None]) -> None:
        self.waiting: dict[int, Client] = {}
        self.listeners: dict[int, Client] = {}
        self._log = log
        self._tasks: set[asyncio.Task[None]] = set()
        """Answers on their way."""

    def reply(self, worker: int, message: msgspec.Struct) -> None:
        """Answer a worker's join."""
        client = self.waiting.pop(worker)
        client.stop_timer()
        task = asyncio.get_running_loop().create_task(self._send(client, message))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def notify(self, workers: Iterable[int], message: msgspec.Struct) -> None:
        """Tell those of the workers that listen."""
        for worker in workers:
            listener = self.listeners.get(worker)
            if listener is not None:
                listener.post(message)

    def pass_on(self, sender: Client, message: Tell) -> None:
        """Tell a worker what another one says to it, or that one that it is not there."""
        listener = self.listeners.get(message.to)
        if listener is None:
            sender.post(Absent(message.to))
        else:
            listener.post(Told(sender.worker, message.payload))

    def forget(self, client: Client) -> bool:
        """Strike a connection that has closed, and say whether a join waited on it."""
        worker = client.worker
        if self.listeners.get(worker) is client:
            del self.listeners[worker]
        if self.waiting.get(worker) is not client:
            return False
        client.stop_timer()
        del self.waiting[worker]
        return True

    async def close(self) -> None:
        """Send nothing more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _send(self, client: Client, message: msgspec.Struct) -> None:
        try:
            await client.send(message)
        except WireError as error:
            self._log(f"rank {client.worker} did not take an answer: {error}")
