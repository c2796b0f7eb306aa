"""Connecting to a roster that may be unavailable while another launcher takes over a job whose launcher was killed."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

from farandole.base.wire.channel import Channel
from farandole.base.wire.errors import ConnectionLost, WireError, WireTimeout

# Pause between two attempts to find the roster: short at first, when the next one may be about to start; then longer,
# so that the attempts of many workers cost little.
_FIRST_PAUSE_SECONDS = 0.02
_LONGEST_PAUSE_SECONDS = 0.5
# Limit of one attempt, for example behind an agent without a launcher, where nothing answers.
_ATTEMPT_SECONDS = 3.0
# A roster that closes the connection sooner does not count as found, for example if it fails at a message.
_LASTING_SECONDS = 1.0

CLOSED = "this side closed the connection"
"""The reason of a `ConnectionLost` when this side has closed the connection."""


class RosterSearch:
    """A search for a lost roster.

    Args:
        dial: makes one attempt to connect, within the given number of seconds.
        seconds: limit of the search in seconds.
        stop: event that ends a search after the present attempt.
    """

    def __init__(self, dial: Callable[[float], Channel], seconds: float, stop: threading.Event) -> None:
        self._dial = dial
        self._seconds = seconds
        self._stop = stop
        self._found = -math.inf
        """Time on the monotonic clock when a roster was last found."""
        self._deadline = 0.0
        self._pause = 0.0

    def find(self) -> Channel:
        """Connect to the roster as soon as it is available.

        Raises:
            ConnectionLost: the search exceeded its limit, or was stopped.
        """
        if time.monotonic() - self._found > _LASTING_SECONDS:
            self._deadline = time.monotonic() + self._seconds
            self._pause = _FIRST_PAUSE_SECONDS
        trouble = "it closed every connection"
        while (left := self._deadline - time.monotonic()) > 0:
            if self._stop.wait(min(self._pause, left)):
                raise ConnectionLost(CLOSED)
            self._pause = min(2 * self._pause, _LONGEST_PAUSE_SECONDS)
            try:
                channel = self._dial(min(left, _ATTEMPT_SECONDS))
            except WireError as error:
                # Even if another process has the port now: the next roster may be about to take it.
                trouble = str(error)
            else:
                self._found = time.monotonic()
                return channel
        raise ConnectionLost(f"it could not be found again within {self._seconds:g} s ({trouble})")


def dial_roster(address: str, secret: bytes, frame_limit: int, timeout: float) -> Channel:
    """Make one attempt to connect, including the handshake, within `timeout` seconds."""
    return Channel.connect(address, secret, timeout=timeout, limit=frame_limit)


def first_connection(dial: Callable[[float], Channel], timeout: float, search_timeout: float) -> Channel:
    """Connect for the first time.

    With a `search_timeout`, an unavailable roster is searched for that many seconds: a worker may start just when all
    others have lost it. An agent that has lost its launcher, and so the roster, accepts connections and sends nothing.
    """
    try:
        return dial(timeout)
    except (ConnectionLost, WireTimeout):
        if not search_timeout:
            raise
    return RosterSearch(dial, search_timeout, threading.Event()).find()
