"""Deadlines for the exit of workers that have reported a failure."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class ExitDeadlines:
    """A timer for each worker whose process is expected to end.

    Args:
        late: called with a worker whose process has not ended within its time.
    """

    def __init__(self, late: Callable[[int], None]) -> None:
        self._late = late
        self._timers: dict[int, asyncio.TimerHandle] = {}

    def begin(self, worker: int, seconds: float) -> None:
        """Expect a worker's process to end within `seconds`."""
        self.ended(worker)
        self._timers[worker] = asyncio.get_running_loop().call_later(seconds, self._late, worker)

    def ended(self, worker: int) -> None:
        """Stop the timer of a worker whose process has ended, if it has one."""
        timer = self._timers.pop(worker, None)
        if timer is not None:
            timer.cancel()

    def close(self) -> None:
        """Stop all timers."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
