"""The ends of workers that have said they fail: nobody waits for them, but they do not take for ever either."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class ExitDeadlines:
    """Knows whose process has yet to end.

    Args:
        late: called with a worker whose process takes too long.
    """

    def __init__(self, late: Callable[[int], None]) -> None:
        self._late = late
        self._timers: dict[int, asyncio.TimerHandle] = {}

    def begin(self, worker: int, seconds: float) -> None:
        """Let a worker's process end, within so long."""
        self.ended(worker)
        self._timers[worker] = asyncio.get_running_loop().call_later(seconds, self._late, worker)

    def ended(self, worker: int) -> None:
        """Take note that a worker's process has ended, if it was to."""
        timer = self._timers.pop(worker, None)
        if timer is not None:
            timer.cancel()

    def close(self) -> None:
        """Wait for nobody's end any more."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
