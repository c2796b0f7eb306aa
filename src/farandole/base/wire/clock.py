"""One time for processes on several machines: monotonic clocks, compared by round trips.

Every process reads its kernel's monotonic clock. Two processes on one kernel read the same one. Of another machine's
clock, a question and its answer tell the difference, to within half of the time that they took: the answer was given
at some moment between them.
"""

from __future__ import annotations

import os
from collections import deque
from functools import cache
from pathlib import Path

# Quartz drifts by some ten microseconds a second, so old round trips have to give way to new ones.
KEPT_ROUND_TRIPS = 16


@cache
def identity() -> str:
    """Return what two processes have in common only if they read the same monotonic clock; "" if that is not known."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/time')}"
    except OSError:
        return ""


class ClockOffset:
    """How far another process's clock is ahead of this one's."""

    def __init__(self) -> None:
        self._round_trips: deque[tuple[int, int]] = deque(maxlen=KEPT_ROUND_TRIPS)
        self._same = False

    @property
    def exact(self) -> bool:
        """Whether both are the same clock, so that there is nothing more to measure."""
        return self._same

    @property
    def known(self) -> bool:
        """Whether anything has been measured."""
        return self._same or bool(self._round_trips)

    @property
    def nanoseconds(self) -> int:
        """The other process's time minus this one's; from the quickest of the last round trips."""
        return 0 if self._same or not self._round_trips else min(self._round_trips)[1]

    def measured(self, sent_ns: int, there_ns: int, received_ns: int, clock: str) -> None:
        """Record a round trip.

        Args:
            sent_ns: when the question was sent, by this process's clock.
            there_ns: the time of the answer in ns, by the other's clock.
            received_ns: the time at which the answer arrived in ns, by this process's clock.
            clock: the other's `identity()`.
        """
        self._same = clock != "" and clock == identity()
        self._round_trips.append((received_ns - sent_ns, there_ns - (sent_ns + received_ns) // 2))
