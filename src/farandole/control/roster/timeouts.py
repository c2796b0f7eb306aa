"""The timer of a job: how long it waits for whatever it is waiting for (a `Hold`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from farandole.control.roster.events import Hold


class HoldTimer:
    """Runs for one hold at a time.

    Args:
        over: called with the kind of the hold when its time is up.
    """

    def __init__(self, over: Callable[[str], None]) -> None:
        self._over = over
        self._timer: asyncio.TimerHandle | None = None
        self._hold = Hold("")

    def wait(self, hold: Hold) -> None:
        """Run for this hold from now on; a hold without a kind stops the timer."""
        # The text of a hold changes as workers come and go. Its time does not begin anew with that.
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
        kind, self._hold = self._hold.kind, Hold("")
        self._over(kind)
