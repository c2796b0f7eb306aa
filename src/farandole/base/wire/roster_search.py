"""Connecting to a roster that may be away for a while, when its launcher was killed and another takes the job over."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

from farandole.base.wire.channel import Channel
from farandole.base.wire.errors import ConnectionLost, WireError, WireTimeout

# Between two attempts to find the roster again: short at first, when the next one is about to start; then longer, so
# that the attempts of many workers cost little.
_FIRST_PAUSE_SECONDS = 0.02
_LONGEST_PAUSE_SECONDS = 0.5
# An attempt is given up after that if nothing answers, such as behind an agent that has no launcher.
_ATTEMPT_SECONDS = 3.0
# A roster that closes the connection sooner than that does not count as found, such as one that fails at a message.
_LASTING_SECONDS = 1.0

CLOSED = "this side closed the connection"
"""Why there is no connection, when its own side has ended it."""


class RosterSearch:
    """Looks for a roster that is lost.

    Args:
        dial: makes one attempt to connect, within the given number of seconds.
        seconds: after which it is in vain.
        stop: ends a search, though not an attempt on its way.
    """

    def __init__(self, dial: Callable[[float], Channel], seconds: float, stop: threading.Event) -> None:
        self._dial = dial
        self._seconds = seconds
        self._stop = stop
        self._found = -math.inf
        """When the last one was found."""
        self._deadline = 0.0
        self._pause = 0.0

    def find(self) -> Channel:
        """Connect to the roster as soon as it is there.

        Raises:
            ConnectionLost: in vain, or it was stopped.
        """
        if time.monotonic() - self._found > _LASTING_SECONDS:
            self._deadline = time.monotonic() + self._seconds
            self._pause = _FIRST_PAUSE_SECONDS
        trouble = "nobody stays there"
        while (left := self._deadline - time.monotonic()) > 0:
            if self._stop.wait(min(self._pause, left)):
                raise ConnectionLost(CLOSED)
            self._pause = min(2 * self._pause, _LONGEST_PAUSE_SECONDS)
            try:
                channel = self._dial(min(left, _ATTEMPT_SECONDS))
            except WireError as error:
                # Another process may have the port: the next roster may be about to take it.
                trouble = str(error)
            else:
                self._found = time.monotonic()
                return channel
        raise ConnectionLost(f"it was looked for in vain for {self._seconds:g} s ({trouble})")


def dial_roster(address: str, secret: bytes, frame_limit: int, timeout: float) -> Channel:
    """Make one attempt to connect, and prove both sides to each other."""
    return Channel.connect(address, secret, timeout=timeout, limit=frame_limit)


def first_connection(dial: Callable[[float], Channel], timeout: float, search_timeout: float) -> Channel:
    """Connect for the first time.

    With a `search_timeout`, the roster is looked for if it is not there: a worker may start just when all have lost it.
    An agent that has lost its launcher, and so the way to the roster, accepts connections and sends nothing.
    """
    try:
        return dial(timeout)
    except (ConnectionLost, WireTimeout):
        if not search_timeout:
            raise
    return RosterSearch(dial, search_timeout, threading.Event()).find()
