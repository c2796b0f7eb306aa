"""The connections to which the roster can send: unanswered joins, and listeners."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

import msgspec

from farandole.base.wire.encoding import encode
from farandole.base.wire.errors import WireError
from farandole.base.wire.rendezvous import Absent, Relay, Relayed
from farandole.control.roster.listener import Client


class Connections:
    """The connections on which workers receive answers and notices.

    Attributes:
        holders: the connection of each worker's latest join, by worker.
        waiting: the connection of each worker's unanswered join, by worker.
        listeners: the connection on which each worker receives other workers' messages and the roster's notices, by
            worker.

    Args:
        log: called with a line about every answer that could not be sent.
    """

    def __init__(self, log: Callable[[str], None]) -> None:
        self.holders: dict[int, Client] = {}
        self.waiting: dict[int, Client] = {}
        self.listeners: dict[int, Client] = {}
        self._log = log
        self._tasks: set[asyncio.Task[None]] = set()
        """Answers that are being sent."""

    def reply(self, worker: int, message: msgspec.Struct) -> None:
        """Answer a worker's join."""
        client = self.waiting.pop(worker)
        if client.post_if_idle(message):
            return
        task = asyncio.get_running_loop().create_task(self._send(client, message))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def notify(self, workers: Iterable[int], message: msgspec.Struct) -> None:
        """Send a message to every worker in `workers` that listens."""
        payload = encode(message)
        for worker in workers:
            listener = self.listeners.get(worker)
            if listener is not None:
                listener.post_encoded(payload)

    def pass_on(self, sender: Client, message: Relay) -> None:
        """Relay a worker's message to another worker. If that worker does not listen, the sender gets `Absent`."""
        listener = self.listeners.get(message.to)
        if listener is None or listener.channel.is_closing():
            sender.post(Absent(message.to))
        else:
            listener.post(Relayed(sender.worker, message.payload))

    def join(self, client: Client) -> None:
        """Add an unanswered join."""
        self.holders[client.worker] = self.waiting[client.worker] = client

    def other_process(self, client: Client) -> int:
        """Return the id of another process that has joined as this worker and is still connected, or 0."""
        holder = self.holders.get(client.worker, client)
        return holder.process if client.process not in (0, holder.process) else 0

    def forget(self, client: Client) -> bool:
        """Remove a closed connection, and return whether it had an unanswered join."""
        worker = client.worker
        if self.holders.get(worker) is client:
            del self.holders[worker]
        if self.listeners.get(worker) is client:
            del self.listeners[worker]
        if self.waiting.get(worker) is not client:
            return False
        del self.waiting[worker]
        return True

    async def close(self) -> None:
        """Cancel all answers that are being sent."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _send(self, client: Client, message: msgspec.Struct) -> None:
        try:
            await client.send(message)
        except WireError as error:
            self._log(f"worker {client.worker} did not receive an answer: {error}")
