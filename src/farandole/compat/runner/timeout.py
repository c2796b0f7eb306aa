"""`horovod.runner.common.util.timeout`."""

from __future__ import annotations

import time


class TimeoutException(Exception):
    """Something took too long."""


class Timeout:
    """A time by which something has to be done.

    Args:
        timeout: seconds from now.
        message: what to say when they are over; `{timeout}` stands for the seconds.
    """

    def __init__(self, timeout: float, message: str) -> None:
        self._timeout = timeout
        self._message = message
        self._end = time.monotonic() + timeout

    def remaining(self) -> float:
        """Return the seconds that are left, 0 at least."""
        return max(0.0, self._end - time.monotonic())

    def timed_out(self) -> bool:
        """Return whether the time is over."""
        return time.monotonic() > self._end

    def check_time_out_for(self, activity: str) -> None:
        """Raise TimeoutException if the time is over; `{activity}` in the message stands for the argument."""
        if self.timed_out():
            raise TimeoutException(self._message.format(activity=activity, timeout=self._timeout))
