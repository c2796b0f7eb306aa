"""The agent's single-threaded event loop."""

from __future__ import annotations

import heapq
import selectors
import time
from collections.abc import Callable

Callback = Callable[[], object]


class Timer:
    """A call at a later time, unless it is cancelled."""

    def __init__(self, due: float, callback: Callback) -> None:
        self.due = due
        self.callback: Callback | None = callback

    def cancel(self) -> None:
        """Cancel the call; no-op if it has been made."""
        self.callback = None

    def __lt__(self, other: Timer) -> bool:
        return self.due < other.due


class Loop:
    """Calls callbacks in the thread that calls `turn`. Times are in seconds; no callback may block."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._timers: list[Timer] = []

    def watch(self, fd: int, readable: Callback | None = None, writable: Callback | None = None) -> None:
        """Call a callback whenever the descriptor is readable or writable; without callbacks, stop watching it.

        Watching must end before the descriptor is closed.
        """
        events = (selectors.EVENT_READ if readable else 0) | (selectors.EVENT_WRITE if writable else 0)
        known = fd in self._selector.get_map()
        if not events:
            if known:
                self._selector.unregister(fd)
        elif known:
            self._selector.modify(fd, events, (readable, writable))
        else:
            self._selector.register(fd, events, (readable, writable))

    def call_later(self, seconds: float, callback: Callback) -> Timer:
        """Call a callback once, after this many seconds."""
        timer = Timer(time.monotonic() + seconds, callback)
        heapq.heappush(self._timers, timer)
        return timer

    def turn(self, limit: float | None = None) -> None:
        """Wait for events or timers, for `limit` seconds at most, and call their callbacks."""
        for key, events in self._selector.select(self._time_to_wait(limit)):
            for event, callback in zip((selectors.EVENT_READ, selectors.EVENT_WRITE), key.data, strict=True):
                # An earlier callback may have ended the watching of this descriptor.
                if events & event and callback is not None and self._selector.get_map().get(key.fd) == key:
                    callback()
        now = time.monotonic()
        while self._timers and self._timers[0].due <= now:
            callback = heapq.heappop(self._timers).callback
            if callback is not None:
                callback()

    def _time_to_wait(self, limit: float | None) -> float | None:
        while self._timers and self._timers[0].callback is None:
            heapq.heappop(self._timers)
        if not self._timers:
            return limit
        due = max(0.0, self._timers[0].due - time.monotonic())
        return due if limit is None else min(due, limit)
