"""The workers that the roster can send something to: those whose join has no answer yet, and those that listen."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

import msgspec

from farandole.base.wire.errors import WireError
from farandole.base.wire.rendezvous import Absent, Tell, Told
from farandole.control.roster.listener import Client


class Connections:
    """The connections on which workers take answers and notices.

    Attributes:
        waiting: by worker, the connection on which a join waits for its answer.
        listeners: by worker, the connection that takes other workers' messages and the roster's notices.
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
        task = asyncio.get_running_loop().create_task(self._send(client, message))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def notify(self, workers: Iterable[int], message: msgspec.Struct) -> None:
        """Send a message to those of the workers that listen."""
        for worker in workers:
            listener = self.listeners.get(worker)
            if listener is not None:
                listener.post(message)

    def pass_on(self, sender: Client, message: Tell) -> None:
        """Pass a worker's message on to another one; if that does not listen, tell the sender so."""
        listener = self.listeners.get(message.to)
        if listener is None:
            sender.post(Absent(message.to))
        else:
            listener.post(Told(sender.worker, message.payload))

    def forget(self, client: Client) -> bool:
        """Remove a connection that has closed, and return whether a join waited on it."""
        worker = client.worker
        if self.listeners.get(worker) is client:
            del self.listeners[worker]
        if self.waiting.get(worker) is not client:
            return False
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
