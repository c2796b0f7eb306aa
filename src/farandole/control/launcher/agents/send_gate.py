"""What is said to agents waits until what a successor of this launcher has to know of it is written down.

A launcher on one machine writes into a file, and has done so when it goes on. One in a pod writes to a server, which
takes a while, and may be away. It goes on meanwhile: it hears agents and workers, and decides. But what it decides
leaves it only behind this gate. So no worker ever knows of something that a successor would not.

Where writing takes too long the gate is *lapsed*: everything passes, after the agents were told not to wait for a
successor, which would begin from what is not true any more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable


class SendGate:
    """Lets pass, in their order, what may be known to others.

    Attributes:
        lapsed: nothing is held, because writing takes too long.
    """

    def __init__(self) -> None:
        self.lapsed = False
        self._begun = 0
        self._written = 0
        self._held: deque[tuple[int, Callable[[], None]]] = deque()

    @property
    def is_open(self) -> bool:
        """Whether all is written."""
        return self._written == self._begun

    def begin(self) -> int:
        """Record that something is to be written, and return its number: what is sent from now on waits for it."""
        self._begun += 1
        return self._begun

    def written(self, number: int) -> None:
        """Record that this, and all that was to be written before, is."""
        self._written = max(self._written, number)
        self._let_pass()
        if self.is_open:
            self.lapsed = False

    def lapse(self, warn: Callable[[], None]) -> None:
        """Hold nothing until all is written.

        Args:
            warn: sends what has to arrive before that which was held.
        """
        self.lapsed = True
        warn()
        self._let_pass()

    def send(self, send: Callable[[], None]) -> None:
        """Call now, or as soon as all is written that was to be written by now."""
        if self.lapsed or (self.is_open and not self._held):
            send()
        else:
            self._held.append((self._begun, send))

    def _let_pass(self) -> None:
        while self._held and (self.lapsed or self._held[0][0] <= self._written):
            self._held.popleft()[1]()
