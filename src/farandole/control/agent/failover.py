"""The agent's part of a failover: it waits for the next launcher, and keeps the data that the next launcher needs."""

from __future__ import annotations

import collections
import itertools
import os
import socket
from collections.abc import Callable

from farandole.control.agent.event_loop import Loop, Timer
from farandole.control.agent.failover_socket import address_of, is_of_this_user
from farandole.control.agent.protocol import Closed, Credit, Exited, Outlive, Output, Resumed, Started

SPOOL_BYTES = 1024 * 1024
"""Maximum number of bytes of workers' output that are kept meanwhile, the latest ones."""
MOST_EXITS = 1024


class UnwrittenOutput:
    """Output of workers that the launcher has not confirmed as written."""

    def __init__(self) -> None:
        self._sent: dict[tuple[int, int], collections.deque[tuple[int, Output]]] = {}
        """By rank and number of the stream: the pieces, with their positions in the sequence of all pieces."""
        self._closed: set[tuple[int, int]] = set()
        self._places = itertools.count()

    def sent(self, message: Output | Closed) -> None:
        """Keep a message that is sent to the launcher."""
        stream = message.rank, message.stream
        if isinstance(message, Output):
            self._sent.setdefault(stream, collections.deque()).append((next(self._places), message))
        elif stream in self._sent:
            self._closed.add(stream)

    def written(self, credit: Credit) -> None:
        """Drop the output that the launcher has written."""
        stream = credit.rank, credit.stream
        pieces = self._sent.get(stream, ())
        count = credit.count
        while pieces and count:
            place, piece = pieces.popleft()
            if len(piece.data) > count:
                pieces.appendleft((place, Output(piece.rank, piece.stream, piece.data[count:])))
            count -= min(count, len(piece.data))
        if not pieces:
            self._sent.pop(stream, None)
            self._closed.discard(stream)

    def pop_all(self) -> list[Output | Closed]:
        """Return and remove all messages, in the order in which they were sent."""
        pieces = sorted(each for stream in self._sent.values() for each in stream)
        closed = [Closed(rank, stream) for rank, stream in sorted(self._closed)]
        self._sent.clear()
        self._closed.clear()
        return [*(piece for _, piece in pieces), *closed]


class Spool:
    """Output of workers while there is no launcher, limited to its latest part."""

    def __init__(self) -> None:
        self._kept: collections.deque[Output] = collections.deque()
        self._size = 0
        self._closed: list[Closed] = []
        self.lost = 0
        """Number of bytes that were dropped."""

    def add(self, message: Output | Closed) -> None:
        """Keep a message; drop the oldest output above the limit."""
        if isinstance(message, Closed):
            self._closed.append(message)
            return
        self._kept.append(message)
        self._size += len(message.data)
        while self._size > SPOOL_BYTES:
            dropped = len(self._kept.popleft().data)
            self._size -= dropped
            self.lost += dropped

    @property
    def closed(self) -> list[tuple[int, int]]:
        """The streams that have ended meanwhile, by rank and number."""
        return [(message.rank, message.stream) for message in self._closed]

    def size_of(self, rank: int, stream: int) -> int:
        """Return how many bytes of a stream are kept."""
        return sum(len(each.data) for each in self._kept if (each.rank, each.stream) == (rank, stream))

    def pop_all(self) -> list[Output | Closed]:
        """Return and remove all messages."""
        everything: list[Output | Closed] = [*self._kept, *self._closed]
        self._kept.clear()
        self._closed.clear()
        self._size = self.lost = 0
        return everything


class FailoverListener:
    """Waits for a launcher, and accepts the first one that connects.

    Args:
        loop: the event loop of the agent.
        order: the last launcher's order: where to wait, and for how long.
        taken: called with the connection to the next launcher.
        given_up: called if no launcher has connected in time; closes this listener.

    Raises:
        OSError: the agent cannot listen there.
    """

    def __init__(
        self, loop: Loop, order: Outlive, taken: Callable[[socket.socket], None], given_up: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._taken = taken
        self._listener = _listen(address_of(order.socket_name))
        loop.watch(self._listener.fileno(), self._accept)
        self._timer: Timer = loop.call_later(order.seconds, given_up)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return  # The launcher is gone again.
        if not is_of_this_user(connection):
            connection.close()
            return
        self.close()
        connection.setblocking(False)
        self._taken(connection)

    def close(self) -> None:
        """Stop waiting."""
        self._timer.cancel()
        self._loop.watch(self._listener.fileno())
        self._listener.close()


def _listen(address: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.setblocking(False)
        listener.bind(address)
        listener.listen(4)
    except OSError:
        listener.close()
        raise
    return listener


class ExitRecords:
    """The ends of all workers. The next launcher gets all of them: the last one may have died before it read them."""

    def __init__(self) -> None:
        self._known: dict[int, Exited] = {}

    def note(self, end: Exited) -> None:
        """Record the end of a worker."""
        self._known[end.rank] = end
        if len(self._known) > MOST_EXITS:
            del self._known[next(iter(self._known))]

    def report(self, workers: dict[int, int], streams: list[tuple[int, int]], alone: float, lost: int) -> Resumed:
        """Return the first message to the next launcher.

        Args:
            workers: the live workers, as rank by process id.
            streams: rank and number of the output streams that are open, or whose end is still to be reported.
            alone: seconds without a launcher.
            lost: number of bytes of output that were dropped meanwhile.
        """
        living = tuple(Started(rank, pid) for pid, rank in workers.items())
        return Resumed(os.getpid(), living, tuple(self._known.values()), tuple(streams), alone, lost)
