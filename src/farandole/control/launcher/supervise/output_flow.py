"""The flow of output from the agents to the console: for written bytes, an agent gets credit to send more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from farandole.control.agent.protocol import STDERR, STDOUT, WINDOW, Closed, Credit, Output
from farandole.control.launcher.agents.agent_client import AgentClient
from farandole.control.launcher.output.console import WorkerStream

# Not for every line: a quarter of the window is soon enough to keep the worker going.
CREDIT_BYTES = WINDOW // 4
# Seconds before a launcher is killed within which written output may be written again by the next one.
PROMPT_SECONDS = 0.05


class _Channel:
    """One stream of one worker."""

    def __init__(self, agent: AgentClient, shown: WorkerStream) -> None:
        self.agent = agent
        self.shown = shown
        self.unwritten = 0
        self.owed = 0
        """Number of written bytes for which the agent has not got credit yet."""
        self.closed = False
        self.timer: asyncio.TimerHandle | None = None


class OutputFlow:
    """The output of all workers of a job. Used in the loop's thread, except for the functions that `written` returns.

    Attributes:
        unwritten: number of bytes that the agents sent and the console has not written yet.

    Args:
        prompt: whether agents soon get credit for all bytes, as they keep unconfirmed output for the next launcher.
    """

    def __init__(self, prompt: bool = False) -> None:
        self.unwritten = 0
        self._prompt = prompt
        self._loop = asyncio.get_running_loop()
        self._channels: dict[tuple[int, int], _Channel] = {}

    def add(self, agents: Mapping[int, AgentClient], streams: Mapping[tuple[int, int], WorkerStream]) -> None:
        """Add workers: their agents, by rank, and their streams."""
        for (rank, number), shown in streams.items():
            self._channels[rank, number] = _Channel(agents[rank], shown)

    def written(self, rank: int, stream: int) -> Callable[[int], None]:
        """Return a function for a stream to call, in any thread, with the number of bytes that it has handled."""

        def written(written_bytes: int) -> None:
            try:
                self._loop.call_soon_threadsafe(self._note, rank, stream, written_bytes)
            except RuntimeError:
                pass  # The loop is closed: no agent needs credit any more.

        return written

    def handle(self, message: Output | Closed) -> None:
        """Pass on an agent's message."""
        if isinstance(message, Output):
            channel = self._channels[message.rank, message.stream]
            self.unwritten += len(message.data)
            channel.unwritten += len(message.data)
            channel.shown.write(message.data)
        else:
            self._close(message.rank, message.stream)

    def close(self, rank: int) -> None:
        """End the streams of a worker that will send no more."""
        for stream in (STDOUT, STDERR):
            if (rank, stream) in self._channels:
                self._close(rank, stream)

    def _close(self, rank: int, stream: int) -> None:
        channel = self._channels[rank, stream]
        if not channel.closed:
            channel.closed = True
            channel.shown.close()
            self._forget_written(rank, stream)

    def _note(self, rank: int, stream: int, written_bytes: int) -> None:
        channel = self._channels[rank, stream]
        self.unwritten -= written_bytes
        channel.unwritten -= written_bytes
        channel.owed += written_bytes
        if channel.agent.local:
            channel.agent.heard()
        if channel.owed >= CREDIT_BYTES:
            self._credit(rank, stream)
        elif self._prompt and channel.timer is None:
            channel.timer = self._loop.call_later(PROMPT_SECONDS, self._credit, rank, stream)
        self._forget_written(rank, stream)

    def _credit(self, rank: int, stream: int) -> None:
        channel = self._channels[rank, stream]
        if channel.timer is not None:
            channel.timer.cancel()
            channel.timer = None
        channel.agent.send(Credit(rank, stream, channel.owed))
        channel.owed = 0

    def _forget_written(self, rank: int, stream: int) -> None:
        """Forget a closed stream once all of it was written."""
        channel = self._channels[rank, stream]
        if not channel.closed or channel.unwritten:
            return
        if self._prompt and channel.owed:
            self._credit(rank, stream)
        del self._channels[rank, stream]
