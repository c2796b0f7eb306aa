"""Simulated elastic jobs: workers are threads, of which one runs at a time; a random generator chooses which, and the
events.

Everything that is not deterministic in a job is a random choice here: which worker continues, when it learns that its
world has ended, when a notice or an answer of the roster arrives, which worker is killed and when. So one seed is one
course of a job, and can be repeated. The roster's decisions, the session, its notices and its entry into worlds are
real; a fake engine completes a collective when all ranks of the world have begun it.

When a world ends, its ranks learn of it at different times. Meanwhile a collective that all have begun may have a
result for one rank and none for another. While a world is being formed, two ranks detect each other's end only if both
have begun to form it. Others learn of it from the roster, or by their timeout, which occurs when no worker can
continue.
"""

from __future__ import annotations

import pickle
import random
import threading
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from played_engine import Engine, Fabric

from farandole.base.settings.table import Settings
from farandole.base.wire.rendezvous import Accused, Changed, NotWanted, RendezvousError, Revoked, World
from farandole.control.roster.elastic import ElasticState, Limits, decide
from farandole.control.roster.events import (
    Announce,
    Drained,
    Event,
    Evict,
    Evicted,
    Expected,
    Finished,
    HoldOver,
    Joined,
    Left,
    Notify,
    Refuse,
    Revoke,
    Show,
    Suspected,
)
from farandole.worker.core.join import JoinedWorld
from farandole.worker.core.session import Session

MOST_TURNS = 20_000
PATIENCE_SECONDS = 20.0


class Killed(BaseException):
    """Ends a worker as a signal would."""


class Stuck(AssertionError):
    """No worker can continue."""


