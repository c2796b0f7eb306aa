"""Forwards the output of the workers of one host to the launcher, under flow control.

For each stream at most `WINDOW` bytes are sent ahead of what the launcher has written. Without a launcher everything is
read, so that workers can keep printing; `farandole.control.agent.failover` keeps the latest part.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from farandole.control.agent.event_loop import Loop
from farandole.control.agent.protocol import STDERR, STDOUT, WINDOW, Closed, Credit, Output

_CHUNK = 64 * 1024
# Seconds between two reads of a dead worker's pipes.
_PAUSE_SECONDS = 0.02


class _Stream:
    """A worker's standard output or error."""

    def __init__(self, rank: int, stream: int, fd: int) -> None:
        self.rank = rank
        self.stream = stream
        self.fd = fd
        self.ahead = 0
        """Number of bytes that the launcher has not written yet."""


class WorkerOutput:
    """The standard output and error of all workers of this host.

    Args:
        loop: the event loop of the agent.
        say: sends a message to the launcher.
        has_launcher: returns whether there is a launcher now.
    """

    def __init__(self, loop: Loop, say: Callable[[Output | Closed], None], has_launcher: Callable[[], bool]) -> None:
        self._loop = loop
        self._say = say
        self._has_launcher = has_launcher
        self._streams: dict[tuple[int, int], _Stream] = {}

    def add(self, rank: int, stream: int, fd: int) -> None:
        """Start reading a worker's stream; the descriptor belongs to this object from now on."""
        os.set_blocking(fd, False)
        self._streams[rank, stream] = _Stream(rank, stream, fd)
        self._watch(self._streams[rank, stream])

    @property
    def open(self) -> list[tuple[int, int]]:
        """The open streams, by rank and number."""
        return [*self._streams]

    def written(self, credit: Credit) -> None:
        """Record that the launcher has written a part of a stream, so that as much may follow."""
        stream = self._streams.get((credit.rank, credit.stream))
        if stream is not None:
            stream.ahead -= credit.count
            self._watch(stream)

    def launcher_is_gone(self) -> None:
        """Read all output of workers, without limit."""
        for stream in self._streams.values():
            self._watch(stream)

    def launcher_is_back(self, unsent: Callable[[int, int], int]) -> None:
        """Restart flow control.

        Args:
            unsent: returns, by rank and number of a stream, the number of bytes that the launcher has yet to receive.
        """
        for stream in self._streams.values():
            stream.ahead = unsent(stream.rank, stream.stream)
            self._watch(stream)

    def read_rest(self, rank: int) -> None:
        """Read a dead worker's pipes until they are empty; then close them.

        A process outside the job may have the other ends open, but its output is not the worker's.
        """
        streams = [self._streams.get((rank, number)) for number in (STDOUT, STDERR)]
        for stream in streams:
            if stream is not None:
                self._read_piece(stream)
        if any(stream is not None for stream in streams):
            self._loop.call_later(_PAUSE_SECONDS, lambda: self.read_rest(rank))

    def read_rest_of_all(self) -> bool:
        """Read a piece from each pipe of dead workers; return whether all pipes are empty."""
        for stream in list(self._streams.values()):
            self._read_piece(stream)
        return not self._streams

    def _read_piece(self, stream: _Stream) -> None:
        """Read a piece, as far as flow control allows; close the stream if it is empty."""
        if stream.ahead < WINDOW and not self._forward(stream):
            self._close(stream)

    def _watch(self, stream: _Stream) -> None:
        wanted = stream.ahead < WINDOW or not self._has_launcher()
        self._loop.watch(stream.fd, (lambda: self._forward(stream)) if wanted else None)

    def _forward(self, stream: _Stream) -> bool:
        """Forward available output; return False if there was none."""
        try:
            data = os.read(stream.fd, _CHUNK)
        except BlockingIOError:
            return False
        if not data:
            self._close(stream)
            return True
        stream.ahead += len(data)
        self._say(Output(stream.rank, stream.stream, data))
        self._watch(stream)
        return True

    def _close(self, stream: _Stream) -> None:
        self._loop.watch(stream.fd)
        os.close(stream.fd)
        del self._streams[stream.rank, stream.stream]
        self._say(Closed(stream.rank, stream.stream))
