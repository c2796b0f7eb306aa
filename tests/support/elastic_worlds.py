"""Elastic worlds of real worker processes: the test acts as the launcher, which starts and kills workers.

A worker runs functions as in `worlds`. The roster is notified of its end as by an agent.
"""

from __future__ import annotations

import asyncio
import functools
import secrets
import signal
import threading
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any

import pytest
from waiting import until
from worlds import ANSWER_SECONDS, SILENCE_SECONDS, Nursery, Worker, WorkerGone, receive_all, ship


class ElasticJob:
    """A roster, and the workers that the test has started.

    Args:
        nursery: forks the workers.
        limits: of the number of workers, and of the time.
        environment: variables of all workers.
        of_worker: returns further variables of a worker, by its number.

    Attributes:
        changes: every world that was announced.
        seconds: for each world, the time since the previous one was abandoned.
        evicted: workers that the roster had killed, with the reasons.
        waits: the conditions that the roster has reported to wait for.
        address: the roster's address.
        secret: the job's secret.
        memories: the states that the roster has saved for its successor; the last one is used.
        ended: why there will be no other world; "": there may be one.
    """

    def __init__(
        self,
        nursery: Nursery,
        limits: Any,
        environment: Mapping[str, str] | None = None,
        of_worker: Callable[[int], Mapping[str, str]] = lambda worker: {},
    ) -> None:
        from scripted_roster import ScriptedRoster

        from farandole.control.roster.elastic import ElasticState
        from farandole.control.roster.events import Announce, End, Evict, Hold

        job = self
        self._nursery = nursery
        self._environment = dict(environment or {})
        self._of_worker = of_worker
        self.secret = secrets.token_bytes(32)
        self.workers: dict[int, Worker] = {}
        self.changes: list[Any] = []
        self.seconds: list[float] = []
        self.evicted: list[tuple[int, str]] = []
        self.waits: list[str] = []
        self.log: list[str] = []
        self.ended = ""
        self.memories: list[Any] = []

        def obey(action: Any) -> None:
            if isinstance(action, Announce):
                job.changes.append(action)
                job.seconds.append(job.service.seconds_without_world)
            elif isinstance(action, Evict):
                job.evicted.append((action.worker, action.why))
                if action.worker in job.workers:
                    job.workers[action.worker].kill(signal.SIGKILL)
            elif isinstance(action, Hold):
                job.waits.append(action.reason)
            elif isinstance(action, End):
                job.ended = action.reason

        async def make(left: Any) -> ScriptedRoster:
            return ScriptedRoster(
                left or ElasticState(limits),
                job.secret,
                obey=obey,
                log=job.log.append,
                remember=job.memories.append,
                follows=left is not None,
            )

        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="roster")
        self._thread.start()
        self._make = make
        self.service = self.call(make(None))
        self.address = self.call(self.service.start())
        self._next = 0
        self._watchers: list[threading.Thread] = []

    def call(self, coroutine: Any) -> Any:
        """Run a coroutine in the roster's loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(ANSWER_SECONDS)

    def tell(self, function: Callable[..., None], *arguments: Any) -> None:
        """Call a function of the service, in its loop."""

        async def run() -> None:
            function(*arguments)

        self.call(run())

    def lose_roster(self) -> None:
        """Close the connections of all workers, and stop listening at the roster's address."""
        self.call(self.service.close())

    def find_roster(self, *, goes_on: bool = True) -> None:
        """Start another roster there, with the saved state of the first one, and the workers that have ended since.

        Args:
            goes_on: whether it answers workers at once; otherwise after `service.resume`.
        """
        from farandole.base.wire.address import parse_address

        async def follow() -> None:
            # In the loop, where the ends of workers are told: each is in the memory, or told to the new one.
            self.service = await self._make(self.memories[-1])

        def listens() -> bool:
            try:
                return bool(self.call(self.service.start(*parse_address(self.address))) == self.address)
            except OSError:  # Any connection of this machine may have got the port meanwhile, by chance.
                return False

        self.call(follow())
        until(listens, f"the roster is at {self.address} again")
        if goes_on:
            self.tell(self.service.resume)

    def add(self, count: int = 1, host: str = "localhost") -> list[int]:
        """Start workers, and return their numbers."""
        numbers = list(range(self._next, self._next + count))
        self._next += count
        for number in numbers:
            self.tell(self.service.expect, number, host)
        for number in numbers:
            environment = {
                "FARANDOLE_ROSTER": self.address,
                "FARANDOLE_SECRET": self.secret.hex(),
                "FARANDOLE_LISTEN": "127.0.0.1",
                "FARANDOLE_RANK": str(number),
                "FARANDOLE_WORKER": str(number),
                "FARANDOLE_ELASTIC": "1",
                "FARANDOLE_JOB": "test",
                "FARANDOLE_FAILURE_DEADLINE": str(SILENCE_SECONDS),
                **self._environment,
                **self._of_worker(number),
            }
            self.workers[number] = self._nursery.fork(environment)
            self._watch(number)
        return numbers

    def start(
        self, function: Callable[..., Any], *arguments: Any, workers: list[int] | None = None, **named: Any
    ) -> None:
        """Start a function on workers."""
        ship(function)
        for number in self.workers if workers is None else workers:
            self.workers[number].send(functools.partial(function, **named), arguments)

    def collect(self, workers: list[int], seconds: float = ANSWER_SECONDS) -> list[Any]:
        """Return the results by worker; raise the first failure after all have answered."""
        return receive_all((self.workers[number] for number in workers), seconds)

    def collect_survivors(self, workers: Iterable[int], deaths: Container[int]) -> list[Any]:
        """Return the results of all workers that should survive, and check that the others are dead."""
        survivors, victims = [], []
        for number in workers:
            (victims if number in deaths else survivors).append(number)
        results = self.collect(survivors)
        for number in victims:
            with pytest.raises(WorkerGone):
                self.workers[number].receive()
        return results

    def kill(self, number: int, signum: int = signal.SIGKILL) -> None:
        """Send a worker a signal."""
        self.workers[number].kill(signum)

    def close(self) -> None:
        """End all workers and the roster."""
        for worker in self.workers.values():
            worker.kill(signal.SIGKILL)
        for thread in self._watchers:
            thread.join(ANSWER_SECONDS)
        for worker in self.workers.values():
            worker.close()
        self.call(self.service.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(ANSWER_SECONDS)
        self._loop.close()

    def _watch(self, number: int) -> None:
        worker = self.workers[number]

        def watch() -> None:
            worker.wait()
            self._loop.call_soon_threadsafe(lambda: self.service.finished(number, "was killed by SIGKILL"))

        thread = threading.Thread(target=watch, name=f"watch-{number}")
        thread.start()
        self._watchers.append(thread)