class Job:
    """The workers, the roster, and the messages in transit.

    Args:
        seed: the seed of all random choices.
        limits: the job's limits.
        program: a function of the worker, which the worker runs.

    Attributes:
        results: the outcomes of the workers' programs, by number.
        killed: the killed workers.
        leaving: workers that were asked to leave, or excluded.
        timeouts: the number of timeouts while forming a world.
    """

    def __init__(self, seed: int, limits: Limits, program: Callable[[Worker], Any], **settings: Any) -> None:
        self.random = random.Random(seed)
        self.program = program
        self.settings = Settings(elastic=True, **settings)
        self.state = ElasticState(limits)
        self.state_held = False
        self.training = 0
        self.workers: list[Worker] = []
        self.worlds: dict[int, Fabric] = {}
        self.results: dict[int, Any] = {}
        self.killed: set[int] = set()
        self.leaving: set[int] = set()
        self.timeouts = 0
        self.story: list[str] = []
        self._on_their_way: list[Callable[[], None]] = []
        self._turns = 0
        self.back = threading.Semaphore(0)

    # --- what the test does ----------------------------------------------------------------------------------------

    def add(self) -> None:
        """Start a worker."""
        worker = Worker(self, len(self.workers))
        self.workers.append(worker)
        self.happens(Expected(worker.number, "here"))
        worker.thread.start()

    def kill(self, number: int) -> None:
        """Kill a worker; the roster learns of it later."""
        worker = self.workers[number]
        if worker.over or worker.killed:
            return
        self.tell(f"worker {number} is killed")
        worker.killed = True
        self.killed.add(number)
        self._is_gone(worker, "was killed", failed=True)

    def drain(self, number: int) -> None:
        """Ask a worker to leave."""
        self.leaving.add(number)
        self.happens(Drained((number,), "the test wants it"))

    def fail(self, number: int) -> None:
        """Have a worker's engine fail; the worker lives."""
        engine = self.workers[number].engine
        if engine is not None:
            self.tell(f"the engine of worker {number} fails")
            engine.fail()

    def evict(self, number: int) -> None:
        """Exclude a worker; it is killed some time later."""
        self.leaving.add(number)
        self.happens(Evicted(number, "the test wants it"))

    def suspect(self, number: int) -> None:
        """Report a worker as silent, although it is healthy."""
        self.leaving.add(number)
        self.happens(Suspected((number,), "is silent"))

    def play(self, chances: Callable[[Job], None]) -> None:
        """Run all workers, in random order, until all have ended; before each turn, an event may happen."""
        while not all(worker.over for worker in self.workers):
            self._turns += 1
            if self._turns > MOST_TURNS:
                raise Stuck(self._picture("the job does not end"))
            chances(self)
            self._one_turn()
        for worker in self.workers:
            worker.thread.join(PATIENCE_SECONDS)

    def living(self) -> list[int]:
        """Return the running workers."""
        return [worker.number for worker in self.workers if not (worker.over or worker.killed)]

    def tell(self, what: str) -> None:
        """Add an event to the log for people."""
        self.story.append(what)

    # --- turns -------------------------------------------------------------------------------------------------------

    def _one_turn(self) -> None:
        ready = [worker for worker in self.workers if not worker.over and (worker.killed or worker.until())]
        turn = self.random.randrange(len(ready) + len(self._on_their_way)) if ready or self._on_their_way else None
        if turn is None:
            forming = [worker for worker in self.workers if not worker.over and worker.forms()]
            if forming:
                self._run_out_of_time(self.random.choice(forming))
                return
            if not self.state.hold.kind:
                raise Stuck(self._picture("no worker can continue"))
            self.happens(HoldOver(self.state.hold.kind))
        elif turn < len(ready):
            ready[turn].go.release()
            if not self.back.acquire(timeout=PATIENCE_SECONDS):
                raise Stuck(self._picture(f"worker {ready[turn].number} does not come back"))
        else:
            self._on_their_way.pop(turn - len(ready))()

    def _run_out_of_time(self, worker: Worker) -> None:
        self.tell(f"worker {worker.number} has no more time to form its world")
        self.timeouts += 1
        assert worker.engine is not None
        worker.engine.run_out_of_time()

    def later(self, action: Callable[[], None]) -> None:
        """Run an action at a random time."""
        self._on_their_way.append(action)

    def end(self, worker: Worker) -> None:
        """Record that a worker's process has ended."""
        if not worker.killed:
            self._is_gone(worker, "has ended")

    def _is_gone(self, worker: Worker, how: str, *, failed: bool = False) -> None:
        for fabric in self.worlds.values():
            if worker.number in fabric.workers:
                rank = fabric.workers.index(worker.number)
                fabric.end(rank, rank, how)
        self.later(lambda: self.happens(Finished(worker.number, how, failed)))

    def _picture(self, why: str) -> str:
        workers = "\n".join(f"  {worker}" for worker in self.workers if not worker.over)
        return "\n".join([why, workers, f"  the roster {self.state.hold}", *self.story[-60:]])

    # --- the roster --------------------------------------------------------------------------------------------------

    def happens(self, event: Event) -> None:
        """Notify the roster of an event."""
        self.state, actions, reason = decide(self.state, event)
        self.tell(f"roster: {reason}")
        for action in actions:
            self._act(action)

    def _act(self, action: Any) -> None:
        if isinstance(action, Announce):
            self.worlds[action.generation] = Fabric(self, action.generation, action.workers)
            for rank, worker in enumerate(action.workers):
                self._answer(worker, self._world(rank, action))
        elif isinstance(action, Refuse):
            self._answer(
                action.worker, RendezvousError(action.reason) if self.state.ended else NotWanted(action.reason)
            )
        elif isinstance(action, Show):
            members = (*self.state.members, action.worker)
            self._answer(action.worker, _world(0, len(members) - 1, members, training=self.training))
        elif isinstance(action, Notify):
            message = Changed(self.state.generation, action.added, action.removed, action.reason)
            self._notify(action.workers, message)
        elif isinstance(action, Revoke):
            self._notify(action.workers, Revoked(action.generation, action.rank, action.how, action.certain))
        elif isinstance(action, Evict):
            self.leaving.add(action.worker)
            self.later(lambda: self.kill(action.worker))

    def _answer(self, worker: int, answer: Any) -> None:
        def arrive() -> None:
            self.workers[worker].answer = answer

        self.later(arrive)

    def _notify(self, workers: Sequence[int], message: Any) -> None:
        for worker in workers:
            self.later(lambda worker=worker: self.workers[worker].hear(message))  # type: ignore[misc]

    def _world(self, rank: int, action: Announce) -> World:
        lost = tuple(f"rank {each.rank} {each.how}" for each in action.lost)
        state_lost = self.state_held and all(each < 0 for each in action.previous)
        return _world(action.generation, rank, action.workers, action.previous, lost, state_lost)


