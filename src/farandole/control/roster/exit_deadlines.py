"""How long a worker that has reported a failure may take until its process ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class ExitDeadlines:
    """The workers whose process is about to end, with a timer for each.

    Args:
        late: called with a worker whose process has not ended in time.
    """

    def __init__(self, late: Callable[[int], None]) -> None:
        self._late = late
        self._timers: dict[int, asyncio.TimerHandle] = {}

    def begin(self, worker: int, seconds: float) -> None:
        """Expect a worker's process to end within so many seconds."""
        self.ended(worker)
        self._timers[worker] = asyncio.get_running_loop().call_later(seconds, self._late, worker)

    def ended(self, worker: int) -> None:
        """Record that a worker's process has ended; no-op if that was not expected."""
        timer = self._timers.pop(worker, None)
        if timer is not None:
            timer.cancel()

    def close(self) -> None:
        """Stop all timers."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
