"""Writes the failover state in a thread of its own, so that a launcher which waits for the API server hears its agents.

- The newest state wins: what has been replaced before its turn came is never written.
- What the launcher says after `keep` waits for the writing (`farandole.control.launcher.agents.send_gate`), for
  `PATIENCE_SECONDS` at most. Then agents are told that there can be no successor, and the job goes on without one.
- What could not be written is tried again until it is; then agents wait for a successor again.
- What was written and is not there any more, because somebody has deleted the object, is written again.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from farandole.control.kubernetes.launcher_pod.state_objects import NotWritten, SealedFailover
from farandole.control.launcher.agents.send_gate import SendGate

# A job stands still for no longer than that when the API server is away while a worker comes or goes.
PATIENCE_SECONDS = 5.0
_REST_SECONDS = 1.0
_LOOK_SECONDS = 0.05
# How often it is made sure that what was written is still there: somebody may have deleted the object.
REFRESH_SECONDS = 60.0


class StateWriter:
    """A `FailoverStore` that does not wait. Make it in the launcher's loop, and close it there.

    Attributes:
        gate: behind which what is said to agents waits.
        trouble: why the state could not be written.

    Args:
        failover: belongs to the thread from now on, as far as it writes.
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
        # Fields of both threads, under `_news`:
        self._newest: dict[str, bytes] = {}
        self._number = 0
        """Of the newest state, as the gate counts."""
        self._closed = False
        self._thread = threading.Thread(target=self._write_all, name="failover state", daemon=True)
        self._thread.start()

    # --- the launcher's thread ------------------------------------------------------------------------------------

    def watch(self, changed: Callable[[bool], None]) -> None:
        """Call with False when what was kept could not be written for too long, and with True when all of it is."""
        self._changed = changed

    def keep(self, part: str, content: bytes) -> bool:
        """Have one part replaced before anything arrives that is said from now on; False: that cannot be for now."""
        with self._news:
            self._newest[part] = content
            self._number = self.gate.begin()
            self._news.notify()
        if self._timer is None and not self.gate.lapsed:
            self._timer = self._loop.call_later(self._patience, self._too_late)
        return not self.gate.lapsed

    def left(self, part: str) -> bytes | None:
        """Return what was left by the launcher before; None: nothing was."""
        return self._failover.left(part)

    def is_whole(self) -> bool:
        """Return whether a job can be taken over from what was left."""
        return self._failover.is_whole()

    async def can_be_followed(self, seconds: float) -> bool:
        """Return whether another launcher could take over now; wait for that for up to a number of seconds."""
        deadline = self._loop.time() + seconds
        while self.gate.lapsed and self._loop.time() < deadline:
            await asyncio.sleep(_LOOK_SECONDS)
        return not self.gate.lapsed

    async def close(self) -> None:
        """Write nothing any more, and return when the thread has ended."""
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

    # --- the other one --------------------------------------------------------------------------------------------

    def _write_all(self) -> None:
        while (taken := self._take()) is not None:
            parts, number = taken
            try:
                self._failover.write(parts)
            except NotWritten as error:
                print(f"warning: what a successor of this launcher has to know was not written: {error}", flush=True)
                self.trouble = str(error)
                self._put_back(parts)
            else:
                self._loop.call_soon_threadsafe(self._was_written, number)

    def _take(self) -> tuple[dict[str, bytes], int] | None:
        """Return what is to be written, nothing to see that all is still there; None when there is no more to come."""
        with self._news:
            self._news.wait_for(lambda: self._newest or self._closed, self._refresh)
            if self._closed:
                return None
            parts, self._newest = self._newest, {}
            return parts, self._number

    def _put_back(self, parts: dict[str, bytes]) -> None:
        """Try it again after a rest, but nothing that has been replaced meanwhile."""
        with self._news:
            self._newest = {**parts, **self._newest}
            self._news.wait_for(lambda: self._closed, self._rest)
