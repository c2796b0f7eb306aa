"""A common time for processes on several machines: monotonic clocks, compared by round trips.

Every process reads its kernel's monotonic clock, which two processes on one kernel share. The offset of another
machine's clock follows from a request and its reply, to within half of the round-trip time (Cristian's algorithm).
"""

from __future__ import annotations

import os
from collections import deque
from functools import cache
from pathlib import Path

# Quartz clocks drift by about ten microseconds a second, so old round trips must expire.
KEPT_ROUND_TRIPS = 16


@cache
def identity() -> str:
    """Return an identifier that two processes share only if they read the same monotonic clock; "": not known."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/time')}"
    except OSError:
        return ""


class ClockOffset:
    """The offset of another process's clock from this process's clock."""

    def __init__(self) -> None:
        self._round_trips: deque[tuple[int, int]] = deque(maxlen=KEPT_ROUND_TRIPS)
        self._same = False

    @property
    def exact(self) -> bool:
        """Whether both processes read the same clock, so that nothing needs to be measured."""
        return self._same

    @property
    def known(self) -> bool:
        """Whether anything has been measured."""
        return self._same or bool(self._round_trips)

    @property
    def nanoseconds(self) -> int:
        """The other process's time minus this one's in ns, from the fastest of the latest round trips."""
        return 0 if self._same or not self._round_trips else min(self._round_trips)[1]

    def measured(self, sent_ns: int, there_ns: int, received_ns: int, clock: str) -> None:
        """Record a round trip.

        Args:
            sent_ns: time of the request in ns, by this process's clock.
            there_ns: time of the reply in ns, by the other process's clock.
            received_ns: time of the reply's arrival in ns, by this process's clock.
            clock: `identity()` of the other process.
        """
        self._same = clock != "" and clock == identity()
        self._round_trips.append((received_ns - sent_ns, there_ns - (sent_ns + received_ns) // 2))
