"""Writes the failover state in its own thread, so that the launcher still receives messages while a write blocks.

- The newest state wins: a state that is replaced before its turn is never written.
- Messages that the launcher sends after `save` wait for the write (`farandole.control.launcher.agents.send_gate`), for
    at most `PATIENCE_SECONDS`. Then agents are told that there can be no successor, and the job continues.
- A failed write is repeated until it succeeds; then agents wait for a successor again.
- A stored state that has disappeared, because the object was deleted, is written again.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from farandole.control.kubernetes.launcher_pod.state_objects import NotWritten, SealedFailover
from farandole.control.launcher.agents.send_gate import SendGate

# Seconds that a job stands still at most if the API server is unreachable while a worker joins or leaves.
PATIENCE_SECONDS = 5.0
_REST_SECONDS = 1.0
_LOOK_SECONDS = 0.05
# Seconds between checks that the stored state still exists: a user may have deleted the object.
REFRESH_SECONDS = 60.0


class StateWriter:
    """A `FailoverStore` that does not block. Created and closed in the launcher's loop.

    Attributes:
        gate: the gate that delays messages to agents.
        trouble: why the state could not be written.

    Args:
        failover: the sealed storage; from now on, only the thread writes to it.
        patience: see `PATIENCE_SECONDS`.
        rest: seconds between two attempts.
        refresh: see `REFRESH_SECONDS`.
    """

    def __init__(
        self,
        failover: SealedFailover,
        patience: float = PATIENCE_SECONDS,
        rest: float = _REST_SECONDS,
        refresh: float = REFRESH_SECONDS,
    ) -> None:
        self.gate = SendGate()
        self.trouble = f"the API server has not answered for {patience:g} s"
        self._failover = failover
        self._patience = patience
        self._rest = rest
        self._refresh = refresh
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._changed: Callable[[bool], None] = lambda holds: None
        self._news = threading.Condition()
        # Fields of both threads, protected by `_news`:
        self._newest: dict[str, bytes] = {}
        self._number = 0
        """Number of the newest state, as counted by the gate."""
        self._closed = False
        self._thread = threading.Thread(target=self._write_all, name="failover state", daemon=True)
        self._thread.start()

    # --- the launcher's thread ------------------------------------------------------------------------------------

    def watch(self, changed: Callable[[bool], None]) -> None:
        """Call `changed` with False if a part could not be written for too long, and with True once all parts are."""
        self._changed = changed

    def save(self, part: str, content: bytes) -> bool:
        """Write a part before any later message is delivered; return False if that is not possible now."""
        with self._news:
            self._newest[part] = content
            self._number = self.gate.begin()
            self._news.notify()
        if self._timer is None and not self.gate.lapsed:
            self._timer = self._loop.call_later(self._patience, self._too_late)
        return not self.gate.lapsed

    def left(self, part: str) -> bytes | None:
        """Return the content of a part that the previous launcher has left; None if there is none."""
        return self._failover.left(part)

    def is_whole(self) -> bool:
        """Return whether a job can be taken over from the parts."""
        return self._failover.is_whole()

    async def can_be_followed(self, seconds: float) -> bool:
        """Return whether another launcher could take over; wait until it could, for `seconds` at most."""
        deadline = self._loop.time() + seconds
        while self.gate.lapsed and self._loop.time() < deadline:
            await asyncio.sleep(_LOOK_SECONDS)
        return not self.gate.lapsed

    async def close(self) -> None:
        """Stop writing, and return when the thread has ended."""
        self._stop_timer()
        with self._news:
            self._closed = True
            self._news.notify()
        await asyncio.to_thread(self._thread.join)

    def _was_written(self, number: int) -> None:
        lapsed = self.gate.lapsed
        self._stop_timer()
        self.gate.written(number)
        if not self.gate.is_open:
            if not lapsed and not self._closed:
                self._timer = self._loop.call_later(self._patience, self._too_late)
        elif lapsed:
            self._changed(True)

    def _too_late(self) -> None:
        self._timer = None
        self.gate.lapse(lambda: self._changed(False))

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # --- the writing thread ---------------------------------------------------------------------------------------

    def _write_all(self) -> None:
        while (taken := self._take()) is not None:
            parts, number = taken
            try:
                self._failover.write(parts)
            except NotWritten as error:
                print(f"warning: the failover state was not written: {error}", flush=True)
                self.trouble = str(error)
                self._put_back(parts)
            else:
                self._loop.call_soon_threadsafe(self._was_written, number)

    def _take(self) -> tuple[dict[str, bytes], int] | None:
        """Return the parts to write, empty to check that all are still stored; None at the end."""
        with self._news:
            self._news.wait_for(lambda: self._newest or self._closed, self._refresh)
            if self._closed:
                return None
            parts, self._newest = self._newest, {}
            return parts, self._number

    def _put_back(self, parts: dict[str, bytes]) -> None:
        """Retry parts after a pause, except those that have been replaced meanwhile."""
        with self._news:
            self._newest = {**parts, **self._newest}
            self._news.wait_for(lambda: self._closed, self._rest)
