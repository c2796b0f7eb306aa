"""The timer of a hold, which limits how long a job waits for something."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from farandole.control.roster.events import Hold


class HoldTimer:
    """A timer for one hold at a time.

    Args:
        over: called with the kind of the hold when its time is over.
        arrived: called before that: decides on workers that have arrived in time, which may call `wait`.
    """

    def __init__(self, over: Callable[[str], None], arrived: Callable[[], None]) -> None:
        self._over = over
        self._arrived = arrived
        self._timer: asyncio.TimerHandle | None = None
        self._hold = Hold("")

    def wait(self, hold: Hold) -> None:
        """Start the timer for a hold, instead of the previous one; a hold without a kind stops the timer."""
        # The text of a hold changes as workers join and leave, which must not restart its time.
        if (hold.kind, hold.arrivals) == (self._hold.kind, self._hold.arrivals):
            return
        self.close()
        self._hold = hold
        if hold.kind:
            self._timer = asyncio.get_running_loop().call_later(hold.seconds, self._waited)

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._hold = Hold("")

    def _waited(self) -> None:
        timer = self._timer
        self._arrived()
        if self._timer is timer:
            kind, self._hold = self._hold.kind, Hold("")
            self._over(kind)
