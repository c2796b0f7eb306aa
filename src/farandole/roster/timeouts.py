"""The one clock of a job whose workers come and go: how long it waits for what it waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from farandole.roster.events import Hold


class HoldTimer:
    """Waits for one kind of thing at a time.

    Args:
        over: called with the kind when it has been waited for long enough.
    """

    def __init__(self, over: Callable[[str], None]) -> None:
        self._over = over
        self._timer: asyncio.TimerHandle | None = None
        self._kind = ""

    def wait(self, hold: Hold) -> None:
        """Wait for this from now on, and for nothing else."""
        # Words change as workers come and go; how long is waited does not.
        if hold.kind == self._kind:
            return
        self.close()
        self._kind = hold.kind
        if hold.kind:
            self._timer = asyncio.get_running_loop().call_later(hold.seconds, self._waited)

    def close(self) -> None:
        """Wait for nothing any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._kind = ""

    def _waited(self) -> None:
        kind, self._kind = self._kind, ""
        self._over(kind)