def _world(
    generation: int,
    rank: int,
    workers: Sequence[int],
    previous: Sequence[int] = (),
    lost: tuple[str, ...] = (),
    state_lost: bool = False,
    training: int = 0,
) -> World:
    size = len(workers)
    return World(
        generation=generation,
        rank=rank,
        size=size,
        contacts=("",) * size,
        local_rank=rank,
        local_size=size,
        cross_rank=0,
        cross_size=1,
        hostnames=("here",) * size,
        workers=tuple(workers),
        previous=tuple(previous),
        lost=lost,
        state_lost=state_lost,
        training=training,
    )


class Roster:
    """A simulated connection of a worker to the roster."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def join(self, contact: str, timeout: float | None, *, accused: Sequence[Any], **how: Any) -> World:
        """Wait for the next world."""
        worker = self._worker
        worker.pause()
        worker.answer = None
        accusations = tuple(Accused(each.rank, each.how, each.certain, each.forming) for each in accused)
        worker.job.happens(Joined(worker.number, contact, accused=accusations, **how))
        worker.pause(lambda: worker.answer is not None, "join")
        if isinstance(worker.answer, Exception):
            raise worker.answer
        assert isinstance(worker.answer, World)
        return worker.answer

    def listen(self, heard: Callable[[Any], None]) -> None:
        """Receive notices of changes from now on."""
        self._worker.hear = heard  # type: ignore[method-assign]

    def report_state(self, training: int = 0) -> None:
        """Record that this worker has the state."""
        job = self._worker.job
        job.state_held, job.training = True, max(job.training, training)

    def leave(self, generation: int) -> None:
        """Leave gracefully."""
        self._worker.job.happens(Left(self._worker.number, generation))

    def close(self) -> None:
        """Do nothing."""


class PlayedSession(Session):
    """A session whose engine and roster are simulated."""

    engine: Any

    def __init__(self, worker: Worker) -> None:
        roster: Any = Roster(worker)
        engine: Any = Engine(worker)
        worker.engine = engine
        super().__init__(worker.job.settings, engine, JoinedWorld(_world(0, 0, (worker.number,)), roster, None))
        assert self.notices is not None
        self._enter_first(self.notices)

    def exchange(self, name: str, payload: bytes) -> list[bytes]:
        """Return every rank's payload, in rank order."""
        everyone: list[bytes] = self.engine.collective(name, payload)
        return everyone

    def exchange_values(self, name: str, value: Any) -> list[Any]:
        """Return every rank's value."""
        return [pickle.loads(each) for each in self.exchange(name, pickle.dumps(value))]


class Worker:
    """One worker: a thread that runs when it is its turn."""

    def __init__(self, job: Job, number: int) -> None:
        self.job = job
        self.number = number
        self.session: PlayedSession | None = None
        self.engine: Engine | None = None
        self.answer: Any = None
        self.killed = False
        self.over = False
        self.go = threading.Semaphore(0)
        self.until: Callable[[], bool] = lambda: True
        self._waits_for = ""
        self.thread = threading.Thread(target=self._run, name=f"worker {number}", daemon=True)

    def __str__(self) -> str:
        world = None if self.session is None else self.session.world
        where = "nowhere" if world is None else f"rank {world.rank} of {world.workers} in {world.generation}"
        return f"worker {self.number}, {where}, waits for {self._waits_for}; killed: {self.killed}"

    def pause(self, until: Callable[[], bool] = lambda: True, what: str = "its turn") -> None:
        """Let others run, until this worker can continue and it is its turn."""
        self.until, self._waits_for = until, what
        self.job.back.release()
        self.go.acquire()
        if self.killed:
            raise Killed

    def forms(self) -> bool:
        """Return whether the worker is about to form a world."""
        return self.engine is not None and self.engine.forming

    def hear(self, message: Any) -> None:
        """Ignore messages before the worker listens."""

    def _run(self) -> None:
        self.go.acquire()
        on_this_thread.worker = self
        try:
            if not self.killed:
                self.session = PlayedSession(self)
                self.job.results[self.number] = self.job.program(self)
                self.session.close()
        except BaseException as error:
            self.job.results[self.number] = error
        self.over = True
        self.job.end(self)
        self.job.back.release()


on_this_thread = threading.local()


def _current() -> PlayedSession:
    session = on_this_thread.worker.session
    assert session is not None
    return session


def _reform(why: str, open: bool) -> None:
    session = _current()
    session.enter_next(session.abandon_world(why), open=open)


# In the place of `farandole.worker.core.basics`, for a session in each thread.
basics = SimpleNamespace(current=_current, reform=_reform, rank=lambda: _current().world.rank, session_if_any=_current)
