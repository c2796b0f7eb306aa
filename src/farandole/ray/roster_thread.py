"""The roster of workers that Ray has started, in a thread of one of Ray's processes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future

from farandole.control.roster.decide import RosterState
from farandole.control.roster.events import Event, Evict
from farandole.control.roster.service import RosterService

# Seconds that the thread may take to open its port on a busy machine, or to close it.
_SECONDS = 60.0


class RosterThread:
    """Serves the roster until it is closed, or this process ends.

    Attributes:
        address: host:port of the roster.

    Args:
        state: the initial state of the roster.
        secret: the secret that workers must prove to have.
        host: numeric address of this machine that all workers can reach.
        evict: called in the thread with a worker that is excluded from the job, and must be killed if it is running.
        log: called in the thread with a line about each decision.

    Raises:
        OSError: the address is not one of this machine.
        TimeoutError: this machine is too busy to serve.
    """

    def __init__(
        self,
        state: RosterState,
        secret: bytes,
        host: str,
        *,
        evict: Callable[[int], None] = lambda worker: None,
        log: Callable[[str], None] = lambda reason: None,
    ) -> None:
        started: Future[str] = Future()
        self._evict = evict

        async def serve() -> None:
            try:
                self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
                self._service = RosterService(state, secret, log=log, acted=self._acted)
                started.set_result(await self._service.start(host))
            except BaseException as error:
                started.set_exception(error)
                return
            await self._over.wait()
            await self._service.close()

        self._thread = threading.Thread(
            target=lambda: asyncio.run(serve()), name="farandole-roster-service", daemon=True
        )
        self._thread.start()
        self.address = started.result(_SECONDS)

    def tell(self, event: Event) -> None:
        """Notify the roster of an event, such as the start or the end of a worker."""
        self._loop.call_soon_threadsafe(self._service.tell, event)

    def close(self) -> None:
        """Stop serving. Workers that wait for a world get an error."""
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(_SECONDS)

    def _acted(self, action: object) -> None:
        if isinstance(action, Evict):
            self._evict(action.worker)
