"""What workers print, between their agents and the console: bytes that were written give the agent credit for more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from farandole.agent.messages import WINDOW, Closed, Credit, Output
from farandole.launcher.agents import Agent
from farandole.launcher.output.console import WorkerStream


class OutputFlow:
    """The output of all workers of a job. Used in the loop's thread, but for what `written` returns.

    Attributes:
        unwritten: bytes that the agents sent and the console has not written yet.
    """

    def __init__(self) -> None:
        self.unwritten = 0
        self._loop = asyncio.get_running_loop()
        self._agents: dict[int, Agent] = {}
        self._streams: dict[tuple[int, int], WorkerStream] = {}
        self._owed: dict[tuple[int, int], int] = {}
        """Bytes written, for which the worker's agent got no credit yet."""

    def add(self, agents: Mapping[int, Agent], streams: Mapping[tuple[int, int], WorkerStream]) -> None:
        """Take on workers: their agents, by rank, and their streams."""
        self._agents.update(agents)
        self._streams.update(streams)

    def written(self, rank: int, stream: int) -> Callable[[int], None]:
        """Return what a stream calls, in any thread, with the number of bytes that it has taken care of."""

        def written(written_bytes: int) -> None:
            try:
                self._loop.call_soon_threadsafe(self._credit, rank, stream, written_bytes)
            except RuntimeError:
                pass  # The loop is closed: nobody needs credit any more.

        return written

    def take(self, message: Output | Closed) -> None:
        """Pass on what an agent says."""
        if isinstance(message, Output):
            self.unwritten += len(message.data)
            self._streams[message.rank, message.stream].write(message.data)
        else:
            self._close(message.rank, message.stream)

    def close(self, rank: int) -> None:
        """End the streams of a worker of which nothing more will be heard."""
        for worker, stream in [each for each in self._streams if each[0] == rank]:
            self._close(worker, stream)

    def _close(self, rank: int, stream: int) -> None:
        self._streams.pop((rank, stream)).close()
        self._owed.pop((rank, stream), None)
        if not any(each == rank for each, _ in self._streams):
            self._agents.pop(rank, None)

    def _credit(self, rank: int, stream: int, written_bytes: int) -> None:
        self.unwritten -= written_bytes
        agent = self._agents.get(rank)
        if agent is None:
            return
        if agent.local:
            agent.heard()
        if (rank, stream) not in self._streams:
            return
        owed = self._owed.get((rank, stream), 0) + written_bytes
        # Not for every line: a quarter of the window is soon enough to keep the worker going.
        if owed >= WINDOW // 4:
            agent.tell(Credit(rank, stream, owed))
            owed = 0
        self._owed[rank, stream] = owed
