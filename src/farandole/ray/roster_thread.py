"""The roster of workers that Ray has started, in a thread of rank 0."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import Future

from farandole.control.roster.events import Place
from farandole.control.roster.fixed import FixedState
from farandole.control.roster.service import RosterService

# Seconds that the thread may take to open its port on a busy machine.
_START_SECONDS = 60.0


class RosterThread:
    """Serves the roster until this process ends.

    Attributes:
        address: host:port of the roster.

    Args:
        places: the place of each worker, by rank.
        secret: the secret that workers must prove to hold.
        host: numeric address of this machine that all workers can reach.

    Raises:
        OSError: the address is not one of this machine.
        TimeoutError: this machine is too busy to serve.
    """

    def __init__(self, places: Sequence[Place], secret: bytes, host: str) -> None:
        started: Future[str] = Future()

        async def serve() -> None:
            try:
                service = RosterService(FixedState(tuple(places)), secret)
                started.set_result(await service.start(host))
            except BaseException as error:
                started.set_exception(error)
                return
            await asyncio.get_running_loop().create_future()

        threading.Thread(target=lambda: asyncio.run(serve()), name="farandole-roster-service", daemon=True).start()
        self.address = started.result(_START_SECONDS)
