"""A roster in a separate thread, over real sockets."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from scripted_roster import ScriptedRoster

from farandole.base.wire.roster_client import RosterClient
from farandole.control.roster import fixed
from farandole.control.roster.elastic import ElasticState, Limits
from farandole.control.roster.events import Place
from farandole.control.roster.service import Report

SECRET = os.urandom(32)


class Running:
    """A service in a separate thread."""

    def __init__(
        self, size: int, *, elastic: Limits | None = None, left: ElasticState | None = None, **options: Any
    ) -> None:
        self.log: list[str] = []
        self.reports: list[tuple[int, Report]] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        places = tuple(Place(f"host{rank % 2}", rank // 2, (size + 1) // 2, rank % 2, 2) for rank in range(size))
        self.service = ScriptedRoster(
            left or (ElasticState(elastic) if elastic else fixed.FixedState(places)),
            SECRET,
            reported=lambda worker, report: self.reports.append((worker, report)),
            log=self.log.append,
            follows=left is not None,
            **options,
        )
        self.address = asyncio.run_coroutine_threadsafe(self.service.start(), self._loop).result(60)

    def do(self, function: Callable[[], None]) -> None:
        """Run a function in the service's loop."""
        done: Future[None] = Future()
        self._loop.call_soon_threadsafe(lambda: done.set_result(function()))
        done.result(60)

    def wait_until_read(self, worker: int) -> None:
        asyncio.run_coroutine_threadsafe(self.service.wait_until_read(worker, 10), self._loop).result(20)

    def client(self, worker: int) -> RosterClient:
        return RosterClient.connect(self.address, SECRET, worker=worker, timeout=60)

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self.service.close(), self._loop).result(60)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
