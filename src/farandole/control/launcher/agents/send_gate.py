"""Delays messages to agents until the facts that a successor of this launcher needs are recorded.

A launcher on a machine writes the facts to a file, which is complete before it continues. A launcher in a pod writes
them to a server, which takes a while and may be unreachable. Meanwhile it continues to receive messages and to decide.
But its decisions leave it only through this gate, so no worker ever knows something that a successor would not know.
If writing takes too long, the gate is *lapsed*: everything passes, but first the agents are told not to wait for a
successor, because it would start from an outdated state.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable


class SendGate:
    """Releases messages in order, once the facts that they follow from are written.

    Attributes:
        lapsed: whether nothing is delayed because writing takes too long.
    """

    def __init__(self) -> None:
        self.lapsed = False
        self._begun = 0
        self._written = 0
        self._held: deque[tuple[int, Callable[[], None]]] = deque()

    @property
    def is_open(self) -> bool:
        """Whether everything is written."""
        return self._written == self._begun

    def begin(self) -> int:
        """Start a write and return its number; messages sent from now on wait for it."""
        self._begun += 1
        return self._begun

    def written(self, number: int) -> None:
        """Record that this write, and all earlier ones, are complete."""
        self._written = max(self._written, number)
        self._let_pass()
        if self.is_open:
            self.lapsed = False

    def lapse(self, warn: Callable[[], None]) -> None:
        """Delay nothing until everything is written.

        Args:
            warn: sends the messages that must arrive before the delayed ones.
        """
        self.lapsed = True
        warn()
        self._let_pass()

    def send(self, send: Callable[[], None]) -> None:
        """Call `send` now, or as soon as all writes begun so far are complete."""
        if self.lapsed or (self.is_open and not self._held):
            send()
        else:
            self._held.append((self._begun, send))

    def _let_pass(self) -> None:
        while self._held and (self.lapsed or self._held[0][0] <= self._written):
            self._held.popleft()[1]()
