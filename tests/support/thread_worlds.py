"""Worlds whose workers are threads, which a test starts and ends: a fake of the engine and the roster together.

A world ends when one of its workers dies, leaves or abandons it: a worker that waits in an incomplete collective then,
or calls one later, gets HorovodInternalError. The next world begins when all remaining members have also abandoned it.
Members with the state come first, in their old order, then newcomers, which are refused once a worker has ended
successfully.
"""

from __future__ import annotations

import pickle
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from farandole.errors import EvictedError, HorovodInternalError
from farandole.worker.elastic.world_changes import Change

SECONDS = 30.0


class Killed(BaseException):
    """Ends a worker as a signal would."""


class Job:
    """All workers, and their world.

    Attributes:
        results: the results of the workers' programs, or the errors that ended them, by name.
        sizes: the sizes of all worlds, in order.
    """

    def __init__(self) -> None:
        self.results: dict[str, Any] = {}
        self.sizes: list[int] = []
        self._workers: dict[str, Worker] = {}
        self._threads: list[threading.Thread] = []
        self._changed = threading.Condition()
        self._generation = 0
        self._is_over = True
        self._is_done = False
        self._members: list[str] = []
        self._holders: set[str] = set()
        self._leaving: set[str] = set()
        self._joined: set[str] = set()
        self._departed: list[str] = []
        self._collectives: dict[tuple[int, int], dict[str, Any]] = {}

    # --- what the test does ----------------------------------------------------------------------------------------

    def start(self, names: Sequence[str], program: Callable[[Worker], Any]) -> None:
        """Start workers, which enter the next world and then run the program."""
        if not self._threads:
            self._members = list(
                names
            )  # As if there had been a world of all that come first: they wait for each other.
        for name in names:
            self._workers[name] = Worker(self, name)
            thread = threading.Thread(target=self._run, args=(self._workers[name], program), name=name, daemon=True)
            self._threads.append(thread)
        for thread in self._threads[-len(names) :]:
            thread.start()

    def drain(self, name: str) -> None:
        """Request a world without a worker."""
        with self._changed:
            self._leaving.add(name)

    def join(self) -> dict[str, Any]:
        """Wait for the end of all workers; return their results."""
        for thread in self._threads:
            thread.join(SECONDS)
            assert not thread.is_alive(), f"{thread.name} does not end; over so far: {self.results}"
        return self.results

    # --- what workers do -------------------------------------------------------------------------------------------

    def change(self, worker: Worker) -> Change | None:
        """Return the pending change of a worker's world."""
        with self._changed:
            if worker.generation != self._generation:
                return None
            added = len(self._joined - set(self._members))
            removed = len(self._leaving & set(self._members))
            return Change(added, removed, "as the test wants it") if added or removed else None

    def hold_state(self, name: str) -> None:
        """Record that a worker has the state."""
        with self._changed:
            self._holders.add(name)

    def others_have_held(self, name: str) -> bool:
        """Return whether other workers have had the state, and this one has not."""
        with self._changed:
            return bool(self._holders) and name not in self._holders

    def enter_next(self, worker: Worker) -> None:
        """Abandon the current world, and wait for the next one."""
        with self._changed:
            self._joined.add(worker.name)
            if worker.generation == self._generation:
                self._end_world()
            self._begin_world()
            ready = self._changed.wait_for(lambda: worker.name not in self._joined, timeout=SECONDS)
            assert ready, f"{worker.name} waits for a world in vain"
            if worker.name not in self._members:
                raise EvictedError("as the test wants it")
            worker.generation, worker.collectives = self._generation, 0
            worker.rank, worker.size = self._members.index(worker.name), len(self._members)
            worker.departed = self._departed

    def exchange(self, worker: Worker, value: Any) -> list[Any]:
        """Return the values of all ranks."""
        with self._changed:
            key = (worker.generation, worker.collectives)
            worker.collectives += 1
            if self._is_over or worker.generation != self._generation:
                raise HorovodInternalError("the world is over")
            members = list(self._members)
            values = self._collectives.setdefault(key, {})
            values[worker.name] = value
            self._changed.notify_all()

            def done() -> bool:
                return len(values) == len(members) or self._generation != key[0] or self._is_over

            assert self._changed.wait_for(done, timeout=SECONDS), f"{worker.name} waits in a collective in vain"
            if len(values) < len(members):
                raise HorovodInternalError("the world is over")
            return [values[name] for name in members]

    # --- inside ------------------------------------------------------------------------------------------------------

    def _run(self, worker: Worker, program: Callable[[Worker], Any]) -> None:
        result: Any = None
        try:
            self.enter_next(worker)
            result = program(worker)
        except BaseException as error:
            result = error
        with self._changed:
            self.results[worker.name] = result
            self._is_done = self._is_done or not isinstance(result, BaseException)
            del self._workers[worker.name]
            self._joined.discard(worker.name)
            if worker.generation == self._generation:
                self._end_world()
            self._begin_world()

    def _how(self, name: str) -> str:
        result = self.results.get(name)
        if isinstance(result, Exception):
            return f"raised {type(result).__module__}.{type(result).__qualname__}: {result}"
        return "was killed" if isinstance(result, Killed) else "left"

    def _end_world(self) -> None:
        self._is_over = True
        self._changed.notify_all()

    def _begin_world(self) -> None:
        """Begin a world, if the last one has ended and all its remaining members have joined."""
        left = [name for name in self._members if name in self._workers]
        if not self._is_over or not self._joined or not set(left) <= self._joined:
            return
        newcomers = sorted(self._joined - set(left))
        unwanted = self._leaving | set(newcomers if self._is_done else ())
        members = [name for name in [*left, *newcomers] if name not in unwanted]
        members.sort(key=lambda name: name not in self._holders)
        self._departed = [f"{name} {self._how(name)}" for name in self._members if name not in self._workers]
        self._members = members
        self._joined.clear()
        self._generation += 1
        self._is_over = False
        self.sizes.append(len(members))
        self._changed.notify_all()


class Worker:
    """One worker: the `Worlds` of its training."""

    def __init__(self, job: Job, name: str) -> None:
        self.job = job
        self.name = name
        self.generation = 0
        self.collectives = 0
        self.rank = self.size = 0
        self.departed: list[str] = []
        self.behind: Counter[str] = Counter()
        self.is_aside = False

    def go_on(self) -> bool:
        """Return True."""
        return True

    def enter(self) -> bool:
        """Only take part again: this worker entered the world before its program began."""
        self.is_aside = False
        return False

    def done(self) -> Counter[str]:
        """Return the number of trainings that this worker has finished."""
        return self.behind

    def step_aside(self) -> None:
        """Make no collectives until the next training."""
        self.is_aside = True

    def enter_next(self) -> None:
        """Wait for the next world."""
        self.job.enter_next(self)

    def inherits(self) -> bool:
        """Return whether others had the state before this worker joined."""
        return self.job.others_have_held(self.name)

    def lost(self) -> list[str]:
        """Return the names of the lost workers of the previous world, each with how it was lost."""
        return self.departed

    def hold_state(self) -> None:
        """Record that this worker has the state."""
        self.job.hold_state(self.name)

    def exchange(self, payload: Any) -> list[Any]:
        """Return the payloads of all ranks."""
        assert not self.is_aside, f"{self.name} makes a collective while the others are elsewhere"
        return self.job.exchange(self, payload)

    def broadcast(self, value: Any) -> Any:
        """Return a copy of rank 0's value."""
        return pickle.loads(self.exchange(pickle.dumps(value))[0])
